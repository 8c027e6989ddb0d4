"""The error histogram: how often which error occurs, on a logarithmic axis, against the source's distribution."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.theme import Theme
from core.units import format_count, format_number

if TYPE_CHECKING:
    import pyqtgraph

_LOOKS = ((0, "solid"), (1, "dash"), (2, "dot"), (3, "dashdot"))  # (series colour, dash) of the first errors


@dataclass(frozen=True)
class HistogramSeries:
    """Counts between edges (len(edges) = len(counts) + 1). source: the weights themselves, drawn muted.

    detail: what stands behind the label, such as 'SNR 20.6 dB'. nonfinite: values that are in no bin.
    values: how many there are, where only some rows are counted.
    """

    label: str
    edges: Sequence[float]
    counts: Sequence[int]
    detail: str = ""
    nonfinite: int = 0
    source: bool = False
    values: int = 0

    @property
    def name(self) -> str:
        return f"{self.label}: {self.detail}" if self.detail else self.label


class ErrorHistogram(PlotPanel):
    """`set_series(title, series)` shows one or two errors and, if given, the source; `clear(text)` shows a sentence."""

    x_title = "Quantized − source, weight units"
    y_title = "Density (log)"

    def __init__(self, name: str = "Error", empty: str = "", parent: QWidget | None = None) -> None:
        self._curves: list[_Curve] = []
        self._shrink = 1.0  # the source is drawn at this share of its values, so that it is as wide as the errors
        self._top_styled: Theme | None = None
        super().__init__(name, empty or "No data yet: choose a tensor to see its error.", parent)

    def clear(self, text: str = "") -> None:
        self._curves = []
        super().clear(text)

    def set_series(self, title: str, series: Sequence[HistogramSeries]) -> None:
        """title names the tensor: 'Error of layers.0.mlp.down_proj'. Series without a single value are left out."""
        looks = iter(_LOOKS)
        beside = {one.source for one in series if any(one.counts)} == {True, False}
        self._curves = []
        for one in series:
            if any(one.counts):
                name = f"{one.name} (top axis)" if beside and one.source else one.name
                number, dash = (-1, "dot") if one.source else next(looks)
                self._curves.append(_Curve(one, LegendItem(name, number, dash, fill=not one.source)))
        exact = any(not one.source for one in series) and all(curve.series.source for curve in self._curves)
        if not self._curves or exact:
            self.clear("Nothing to draw: every value is reproduced exactly." if exact else "")
            return
        self.redraw(title, [curve.look for curve in self._curves], _note(series))

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        plot.setLogMode(x=False, y=True)
        plot.getAxis("left").enableAutoSIPrefix(False)  # the tick labels are powers of ten themselves
        floor = min(curve.smallest for curve in self._curves) / 2
        top = max(curve.largest for curve in self._curves)
        reach = self._fit_source()
        self._show_top_axis(plot, theme)
        for curve in sorted(self._curves, key=lambda c: not c.series.source):
            color = curve.look.color(theme)
            pen = QPen(color, 2 if not curve.series.source else 1.5, DASHES[curve.look.dash])
            pen.setCosmetic(True)
            options: dict[str, Any] = {}
            if curve.look.fill:
                veil = type(color)(color)
                veil.setAlphaF(0.25)
                options = {"fillLevel": np.log10(floor), "brush": veil}
            heights = np.maximum(curve.density, floor)
            places = curve.edges * (self._shrink if curve.series.source else 1.0)
            plot.plot(places, heights, stepMode="center", pen=pen, **options)
        plot.setLimits(yMin=np.log10(floor) - 2, yMax=np.log10(top) + 3)
        plot.setXRange(-reach, reach, padding=0.03)
        plot.setYRange(np.log10(floor), np.log10(top), padding=0.05)

    def read_out(self, x: float) -> str:
        parts = []
        for curve in self._curves:
            found = curve.at(x / self._shrink if curve.series.source else x)
            if found is not None:
                left, right, count, density = found
                where = f"in {format_number(left)} … {format_number(right)}"
                parts.append(
                    f"{curve.series.label}: {format_count(count)} values {where}, density {format_number(density)}"
                )
        return " · ".join(parts) if parts else f"No values at {format_number(x)}"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        rows: list[tuple[Any, ...]] = []
        for curve in self._curves:
            edges, counts, densities = curve.all_bins()
            rows += [
                (curve.series.label, float(a), float(b), int(c), float(d))
                for a, b, c, d in zip(edges[:-1], edges[1:], counts, densities, strict=True)
            ]
        return ("series", "from", "to", "count", "density"), rows

    def describe(self) -> str:
        parts = []
        for curve in self._curves:
            kind = "weights" if curve.series.source else "errors"
            low, high = curve.edges[0], curve.edges[-1]
            parts.append(
                f"{curve.series.name}, {format_count(curve.values)} {kind} between {format_number(low)} and "
                f"{format_number(high)}."
            )
        return " ".join(parts)

    def _fit_source(self) -> float:
        """Half the width of the view: as far as the errors reach, and the source shrunk to the same width."""
        errors = [curve.reach for curve in self._curves if not curve.series.source]
        sources = [curve.reach for curve in self._curves if curve.series.source]
        self._shrink = max(errors) / max(sources) if errors and sources else 1.0
        return max(errors or sources)

    def _show_top_axis(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        """The source's own scale, only where a source is drawn beside errors."""
        beside = len({curve.series.source for curve in self._curves}) == 2
        plot.showAxis("top", beside)
        if beside:
            axis = plot.getAxis("top")
            if self._top_styled is not theme:
                self._top_styled = theme
                self.style_axis(axis, "", theme)  # the legend says what it is for: there is little height
                axis.setGrid(False)
            axis.setScale(1.0 / self._shrink)


def _note(series: Sequence[HistogramSeries]) -> str:
    lost = max(one.nonfinite for one in series)
    if lost:
        return f"{format_count(lost)} values are not finite (NaN or Inf) and are in no bin."
    for one in series:
        if (counted := sum(one.counts)) < one.values:
            return f"Drawn from {format_count(counted)} of {format_count(one.values)} values; SNR is of all."
    return ""


class _Curve:
    """A histogram without its empty bins at both ends, as density."""

    def __init__(self, series: HistogramSeries, look: LegendItem) -> None:
        self.series, self.look = series, look
        edges, counts = np.asarray(series.edges, float), np.asarray(series.counts, np.int64)
        filled = np.flatnonzero(counts)
        first, last = int(filled[0]), int(filled[-1])
        self.edges, self.counts = edges[first : last + 2], counts[first : last + 1]
        self.values = int(counts.sum())
        self.density = self.counts / (self.values * np.diff(self.edges))
        positive = self.density[self.density > 0]
        self.smallest, self.largest = float(positive.min()), float(positive.max())
        self.reach = float(np.abs(self.edges[[0, -1]]).max())

    def at(self, x: float) -> tuple[float, float, int, float] | None:
        """Edges, count and density of the bin at x."""
        place = int(np.searchsorted(self.edges, x, side="right")) - 1
        if not 0 <= place < len(self.counts):
            return None
        return (
            float(self.edges[place]),
            float(self.edges[place + 1]),
            int(self.counts[place]),
            float(self.density[place]),
        )

    def all_bins(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every bin as it was given, the empty ones included: edges, counts, densities."""
        edges, counts = np.asarray(self.series.edges, float), np.asarray(self.series.counts, np.int64)
        return edges, counts, counts / (self.values * np.diff(edges))
