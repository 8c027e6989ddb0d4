"""The map of a model: a column a layer, a row a role, coloured by one number of each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.plots.color_bar import paint_bar, short
from app.plots.colors import BLACK, WHITE, Scale, scale_for
from app.plots.figure import FigurePanel
from app.theme import CAPTION, FOCUS_WIDTH, SPACE_1, SPACE_2, current, ui_font
from core.units import format_count

RIGHT, TOP, BOTTOM = 92, 4, 32  # px around the cells: colour bar, nothing, layer numbers
NO_LAYER_GAP = 10  # px between tensors without a layer and the layers
LARGEST = 34  # px of a cell, so that a small model does not become a chequerboard
LEAST = 5


@dataclass(frozen=True)
class MapTile:
    """One tensor. row: label of its row. layer: its column, None for tensors that belong to no layer.

    value: None while unknown (`known` False) or where the measure does not apply. words: what is told about it.
    """

    name: str
    row: str
    layer: int | None
    value: float | None
    known: bool
    words: str


@dataclass(frozen=True)
class ModelPicture:
    """what: the measure's name, with its unit; falling: small values are the worrying, bright ones. log: colours."""

    title: str
    what: str
    tiles: tuple[MapTile, ...]
    log: bool = True
    falling: bool = False
    text: Callable[[float], str] = short
    exact: str = ""  # what an infinite value is, such as 'exact'


@dataclass
class _Cell:
    """All tensors of one place; the most worrying gives the colour."""

    row: int
    column: int
    tiles: list[MapTile] = field(default_factory=list)

    def worst(self, falling: bool) -> MapTile:
        known = [t for t in self.tiles if t.value is not None and not math.isnan(t.value)]
        if not known:
            return self.tiles[0]
        pick = min if falling else max
        return pick(known, key=lambda t: t.value if t.value is not None else 0.0)


class ModelMap(FigurePanel):
    """`show_map` draws and may be called again and again while numbers come in.

    tensor_pointed(name): the pointer or the keyboard's cursor is on it; tensor_opened(name): a click, or Enter.
    """

    tensor_pointed = Signal(str)
    tensor_opened = Signal(str)

    def __init__(self, name: str = "Map of the model", empty: str = "", parent: QWidget | None = None) -> None:
        self._shown: ModelPicture | None = None
        self.canvas = _Canvas()
        super().__init__(name, empty or "No data yet: open a model to see its tensors.", parent)
        self._figure_layout.addWidget(self.canvas)
        self.canvas.pointed.connect(self._on_pointed)
        self.canvas.opened.connect(self.tensor_opened)

    def clear(self, text: str = "") -> None:
        self._shown = None
        super().clear(text)

    def show_map(self, shown: ModelPicture, note: str = "") -> None:
        self._shown = shown
        self.canvas.set_picture(shown)
        readout = self.readout.text() if self.has_data else self.read_hint()
        self.show_figure(shown.title, (), note)
        self.readout.setText(self.canvas.words() or readout)
        self.canvas.setAccessibleName(f"{shown.title}, arrow keys move, Enter opens")

    def choose(self, name: str) -> None:
        """Mark the cell of a tensor."""
        self.canvas.choose(name)

    def repaint_figure(self) -> None:
        self.canvas.update()

    def read_hint(self) -> str:
        return "Point at a cell to read it; click, or arrow keys and Enter, to open the tensor."

    def describe(self) -> str:
        shown = self._shown
        if shown is None:
            return ""
        known = [t for t in shown.tiles if t.value is not None]
        words = f"{shown.what} of {format_count(len(known))} of {format_count(len(shown.tiles))} tensors."
        finite = [t for t in known if t.value is not None and math.isfinite(t.value)]
        if finite:
            worst = (min if shown.falling else max)(finite, key=lambda t: t.value if t.value is not None else 0.0)
            words += f" {'Smallest' if shown.falling else 'Largest'}: {worst.words}."
        return words

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        shown = self._shown
        if shown is None:
            return ("tensor",), ()
        return ("tensor", "role", "layer", shown.what), [
            (t.name, t.row, "" if t.layer is None else t.layer, "" if t.value is None else float(t.value))
            for t in shown.tiles
        ]

    def _on_pointed(self, name: str, words: str) -> None:
        self.readout.setText(words or self.read_hint())
        self.canvas.setAccessibleDescription(words)
        if name:
            self.tensor_pointed.emit(name)


class _Canvas(QWidget):
    pointed = Signal(str, str)  # name, words
    opened = Signal(str)

    def __init__(self) -> None:
        super().__init__()
        self._shown: ModelPicture | None = None
        self._cells: dict[tuple[int, int], _Cell] = {}
        self._rows: list[str] = []
        self._layers: list[int] = []
        self._scale = Scale(1e-3, 1.0)
        self._cursor: tuple[int, int] | None = None
        self._where: dict[str, tuple[int, int]] = {}
        self._chosen = ""
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Expanding)
        self.setMinimumSize(320, 150)

    def sizeHint(self) -> QSize:
        return QSize(640, TOP + BOTTOM + 20 * max(6, len(self._rows)))

    # ---- content ---------------------------------------------------------------------------------------------------

    def set_picture(self, shown: ModelPicture) -> None:
        self._shown = shown
        self._rows = list(dict.fromkeys(t.row for t in shown.tiles))
        self._layers = sorted({t.layer for t in shown.tiles if t.layer is not None})
        rows = {name: i for i, name in enumerate(self._rows)}
        columns = {layer: i + 1 for i, layer in enumerate(self._layers)}
        self._cells, self._where = {}, {}
        for tile in shown.tiles:
            place = rows[tile.row], columns[tile.layer] if tile.layer is not None else 0
            self._cells.setdefault(place, _Cell(*place)).tiles.append(tile)
            self._where[tile.name] = place
        values = [t.value for t in shown.tiles if t.value is not None]
        self._scale = scale_for(np.array(values or [math.nan]), log=shown.log, falling=shown.falling)
        if self._cursor not in self._cells:
            self._cursor = None
        self.updateGeometry()
        self.update()

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
        width = min(float(LARGEST), max(float(LEAST), room / max(1, columns)))
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
            for (row, column), cell in self._cells.items():
                self._paint_cell(painter, self._box(row, column), cell, shown)
            bottom = top + height * len(self._rows)
            right = self._box(0, len(self._layers)).right()
            bar = QRectF(right + SPACE_2, top, self.width() - right - SPACE_2, max(90.0, bottom - top))
            if any(t.value is not None for t in shown.tiles):
                paint_bar(painter, bar, self._scale, shown.what, theme, text=shown.text)
            for place, color in ((self._where.get(self._chosen), theme.color("accent")),):
                if place is not None:
                    painter.setPen(QPen(color, FOCUS_WIDTH))
                    painter.drawRect(self._box(*place).adjusted(-1, -1, 0, 0))
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
        every = math.ceil(metrics.height() / height)  # rows too low for their label share one
        for row, name in enumerate(self._rows):
            if row % every == 0:
                room = QRectF(0, top + row * height, left - SPACE_2, height * every)
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

    def _paint_cell(self, painter: QPainter, box: QRectF, cell: _Cell, shown: ModelPicture) -> None:
        theme = current()
        tile = cell.worst(shown.falling)
        gap = 1.0 if min(box.width(), box.height()) > 6 else 0.0
        inside = box.adjusted(0, 0, -gap, -gap)
        if tile.value is None or math.isnan(tile.value):
            painter.fillRect(inside, theme.color("sunken"))
            painter.setPen(QPen(theme.color("border"), 1))
            middle = inside.center()
            if tile.known:  # the measure does not apply here
                painter.drawLine(QPointF(middle.x() - 3, middle.y()), QPointF(middle.x() + 3, middle.y()))
            return
        value = tile.value
        if math.isinf(value):
            value = self._scale.high if value > 0 else self._scale.low
        painter.fillRect(inside, self._scale.color(value))

    # ---- pointer and keyboard --------------------------------------------------------------------------------------

    def words(self) -> str:
        """Of the keyboard's cell."""
        return self._words(self._cursor) if self._cursor is not None and self.hasFocus() else ""

    def _words(self, place: tuple[int, int] | None) -> str:
        if place is None or self._shown is None:
            return ""
        cell = self._cells[place]
        worst = cell.worst(self._shown.falling)
        if len(cell.tiles) == 1:
            return worst.words
        return f"{format_count(len(cell.tiles))} tensors, the most striking: {worst.words}"

    def _tell(self, place: tuple[int, int] | None) -> None:
        name = self._cells[place].worst(self._shown.falling).name if place is not None and self._shown else ""
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
        if self._shown is not None:
            self.opened.emit(self._cells[place].worst(self._shown.falling).name)

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
