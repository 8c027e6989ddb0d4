"""A quantity over a number of tokens, one line for each format of the cache, and marks where lines cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.sweep import mark_text
from app.plots.ticks import set_plain_ticks
from app.theme import Theme
from core.units import format_count

if TYPE_CHECKING:
    import pyqtgraph

SYMBOLS = ("o", "s", "t", "d", "x")
DASH_ORDER = ("solid", "dash", "dashdot", "dot", "solid")
MOST_LINES = len(SYMBOLS)  # more can not be told from each other


@dataclass(frozen=True)
class LengthLine:
    """points: (tokens, value), tokens rising. notes: of each point, what the read-out says. crossing: tokens at which
    it becomes the better one, None: nowhere."""

    name: str
    points: tuple[tuple[int, float], ...]
    notes: tuple[str, ...]
    crossing: int | None = None


class LengthPlot(PlotPanel):
    """`show_lines`; at most MOST_LINES of them are drawn."""

    x_title = "Tokens (log2)"

    def __init__(self, name: str, empty: str, parent: QWidget | None = None) -> None:
        self._lines: tuple[LengthLine, ...] = ()
        self._log = False
        super().__init__(name, empty, parent)

    def clear(self, text: str = "") -> None:
        self._lines = ()
        super().clear(text)

    def show_lines(self, title: str, axis: str, lines: Sequence[LengthLine], *, log: bool, note: str = "") -> None:
        """axis: title of the vertical axis. log: whether it is logarithmic; values that are not above 0 are left out
        then."""
        self._lines, self._log = tuple(lines[:MOST_LINES]), log
        if not any(self._drawn(line) for line in self._lines):
            self.clear("All values are 0: nothing is lost here.")
            return
        self.y_title = axis
        legend = [LegendItem(line.name, n, DASH_ORDER[n]) for n, line in enumerate(self._lines)]
        self.redraw(title, legend, note)

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        plot.setLogMode(x=False, y=self._log)
        plot.getAxis("left").enableAutoSIPrefix(False)
        drawn = [self._drawn(line) for line in self._lines]
        values = [value for points in drawn for _, value in points]
        low, high = min(values), max(values)
        low_end = math.log10(low) if self._log else 0.0
        for number, points in enumerate(drawn):
            color = theme.series_color(number)
            pen = QPen(color, 2, DASHES[DASH_ORDER[number]])
            pen.setCosmetic(True)
            plot.plot(
                [math.log2(tokens) for tokens, _ in points], [value for _, value in points], pen=pen,
                symbol=SYMBOLS[number], symbolSize=7, symbolBrush=color, symbolPen=theme.color("surface"),
            )  # fmt: skip
        lengths = sorted({tokens for line in self._lines for tokens, _ in line.points})
        self._mark_crossings(plot, theme, lengths, low_end)
        axis = plot.getAxis("bottom")
        axis.setTicks([[(math.log2(n), format_count(n)) for n in lengths]])
        axis.setStyle(hideOverlappingLabels=False)  # else the last one is left out, which reaches past the axis's end
        plot.setXRange(math.log2(lengths[0]), max(math.log2(lengths[-1]), math.log2(lengths[0]) + 0.5), padding=0.08)
        if self._log:
            plot.setYRange(math.log10(low), math.log10(high), padding=0.12)
            if high / low < 1e3:
                set_plain_ticks(plot.getAxis("left"), low, high)
            else:
                plot.getAxis("left").setTicks(None)
        else:
            plot.setYRange(0.0, 1.12 * high or 1.0, padding=0)
            plot.getAxis("left").setTicks(None)

    def _mark_crossings(self, plot: pyqtgraph.PlotWidget, theme: Theme, lengths: Sequence[int], height: float) -> None:
        """A line where each crosses, and its words one above the other at the bottom, where falling lines come last."""
        import pyqtgraph

        middle = (math.log2(lengths[0]) + math.log2(lengths[-1])) / 2
        crossed = sorted((line.crossing, n) for n, line in enumerate(self._lines) if line.crossing is not None)
        for row, (crossing, number) in enumerate(crossed):
            x, pen = math.log2(crossing), QPen(theme.series_color(number), 1.5, DASHES["dot"])
            pen.setCosmetic(True)
            plot.addItem(pyqtgraph.InfiniteLine(x, angle=90, pen=pen), ignoreBounds=True)
            text = f"{self._lines[number].name} from {format_count(crossing)}"
            mark_text(plot, text, x, height, theme, (0.0 if x <= middle else 1.0, 1.0 + row))

    def _drawn(self, line: LengthLine) -> list[tuple[int, float]]:
        return [(n, value) for n, value in line.points if math.isfinite(value) and (value > 0 or not self._log)]

    def read_out(self, x: float) -> str:
        lengths = {tokens for line in self._lines for tokens, _ in line.points}
        if not lengths:
            return ""
        nearest = min(lengths, key=lambda n: abs(math.log2(n) - x))
        parts = [f"{format_count(nearest)} tokens"]
        for line in self._lines:
            pairs = zip(line.points, line.notes, strict=True)
            parts += [f"{line.name} {note}" for (tokens, _), note in pairs if tokens == nearest]
        return " · ".join(parts)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        rows = [(line.name, tokens, value) for line in self._lines for tokens, value in line.points]
        return ("format", "tokens", self.y_title), rows

    def describe(self) -> str:
        ends = [f"{line.name} {line.notes[-1]}" for line in self._lines if line.notes]
        crossings = [
            f"{line.name} is the faster one from {format_count(line.crossing)} tokens on."
            for line in self._lines
            if line.crossing is not None
        ]
        return " ".join([f"At the longest: {', '.join(ends)}.", *crossings]) if ends else ""
