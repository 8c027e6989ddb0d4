"""A heat map of a matrix: every cell shows the largest magnitude in it, from the whole down to single values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QToolButton, QWidget

from app.icons import set_icon
from app.plots.colors import WEIGHTS
from app.plots.figure import FigurePanel
from app.plots.heat_canvas import HeatCanvas
from app.plots.heat_view import Span
from core.units import format_count, format_number

HELP = (
    "The wheel zooms about the pointer, with Shift only the columns, with Ctrl only the rows; + − and 0 do from the "
    "keyboard. Drag moves. Arrow keys move a cursor, with Shift by ten cells. A click or Enter chooses row and column."
)


class Matrix(Protocol):
    """What can be shown: `core.inspect.picture.Pyramid`, or `CellsMatrix`. Both answer within a few milliseconds."""

    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...

    def pooled(self, rows: Span, columns: Span, height: int, width: int) -> np.ndarray:
        """float32 [height, width], the largest magnitude of each cell of the window."""
        ...

    def values(self, rows: Span, columns: Span) -> np.ndarray:
        """Single values of a window, signed where they have a sign."""
        ...


class CellsMatrix:
    """A matrix of which only the largest magnitude of each of some cells is known, such as an error map."""

    def __init__(self, cells: np.ndarray, row_edges: np.ndarray, column_edges: np.ndarray) -> None:
        self._cells = cells
        self._edges = np.asarray(row_edges, np.int64), np.asarray(column_edges, np.int64)
        self.rows, self.columns = int(self._edges[0][-1]), int(self._edges[1][-1])

    @property
    def fine(self) -> tuple[int, int]:
        """Rows and columns of the largest cell."""
        return int(np.diff(self._edges[0]).max()), int(np.diff(self._edges[1]).max())

    def pooled(self, rows: Span, columns: Span, height: int, width: int) -> np.ndarray:
        out = self._cells
        for axis, (span, count) in enumerate(((rows, height), (columns, width))):
            borders = span[0] + np.arange(count + 1) * (span[1] - span[0]) // count
            first = np.searchsorted(self._edges[axis], borders[:-1], side="right") - 1
            last = np.searchsorted(self._edges[axis], np.maximum(borders[1:], borders[:-1] + 1), side="left")
            out = _pool(out, first, last, axis)
        return out

    def values(self, rows: Span, columns: Span) -> np.ndarray:
        return self.pooled(rows, columns, rows[1] - rows[0], columns[1] - columns[0])


def _pool(cells: np.ndarray, first: np.ndarray, last: np.ndarray, axis: int) -> np.ndarray:
    """Largest of the cells first … last of each; NaN (not looked at) gives way to any number."""
    if (last - first == 1).all():
        return np.take(cells, first, axis)
    filled = np.where(np.isnan(cells), np.float32(-1), cells)
    pairs = np.stack([first, np.maximum(last, first + 1)], axis=1).ravel()
    padded = np.concatenate([filled, np.take(filled, [-1], axis)], axis)  # reduceat takes no index at the end
    out = np.maximum.reduceat(padded, pairs, axis)
    out = out[::2] if axis == 0 else out[:, ::2]
    return np.where(out < 0, np.float32(np.nan), out)


@dataclass(frozen=True)
class HeatPicture:
    """What a heat map shows. title names the tensor; what: the magnitude in a few words, '|w|' or '|error|'.

    unseen: NaN means 'not looked at yet', not a damaged value. top: largest magnitude, the bright end of the colours;
    0: that of the picture. axes: what a row and a column are called; axis_title: the words under the picture.
    """

    title: str
    matrix: Matrix
    what: str = "|w|"
    colors: str = WEIGHTS
    unseen: bool = False
    top: float = 0.0
    note: str = ""
    axes: tuple[str, str] = ("row", "column")
    axis_title: str = "input channel (column) →     output channel (row) ↓"


class ArrayMatrix:
    """A matrix of magnitudes that is small enough to be held."""

    def __init__(self, values: np.ndarray) -> None:
        self._values = np.asarray(values, np.float32)
        self.rows, self.columns = self._values.shape

    def pooled(self, rows: Span, columns: Span, height: int, width: int) -> np.ndarray:
        window = self._values[rows[0] : rows[1], columns[0] : columns[1]]
        for axis, count in ((0, height), (1, width)):
            borders = np.arange(count + 1) * window.shape[axis] // count
            window = _pool(window, borders[:-1], borders[1:], axis)
        return window

    def values(self, rows: Span, columns: Span) -> np.ndarray:
        return self._values[rows[0] : rows[1], columns[0] : columns[1]]


class HeatMap(FigurePanel):
    """`show_picture` draws; the part that is looked at stays when the next picture has the same shape.

    cell_chosen(row, column): a click, or Enter on the keyboard's cursor. view_changed: another part is shown.
    """

    cell_chosen = Signal(int, int)
    view_changed = Signal()

    def __init__(self, name: str = "Weights", empty: str = "", parent: QWidget | None = None) -> None:
        self._shown: HeatPicture | None = None
        self.canvas = HeatCanvas()
        self.whole_button = _tool("maximize", "Show the whole tensor (0)", self.canvas.show_whole)
        self.in_button = _tool("plus", "Zoom in (+)", lambda: self.canvas.zoom(2.0))
        self.out_button = _tool("minus", "Zoom out (−)", lambda: self.canvas.zoom(0.5))
        super().__init__(name, empty or "No data yet: choose a tensor to see its weights.", parent)
        self._figure_layout.addWidget(self.canvas)
        self.readout.setToolTip(HELP)
        for button in (self.out_button, self.in_button, self.whole_button):
            self._top.insertWidget(self._top.count() - 1, button)
        self.canvas.pointed.connect(self._on_pointed)
        self.canvas.cell_chosen.connect(self.cell_chosen)
        self.canvas.view_changed.connect(self._on_view)

    # ---- content ---------------------------------------------------------------------------------------------------

    def clear(self, text: str = "") -> None:
        self._shown = None
        super().clear(text)
        self.canvas.set_picture(None)
        self._show_buttons()

    def show_picture(self, shown: HeatPicture) -> None:
        self._shown = shown
        self.canvas.set_picture(shown)
        self.show_figure(shown.title, (), shown.note)
        self.canvas.setAccessibleName(f"{shown.title}, heat map")
        self._show_buttons()

    def mark(self, rows: Sequence[int], columns: Sequence[int]) -> None:
        """Channels to point out at the edges of the picture."""
        self.canvas.set_marks(rows, columns)

    def choose(self, axis: str, channel: int | None, *, go: bool = False) -> None:
        """Draw a line along a channel ('output': a row, 'input': a column). go: also bring it into view, zoomed in."""
        self.canvas.choose(axis, channel, go=go)

    def repaint_figure(self) -> None:
        self.canvas.forget_picture()

    # ---- words and files -------------------------------------------------------------------------------------------

    def read_hint(self) -> str:
        return "Wheel zooms, drag moves, a click chooses."

    def describe(self) -> str:
        if self._shown is None:
            return ""
        view, (row, column, value) = self.canvas.view, self.canvas.largest()
        where = (
            "all" if view.is_whole else f"rows {format_count(round(view.top))} to {format_count(round(view.bottom))}"
        )
        columns = f", columns {format_count(round(view.left))} to {format_count(round(view.right))}"
        where += "" if view.is_whole else columns
        return (
            f"{self._shown.what} of {format_count(view.rows)} rows × {format_count(view.columns)} columns; shown: "
            f"{where}. The largest, {format_number(value)}, is near row {format_count(row)}, column "
            f"{format_count(column)}."
        )

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """The cells in view."""
        names = (
            "first row",
            "last row",
            "first column",
            "last column",
            f"largest {self._shown.what}" if self._shown else "",
        )
        cells, values = self.canvas.cells_shown()
        if cells is None or values is None:
            return names, ()
        rows = _borders(cells.rows, cells.height)
        columns = _borders(cells.columns, cells.width)
        return names, [
            (rows[i], rows[i + 1] - 1, columns[j], columns[j + 1] - 1, float(values[i, j]))
            for i in range(cells.height)
            for j in range(cells.width)
        ]

    def _on_pointed(self, text: str) -> None:
        self.readout.setText(text or self.read_hint())
        if text:
            self.canvas.setAccessibleDescription(text)

    def _on_view(self) -> None:
        self.setAccessibleDescription(self.describe())
        self._show_buttons()
        self.view_changed.emit()

    def _show_buttons(self) -> None:
        on = self._shown is not None
        for button in (self.out_button, self.in_button, self.whole_button):
            button.setVisible(on)


def _tool(icon: str, hint: str, act: Callable[[], object]) -> QToolButton:
    button = QToolButton()
    button.setProperty("buttonRole", "quiet")
    button.setToolTip(hint)
    button.setAccessibleName(hint)
    set_icon(button, icon, "muted")
    button.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    button.clicked.connect(lambda _checked=False: act())
    return button


def _borders(span: Span, count: int) -> list[int]:
    return [span[0] + i * (span[1] - span[0]) // count for i in range(count)] + [span[1]]
