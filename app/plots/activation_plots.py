"""Activations: the map of channels over depth, what each layer's input reaches, and one layer's channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtCore import Signal
from PySide6.QtGui import QColor, QPen
from PySide6.QtWidgets import QWidget

from app.plots.colors import Scale
from app.plots.heat_map import ArrayMatrix, HeatMap, HeatPicture
from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.ticks import set_plain_ticks
from app.theme import CAPTION, Theme, ui_font
from core.units import format_count, format_number, format_percent

if TYPE_CHECKING:
    import pyqtgraph

MARKED = 3  # channels that are named in the picture of one layer


class DepthMap(HeatMap):
    """Largest |activation| of every channel over the layers. `cell_chosen(layer, channel)` follows a click."""

    def __init__(self, parent: QWidget | None = None) -> None:
        self._values = np.zeros((0, 0), np.float32)
        super().__init__("Channels across depth", "No data yet: run a few hundred tokens to see it.", parent)

    def show_values(self, title: str, values: np.ndarray, layers: Sequence[int]) -> None:
        """values: max |x|, float [len(layers), channels]. layers: rising; those between that are missing stay empty."""
        whole = np.full((int(max(layers)) + 1, values.shape[1]), np.nan, np.float32)
        whole[list(layers)] = values
        self._values = whole
        lost = int(np.count_nonzero(~np.isfinite(values)))
        note = f"{format_count(lost)} channels hold NaN or Inf." if lost else ""
        matrix = ArrayMatrix(np.where(np.isinf(whole), np.float32(np.nan), whole))
        self.show_picture(
            HeatPicture(
                title, matrix, "max |x|", unseen=True, note=note, axes=("layer", "channel"),
                axis_title="input channel →     layer ↓",
            )
        )  # fmt: skip

    def describe(self) -> str:
        finite = np.where(np.isfinite(self._values), self._values, -1.0)
        if not finite.size:
            return ""
        layer, channel = np.unravel_index(int(finite.argmax()), finite.shape)
        return (
            f"{finite.shape[0]} layers of {format_count(finite.shape[1])} channels. Largest: "
            f"{format_number(float(finite[layer, channel]))} in layer {layer}, channel {format_count(channel)}."
        )


class DepthProfile(PlotPanel):
    """Max and RMS of each layer's input, and a line at a threshold that can be dragged: `threshold_moved(value)`."""

    x_title = "Layer"
    y_title = "|activation| (log)"

    threshold_moved = Signal(float)

    def __init__(self, parent: QWidget | None = None) -> None:
        self._numbers: tuple[int, ...] = ()
        self._maxima = self._rms = np.zeros(0)
        self._shares = np.zeros(0)
        self._threshold = 6.0
        self._line: pyqtgraph.InfiniteLine | None = None
        super().__init__("Input of each layer", "No data yet: run a few hundred tokens to see it.", parent)

    def show_values(
        self,
        title: str,
        layers: Sequence[int],
        maxima: np.ndarray,
        rms: np.ndarray,
        shares: np.ndarray,
        threshold: float,
    ) -> None:
        """maxima, rms: of each layer's input. shares: of its columns above the threshold, 0…1."""
        self._numbers = tuple(layers)
        self._maxima, self._rms, self._shares = np.asarray(maxima, float), np.asarray(rms, float), np.asarray(shares)
        self._threshold = threshold
        legend = [LegendItem("max", 0), LegendItem("RMS", 1, "dash"), LegendItem("threshold, drag it", 3, "dot")]
        self.redraw(title, legend)

    def set_threshold(self, value: float, shares: np.ndarray) -> None:
        """Move the line without drawing the rest anew."""
        self._threshold, self._shares = value, np.asarray(shares)
        if self._line is not None and self.has_data:
            self._line.blockSignals(True)
            self._line.setPos(math.log10(max(value, 1e-30)))
            self._line.blockSignals(False)
            self.setAccessibleDescription(self.describe())

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        plot.setLogMode(x=False, y=True)
        left = plot.getAxis("left")
        left.enableAutoSIPrefix(False)
        places = np.arange(len(self._numbers), dtype=float)
        positive = [v for v in (*self._maxima, *self._rms, self._threshold) if v > 0 and math.isfinite(v)]
        low, high = min(positive, default=1.0), max(positive, default=1.0)
        for values, series, dash, symbol in ((self._maxima, 0, "solid", "o"), (self._rms, 1, "dash", "s")):
            color = theme.series_color(series)
            pen = QPen(color, 2, DASHES[dash])
            pen.setCosmetic(True)
            heights = np.maximum(np.nan_to_num(values, posinf=high), low)
            plot.plot(
                places,
                heights,
                pen=pen,
                symbol=symbol,
                symbolSize=5,
                symbolBrush=color,
                symbolPen=theme.color("surface"),
            )
        color = theme.series_color(3)
        pen, over = QPen(color, 2, DASHES["dot"]), QPen(color, 4)
        for one in (pen, over):
            one.setCosmetic(True)
        self._line = pyqtgraph.InfiniteLine(
            math.log10(max(self._threshold, 1e-30)), angle=0, movable=True, pen=pen, hoverPen=over
        )
        self._line.sigPositionChanged.connect(lambda line: self.threshold_moved.emit(10.0 ** float(line.value())))
        plot.addItem(self._line)
        _show_layers(plot.getAxis("bottom"), self._numbers)
        plot.setXRange(0, max(len(self._numbers) - 1, 1), padding=0.04)
        plot.setYRange(math.log10(low), math.log10(high), padding=0.08)
        if high / low < 1e4:
            set_plain_ticks(left, low, high)
        else:
            left.setTicks(None)

    def read_out(self, x: float) -> str:
        if not self._numbers:
            return ""
        row = min(max(round(x), 0), len(self._numbers) - 1)
        return (
            f"Layer {self._numbers[row]}: max {format_number(self._maxima[row])} · RMS "
            f"{format_number(self._rms[row])} · "
            f"{format_percent(float(self._shares[row]), 2)} of columns above {format_number(self._threshold, 3)}"
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        parts = zip(self._numbers, self._maxima, self._rms, self._shares, strict=True)
        rows = [(layer, float(a), float(b), float(c)) for layer, a, b, c in parts]
        return ("layer", "max", "rms", f"share above {self._threshold:g}"), rows

    def describe(self) -> str:
        if not self._numbers:
            return ""
        row = int(np.nanargmax(self._maxima))
        return (
            f"{len(self._numbers)} layers. Largest input {format_number(self._maxima[row])} in layer "
            f"{self._numbers[row]}, with "
            f"{format_percent(float(self._shares[row]), 2)} of its columns above {format_number(self._threshold, 3)}."
        )


class ChannelPair(PlotPanel):
    """One layer's input channels: the range of the activations upwards, that of the weights they meet downwards."""

    x_title = "Input channel"
    y_title = "max |value| (log)"

    def __init__(self, parent: QWidget | None = None) -> None:
        self._activations = self._weights = np.zeros(0)
        super().__init__("Activation and weight of each channel", "No data yet: choose a layer in the list.", parent)

    def show_values(self, title: str, activations: np.ndarray, weights: np.ndarray) -> None:
        """max |activation| and max |weight| of the same channels, float [channels]; weights may be empty."""
        self._activations, self._weights = np.asarray(activations, float), np.asarray(weights, float)
        legend = [LegendItem("activations", 0, fill=True)]
        if self._weights.size:
            legend.append(LegendItem("weights", 1, fill=True))
        self.redraw(title, legend)

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        plot.getAxis("bottom").enableAutoSIPrefix(False)
        ticks: list[tuple[float, str]] = []
        for values, series, sign in ((self._activations, 0, 1.0), (self._weights, 1, -1.0)):
            if not values.size:
                continue
            heights, marks = _logarithmic(values)
            ticks += [(sign * place, text) for place, text in marks]
            color = theme.series_color(series)
            veil = QColor(color)
            veil.setAlphaF(0.35)
            pen = QPen(color, 1)
            pen.setCosmetic(True)
            curve = plot.plot(sign * heights, pen=pen, fillLevel=0.0, brush=veil)
            curve.setDownsampling(auto=True, method="peak")
            curve.setClipToView(True)
        line = QPen(theme.color("border"), 1)
        line.setCosmetic(True)
        plot.addItem(pyqtgraph.InfiniteLine(0.0, angle=0, pen=line), ignoreBounds=True)
        plot.getAxis("left").setTicks([ticks])
        heights = _logarithmic(self._activations)[0]
        for channel in self.largest():
            item = pyqtgraph.TextItem(format_count(channel), color=theme.text, anchor=(0.5, 1.0))
            item.setFont(ui_font(CAPTION))
            item.setPos(channel, float(heights[channel]))
            plot.addItem(item, ignoreBounds=True)
        plot.setXRange(0, max(len(self._activations) - 1, 1), padding=0.02)
        plot.setYRange(-1.05 if self._weights.size else 0.0, 1.3, padding=0)

    def largest(self) -> list[int]:
        """The channels with the largest activations, apart from each other so that their numbers can be read."""
        apart = max(1, len(self._activations) // 12)
        found: list[int] = []
        for channel in np.argsort(-np.nan_to_num(self._activations))[: 8 * MARKED]:
            if len(found) < MARKED and all(abs(int(channel) - other) >= apart for other in found):
                found.append(int(channel))
        return found

    def read_out(self, x: float) -> str:
        if not self._activations.size:
            return ""
        channel = min(max(round(x), 0), len(self._activations) - 1)
        parts = [f"Channel {format_count(channel)}", f"activation {format_number(self._activations[channel])}"]
        if self._weights.size:
            parts.append(f"weight {format_number(self._weights[channel])}")
        return " · ".join(parts)

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        weights = self._weights if self._weights.size else np.full(len(self._activations), np.nan)
        pairs = zip(self._activations, weights, strict=True)
        return ("channel", "activation", "weight"), [(n, float(a), float(b)) for n, (a, b) in enumerate(pairs)]

    def describe(self) -> str:
        marked = ", ".join(
            f"channel {format_count(c)} with {format_number(self._activations[c])}" for c in self.largest()
        )
        return f"{format_count(len(self._activations))} channels; the largest activations: {marked}."


def _show_layers(axis: pyqtgraph.AxisItem, layers: Sequence[int]) -> None:
    """The layers' own numbers at their places, not more than a dozen."""
    step = max(1, -(-len(layers) // 12))
    axis.setTicks([[(place, str(layer)) for place, layer in enumerate(layers) if place % step == 0]])


def _logarithmic(values: np.ndarray) -> tuple[np.ndarray, list[tuple[float, str]]]:
    """Heights 0…1 of positive values on a logarithmic scale of their own, and where which power of ten stands."""
    usable = values[(values > 0) & np.isfinite(values)]
    if not usable.size:
        return np.zeros(len(values)), []
    low, high = math.log10(float(np.quantile(usable, 0.01))) - 0.2, math.log10(float(usable.max()))
    low = min(low, high - 0.5)
    with np.errstate(divide="ignore"):
        places = np.log10(np.where(values > 0, np.nan_to_num(values, posinf=float(usable.max())), 0.0))
    heights = np.clip((places - low) / (high - low), 0.0, 1.0)
    ticks = Scale(10.0**low, 10.0**high).ticks(3)
    marks = [((math.log10(v) - low) / (high - low), f"{format_number(v)}") for v in ticks]
    return heights, [(place, text) for place, text in marks if place > 0.1]
