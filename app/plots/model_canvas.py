"""The cells of a model's map: where each tensor is, its colour, and the cursor that moves from one to the next."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.plots.color_bar import paint_bar, short
from app.plots.colors import BLACK, UNSEEN, WHITE, Scale, color_table, scale_for
from app.theme import CAPTION, FOCUS_WIDTH, SPACE_1, SPACE_2, current, ui_font
from core.units import format_count

RIGHT, TOP, BOTTOM = 92, 4, 32  # px around the cells: colour bar, nothing, layer numbers
NO_LAYER_GAP = 10  # px between tensors without a layer and the layers
LARGEST = 34  # px of a cell, so that a small model does not become a chequerboard
LEAST = 5  # px of height
PIECE = 1500  # tensors that are placed in one step
GAP_FROM = 6  # px of a cell from which lines part the cells


class MapTensor(NamedTuple):
    """A tuple, because thousands are made at once. row: label of its row. layer: its column, None for tensors that
    belong to no layer."""

    name: str
    row: str
    layer: int | None


@dataclass(frozen=True, eq=False)
class ModelPicture:
    """tensors: in the order of their rows. values: by name; a tensor without an entry is not known yet, None means that
    the measure does not apply, infinite values have the colour of the end of the scale.

    what: the measure with its unit. falling: small values are the worrying, bright ones. log: colours in even steps of
    the logarithm. words(name): all about a tensor's value in a sentence. text(value): on the colour bar.
    changed: names whose values differ from those of the picture before, None for all.
    """

    title: str
    what: str
    tensors: tuple[MapTensor, ...]
    values: Mapping[str, float | None]
    words: Callable[[str], str]
    log: bool = True
    falling: bool = False
    text: Callable[[float], str] = short
    changed: Collection[str] | None = None


class _Cell:
    """All tensors of one place; the most worrying one gives the colour. Thousands are made within a frame."""

    __slots__ = ("known", "names", "value", "worst")

    def __init__(self, name: str) -> None:
        self.names = [name]
        self.worst = name
        self.value: float | None = None
        self.known = False

    def look(self, values: Mapping[str, float | None], falling: bool) -> None:
        self.worst, self.value, self.known = self.names[0], None, False
        for name in self.names:
            if name not in values:
                continue
            self.known = True
            value = values[name]
            if value is None or value != value:  # NaN
                continue
            if self.value is None or (value < self.value if falling else value > self.value):
                self.worst, self.value = name, value


class ModelCanvas(QWidget):
    pointed = Signal(str, str)  # name, words
    opened = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._shown: ModelPicture | None = None
        self._tensors: tuple[MapTensor, ...] = ()
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._rows: list[str] = []
        self._layers: list[int] = []
        self._scale = Scale(1e-3, 1.0)
        self._cursor: tuple[int, int] | None = None
        self._where: dict[str, tuple[int, int]] = {}
        self._chosen = ""
        self._bar = False
        self._image: QImage | None = None  # a pixel a cell
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(320, 90)

    def sizeHint(self) -> QSize:
        return QSize(640, TOP + BOTTOM + 20 * max(6, len(self._rows)))

    # ---- content ---------------------------------------------------------------------------------------------------

    def set_picture(self, shown: ModelPicture) -> None:
        changed = shown.changed
        if self._shown is None or self._shown.tensors is not shown.tensors:
            for _ in self.arranging(shown.tensors):
                pass
            changed = None
        self._shown = shown
        self.look(self._where if changed is None else changed, shown.values, shown.falling)
        values = [value for value in shown.values.values() if value is not None]
        self._scale = scale_for(np.array(values or [math.nan]), log=shown.log, falling=shown.falling)
        self._bar = bool(values)
        self._image = None
        self.update()

    def forget_picture(self) -> None:
        self._image = None
        self.update()

    def arranging(self, tensors: tuple[MapTensor, ...]) -> Iterator[None]:
        """Find every tensor's place, some thousand a step."""
        if self._tensors is tensors:
            return
        names = list(dict.fromkeys(t.row for t in tensors))
        layers = sorted({t.layer for t in tensors if t.layer is not None})
        yield
        rows = {name: i for i, name in enumerate(names)}
        columns: dict[int | None, int] = {layer: i + 1 for i, layer in enumerate(layers)}
        columns[None] = 0
        cells: dict[tuple[int, int], _Cell] = {}
        where: dict[str, tuple[int, int]] = {}
        for first in range(0, len(tensors), PIECE):
            for tensor in tensors[first : first + PIECE]:
                place = where[tensor.name] = rows[tensor.row], columns[tensor.layer]
                if place in cells:
                    cells[place].names.append(tensor.name)
                else:
                    cells[place] = _Cell(tensor.name)
            yield
        self._tensors, self._shown, self._cursor = tensors, None, None
        self._rows, self._layers, self._cells, self._where = names, layers, cells, where
        self.updateGeometry()

    def look(self, names: Iterable[str], values: Mapping[str, float | None], falling: bool) -> None:
        for place in {self._where[name] for name in names if name in self._where}:
            self._cells[place].look(values, falling)

    def choose(self, name: str) -> None:
        self._chosen = name
        self.update()

    # ---- places ----------------------------------------------------------------------------------------------------

    def _label_width(self) -> int:
        metrics = self.fontMetrics()
        return min(190, max((metrics.horizontalAdvance(name) for name in self._rows), default=0) + SPACE_2)

    def _grid(self) -> tuple[float, float, float, float]:
        """Left, top, width and height of a cell."""
        left = self._label_width()
        columns = len(self._layers) + 1
        room = self.width() - left - RIGHT - NO_LAYER_GAP
        width = min(float(LARGEST), max(1.0, room) / max(1, columns))
        height = min(float(LARGEST), max(float(LEAST), (self.height() - TOP - BOTTOM) / max(1, len(self._rows))))
        return float(left), float(TOP), width, height

    def _box(self, row: int, column: int) -> QRectF:
        left, top, width, height = self._grid()
        x = left + column * width + (NO_LAYER_GAP if column else 0)
        return QRectF(x, top + row * height, width, height)

    def _at(self, place: QPointF) -> tuple[int, int] | None:
        left, top, width, height = self._grid()
        over = place.x() - left
        column = int(over // width) if over < width else 1 + int((over - width - NO_LAYER_GAP) // width)
        row = int((place.y() - top) // height)
        return (row, column) if (row, column) in self._cells else None

    # ---- painting --------------------------------------------------------------------------------------------------

    def paintEvent(self, _event: QPaintEvent) -> None:
        shown, theme = self._shown, current()
        if shown is None or not self._cells:
            return
        with QPainter(self) as painter:
            painter.setFont(ui_font(CAPTION))
            left, top, width, height = self._grid()
            self._paint_labels(painter, left, top, width, height)
            self._paint_cells(painter)
            bottom = top + height * len(self._rows)
            right = self._box(0, len(self._layers)).right()
            bar = QRectF(right + SPACE_2, top, self.width() - right - SPACE_2, max(90.0, bottom - top))
            if self._bar:
                paint_bar(painter, bar, self._scale, shown.what, theme, text=shown.text)
            chosen = self._where.get(self._chosen)
            if chosen is not None:
                painter.setPen(QPen(theme.color("accent"), FOCUS_WIDTH))
                painter.drawRect(self._box(*chosen).adjusted(-1, -1, 0, 0))
            if self._cursor is not None and self.hasFocus():
                for ink, thick in ((BLACK, 4), (WHITE, 2)):
                    painter.setPen(QPen(ink, thick))
                    painter.drawRect(self._box(*self._cursor).adjusted(0, 0, -1, -1))
            if self.hasFocus():
                painter.setPen(QPen(theme.color("accent"), FOCUS_WIDTH))
                painter.drawRect(QRectF(left, top, right - left, bottom - top).adjusted(-2, -2, 2, 2))

    def _paint_labels(self, painter: QPainter, left: float, top: float, width: float, height: float) -> None:
        painter.setPen(current().color("muted"))
        metrics = painter.fontMetrics()
        side = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
        every = max(1, math.ceil((metrics.height() - 4) / height))  # where rows are too low, some go without a label
        for row, name in enumerate(self._rows):
            if row % every == 0:
                room = QRectF(0, top + (row + 0.5) * height - metrics.height() / 2, left - SPACE_2, metrics.height())
                painter.drawText(room, side, metrics.elidedText(name, Qt.TextElideMode.ElideMiddle, int(room.width())))
        bottom = top + height * len(self._rows) + SPACE_1
        center = Qt.AlignmentFlag.AlignHCenter | Qt.AlignmentFlag.AlignTop
        widest = metrics.horizontalAdvance(str(self._layers[-1] if self._layers else 0)) + SPACE_2
        step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if s * width >= widest)
        for number, layer in enumerate(self._layers):
            if layer % step == 0:
                box = self._box(0, number + 1)
                painter.drawText(QRectF(box.center().x() - 30, bottom, 60, 14), center, str(layer))
        if self._layers:
            first, last = self._box(0, 1), self._box(0, len(self._layers))
            painter.drawText(QRectF(first.left(), bottom + 13, last.right() - first.left(), 14), center, "layer")

    def _paint_cells(self, painter: QPainter) -> None:
        """All cells at once: thousands one by one would take longer than a frame."""
        theme, image = current(), self._colors()
        _, _, width, height = self._grid()
        rows, layers = len(self._rows), len(self._layers)
        first, last = self._box(0, 0), self._box(rows - 1, 0)
        painter.drawImage(QRectF(first.topLeft(), last.bottomRight()), image, QRectF(0, 0, 1, rows))
        if layers:
            first, last = self._box(0, 1), self._box(rows - 1, layers)
            painter.drawImage(QRectF(first.topLeft(), last.bottomRight()), image, QRectF(1, 0, layers, rows))
        if min(width, height) > GAP_FROM:
            painter.setPen(QPen(theme.color("surface"), 1))
            for row in range(1, rows + 1):
                y = self._box(row, 0).top() - 0.5
                painter.drawLine(QPointF(first.left() - width - NO_LAYER_GAP, y), QPointF(last.right(), y))
            for column in range(2, layers + 2):
                x = self._box(0, column).left() - 0.5
                painter.drawLine(QPointF(x, first.top()), QPointF(x, last.bottom()))
        if width > GAP_FROM:
            painter.setPen(QPen(theme.color("border"), 1))
            for place, cell in self._cells.items():
                if cell.value is None and cell.known:  # the measure does not apply here
                    middle = self._box(*place).center()
                    painter.drawLine(QPointF(middle.x() - 3, middle.y()), QPointF(middle.x() + 3, middle.y()))

    def _colors(self) -> QImage:
        if self._image is None:
            grid = np.zeros((len(self._rows), len(self._layers) + 1), np.uint32)  # transparent where there is no tensor
            rows, columns = np.array(list(self._cells)).T
            values = np.array([math.nan if c.value is None else c.value for c in self._cells.values()])
            inside = np.clip(values, self._scale.low, self._scale.high)
            table = np.array(color_table(self._scale.name, current()), np.uint32)
            grid[rows, columns] = table[self._scale.indices(inside, UNSEEN)]
            height, width = grid.shape
            self._image = QImage(grid.data, width, height, 4 * width, QImage.Format.Format_ARGB32).copy()
        return self._image

    # ---- pointer and keyboard --------------------------------------------------------------------------------------

    def words(self) -> str:
        """Of the keyboard's cell."""
        return self._words(self._cursor) if self._cursor is not None and self.hasFocus() else ""

    def _words(self, place: tuple[int, int] | None) -> str:
        if place is None or self._shown is None:
            return ""
        cell = self._cells[place]
        words = self._shown.words(cell.worst)
        if len(cell.names) == 1:
            return words
        return f"{format_count(len(cell.names))} tensors, the most striking: {words}"

    def _tell(self, place: tuple[int, int] | None) -> None:
        name = self._cells[place].worst if place is not None else ""
        self.pointed.emit(name, self._words(place))

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        place = self._at(event.position())
        self.setCursor(Qt.CursorShape.PointingHandCursor if place is not None else Qt.CursorShape.ArrowCursor)
        self._tell(place)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        place = self._at(event.position())
        if event.button() == Qt.MouseButton.LeftButton and place is not None:
            self._cursor = place
            self._open(place)

    def leaveEvent(self, _event: object) -> None:
        self.pointed.emit("", self.words())

    def _open(self, place: tuple[int, int]) -> None:
        self.opened.emit(self._cells[place].worst)

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        if self._cursor is None and self._cells:
            self._cursor = self._where.get(self._chosen) or next(iter(self._cells))
        self._tell(self._cursor)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        moves = {
            Qt.Key.Key_Left: (0, -1), Qt.Key.Key_Right: (0, 1), Qt.Key.Key_Up: (-1, 0), Qt.Key.Key_Down: (1, 0),
        }  # fmt: skip
        key = Qt.Key(event.key())
        plain = not event.modifiers() & Qt.KeyboardModifier.ControlModifier
        if key in moves and self._cursor is not None:
            self._step(*moves[key])
        elif key in (Qt.Key.Key_Home, Qt.Key.Key_End) and self._cursor is not None:
            row = self._cursor[0]
            columns = [c for r, c in self._cells if r == row]
            self._cursor = row, min(columns) if key == Qt.Key.Key_Home else max(columns)
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space) and plain and self._cursor is not None:
            self._open(self._cursor)
            return
        else:
            super().keyPressEvent(event)
            return
        self.update()
        self._tell(self._cursor)

    def _step(self, down: int, over: int) -> None:
        """To the next cell in that direction; where there is none in this line, the nearest of the next line."""
        assert self._cursor is not None
        row, column = self._cursor
        if over:
            columns = [c for r, c in self._cells if r == row and (c - column) * over > 0]
            if columns:
                self._cursor = row, min(columns, key=lambda c: abs(c - column))
            return
        rows = [r for r, _ in self._cells if (r - row) * down > 0]
        if rows:
            nearest = min(rows, key=lambda r: abs(r - row))
            columns = [c for r, c in self._cells if r == nearest]
            self._cursor = nearest, min(columns, key=lambda c: abs(c - column))
