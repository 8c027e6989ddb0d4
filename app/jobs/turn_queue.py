"""Work of the GUI thread that can wait for its turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import shiboken6
from PySide6.QtCore import QObject, QTimer

from app.jobs.precedence import window_first


class TurnQueue(QObject):
    """Does what it is asked for in turns of the event loop of its own, one thing a turn, in order.

    Timers that are due together, and the painting that follows them, would otherwise all come in one turn: each is
    short enough, and their sum is not.
    """

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._waiting: dict[Hashable, Callable[[], object]] = {}
        self._timer = QTimer(self, interval=0)
        self._timer.timeout.connect(self._next)

    def ask(self, key: Hashable, do: Callable[[], object]) -> None:
        """Call `do` soon. What waits under the same key gives it its place; a QObject's method is dropped with it."""
        self._waiting[key] = do
        if not self._timer.isActive():
            self._timer.start()

    def _next(self) -> None:
        key = next(iter(self._waiting), None)
        do = self._waiting.pop(key, None)
        if not self._waiting:
            self._timer.stop()
        receiver = getattr(do, "__self__", None)
        if do is not None and not (isinstance(receiver, QObject) and not shiboken6.isValid(receiver)):
            with window_first:
                do()
