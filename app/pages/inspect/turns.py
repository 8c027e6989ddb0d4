"""Work that takes more than a frame, a piece in each turn of the event loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from PySide6.QtCore import QObject, QTimer

from app.jobs.precedence import window_first
from app.plots.panel import PlotPanel


class Turns(QObject):
    """One step a turn. `do(steps)` forgets what is left of those before, `add` comes after it."""

    def __init__(self, parent: QObject) -> None:
        super().__init__(parent)
        self._steps: list[Callable[[], object]] = []
        self._timer = QTimer(self, singleShot=True, interval=1)  # with 0 it would be the same turn
        self._timer.timeout.connect(self._next)

    @property
    def busy(self) -> bool:
        return bool(self._steps)

    def do(self, steps: Sequence[Callable[[], object]]) -> None:
        self._steps = list(steps)
        self._timer.start()

    def add(self, *steps: Callable[[], object]) -> None:
        """What waits already is not done twice."""
        self._steps += [step for step in dict.fromkeys(steps) if step not in self._steps]
        self._timer.start()

    def stop(self) -> None:
        self._steps = []

    def prepare(self, plots: Sequence[PlotPanel]) -> None:
        """Make plots ahead of their first data: each takes a few frames' time to make and to paint first."""
        self.do([step for plot in plots for step in (plot.prepare, plot.prepare)])

    def _next(self) -> None:
        if self._steps:
            with window_first:
                self._steps.pop(0)()
        if self._steps:
            self._timer.start()
