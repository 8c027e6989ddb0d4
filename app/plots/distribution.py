"""How often which magnitude occurs, on logarithmic axes, with the levels that a format has drawn into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.ticks import powers_of_ten, set_plain_ticks
from app.theme import Theme
from core.units import format_count, format_number, format_percent

if TYPE_CHECKING:
    import pyqtgraph

_LEVELS_SHARE = 0.16  # of the height, below the counts, for the levels
_LEFT_OUT = 5e-4  # share of the values, the smallest, that the picture does without


@dataclass(frozen=True)
class Levels:
    """Values that a format can take under one scale. levels: their magnitudes; used: whether a value goes there.

    label: in the legend; hint: its tooltip.
    """

    label: str
    levels: np.ndarray
    used: np.ndarray
    hint: str = ""


@dataclass(frozen=True)
class Distribution:
    """edges: float64 [n + 1], rising, > 0; before, after: int64 [n], how many |w| are in each bin. zeros: how many
    are 0.

    after and zeros_after: of the same values once quantized, None without. sampled: share of the tensor's values that
    `after` is of; it is drawn scaled up to all of them.
    """

    title: str
    edges: np.ndarray
    before: np.ndarray
    zeros: int = 0
    nonfinite: int = 0
    after: np.ndarray | None = None
    after_name: str = ""
    zeros_after: int = 0
    sampled: float = 1.0
    levels: tuple[Levels, ...] = ()


class DistributionPlot(PlotPanel):
    """`show_distribution` draws; the levels stand below the counts, those that no value goes to in grey."""

    x_title = "|w|, weight units (log)"
    y_title = "Values (log)"

    def __init__(self, name: str = "Distribution", parent: QWidget | None = None) -> None:
        self._shown: Distribution | None = None
        super().__init__(name, "No data yet: choose a tensor to see its distribution.", parent)

    def clear(self, text: str = "") -> None:
        self._shown = None
        super().clear(text)

    def show_distribution(self, shown: Distribution) -> None:
        if not shown.before.any():
            self.clear("Nothing to draw: every finite value is 0.")
            return
        self._shown = shown
        self.redraw(shown.title, self._legend_of(shown), self._note_of(shown))

    @staticmethod
    def _legend_of(shown: Distribution) -> list[LegendItem]:
        items = [LegendItem("weights", 0, fill=True)]
        if shown.after is not None:
            items.append(LegendItem(f"after {shown.after_name}", 1, "dash"))
        return items + [LegendItem(one.label, 2 + n, hint=one.hint) for n, one in enumerate(shown.levels)]

    @staticmethod
    def _note_of(shown: Distribution) -> str:
        parts = []
        if shown.nonfinite:
            parts.append(f"{format_count(shown.nonfinite)} values are not finite (NaN or Inf) and are in no bin.")
        return " ".join(parts)

    def _range(self) -> tuple[int, int]:
        """First and last bin worth showing."""
        shown = self._shown
        assert shown is not None
        first = int(np.searchsorted(np.cumsum(shown.before), shown.before.sum() * _LEFT_OUT))
        last = int(np.flatnonzero(shown.before)[-1])
        if shown.after is not None and shown.after.any():
            last = max(last, int(np.flatnonzero(shown.after)[-1]))
        return first, last

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        shown = self._shown
        assert shown is not None
        first, last = self._range()
        plot.setLogMode(x=False, y=False)  # everything below is in logarithms already
        left, bottom = plot.getAxis("left"), plot.getAxis("bottom")
        for axis in (left, bottom):
            axis.enableAutoSIPrefix(False)
        left.setTicks(None)
        edges = np.log10(shown.edges[first : last + 2])
        top = np.log10(max(1.0, float(shown.before.max())))
        self._step(plot, theme, edges, shown.before[first : last + 1], 0, "solid", fill=True)
        if shown.after is not None:
            counts = shown.after[first : last + 1] / max(shown.sampled, 1e-12)
            self._step(plot, theme, edges, counts, 1, "dash", fill=False)
        depth = top * _LEVELS_SHARE * max(1, len(shown.levels)) if shown.levels else 0.0
        for number, one in enumerate(shown.levels):
            band = depth / len(shown.levels)
            self._draw_levels(plot, theme, one, -band * (number + 1), -band * number, 2 + number, edges)
        plot.setLimits(xMin=edges[0] - 1, xMax=edges[-1] + 1, yMin=-depth - 1, yMax=top + 2)
        plot.setXRange(float(edges[0]), float(edges[-1]), padding=0.02)
        plot.setYRange(-depth, top, padding=0.04)
        self._set_count_ticks(left, top)
        set_plain_ticks(bottom, 10 ** float(edges[0]), 10 ** float(edges[-1]))

    @staticmethod
    def _set_count_ticks(axis: pyqtgraph.AxisItem, top: float) -> None:
        every = 1 if top < 5 else 2
        powers = [float(p) for p in range(0, int(top) + 1, every)]
        axis.setTicks([list(zip(powers, powers_of_ten(powers, 1.0, 1.0), strict=True))])

    @staticmethod
    def _step(
        plot: pyqtgraph.PlotWidget,
        theme: Theme,
        edges: np.ndarray,
        counts: np.ndarray,
        series: int,
        dash: str,
        *,
        fill: bool,
    ) -> None:
        color = theme.series_color(series)
        pen = QPen(color, 2, DASHES[dash])
        pen.setCosmetic(True)
        options: dict[str, Any] = {}
        if fill:
            veil = type(color)(color)
            veil.setAlphaF(0.25)
            options = {"fillLevel": 0.0, "brush": veil}
        heights = np.log10(np.maximum(counts, 1))
        plot.plot(edges, heights, stepMode="center", pen=pen, **options)

    @staticmethod
    def _draw_levels(
        plot: pyqtgraph.PlotWidget, theme: Theme, one: Levels, low: float, high: float, series: int, edges: np.ndarray
    ) -> None:
        """A tick for each level above 0: long where values go, short and grey where none does."""
        inside = one.levels > 10 ** edges[0]
        for used in (False, True):
            places = np.log10(one.levels[inside & (one.used == used)])
            if not places.size:
                continue
            gap = (high - low) * 0.12
            start = low + gap if used else low + (high - low) * 0.55
            xs = np.repeat(places, 2)
            ys = np.tile([start, high - gap], len(places))
            pen = QPen(theme.series_color(series) if used else theme.color("muted"), 1)
            pen.setCosmetic(True)
            plot.plot(xs, ys, connect="pairs", pen=pen)

    def read_out(self, x: float) -> str:
        shown = self._shown
        if shown is None:
            return ""
        place = int(np.searchsorted(shown.edges, 10**x, side="right")) - 1
        if not 0 <= place < len(shown.before):
            return f"No values at {format_number(10**x)}"
        where = f"{format_number(shown.edges[place])} … {format_number(shown.edges[place + 1])}"
        parts = [f"|w| in {where}: {format_count(int(shown.before[place]))} values"]
        if shown.after is not None:
            after = round(int(shown.after[place]) / max(shown.sampled, 1e-12))
            parts.append(f"{'about ' if shown.sampled < 1 else ''}{format_count(after)} after {shown.after_name}")
        for one in shown.levels:
            inside = (one.levels >= shown.edges[place]) & (one.levels < shown.edges[place + 1])
            if inside.any():
                parts.append(f"{int(inside.sum())} levels, {int((inside & one.used).sum())} used")
        return " · ".join(parts)

    def read_hint(self) -> str:
        shown = self._shown
        if shown is None:
            return super().read_hint()
        total = int(shown.before.sum()) + shown.zeros
        words = f"Exactly 0: {format_percent(shown.zeros / max(1, total))} of the weights"
        if shown.after is not None:
            seen = max(1, int(shown.after.sum()) + shown.zeros_after)
            words += f", {format_percent(shown.zeros_after / seen)} after {shown.after_name}"
        return words + "."

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        shown = self._shown
        names = ("from", "to", "weights", "after")
        if shown is None:
            return names, ()
        filled = np.flatnonzero(shown.before) if shown.after is None else np.flatnonzero(shown.before + shown.after)
        return names, [
            (
                float(shown.edges[i]),
                float(shown.edges[i + 1]),
                int(shown.before[i]),
                int(shown.after[i]) if shown.after is not None else "",
            )
            for i in range(int(filled[0]), int(filled[-1]) + 1)
        ]

    def describe(self) -> str:
        shown = self._shown
        if shown is None:
            return ""
        first, last = self._range()
        mode = int(np.argmax(shown.before))
        words = (
            f"{format_count(int(shown.before.sum()))} weights with magnitudes from "
            f"{format_number(shown.edges[first])} to "
            f"{format_number(shown.edges[last + 1])}, most of them near {format_number(shown.edges[mode])}. "
            f"{self.read_hint()}"
        )
        for one in shown.levels:
            words += f" {one.label}: {int(one.used.sum())} of {len(one.levels)} are used."
        return words
