"""What each size costs in quality: predicted KL over the bytes of the output."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.ticks import set_plain_ticks
from app.theme import Theme
from core.units import format_bytes, format_number

if TYPE_CHECKING:
    import pyqtgraph

MB = 1e6
LINE, RECIPE, LIMIT = (0, "solid"), (1, "dash"), (3, "dot")  # (series colour, dash)
NEAR = 0.15  # of the curve's range: a limit that is farther off would squeeze the curve


@dataclass(frozen=True)
class SizePoint:
    """bytes: of the output. kl: predicted, nats a token."""

    bytes: int
    kl: float


class SizeCurvePlot(PlotPanel):
    """`show_points` draws the curve, `mark` what is chosen on it and what is in force."""

    x_title = "Size, MB"
    y_title = "KL, nats (log)"

    def __init__(self, parent: QWidget | None = None) -> None:
        self._points: tuple[SizePoint, ...] = ()
        self._limit: int | None = None
        self._chosen: int | None = None
        self._in_force: int | None = None
        super().__init__("Predicted KL over size", "No data yet: measure the sensitivities to see it.", parent)

    def clear(self, text: str = "") -> None:
        self._points, self._limit, self._chosen, self._in_force = (), None, None, None
        super().clear(text)

    def show_points(self, points: Sequence[SizePoint], limit: int | None) -> None:
        """points: by rising size. limit: bytes that the device leaves for the file."""
        self._points, self._limit, self._chosen = tuple(points), limit, None
        self._show()

    @property
    def in_force(self) -> int | None:
        """Bytes of the present recipe's output, as last marked."""
        return self._in_force

    def mark(self, chosen: int | None, in_force: int | None) -> None:
        """chosen: number of a point. in_force: bytes of the present recipe's output."""
        if (chosen, in_force) != (self._chosen, self._in_force):
            self._chosen, self._in_force = chosen, in_force
            if self._points:
                self._show()

    def _show(self) -> None:
        legend = [LegendItem("best mix", *LINE)]
        if self._is_near(self._in_force):
            legend.append(LegendItem("recipe in force", *RECIPE))
        if self._is_near(self._limit):
            legend.append(LegendItem("device's limit", *LIMIT))
        exact = sum(p.kl <= 0 for p in self._points)
        note = f"{exact} of {len(self._points)} points change nothing (KL 0) and are not drawn." if exact > 1 else ""
        self.redraw("Predicted KL over size", legend, note)

    def _is_near(self, size: int | None) -> bool:
        if size is None or not self._points:
            return False
        low, high = self._points[0].bytes, self._points[-1].bytes
        room = NEAR * (high - low)
        return low - room <= size <= high + room

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        drawn = [p for p in self._points if p.kl > 0]
        if not drawn:
            return
        plot.setLogMode(x=False, y=True)
        for side in ("left", "bottom"):
            plot.getAxis(side).enableAutoSIPrefix(False)
        color = theme.series_color(LINE[0])
        plot.plot(
            [p.bytes / MB for p in drawn], [p.kl for p in drawn], pen=_pen(color, *LINE), symbol="o", symbolSize=4,
            symbolBrush=color, symbolPen=None,
        )  # fmt: skip
        marks = [(self._in_force, RECIPE), (self._limit, LIMIT)]
        sizes = [p.bytes for p in self._points]
        for size, look in marks:
            if size is not None and self._is_near(size):
                sizes.append(size)
                line = pyqtgraph.InfiniteLine(size / MB, angle=90, pen=_pen(theme.series_color(look[0]), *look))
                plot.addItem(line, ignoreBounds=True)
        chosen = self._points[self._chosen] if self._chosen is not None else None
        if chosen is not None and chosen.kl > 0:
            plot.plot(
                [chosen.bytes / MB], [chosen.kl], pen=None, symbol="o", symbolSize=12, symbolBrush=color,
                symbolPen=theme.color("text"),
            )  # fmt: skip
        low, high = min(p.kl for p in drawn), max(p.kl for p in drawn)
        plot.setXRange(min(sizes) / MB, max(sizes) / MB, padding=0.04)
        plot.setYRange(math.log10(low), math.log10(high) if high > low else math.log10(low) + 1, padding=0.08)
        set_plain_ticks(plot.getAxis("left"), low, high)

    def read_out(self, x: float) -> str:
        """The point nearest in size."""
        if not self._points:
            return ""
        return _words(min(self._points, key=lambda p: abs(p.bytes / MB - x)))

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        return ("bytes", "predicted_kl_nats"), [(p.bytes, float(p.kl)) for p in self._points]

    def describe(self) -> str:
        if not self._points:
            return ""
        words = f"From {_words(self._points[0])} to {_words(self._points[-1])}, {len(self._points)} points."
        if self._chosen is not None:
            words += f" Chosen: {_words(self._points[self._chosen])}."
        if self._in_force is not None:
            words += f" The recipe in force gives {format_bytes(self._in_force)}."
        if self._limit is not None:
            words += f" The device has room for {format_bytes(self._limit)}."
        return words


def _pen(color: Any, _series: int, dash: str) -> QPen:
    pen = QPen(color, 2, DASHES[dash])
    pen.setCosmetic(True)
    return pen


def _words(point: SizePoint) -> str:
    return f"{format_bytes(point.bytes)}, KL {format_number(point.kl, 3)}"
