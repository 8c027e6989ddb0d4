"""Where in long texts a hidden number is still found, one row a format of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QEvent, QRect, QSize, Qt
from PySide6.QtGui import QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QToolTip, QWidget

from app.icons import pixmap
from app.plots.figure import FigurePanel
from app.theme import CAPTION, SPACE_1, SPACE_2, Theme, current, mono_font, ui_font
from core.units import format_count, format_decimals, format_percent

if TYPE_CHECKING:
    from core.kv.needles import NeedleTable

ROW, LEAST_ROW = 24, 15  # px of height
MARK = 12  # px of an icon
HEADS = 2  # rows above: lengths, depths
_MIDDLE = Qt.AlignmentFlag.AlignCenter


class NeedleGrid(FigurePanel):
    """Formats downwards, length and depth to the right; a mark in each cell: found or not."""

    def __init__(self, empty: str, parent: QWidget | None = None) -> None:
        self._table: NeedleTable | None = None
        super().__init__("Numbers in long texts", empty, parent)
        self._cells = _Cells()
        self._figure_layout.addWidget(self._cells)

    def show_table(self, title: str, table: NeedleTable) -> None:
        self._table = table
        self._cells.show_table(table)
        self.show_figure(title)

    def repaint_figure(self) -> None:
        self._cells.update()

    def read_hint(self) -> str:
        return "Depth of the number in the text, and how long that is. Point at a cell to read how sure it is."

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        if self._table is None:
            return (), ()
        rows = [
            [row.scheme.text, length, depth, margin]
            for row in self._table.rows
            for (length, depth), margin in zip(self._table.places, row.margins, strict=True)
        ]
        return ("cache", "tokens", "depth", "margin_nats"), rows

    def describe(self) -> str:
        table = self._table
        if table is None:
            return ""
        counts = ", ".join(f"{row.scheme.text} {row.found}" for row in table.rows)
        return f"Of {len(table.places)} numbers are found: {counts}."


class _Cells(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._table: NeedleTable | None = None

    def show_table(self, table: NeedleTable) -> None:
        self._table = table
        self.setMinimumHeight(LEAST_ROW * (len(table.rows) + HEADS))
        self.update()

    def sizeHint(self) -> QSize:
        return QSize(320, ROW * ((len(self._table.rows) if self._table else 8) + HEADS))

    def paintEvent(self, _event: QPaintEvent) -> None:
        table, theme = self._table, current()
        if table is None:
            return
        names, cell, high = self._sizes()
        with QPainter(self) as painter:
            painter.setFont(ui_font(CAPTION))
            painter.setPen(theme.color("muted"))
            for column, (length, depth) in enumerate(table.places):
                x = names + cell * column
                painter.drawText(QRect(x, high, cell, high), _MIDDLE, format_percent(depth, 0))
                same = [n for n, place in enumerate(table.places) if place[0] == length]
                if column == same[0]:
                    head = QRect(x, 0, cell * len(same), high)
                    painter.drawText(head, _MIDDLE, f"{format_count(length)} tokens")
                    if column:
                        painter.fillRect(x - 1, SPACE_1, 1, high * (len(table.rows) + HEADS), theme.color("border"))
            for line, row in enumerate(table.rows, HEADS):
                painter.setFont(mono_font(CAPTION))
                painter.setPen(theme.color("text"))
                text = painter.fontMetrics().elidedText(row.scheme.text, Qt.TextElideMode.ElideMiddle, names - SPACE_2)
                painter.drawText(QRect(0, high * line, names, high), Qt.AlignmentFlag.AlignVCenter, text)
                for column, margin in enumerate(row.margins):
                    room = QRect(names + cell * column, high * line, cell, high).adjusted(1, 1, -1, -1)
                    self._paint_cell(painter, theme, room, margin > 0)

    def _paint_cell(self, painter: QPainter, theme: Theme, room: QRect, found: bool) -> None:
        painter.fillRect(room, theme.color("sunken"))
        if not found:  # an outline, too: not by colour alone
            painter.setPen(QPen(theme.color("error"), 1))
            painter.drawRect(room.adjusted(0, 0, -1, -1))
        ratio = self.devicePixelRatioF()
        picture = pixmap("check" if found else "x", theme.ok if found else theme.error, round(MARK * ratio))
        picture.setDevicePixelRatio(ratio)
        painter.drawPixmap(room.center().x() - MARK // 2 + 1, room.center().y() - MARK // 2 + 1, picture)

    def _sizes(self) -> tuple[int, int, int]:
        """Width of the names, width of a cell, height of a row."""
        assert self._table is not None
        metrics, table = self.fontMetrics(), self._table
        wanted = max(metrics.horizontalAdvance(row.scheme.text) for row in table.rows) + SPACE_2
        names = min(wanted, self.width() * 2 // 5)
        high = max(LEAST_ROW, min(ROW, self.height() // (len(table.rows) + HEADS)))
        return names, max((self.width() - names) // max(len(table.places), 1), MARK + 2), high

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            QToolTip.showText(event.globalPos(), self.text_at(event.pos().x(), event.pos().y()), self)
            return True
        return super().event(event)

    def text_at(self, x: int, y: int) -> str:
        """What the cell under this place says, in words."""
        table = self._table
        if table is None:
            return ""
        names, cell, high = self._sizes()
        column, line = (x - names) // cell, y // high - HEADS
        if not (0 <= line < len(table.rows) and x >= names and column < len(table.places)):
            return table.rows[line].scheme.text if 0 <= line < len(table.rows) else ""
        (length, depth), margin = table.places[column], table.rows[line].margins[column]
        sign = "+" if margin > 0 else ""
        return (
            f"{table.rows[line].scheme.text}, {format_count(length)} tokens, at {format_percent(depth, 0)}: "
            f"{'found' if margin > 0 else 'not found'}, the right number {sign}{format_decimals(margin, 1)} nats"
        )
