"""PyTorch is imported ahead, while nobody is at mouse or keyboard.

Its import holds the interpreter for a moment in one piece of native code, which no thread can avoid. In a pause of a
user who looks at what needs it, nobody sees that; at the start of a run the window would stutter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from PySide6.QtCore import QCoreApplication, QEvent, QObject, QTimer

from app.jobs.runner import JobRunner
from core.calibration.loading import load_torch

QUIET_MS = 700  # without input before it begins
_INPUT = frozenset(
    (
        QEvent.Type.KeyPress,
        QEvent.Type.KeyRelease,
        QEvent.Type.MouseMove,
        QEvent.Type.MouseButtonPress,
        QEvent.Type.MouseButtonRelease,
        QEvent.Type.Wheel,
        QEvent.Type.HoverMove,
        QEvent.Type.InputMethod,
    )
)


def import_torch() -> None:
    """The libraries, then the module."""
    load_torch()
    import torch  # noqa: F401 - for whoever imports it next


class Warming(QObject):
    """`ask()` when PyTorch will soon be needed; it is imported once, in the next pause."""

    def __init__(self, jobs: JobRunner, parent: QObject, load: Callable[[], None] = import_torch) -> None:
        super().__init__(parent)
        self._jobs, self._load = jobs, load
        self._asked = load is import_torch and "torch" in sys.modules
        self._timer = QTimer(self, singleShot=True, interval=QUIET_MS)
        self._timer.timeout.connect(self._begin)

    @property
    def waiting(self) -> bool:
        """For a pause."""
        return self._timer.isActive()

    def ask(self) -> None:
        application = QCoreApplication.instance()
        if self._asked or application is None:
            return
        self._asked = True
        application.installEventFilter(self)
        self._timer.start()

    def eventFilter(self, _watched: QObject, event: QEvent) -> bool:
        if event.type() in _INPUT and self._timer.isActive():
            self._timer.start()
        return False

    def _begin(self) -> None:
        application = QCoreApplication.instance()
        if application is not None:
            application.removeEventFilter(self)
        # Where it is missing, the run that needs it says so.
        self._jobs.run("Load PyTorch", lambda _token: self._load(), lambda _none: None, lambda _error: None)
