"""The window goes first: while it is busy, background work holds at its next check.

Python runs one thread at a time. A picture takes the interpreter anew after nearly every call into Qt, a hundred times,
and would wait for each worker that has it meanwhile; work on thousands of tiny tensors has it nearly always.
"""

from __future__ import annotations

import time

from core.progress import CancelToken

LONGEST = 0.050  # seconds that work is held for one thing the window does: a dialog may take minutes
STEP = 0.001  # seconds between two looks


class Precedence:
    """The GUI thread does `with` it what shall not be disturbed; may be nested."""

    def __init__(self) -> None:
        self._until = 0.0
        self._depth = 0

    def __enter__(self) -> None:
        if not self._depth:
            self._until = time.monotonic() + LONGEST
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._until = 0.0

    def wait(self) -> None:
        """On a worker: return once the window is done, or has had its time."""
        while time.monotonic() < self._until:
            time.sleep(STEP)


window_first = Precedence()  # a program has one GUI thread


class JobToken(CancelToken):
    """`check` gives way to the window, too."""

    def check(self) -> None:
        window_first.wait()
        super().check()
