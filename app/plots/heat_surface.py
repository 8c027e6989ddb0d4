"""The area that a heat map is drawn on: which part of the matrix, in which colours, with what marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QImage,
    QPainter,
    QPaintEvent,
    QPen,
    QPolygonF,
    QResizeEvent,
)
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.plots.color_bar import paint_bar
from app.plots.colors import BLACK, DAMAGED, NOT_FINITE, UNSEEN, WHITE, Scale, picture, readable_on, scale_for
from app.plots.heat_view import Cells, HeatView
from app.theme import CAPTION, FOCUS_WIDTH, SPACE_1, current, mono_font, ui_font
from core.units import format_count, format_decimals, format_number

if TYPE_CHECKING:
    from app.plots.heat_map import HeatPicture

LEFT, RIGHT, TOP, BOTTOM = 56, 90, 10, 36  # px around the picture: row numbers, colour bar, marks, column numbers
TEXT_WIDTH, TEXT_HEIGHT = 48, 16  # px that a cell needs for its number
CHOSEN_WIDTH, CHOSEN_END = 8, 12  # px: least distance of the lines beside a chosen channel, and length of its ends
NEAR = 64  # rows and columns around a place that is gone to
DARK_END = 0.01  # quantile of the cells at one zoom that has the darkest colour: below it there is only noise


class HeatSurface(QWidget):
    """Paints what it is given and knows its cells; `HeatCanvas` listens to pointer and keyboard."""

    view_changed = Signal()

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.view = HeatView.whole(1, 1)
        self._shown: HeatPicture | None = None
        self._image: QImage | None = None
        self._cells: Cells | None = None
        self._values: np.ndarray | None = None
        self._scale = Scale(1e-3, 1.0)
        self._below = False
        self._lows: dict[int, float] = {}  # by zoom step: the colours stay while the picture is moved
        self._marks: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
        self._chosen: tuple[str, int] | None = None
        self._cursor: tuple[int, int] | None = None  # row and column
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(LEFT + RIGHT + 100, TOP + BOTTOM + 80)
        self.setToolTip("")

    def sizeHint(self) -> QSize:
        return QSize(480, 260)

    # ---- content ---------------------------------------------------------------------------------------------------

    def set_picture(self, shown: HeatPicture | None) -> None:
        """None: nothing. The view stays if the shape does."""
        same = shown is not None and (shown.matrix.rows, shown.matrix.columns) == (self.view.rows, self.view.columns)
        if shown is None or self._shown is None or (shown.what, shown.top) != (self._shown.what, self._shown.top):
            self._lows.clear()
        self._shown = shown
        if shown is not None and not same:
            self.view = HeatView.whole(shown.matrix.rows, shown.matrix.columns)
            self._cursor = self._chosen = None
            self._lows.clear()
        self.forget_picture()

    def set_marks(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        self._marks = tuple(rows), tuple(columns)
        self.update()

    def choose(self, axis: str, channel: int | None, *, go: bool = False) -> None:
        self._chosen = (axis, channel) if channel is not None else None
        if go and channel is not None:
            view = self.view
            if axis == "output":
                middle = int((view.left + view.right) / 2)
                self._set_view(view.around(channel, middle, NEAR, view.width))
            else:
                middle = int((view.top + view.bottom) / 2)
                self._set_view(view.around(middle, channel, view.height, NEAR))
        self.update()

    def forget_picture(self) -> None:
        self._image = None
        self.update()

    def cells_shown(self) -> tuple[Cells | None, np.ndarray | None]:
        """The cells in view and their values."""
        self._ensure_image()
        return self._cells, self._values

    def largest(self) -> tuple[int, int, float]:
        """Row, column and magnitude of the largest finite cell in view."""
        self._ensure_image()
        if self._cells is None or self._values is None or not np.isfinite(self._values).any():
            return 0, 0, 0.0
        place = int(np.argmax(np.where(np.isfinite(self._values), self._values, -1.0)))
        i, j = divmod(place, self._values.shape[1])
        cells = self._cells
        return cells.rows[0] + i * cells.row_step, cells.columns[0] + j * cells.column_step, float(self._values[i, j])

    # ---- the part that is shown ------------------------------------------------------------------------------------

    def show_whole(self) -> None:
        self._set_view(HeatView.whole(self.view.rows, self.view.columns))

    def zoom(self, factor: float, at: QPointF | None = None, axes: str = "both") -> None:
        """About a point of this widget, by default the cursor, else the middle."""
        area, view = self.area(), self.view
        if at is not None:
            row, column = self._place(at)
        elif self._cursor is not None:
            row, column = self._cursor[0] + 0.5, self._cursor[1] + 0.5
        else:
            row, column = (view.top + view.bottom) / 2, (view.left + view.right) / 2
        self._set_view(view.zoomed(factor, row, column, (area.width(), area.height()), axes))

    def _set_view(self, view: HeatView) -> None:
        if view != self.view:
            self.view = view
            self._image = None
            self.update()
            self.view_changed.emit()

    def area(self) -> QRectF:
        """Where the cells are."""
        return QRectF(LEFT, TOP, max(1, self.width() - LEFT - RIGHT), max(1, self.height() - TOP - BOTTOM))

    def _place(self, at: QPointF) -> tuple[float, float]:
        """Row and column under a point."""
        area, view = self.area(), self.view
        down, over = (at.y() - area.top()) / area.height(), (at.x() - area.left()) / area.width()
        return view.top + down * view.height, view.left + over * view.width

    def _x(self, column: float) -> float:
        return self.area().left() + (column - self.view.left) / self.view.width * self.area().width()

    def _y(self, row: float) -> float:
        return self.area().top() + (row - self.view.top) / self.view.height * self.area().height()

    # ---- painting --------------------------------------------------------------------------------------------------

    def _ensure_image(self) -> None:
        if self._image is not None or self._shown is None:
            return
        area = self.area()
        cells = self.view.cells((area.width(), area.height()))
        values = self._shown.matrix.pooled(cells.rows, cells.columns, cells.height, cells.width)
        step = (cells.row_step * cells.column_step).bit_length()
        scale = scale_for(values, name=self._shown.colors, clip=DARK_END)
        low = self._lows.setdefault(step, scale.low)
        high = max(self._shown.top, scale.high)
        self._scale = Scale(min(low, high * 0.999), high, name=self._shown.colors)
        with np.errstate(invalid="ignore"):
            self._below = bool((values < self._scale.low).any())
        indices = self._scale.indices(values, UNSEEN if self._shown.unseen else NOT_FINITE)
        self._cells, self._values = cells, values
        self._image = picture(indices, self._shown.colors, current())

    def paintEvent(self, _event: QPaintEvent) -> None:
        self._ensure_image()
        theme = current()
        with QPainter(self) as painter:
            if self._image is None or self._cells is None:
                return
            area, cells = self.area(), self._cells
            painter.save()
            painter.setClipRect(area)
            corner = QPointF(self._x(cells.columns[0]), self._y(cells.rows[0]))
            other = QPointF(self._x(cells.columns[1]), self._y(cells.rows[1]))
            painter.drawImage(QRectF(corner, other), self._image)
            self._paint_numbers(painter, cells)
            self._paint_chosen(painter)
            self._paint_cursor(painter)
            painter.restore()
            painter.setPen(QPen(theme.color("border"), 1))
            painter.drawRect(area.adjusted(-1, -1, 0, 0))
            self._paint_marks(painter, area)
            self._paint_ticks(painter, area)
            bar = QRectF(
                area.right() + SPACE_1, area.top() - 6, self.width() - area.right() - SPACE_1, area.height() + 8
            )
            paint_bar(painter, bar, self._scale, self._shown.what if self._shown else "", theme, below=self._below)
            if self.hasFocus():
                painter.setPen(QPen(theme.color("accent"), FOCUS_WIDTH))
                painter.drawRect(area.adjusted(-2, -2, 1, 1))

    def _paint_numbers(self, painter: QPainter, cells: Cells) -> None:
        """Single values, as soon as their cells are large enough."""
        area, view = self.area(), self.view
        width, height = area.width() / view.width, area.height() / view.height
        if self._shown is None or self._values is None or not cells.single:
            return
        if width < TEXT_WIDTH or height < TEXT_HEIGHT:
            return
        painter.setFont(mono_font(CAPTION))
        values = self._shown.matrix.values(cells.rows, cells.columns)
        for i in range(values.shape[0]):
            for j in range(values.shape[1]):
                value = float(values[i, j])
                finite = np.isfinite(value)
                ground = self._scale.color(abs(value)) if finite else DAMAGED
                painter.setPen(readable_on(ground))
                x, y = self._x(cells.columns[0] + j), self._y(cells.rows[0] + i)
                painter.drawText(QRectF(x, y, width, height), Qt.AlignmentFlag.AlignCenter, number(value))

    def _paint_chosen(self, painter: QPainter) -> None:
        """Along both sides of the chosen channel; where it is too thin to stay visible between, only at its ends."""
        if self._chosen is None:
            return
        axis, channel = self._chosen
        area, across = self.area(), axis == "output"
        first, last = (self._y(channel), self._y(channel + 1)) if across else (self._x(channel), self._x(channel + 1))
        start, end = (area.left(), area.right()) if across else (area.top(), area.bottom())
        grow = max(0.0, (CHOSEN_WIDTH - (last - first)) / 2)
        pieces = [(start, start + CHOSEN_END), (end - CHOSEN_END, end)] if grow else [(start, end)]
        for color, width in ((current().color("surface"), 4), (current().color("accent"), 2)):
            painter.setPen(QPen(color, width))
            for edge in (first - grow, last + grow):
                for a, b in pieces:
                    ends = (QPointF(a, edge), QPointF(b, edge)) if across else (QPointF(edge, a), QPointF(edge, b))
                    painter.drawLine(*ends)

    def _paint_cursor(self, painter: QPainter) -> None:
        if self._cursor is None or not self.hasFocus():
            return
        row, column = self._cursor
        box = QRectF(QPointF(self._x(column), self._y(row)), QPointF(self._x(column + 1), self._y(row + 1)))
        grow = max(0.0, (8 - min(box.width(), box.height())) / 2)
        box.adjust(-grow, -grow, grow, grow)
        for color, width in ((BLACK, 4), (WHITE, 2)):
            painter.setPen(QPen(color, width))
            painter.drawRect(box)

    def _paint_marks(self, painter: QPainter, area: QRectF) -> None:
        """A triangle at the edge for each channel that stands out."""
        painter.setPen(Qt.PenStyle.NoPen)
        painter.setBrush(current().color("warning"))
        for column in self._marks[1]:
            x = self._x(column + 0.5)
            if area.left() <= x <= area.right():
                y = area.top() - 2
                painter.drawPolygon(QPolygonF([QPointF(x, y), QPointF(x - 4, y - 7), QPointF(x + 4, y - 7)]))
        for row in self._marks[0]:
            y = self._y(row + 0.5)
            if area.top() <= y <= area.bottom():
                x = area.left() - 2
                painter.drawPolygon(QPolygonF([QPointF(x, y), QPointF(x - 7, y - 4), QPointF(x - 7, y + 4)]))
        painter.setBrush(Qt.BrushStyle.NoBrush)

    def _paint_ticks(self, painter: QPainter, area: QRectF) -> None:
        theme, view = current(), self.view
        painter.setFont(ui_font(CAPTION))
        painter.setPen(theme.color("muted"))
        center = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop
        for column in ticks(view.left, view.right, max(2, int(area.width() / 80))):
            x = self._x(column + 0.5)
            painter.drawLine(QPointF(x, area.bottom() + 1), QPointF(x, area.bottom() + 4))
            painter.drawText(QRectF(x - 40, area.bottom() + 4, 80, 14), center, format_count(column))
        for row in ticks(view.top, view.bottom, max(2, int(area.height() / 26))):
            y = self._y(row + 0.5)
            room = QRectF(0, y - 8, area.left() - 11, 16)
            painter.drawText(room, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter, format_count(row))
        title = QRectF(0, area.bottom() + 18, self.width(), 16)
        painter.drawText(title, center, self._shown.axis_title if self._shown is not None else "")

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._image = None


def number(value: float) -> str:
    """A value in at most eight characters: '−0.0123', '4·10⁻⁵'."""
    if value == 0 or np.isnan(value):
        return "0" if value == 0 else "NaN"
    size = abs(value)
    if 1e-3 <= size < 10:
        return format_decimals(value, 4)
    return format_decimals(value, 1) if 10 <= size < 1e4 else format_number(value, 1)


def ticks(first: float, last: float, count: int) -> list[int]:
    """Round whole numbers from first to last, at most `count` and one."""
    step = 1
    for candidate in (s * 10**p for p in range(7) for s in (1, 2, 5)):
        step = candidate
        if (last - first) / step <= count:
            break
    return [n for n in range(int(-(-first // step)) * step, int(last) + 1, step) if n + 0.5 <= last]
