"""One group of weights and its grid: each value, the level it falls on, and the error between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QColor, QPen
from PySide6.QtWidgets import QWidget

from app.plots.color_key import ColorKey, ColorKeyItem
from app.plots.colors import ERRORS, WEIGHTS, shades
from app.plots.panel import PlotPanel
from app.plots.series import LegendItem
from app.theme import Theme
from core.units import format_count, format_decibels, format_number

if TYPE_CHECKING:
    import pyqtgraph

MOST_LEVELS = 64  # drawn as lines; more would be a surface
NO_VALUE = -1


class GroupPicture(PlotPanel):
    """Values over their place in the group, on the lines of the grid's levels. `hovered(place)`; −1: none any more."""

    x_title = "Place in the group"
    y_title = "Weight"

    hovered = Signal(int)

    def __init__(self, name: str = "Values on the grid", parent: QWidget | None = None) -> None:
        self._original = self._decoded = self._levels = np.zeros(0)
        self._words: tuple[str, ...] = ()
        self._band: pyqtgraph.LinearRegionItem | None = None
        self._place = NO_VALUE
        super().__init__(name, "No data yet: choose a tensor and a format to see one group.", parent)

    def clear(self, text: str = "") -> None:
        self._original = self._decoded = self._levels = np.zeros(0)
        self._words, self._place = (), NO_VALUE
        super().clear(text)

    def show_group(
        self, title: str, original: np.ndarray, decoded: np.ndarray, levels: np.ndarray, words: Sequence[str]
    ) -> None:
        """original, decoded: float [n]. levels: what the format can store with this group's scale, any order.

        words: for each value the sentence that stands in the read-out.
        """
        self._original, self._decoded = np.asarray(original, float), np.asarray(decoded, float)
        self._levels = np.unique(np.asarray(levels, float))
        self._words = tuple(words)
        self._place = min(self._place, len(self._words) - 1)
        lost = int(np.count_nonzero(~np.isfinite(self._original)))
        legend = [LegendItem("weight", 0), LegendItem("stored", 1, "dash")]
        if self._drawn_levels().size:
            legend.append(LegendItem(f"{len(self._levels)} levels", -1))
        self.redraw(title, legend, f"{format_count(lost)} values are NaN or Inf." if lost else "")

    def highlight(self, place: int) -> None:
        """Mark one value, or none with −1; nothing is emitted."""
        self._place = place
        if not self.has_data:
            return
        if self._band is not None:
            self._band.setVisible(0 <= place < len(self._words))
            self._band.setRegion((place - 0.5, place + 0.5))
        self.readout.setText(self._words[place] if 0 <= place < len(self._words) else self.read_hint())

    def _drawn_levels(self) -> np.ndarray:
        levels = self._levels[np.isfinite(self._levels)]
        return levels if 0 < len(levels) <= MOST_LEVELS else np.zeros(0)

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        plot.showGrid(x=False, y=False)
        for name in ("left", "bottom"):
            plot.getAxis(name).enableAutoSIPrefix(False)
        levels = self._drawn_levels()
        if levels.size:  # one item: as many lines of their own take as many layouts
            ends = np.tile([-0.5, len(self._original) - 0.5], len(levels))
            pairs = np.tile([1, 0], len(levels))
            plot.plot(ends, np.repeat(levels, 2), pen=_pen(theme.color("hairline"), 1), connect=pairs)
        veil = QColor(theme.color("accent"))
        veil.setAlphaF(0.15)
        self._band = pyqtgraph.LinearRegionItem((0, 1), movable=False, brush=veil, pen=_pen(theme.color("accent"), 1))
        self._band.setVisible(False)
        self._band.setZValue(-5)
        plot.addItem(self._band, ignoreBounds=True)
        places = np.arange(len(self._original), dtype=float)
        kept = np.isfinite(self._original) & np.isfinite(self._decoded)  # pyqtgraph drops others, but not their pairs
        pairs = np.repeat(places[kept], 2)
        ends = np.column_stack([self._original[kept], self._decoded[kept]]).ravel()
        plot.plot(pairs, ends, pen=_pen(theme.color("warning"), 1.5), connect=np.tile([1, 0], len(pairs) // 2))
        stored = theme.series_color(1)
        size = float(np.clip(240 / max(len(places), 1), 3, 9))
        plot.plot(
            places[kept], self._decoded[kept], pen=None, symbol="s", symbolSize=size + 2, symbolBrush=None,
            symbolPen=_pen(stored, 1.5),
        )  # fmt: skip
        plot.plot(
            places[kept], self._original[kept], pen=None, symbol="o", symbolSize=size, symbolPen=None,
            symbolBrush=theme.series_color(0),
        )  # fmt: skip
        both = np.concatenate([self._original[kept], self._decoded[kept]])
        reach = max(float(np.abs(both).max(initial=0.0)), 1e-30)
        low, high = (float(both.min()), float(both.max())) if both.size else (-1.0, 1.0)
        plot.setXRange(-0.5, len(places) - 0.5, padding=0.01)
        plot.setYRange(low - 0.05 * reach, high + 0.05 * reach, padding=0)
        self._band.setRegion((self._place - 0.5, self._place + 0.5))
        self._band.setVisible(self._place >= 0)

    def _on_pointer(self, place: QPointF) -> None:
        if self._plot is None or not self.has_data:
            return
        view = self._plot.getPlotItem().vb
        found = NO_VALUE
        if view.sceneBoundingRect().contains(place):
            found = min(max(round(view.mapSceneToView(place).x()), 0), len(self._words) - 1)
        if found != self._place:
            self.highlight(found)
            self.hovered.emit(found)

    def leaveEvent(self, event: Any) -> None:
        super().leaveEvent(event)
        if self._place != NO_VALUE:
            self.highlight(NO_VALUE)
            self.hovered.emit(NO_VALUE)

    def read_hint(self) -> str:
        return "Point at a value to see its code and bytes."

    def read_out(self, x: float) -> str:
        place = round(x)
        return self._words[place] if 0 <= place < len(self._words) else self.read_hint()

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        pairs = zip(self._original, self._decoded, strict=True)
        return ("place", "weight", "stored", "error"), [
            (n, float(a), float(b), float(b - a)) for n, (a, b) in enumerate(pairs)
        ]

    def describe(self) -> str:
        if not self._original.size:
            return ""
        kept = np.flatnonzero(np.isfinite(self._original) & np.isfinite(self._decoded))
        if not kept.size:
            return f"{len(self._original)} weights, all of them NaN or Inf."
        original = self._original[kept]
        error = np.abs(self._decoded[kept] - original)
        worst = int(error.argmax())
        used = len(np.unique(self._decoded))
        levels = f" of {len(self._levels)}" if self._levels.size else ""
        return (
            f"{len(self._original)} weights between {format_number(original.min())} and "
            f"{format_number(original.max())} on {used}{levels} "
            f"levels. Largest error {format_number(error[worst])} at {kept[worst]}."
        )


class GranularityPicture(PlotPanel):
    """|error| of the same weights under several granularities, one strip each; the larger the error, the brighter."""

    x_title = "Column"

    def __init__(self, parent: QWidget | None = None) -> None:
        self._names: tuple[str, ...] = ()
        self._errors: tuple[np.ndarray, ...] = ()
        self._edges: tuple[tuple[int, ...], ...] = ()
        self._snr: tuple[float, ...] = ()
        self._weights = np.zeros(0)
        self._first = 0
        self.key = ColorKey()
        super().__init__("Error by granularity", "No data yet: choose a tensor to see it.", parent)
        self._figure_layout.addWidget(self.key)

    def clear(self, text: str = "") -> None:
        self._names, self._errors, self._snr = (), (), ()
        super().clear(text)

    def show_errors(
        self,
        title: str,
        names: Sequence[str],
        errors: Sequence[np.ndarray],
        snr: Sequence[float],
        edges: Sequence[Sequence[int]],
        weights: np.ndarray,
        first: int = 0,
    ) -> None:
        """errors: x − x̂ of the same weights, float [n] each. snr: dB. edges: columns at which groups begin.

        weights: those, float [n], drawn above the errors. first: column number of the first.
        """
        self._names, self._snr, self._first = tuple(names), tuple(snr), first
        self._weights = np.asarray(weights, float)
        self._edges = tuple(tuple(e) for e in edges)
        self._errors = tuple(np.abs(np.asarray(e, float)) for e in errors)
        self.redraw(title)
        error, weight = self._tops()
        self.key.show_items((ColorKeyItem("|weight|", WEIGHTS, weight), ColorKeyItem("|error|", ERRORS, error)))

    def _tops(self) -> tuple[float, float]:
        """The largest |error| of all strips and the largest |weight|: the bright ends of their colours."""
        error = max((float(np.nanmax(e, initial=0.0)) for e in self._errors), default=0.0)
        return error or 1.0, float(np.nanmax(np.abs(self._weights), initial=0.0)) or 1.0

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        plot.showGrid(x=False, y=False)
        columns = len(self._weights)
        top, largest = self._tops()
        self._add_strip(plot, 0, np.abs(self._weights), largest, WEIGHTS)
        for row, (error, edges) in enumerate(zip(self._errors, self._edges, strict=True), 1):
            self._add_strip(plot, row, error, top, ERRORS)
            for edge in edges:
                if self._first < edge < self._first + columns:
                    pen = _pen(theme.color("surface"), 2)
                    plot.addItem(pyqtgraph.PlotDataItem([edge - 0.5] * 2, [row - 0.4, row + 0.4], pen=pen))
        plot.getPlotItem().getViewBox().invertY(True)
        labels = ["|weight|"]
        labels += [f"{name}  {format_decibels(snr)}" for name, snr in zip(self._names, self._snr, strict=True)]
        plot.getAxis("left").setTicks([list(enumerate(labels))])
        plot.getAxis("left").setTextPen(theme.color("text"))
        plot.getAxis("bottom").enableAutoSIPrefix(False)
        plot.setXRange(self._first - 0.5, self._first + columns - 0.5, padding=0)
        plot.setYRange(-0.5, len(self._names) + 0.5, padding=0)
        plot.setMouseEnabled(x=True, y=False)

    def _add_strip(self, plot: pyqtgraph.PlotWidget, row: int, values: np.ndarray, top: float, colors: str) -> None:
        import pyqtgraph

        image = pyqtgraph.ImageItem(np.nan_to_num(values)[:, None])
        image.setLookupTable(shades(colors))
        image.setLevels((0.0, top))
        image.setRect(self._first - 0.5, row - 0.4, len(values), 0.8)
        plot.addItem(image)

    def read_out(self, x: float) -> str:
        place = round(x) - self._first
        if not self._errors or not 0 <= place < len(self._errors[0]):
            return self.read_hint()
        parts = [
            f"{name} {format_number(error[place], 3)}" for name, error in zip(self._names, self._errors, strict=True)
        ]
        weight = f"weight {format_number(self._weights[place])}"
        return f"Column {format_count(place + self._first)}, {weight}; |error| " + " · ".join(parts)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        columns = ("column", "weight", *self._names)
        if not self._errors:
            return columns, ()
        rows = np.column_stack([self._weights, *self._errors])
        return columns, [(self._first + n, *map(float, row)) for n, row in enumerate(rows)]

    def describe(self) -> str:
        pairs = zip(self._names, self._snr, strict=True)
        return "SNR: " + ", ".join(f"{name} {format_decibels(snr)}" for name, snr in pairs) + "."


def _pen(color: QColor, width: float) -> QPen:
    pen = QPen(color, width, Qt.PenStyle.SolidLine)
    pen.setCosmetic(True)
    return pen
