"""A heat map under the pointer and the keyboard: zoom, movement, a cursor, and what is there in words."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import QPointF, Qt, Signal
from PySide6.QtGui import QFocusEvent, QKeyEvent, QMouseEvent, QWheelEvent
from PySide6.QtWidgets import QWidget

from app.plots.heat_surface import HeatSurface
from core.units import format_count, format_number

NOTCH = 120.0  # of a wheel, in eighths of a degree
ZOOM_STEP = 1.25  # a notch
CLICK = 4  # px that a click may move


class HeatCanvas(HeatSurface):
    """pointed(text): what is under the pointer or the cursor, in words. Others as `HeatMap` says."""

    pointed = Signal(str)
    cell_chosen = Signal(int, int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._pressed: QPointF | None = None
        self._dragged: QPointF | None = None
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)

    # ---- pointer ---------------------------------------------------------------------------------------------------

    def wheelEvent(self, event: QWheelEvent) -> None:
        turn = event.angleDelta().y() or event.angleDelta().x()
        if self._shown is None or not turn:
            event.ignore()
            return
        keys = event.modifiers()
        axes = "columns" if keys & Qt.KeyboardModifier.ShiftModifier else "both"
        axes = "rows" if keys & Qt.KeyboardModifier.ControlModifier else axes
        self.zoom(ZOOM_STEP ** (turn / NOTCH), event.position(), axes)
        self._point(event.position())

    def mousePressEvent(self, event: QMouseEvent) -> None:
        if event.button() == Qt.MouseButton.LeftButton:
            self._pressed = self._dragged = event.position()

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        at = event.position()
        if self._dragged is not None and self._pressed is not None:
            moved = at - self._dragged
            if (at - self._pressed).manhattanLength() > CLICK or self._dragged != self._pressed:
                area, view = self.area(), self.view
                over, down = moved.x() / area.width() * view.width, moved.y() / area.height() * view.height
                self._set_view(view.moved(-down, -over))
                self._dragged = at
        self._point(at)

    def mouseReleaseEvent(self, event: QMouseEvent) -> None:
        pressed, self._pressed, dragged, self._dragged = self._pressed, None, self._dragged, None
        if pressed is not None and dragged == pressed and self.area().contains(event.position()):
            row, column = self._place(event.position())
            self._choose_cell(int(row), int(column))

    def mouseDoubleClickEvent(self, event: QMouseEvent) -> None:
        self.zoom(4.0, event.position())

    def leaveEvent(self, _event: object) -> None:
        self.pointed.emit("")

    def _point(self, at: QPointF) -> None:
        if self._shown is None or not self.area().contains(at):
            self.pointed.emit("")
            return
        row, column = self._place(at)
        self.pointed.emit(self.words_at(int(row), int(column)))

    def words_at(self, row: int, column: int) -> str:
        """What is there: the value, or the largest of the cell that it is in."""
        self._ensure_image()
        cells = self._cells
        if cells is None or self._values is None or self._shown is None:
            return ""
        if not (cells.rows[0] <= row < cells.rows[1] and cells.columns[0] <= column < cells.columns[1]):
            return ""
        i = min(cells.height - 1, (row - cells.rows[0]) // cells.row_step)
        j = min(cells.width - 1, (column - cells.columns[0]) // cells.column_step)
        value = float(self._values[i, j])
        what, (down, over) = self._shown.what, self._shown.axes
        if cells.single:
            signed = float(self._shown.matrix.values((row, row + 1), (column, column + 1))[0, 0])
            place = f"{down.capitalize()} {format_count(row)}, {over} {format_count(column)}"
            return f"{place}: {_words(signed, self._shown.unseen)}"
        rows = _range(cells.rows[0] + i * cells.row_step, cells.row_step, cells.rows[1])
        columns = _range(cells.columns[0] + j * cells.column_step, cells.column_step, cells.columns[1])
        place = f"{down.capitalize()}s {rows}, {over}s {columns}"
        return f"{place}: largest {what} {_words(value, self._shown.unseen)}"

    # ---- keyboard --------------------------------------------------------------------------------------------------

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if self._shown is None:
            super().keyPressEvent(event)
            return
        moves = {
            Qt.Key.Key_Left: (0, -1), Qt.Key.Key_Right: (0, 1), Qt.Key.Key_Up: (-1, 0), Qt.Key.Key_Down: (1, 0),
            Qt.Key.Key_PageUp: (-10, 0), Qt.Key.Key_PageDown: (10, 0),
        }  # fmt: skip
        key = Qt.Key(event.key())
        if key in moves:
            self._move_cursor(*moves[key], shift=bool(event.modifiers() & Qt.KeyboardModifier.ShiftModifier))
        elif key in (Qt.Key.Key_Plus, Qt.Key.Key_Equal):
            self.zoom(2.0)
        elif key == Qt.Key.Key_Minus:
            self.zoom(0.5)
        elif key in (Qt.Key.Key_0, Qt.Key.Key_Home):
            self.show_whole()
        elif key in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space) and self._cursor is not None:
            if event.modifiers() & Qt.KeyboardModifier.ControlModifier:
                super().keyPressEvent(event)  # the page's main action
                return
            self._choose_cell(*self._cursor)
        else:
            super().keyPressEvent(event)
            return
        if self._cursor is not None:
            self.pointed.emit(self.words_at(*self._cursor))

    def focusInEvent(self, event: QFocusEvent) -> None:
        super().focusInEvent(event)
        keyboard = event.reason() in (Qt.FocusReason.TabFocusReason, Qt.FocusReason.BacktabFocusReason)
        if self._cursor is None and self._shown is not None and keyboard:
            row, column, _ = self.largest()
            self._cursor = row, column
            self.pointed.emit(self.words_at(row, column))

    def _move_cursor(self, down: int, over: int, *, shift: bool) -> None:
        """By one cell; with Shift, by ten."""
        cells, view = self._cells, self.view
        if cells is None:
            return
        if self._cursor is None:
            self._cursor = int((view.top + view.bottom) / 2), int((view.left + view.right) / 2)
        factor = 10 if shift else 1
        row = self._cursor[0] + down * factor * cells.row_step
        column = self._cursor[1] + over * factor * cells.column_step
        row, column = min(max(0, row), view.rows - 1), min(max(0, column), view.columns - 1)
        self._cursor = row, column
        self._set_view(view.showing(row, column))
        self.update()

    def _choose_cell(self, row: int, column: int) -> None:
        row, column = min(row, self.view.rows - 1), min(column, self.view.columns - 1)
        self._cursor = row, column
        self.update()
        self.cell_chosen.emit(row, column)


def _range(first: int, step: int, end: int) -> str:
    last = min(first + step, end) - 1
    return format_count(first) if last <= first else f"{format_count(first)} to {format_count(last)}"


def _words(value: float, unseen: bool) -> str:
    if np.isnan(value):
        return "not looked at yet" if unseen else "not a number (NaN)"
    return "infinite" if np.isinf(value) else format_number(value, 5)
