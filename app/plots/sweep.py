"""Latency, speed-up and rates over the batch size, 16 bits against quantized."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import Qt
from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.ticks import set_plain_ticks
from app.theme import CAPTION, Theme, ui_font
from core.runtime.sweep import BATCHES, COLUMNS, Sweep, SweepPoint, sweep_rows
from core.units import format_duration

if TYPE_CHECKING:
    import pyqtgraph

MILLI, GIGA = 1e-3, 1e9
LOOKS = ((0, "solid", "o"), (1, "dash", "s"))  # (series colour, dash, symbol): 16 bits, quantized


@dataclass(frozen=True)
class Quantity:
    """What the vertical axis shows. value: of one point; None: the ratio of both sides."""

    key: str
    title: str
    axis: str
    value: Callable[[SweepPoint], float] | None
    logarithmic: bool = False


QUANTITIES = (
    Quantity("speedup", "Speed-up", "16-bit ÷ quantized time", None),
    Quantity("latency", "Latency", "Time, ms (log)", lambda p: p.seconds / MILLI, logarithmic=True),
    Quantity("bandwidth", "Bytes a second", "GB/s", lambda p: p.bandwidth / GIGA),
    Quantity("rate", "Operations a second", "GFLOP/s", lambda p: p.rate / GIGA),
)


class SweepPlot(PlotPanel):
    """`show_sweep(sweep, key)` draws one quantity of a sweep; the batch where compression stops helping is marked."""

    x_title = "Batch (log2)"

    def __init__(self, parent: QWidget | None = None) -> None:
        self._sweep: Sweep | None = None
        self._quantity = QUANTITIES[0]
        super().__init__("Speed over the batch", "No data yet: run a sweep to see it.", parent)

    def clear(self, text: str = "") -> None:
        self._sweep = None
        super().clear(text)

    def show_sweep(self, sweep: Sweep, key: str) -> None:
        """Points may still be coming in; a quantity without a point shows the sentence for no data."""
        self._quantity = next(q for q in QUANTITIES if q.key == key)
        self.y_title = self._quantity.axis
        self._sweep = sweep
        lines = self._lines()
        if not any(points for _, points in lines):
            self.clear("Measuring the first batch…" if not sweep.points else "Both sides are needed for a ratio.")
            return
        legend = [
            LegendItem(name, *LOOKS[number][:2])
            for number, (name, points) in zip(self._numbers(), lines, strict=True)
            if points
        ]
        if self._mark is not None:
            legend.append(LegendItem(f"no faster from batch {self._mark}", -1, "dot"))
        self.redraw(f"{self._quantity.title}: {sweep.title}", legend)

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        assert self._sweep is not None
        log = self._quantity.logarithmic
        plot.setLogMode(x=False, y=log)
        left = plot.getAxis("left")
        left.enableAutoSIPrefix(False)
        batches = sorted({p.batch for p in self._sweep.points} if self._sweep.traffic else BATCHES)
        plot.getAxis("bottom").setTicks([[(math.log2(b), str(b)) for b in batches]])
        for number, (_, points) in zip(self._numbers(), self._lines(), strict=True):
            series, dash, symbol = LOOKS[number]
            color = theme.series_color(series)
            pen = QPen(color, 2, DASHES[dash])
            pen.setCosmetic(True)
            plot.plot(
                [math.log2(batch) for batch, _ in points],
                [value for _, value in points],
                pen=pen,
                symbol=symbol,
                symbolSize=7,
                symbolBrush=color,
                symbolPen=theme.color("surface"),
            )
        if self._quantity.value is None:
            level = QPen(theme.color("muted"), 1, Qt.PenStyle.DashLine)
            level.setCosmetic(True)
            plot.addItem(pyqtgraph.InfiniteLine(1.0, angle=0, pen=level), ignoreBounds=True)
        if self._mark is not None:
            mark = QPen(theme.color("muted"), 1.5, DASHES["dot"])
            mark.setCosmetic(True)
            plot.addItem(pyqtgraph.InfiniteLine(math.log2(self._mark), angle=90, pen=mark))
        plot.setXRange(math.log2(batches[0]), max(math.log2(batches[-1]), 1.0), padding=0.05)
        self._fit_height(plot, log)

    @property
    def _mark(self) -> int | None:
        """The batch where compression stops helping; not before all are measured."""
        return self._sweep.crossover if self._sweep is not None and self._sweep.traffic else None

    def _fit_height(self, plot: pyqtgraph.PlotWidget, log: bool) -> None:
        values = [value for _, points in self._lines() for _, value in points]
        low, high = min(values), max(values)
        if self._quantity.value is None:
            low, high = min(low, 1.0), max(high, 1.0)
        if log:
            plot.setYRange(math.log10(low), math.log10(high), padding=0.12)
            set_plain_ticks(plot.getAxis("left"), low, high)
        else:
            plot.setYRange(0.0, 1.12 * high, padding=0)
            plot.getAxis("left").setTicks(None)

    def _numbers(self) -> Sequence[int]:
        return (1,) if self._quantity.value is None else (0, 1)

    def _lines(self) -> list[tuple[str, list[tuple[int, float]]]]:
        """(name, points) of each line."""
        sweep, value = self._sweep, self._quantity.value
        if sweep is None:
            return []
        if value is None:
            return [(f"{sweep.names[1]} against {sweep.names[0]}", sweep.speedups)]
        return [(sweep.names[n], [(p.batch, value(p)) for p in sweep.side(n)]) for n in (0, 1)]

    def read_out(self, x: float) -> str:
        """All that is known of the batch nearest to x, which is a power of two."""
        if self._sweep is None or not self._sweep.points:
            return ""
        batch = min({p.batch for p in self._sweep.points}, key=lambda b: abs(math.log2(b) - x))
        parts = [f"batch {batch}"]
        for number in (0, 1):
            point = next((p for p in self._sweep.side(number) if p.batch == batch), None)
            if point is not None:
                parts.append(f"{self._sweep.names[number]} {format_duration(point.seconds)}")
        ratio = dict(self._sweep.speedups).get(batch)
        return " · ".join([*parts, f"{ratio:.2f} ×"] if ratio is not None else parts)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        if self._sweep is None:
            return COLUMNS, ()
        return COLUMNS, [["" if v is None else v for v in row.values()] for row in sweep_rows(self._sweep)]

    def describe(self) -> str:
        if self._sweep is None:
            return ""
        ratios = ", ".join(f"{ratio:.2f} × at batch {batch}" for batch, ratio in self._sweep.speedups)
        words = (
            f"Speed-up of {self._sweep.names[1]} against {self._sweep.names[0]}: {ratios or 'not known yet, 0 points'}."
        )
        if self._mark is not None:
            words += f" Compression stops helping at batch {self._mark}."
        return words


def mark_text(
    plot: pyqtgraph.PlotWidget, text: str, x: float, y: float, theme: Theme, anchor: tuple[float, float]
) -> None:
    """A small text on a plot, in view coordinates; lines do not run through it."""
    import pyqtgraph

    item = pyqtgraph.TextItem(text, color=theme.muted, anchor=anchor, fill=theme.color("surface"))
    item.setFont(ui_font(CAPTION))
    item.setPos(x, y)
    item.setZValue(10)
    plot.addItem(item, ignoreBounds=True)
