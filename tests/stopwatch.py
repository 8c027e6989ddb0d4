"""How long something took, without the time in which this process was not run at all."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Self

BEAT = 0.01  # seconds between two beats
HELD = 0.05  # a longer gap is time that somebody else had the processor


class Stopwatch:
    """`with Stopwatch() as watch: …` and then `watch.seconds`."""

    seconds = 0.0

    def __enter__(self) -> Self:
        self._over = threading.Event()
        self._held = 0.0
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()
        self._start = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took = time.monotonic() - self._start
        self._over.set()
        self._thread.join()
        self.seconds = max(took - self._held, 0.0)

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._over.wait(BEAT):
            now = time.monotonic()
            if now - last > HELD:
                self._held += now - last - BEAT
            last = now
