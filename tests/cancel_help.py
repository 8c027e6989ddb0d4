"""How soon a cancelled job ends, told so that a busy machine does not matter."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable

from core.progress import CancelToken
from core.threads import worker_count

CANCEL_SECONDS = 0.3  # on an idle machine


def most_work() -> float:
    """Processor seconds that all cores together do in CANCEL_SECONDS. Waiting for a core that others use is no work."""
    return CANCEL_SECONDS * worker_count()


class Watch:
    """`press` cancels something; `work` is what this process has done since, in processor seconds of all threads."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self._cancel = cancel
        self._begin: float | None = None

    def press(self) -> None:
        self._begin = time.process_time()
        self._cancel()

    @property
    def work(self) -> float:
        assert self._begin is not None, "nothing was cancelled"
        return time.process_time() - self._begin


class Looks(CancelToken):
    """Counts what a job works between two looks at its token: that is what somebody waits for who cancels."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last, self._place = time.process_time(), "the beginning"
        self.count = 0
        self.longest, self.where = 0.0, ""

    def check(self) -> None:
        self._look()
        super().check()

    @property
    def cancelled(self) -> bool:
        self._look()
        return super().cancelled

    def _look(self) -> None:
        """All threads' processor time counts: pieces that run side by side end together."""
        caller = sys._getframe(2)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        with self._lock:
            now = time.process_time()
            if now - self._last > self.longest:
                self.longest, self.where = now - self._last, f"from {self._place} to {place}"
            self._last, self._place, self.count = now, place, self.count + 1
