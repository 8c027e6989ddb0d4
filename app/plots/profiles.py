"""Profiles along the channels of a tensor: largest magnitude, RMS and median of each, outliers marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtCore import Signal
from PySide6.QtGui import QPen
from PySide6.QtWidgets import QWidget

from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.plots.ticks import set_plain_ticks
from app.theme import Theme
from core.units import format_count, format_number

if TYPE_CHECKING:
    import pyqtgraph

_LOOKS = ((1, "solid"), (0, "solid"), (2, "dash"))  # (series colour, dash) of the largest, the RMS, the median
_FLOOR = 1e-4  # share of the largest value at which the axis ends


@dataclass(frozen=True)
class Profile:
    """title names tensor and axis. axis: 'output' or 'input'. lines: (name, float32 [n]) of each series, one a channel.

    what: the quantity of the vertical axis. outliers: channels that stand out in the first line. level: from where on
    they do, 0: no such line; level_name: what it is, '6 × the median'.
    """

    title: str
    axis: str
    what: str
    lines: tuple[tuple[str, np.ndarray], ...]
    outliers: tuple[int, ...] = ()
    level: float = 0.0
    level_name: str = ""

    @property
    def channels(self) -> int:
        return len(self.lines[0][1])


class ProfilePlot(PlotPanel):
    """`show_profile` draws one axis' channels; `channel_chosen(index)` follows a click."""

    channel_chosen = Signal(int)

    def __init__(self, name: str = "Channels", parent: QWidget | None = None) -> None:
        self._profile: Profile | None = None
        self._chosen: int | None = None
        self._line: pyqtgraph.InfiniteLine | None = None
        self._listening = False
        super().__init__(name, "No data yet: choose a tensor to see its channels.", parent)

    def clear(self, text: str = "") -> None:
        self._profile, self._line = None, None
        super().clear(text)

    def show_profile(self, profile: Profile) -> None:
        """Channels of another number or axis put the view back to all of them."""
        self._profile = profile
        self._chosen = self._chosen if self._chosen is not None and self._chosen < profile.channels else None
        self.x_title = "Input channel (column)" if profile.axis == "input" else "Output channel (row)"
        self.y_title = f"{profile.what} (log)"
        lost = sum(int((~np.isfinite(values)).any()) for _, values in profile.lines)
        self.redraw(profile.title, self._legend_of(profile), "Some channels have no figure yet." if lost else "")
        if not self._listening and self._plot is not None:
            self._listening = True
            self._plot.scene().sigMouseClicked.connect(self._on_click)

    def choose(self, channel: int | None) -> None:
        """Mark a channel by an upright line."""
        self._chosen = channel
        if self._line is not None:
            self._line.setVisible(channel is not None)
            if channel is not None:
                self._line.setPos(channel)

    def _legend_of(self, profile: Profile) -> list[LegendItem]:
        items = [LegendItem(name, *look) for (name, _), look in zip(profile.lines, _LOOKS, strict=False)]
        if profile.level > 0:
            items.append(LegendItem(profile.level_name, -1, "dot"))
        return items

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        import pyqtgraph

        profile = self._profile
        assert profile is not None
        plot.setLogMode(x=False, y=True)
        plot.getAxis("left").enableAutoSIPrefix(False)
        plot.getAxis("bottom").enableAutoSIPrefix(False)
        top = max(float(np.nanmax(v, initial=0.0)) for _, v in profile.lines) or 1.0
        positive = [v[np.isfinite(v) & (v > 0)] for _, v in profile.lines]
        low = min((float(v.min()) for v in positive if v.size), default=top / 10)
        low = max(low, top * _FLOOR)
        low = min(low, top / 2)
        places = np.arange(profile.channels)
        pairs = list(zip(profile.lines, _LOOKS, strict=False))
        for (_, values), (series, dash) in reversed(pairs):
            pen = QPen(theme.series_color(series), 1, DASHES[dash])
            pen.setCosmetic(True)
            heights = np.maximum(np.nan_to_num(values, nan=low), low)
            line = pyqtgraph.PlotDataItem(places, heights, pen=pen, autoDownsample=True, downsampleMethod="peak")
            line.setLogMode(False, True)
            plot.addItem(line)
        self._draw_marks(plot, theme, profile, low)
        plot.setLimits(xMin=-0.5, xMax=profile.channels - 0.5, yMin=np.log10(low) - 1, yMax=np.log10(top) + 1)
        plot.setXRange(-0.5, profile.channels - 0.5, padding=0)
        plot.setYRange(np.log10(low), np.log10(top), padding=0.08)
        set_plain_ticks(plot.getAxis("left"), low, top)

    def _draw_marks(self, plot: pyqtgraph.PlotWidget, theme: Theme, profile: Profile, low: float) -> None:
        import pyqtgraph

        if profile.level > 0:
            pen = QPen(theme.color("muted"), 1, DASHES["dot"])
            pen.setCosmetic(True)
            plot.addItem(pyqtgraph.InfiniteLine(np.log10(profile.level), angle=0, pen=pen), ignoreBounds=True)
        if profile.outliers:
            values = profile.lines[0][1]
            marks = pyqtgraph.ScatterPlotItem(
                list(profile.outliers),
                [float(np.log10(max(values[c], low))) for c in profile.outliers],
                symbol="t",
                size=9,
                brush=theme.color("warning"),
                pen=theme.color("surface"),
            )
            plot.addItem(marks)
        accent = QPen(theme.color("accent"), 2)
        accent.setCosmetic(True)
        self._line = pyqtgraph.InfiniteLine(self._chosen or 0, angle=90, pen=accent)
        self._line.setVisible(self._chosen is not None)
        plot.addItem(self._line, ignoreBounds=True)

    def _on_click(self, event: Any) -> None:
        plot, profile = self._plot, self._profile
        if plot is None or profile is None or not self.has_data:
            return
        place = event.scenePos()
        if plot.getPlotItem().vb.sceneBoundingRect().contains(place):
            channel = self._nearest(plot.getPlotItem().vb.mapSceneToView(place).x())
            self.channel_chosen.emit(channel)

    def _nearest(self, x: float) -> int:
        """The channel at x; the largest of those that a few pixels stand for, which is the one that is drawn."""
        profile = self._profile
        assert profile is not None
        reach = 0
        if self._plot is not None:
            reach = int(2 * abs(self._plot.getPlotItem().vb.viewPixelSize()[0]))
        middle = min(max(0, round(x)), profile.channels - 1)
        first, last = max(0, middle - reach), min(profile.channels, middle + reach + 1)
        return first + int(np.argmax(np.nan_to_num(profile.lines[0][1][first:last], nan=-1.0)))

    def read_out(self, x: float) -> str:
        if self._profile is None:
            return ""
        channel = self._nearest(x)
        parts = [f"channel {format_count(channel)}"]
        parts += [f"{name} {format_number(values[channel])}" for name, values in self._profile.lines]
        return " · ".join(parts)

    def read_hint(self) -> str:
        return "Point to read values, click to choose a channel. Wheel: zoom."

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        if self._profile is None:
            return ("channel",), ()
        lines = self._profile.lines
        rows = [(c, *(float(values[c]) for _, values in lines)) for c in range(self._profile.channels)]
        return ("channel", *(name for name, _ in lines)), rows

    def describe(self) -> str:
        profile = self._profile
        if profile is None:
            return ""
        name, values = profile.lines[0]
        channel = int(np.argmax(np.nan_to_num(values, nan=-1.0)))
        words = (
            f"{profile.what} of {format_count(profile.channels)} {profile.axis} channels. Largest: {name} "
            f"{format_number(values[channel])} in channel {format_count(channel)}."
        )
        if profile.level > 0:
            words += f" {format_count(len(profile.outliers))} channels are at or above {profile.level_name}."
        return words
