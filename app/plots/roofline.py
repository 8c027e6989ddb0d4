"""The roofline: how many operations a second each batch reached, under what memory and arithmetic allow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.sweep import GIGA, LOOKS, mark_text
from app.plots.ticks import set_plain_ticks
from app.theme import Theme
from core.runtime.sweep import Sweep, SweepPoint
from core.units import format_number, format_rate

if TYPE_CHECKING:
    import pyqtgraph


class RooflinePlot(PlotPanel):
    """`show_sweep(sweep)`: one mark a batch and side; the roof is the measured bandwidth and the highest known rate."""

    x_title = "Operations for each byte read (log)"
    y_title = "GFLOP/s (log)"

    def __init__(self, parent: QWidget | None = None) -> None:
        self._sweep: Sweep | None = None
        super().__init__("Roofline", "No data yet: run a sweep to see how near each batch comes to the roof.", parent)

    def clear(self, text: str = "") -> None:
        self._sweep = None
        super().clear(text)

    def show_sweep(self, sweep: Sweep) -> None:
        """Draw all points; without a measured bandwidth there is no roof to draw."""
        self._sweep = sweep
        if not sweep.points:
            self.clear("Measuring the first batch…")
            return
        legend = [LegendItem(sweep.names[n], *LOOKS[n][:2]) for n in (0, 1) if sweep.side(n)]
        if sweep.bandwidth:
            legend.append(LegendItem("roof", -1, "solid"))
        self.redraw(f"Roofline: {sweep.title}", legend)

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        sweep = self._sweep
        assert sweep is not None
        plot.setLogMode(x=True, y=True)
        for side in ("left", "bottom"):
            axis = plot.getAxis(side)
            axis.enableAutoSIPrefix(False)
        points = sweep.points
        left, right = min(p.intensity for p in points) / 2, max(p.intensity for p in points) * 2
        low, high = min(p.rate for p in points), max(p.rate for p in points)
        if sweep.bandwidth:
            places = np.geomspace(left, right, 200)
            roof = np.minimum(sweep.bandwidth * places, sweep.peak or np.inf)
            pen = QPen(theme.color("muted"), 1.5)
            pen.setCosmetic(True)
            plot.plot(places, roof / GIGA, pen=pen)
            high = max(high, float(roof.max()))
            low = min(low, float(roof.min()))
        for number in (0, 1):
            line = sweep.side(number)
            if not line:
                continue
            series, dash, symbol = LOOKS[number]
            color = theme.series_color(series)
            pen = QPen(color, 1.5, DASHES[dash])
            pen.setCosmetic(True)
            plot.plot(
                [p.intensity for p in line], [p.rate / GIGA for p in line], pen=pen, symbol=symbol, symbolSize=7,
                symbolBrush=color, symbolPen=theme.color("surface"),
            )  # fmt: skip
            for point in (line[0], line[-1]) if len(line) > 1 else line:
                x, y = math.log10(point.intensity), math.log10(point.rate / GIGA)
                mark_text(plot, f"{point.batch}", x, y, theme, (0.5, -0.1) if number else (0.5, 1.1))
        set_plain_ticks(plot.getAxis("bottom"), left, right)
        set_plain_ticks(plot.getAxis("left"), low / GIGA, high / GIGA)
        plot.setXRange(math.log10(left), math.log10(right), padding=0.02)
        plot.setYRange(math.log10(low / GIGA), math.log10(high / GIGA) + 0.2, padding=0.1)

    def read_out(self, x: float) -> str:
        if self._sweep is None or not self._sweep.points:
            return ""
        nearest = min(self._sweep.points, key=lambda p: abs(math.log10(p.intensity) - x))
        return self._words(nearest)

    def _words(self, p: SweepPoint) -> str:
        assert self._sweep is not None
        where = f"{self._sweep.names[p.side]}, batch {p.batch}"
        words = f"{where}: {format_number(p.rate / GIGA, 3)} GFLOP/s at {format_number(p.intensity, 3)} FLOP a byte"
        roof = self._roof(p)
        return f"{words}, {p.rate / roof:.2f} of the roof" if roof else words

    def _roof(self, p: SweepPoint) -> float:
        return (self._sweep.roof(p) if self._sweep is not None else None) or 0.0

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        columns = ("side", "batch", "flop_per_byte", "flop_per_s", "roof_flop_per_s")
        if self._sweep is None:
            return columns, ()
        ordered = [p for n in (0, 1) for p in self._sweep.side(n)]
        return columns, [
            (self._sweep.names[p.side], p.batch, float(p.intensity), float(p.rate), float(self._roof(p)))
            for p in ordered
        ]

    def describe(self) -> str:
        if self._sweep is None:
            return ""
        words = [self._words(p) for n in (0, 1) for p in self._sweep.side(n)[:1]]
        if self._sweep.bandwidth:
            words.insert(0, f"Memory is read at {format_rate(self._sweep.bandwidth)}")
        return ". ".join(words) + "."
