"""How soon a cancelled job ends, told so that a busy machine does not matter."""

from __future__ import annotations

import time
from collections.abc import Callable

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
