"""Pictures of a verdict: the error after each layer, and where in long texts a hidden number is still found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PySide6.QtCore import QEvent, QRect, QSize, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from app.icons import pixmap
from app.plots.figure import FigurePanel
from app.plots.panel import PlotPanel
from app.plots.series import DASHES, LegendItem
from app.theme import CAPTION, SPACE_1, SPACE_2, SPACE_4, Theme, current, ui_font
from core.units import format_count, format_decimals, format_percent

if TYPE_CHECKING:
    import pyqtgraph

    from core.verdict.layers import LayerErrors
    from core.verdict.needle import NeedleResult, Place

AXIS, ERROR = "After layer (E: embedding)", "Relative error, %"
SIDES = ("Source", "Quantized")
CELL, LEAST_CELL = 28, 16  # px of height
MARK = 14  # px of an icon


class LayerErrorPlot(PlotPanel):
    """‖h′ − h‖ / ‖h‖ of the hidden states after each layer: mean and worst token."""

    x_title = AXIS
    y_title = ERROR

    def __init__(self, parent: QWidget | None = None) -> None:
        self._errors: LayerErrors | None = None
        super().__init__("Error by layer", "No data yet: measure to see where the error arises.", parent)

    def show_errors(self, errors: LayerErrors) -> None:
        """A sentence in its place where there are none."""
        self._errors = errors
        if not errors.layers:
            self.clear(errors.note)
            return
        legend = [LegendItem("mean of tokens", 0), LegendItem("worst token", 1, "dash")]
        self.redraw(f"Error by layer, {format_count(errors.tokens)} tokens", legend)

    def set_low(self, on: bool) -> None:
        """Leave out the axis titles, where the plot needs their room; the panel's title and the read-out name both."""
        titles = ("", "%") if on else (AXIS, ERROR)
        if (self.x_title, self.y_title) != titles:
            self.x_title, self.y_title = titles
            if self.has_data:
                self.repaint_figure()

    def draw(self, plot: pyqtgraph.PlotWidget, theme: Theme) -> None:
        assert self._errors is not None
        layers = self._errors.layers
        places = np.arange(len(layers), dtype=float)
        means, worst = (100 * np.array([getattr(x, name) for x in layers]) for name in ("mean", "worst"))
        for values, series, dash, symbol in ((means, 0, "solid", "o"), (worst, 1, "dash", "s")):
            color = theme.series_color(series)
            pen = QPen(color, 2, DASHES[dash])
            pen.setCosmetic(True)
            plot.plot(
                places, values, pen=pen, symbol=symbol, symbolSize=5, symbolBrush=color,
                symbolPen=theme.color("surface"),
            )  # fmt: skip
        every = max(1, -(-len(layers) // 16))
        names = ["E" if x.layer is None else str(x.layer) for x in layers]
        plot.getAxis("bottom").setTicks([[(float(i), names[i]) for i in range(0, len(layers), every)]])
        plot.setXRange(0, max(len(layers) - 1, 1), padding=0.04)
        top = float(np.nan_to_num(worst, posinf=0.0).max())
        plot.setYRange(0.0, 1.1 * top or 1.0, padding=0)

    def read_out(self, x: float) -> str:
        if self._errors is None or not self._errors.layers:
            return ""
        layer = self._errors.layers[min(max(round(x), 0), len(self._errors.layers) - 1)]
        name = "Embedding" if layer.layer is None else f"Layer {layer.layer}"
        return f"{name}: mean {format_percent(layer.mean, 2)} · worst token {format_percent(layer.worst, 2)}"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        layers = self._errors.layers if self._errors is not None else ()
        rows = [["embedding" if x.layer is None else x.layer, x.mean, x.worst] for x in layers]
        return ("layer", "mean_relative_error", "worst_relative_error"), rows

    def describe(self) -> str:
        if self._errors is None or not self._errors.layers:
            return ""
        last = self._errors.layers[-1]
        most = max(self._errors.layers, key=lambda x: x.mean)
        where = "the embedding" if most.layer is None else f"layer {most.layer}"
        return (
            f"{len(self._errors.layers)} points. After the last layer {format_percent(last.mean, 2)} on average; most, "
            f"{format_percent(most.mean, 2)}, after {where}."
        )


class NeedlePicture(FigurePanel):
    """Depth × length for both files, a mark in each cell: found or not, and by how much."""

    def __init__(self, parent: QWidget | None = None) -> None:
        self._result: NeedleResult | None = None
        super().__init__("Numbers hidden in long texts", "Not measured: switch it on under Options.", parent)
        self._cells = _Cells()
        self._figure_layout.addWidget(self._cells)

    def show_result(self, result: NeedleResult | None) -> None:
        self._result = result
        if result is None or not result.places:
            self.clear()
            return
        self._cells.show_places(result.places)
        words = "none is lost" if not result.lost else f"{format_count(result.lost)} lost"
        self.show_figure(f"Numbers hidden in long texts: {words}")

    def repaint_figure(self) -> None:
        self._cells.update()

    def read_hint(self) -> str:
        return "How many nats likelier the right number is than the likeliest wrong one."

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        places = self._result.places if self._result is not None else ()
        rows = [[p.length, p.depth, p.margin_source, p.margin] for p in places]
        return ("tokens", "depth", "margin_source_nats", "margin_quantized_nats"), rows

    def describe(self) -> str:
        if self._result is None:
            return ""
        places = self._result.places
        found = sum(p.found_source for p in places), sum(p.found for p in places)
        return (
            f"Of {len(places)} numbers the source finds {found[0]} and the quantized file {found[1]}; "
            f"{self._result.lost} that the source finds are lost."
        )


class _Cells(QWidget):
    """The grid of each file: depths downwards, lengths to the right."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[tuple[int, float], Place] = {}
        self._lengths: list[int] = []
        self._depths: list[float] = []

    def show_places(self, places: Sequence[Place]) -> None:
        self._places = {(p.length, p.depth): p for p in places}
        self._lengths = sorted({p.length for p in places})
        self._depths = sorted({p.depth for p in places})
        self.setMinimumHeight(LEAST_CELL * (len(self._depths) + 2))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(300, CELL * (len(self._depths) + 2))

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current()
        with QPainter(self) as painter:
            painter.setFont(ui_font(CAPTION))
            for side, name in enumerate(SIDES):
                self._paint_side(painter, theme, side, name)

    def _paint_side(self, painter: QPainter, theme: Theme, side: int, name: str) -> None:
        left, label_width, cell = self._places_of(side)
        middle = Qt.AlignmentFlag.AlignCenter
        painter.setPen(theme.color("text"))
        title = QRect(left, 0, label_width + cell * len(self._lengths), self._row)
        painter.drawText(title, Qt.AlignmentFlag.AlignVCenter, f"{name}, depth × tokens")
        painter.setPen(theme.color("muted"))
        for row, depth in enumerate(self._depths):
            y = self._row * (row + 1)
            right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
            painter.drawText(QRect(left, y, label_width - SPACE_1, self._row), right, format_percent(depth, 0))
        for column, length in enumerate(self._lengths):
            x = left + label_width + cell * column
            painter.drawText(
                QRect(x, self._row * (len(self._depths) + 1), cell, self._row), middle, format_count(length)
            )
            for row, depth in enumerate(self._depths):
                place = self._places.get((length, depth))
                if place is not None:
                    self._paint_cell(painter, theme, QRect(x, self._row * (row + 1), cell, self._row), place, side)

    def _paint_cell(self, painter: QPainter, theme: Theme, room: QRect, place: Place, side: int) -> None:
        found, margin = (place.found, place.margin) if side else (place.found_source, place.margin_source)
        role, mark = ("ok", "check") if found else ("error", "x")
        inner = room.adjusted(1, 1, -1, -1)
        painter.fillRect(inner, theme.color("sunken"))
        if not found:  # an outline, too: not by colour alone
            painter.setPen(QPen(theme.color("error"), 1))
            painter.drawRect(inner.adjusted(0, 0, -1, -1))
        ratio = self.devicePixelRatioF()
        picture = pixmap(mark, getattr(theme, role), round(MARK * ratio))
        picture.setDevicePixelRatio(ratio)
        painter.drawPixmap(inner.left() + SPACE_2, inner.center().y() - MARK // 2 + 1, picture)
        painter.setPen(theme.color("text"))
        right = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(inner.adjusted(0, 0, -SPACE_2, 0), right, _signed(margin))
        painter.setPen(theme.color("muted"))

    @property
    def _row(self) -> int:
        """Height of a row at the present size."""
        return max(LEAST_CELL, min(CELL, self.height() // (len(self._depths) + 2)))

    def _places_of(self, side: int) -> tuple[int, int, int]:
        """Left edge, width of the depths, width of a cell."""
        half = (self.width() - SPACE_4) // 2
        label_width = 44
        cell = min(96, max((half - label_width) // max(len(self._lengths), 1), 24))
        return side * (half + SPACE_4), label_width, cell

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            QToolTip.showText(event.globalPos(), self.text_at(event.pos().x(), event.pos().y()), self)
            return True
        return super().event(event)

    def text_at(self, x: int, y: int) -> str:
        """What the cell under this place says, in words."""
        for side, name in enumerate(SIDES):
            left, label_width, cell = self._places_of(side)
            column, row = (x - left - label_width) // cell, y // self._row - 1
            if 0 <= column < len(self._lengths) and 0 <= row < len(self._depths):
                place = self._places.get((self._lengths[column], self._depths[row]))
                if place is not None:
                    found, margin = (place.found, place.margin) if side else (place.found_source, place.margin_source)
                    word = "found" if found else "not found"
                    return (
                        f"{name}, {format_count(place.length)} tokens, at {format_percent(place.depth, 0)}: {word} "
                        f"({_signed(margin)} nats)"
                    )
        return ""


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{format_decimals(value, 1)}"
