"""The bytes that hold one group, as a hex dump in which the digits of one value can be marked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFontMetricsF, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QScrollArea, QSizePolicy, QWidget

from app.theme import BASE, CAPTION, SPACE_1, SPACE_2, current, mono_font, themes

if TYPE_CHECKING:
    from app.pages.inspect.group_rows import ShownGroup
    from core.inspect.group_types import BitField

FEWEST_LINES, MOST_LINES = 2, 6
MOST_BYTES = 512  # drawn; a group never needs more
LINE_HEIGHT = BASE + SPACE_2
NOTHING = -1


@dataclass(frozen=True)
class _Cell:
    """One byte. values: place → which of its bits (mask) are that value's. shared: it holds a scale or the like."""

    offset: int
    value: int
    values: dict[int, int]
    shared: tuple[str, ...]


class ByteStrip(QWidget):
    """`show_group`; `highlight(place)` marks the digits of a value; `hovered(place)` follows the pointer, −1: none."""

    hovered = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._lines: list[tuple[str, list[_Cell]]] = []  # a heading or the line's offset, and its bytes
        self._runs: list[tuple[str, list[_Cell]]] = []
        self._place = NOTHING
        self._under = NOTHING
        self.setMouseTracking(True)
        self.setAccessibleName("Bytes of the group")
        policy = QSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Fixed)
        policy.setHeightForWidth(True)
        self.setSizePolicy(policy)
        themes().changed.connect(self._on_theme)

    def _on_theme(self, _theme: object) -> None:
        self.update()

    # ---- content ---------------------------------------------------------------------------------------------------

    def show_group(self, group: ShownGroup | None) -> None:
        """None, or a group that is in no file, shows nothing."""
        self._runs = _runs(group) if group is not None else []
        self._place = NOTHING
        count = sum(len(cells) for _, cells in self._runs)
        self.setVisible(count > 0)
        self.setAccessibleDescription(
            "; ".join(f"{name} {' '.join(f'{c.value:02x}' for c in cells)}".strip() for name, cells in self._runs)
        )
        self._break_lines()

    def highlight(self, place: int) -> None:
        if place != self._place:
            self._place = place
            self.update()

    @property
    def marked(self) -> str:
        """The digits that are marked now, in file order."""
        digits = ""
        for _, cells in self._runs:
            for cell in cells:
                mask = cell.values.get(self._place, 0)
                digits += (f"{cell.value:02x}"[0] if mask & 0xF0 else "") + (
                    f"{cell.value:02x}"[1] if mask & 15 else ""
                )
        return digits

    def marked_line(self) -> int:
        """Number of the first line with a marked byte, −1 without one."""
        lines = enumerate(self._lines)
        return next((n for n, (_, cells) in lines if any(self._place in c.values for c in cells)), NOTHING)

    # ---- layout ----------------------------------------------------------------------------------------------------

    def _per_line(self, width: int) -> int:
        room = int((width - self._left()) / self._step())
        return next((n for n in (32, 16, 8) if n <= room), 4)

    def _left(self) -> float:
        return QFontMetricsF(mono_font(CAPTION)).horizontalAdvance("0x00000000") + SPACE_2

    def _step(self) -> float:
        return QFontMetricsF(mono_font(BASE)).horizontalAdvance("00") + SPACE_1 + 2

    def _break_lines(self) -> None:
        per_line = self._per_line(self.width())
        self._lines = []
        for name, cells in self._runs:
            if name:
                self._lines.append((name, []))
            for first in range(0, len(cells), per_line):
                line = cells[first : first + per_line]
                self._lines.append((f"0x{line[0].offset:x}", line))
        self.updateGeometry()
        self.update()

    def hasHeightForWidth(self) -> bool:
        return True

    def heightForWidth(self, width: int) -> int:
        per_line = self._per_line(width)
        lines = sum(bool(name) + -(-len(cells) // per_line) for name, cells in self._runs)
        return int(lines * LINE_HEIGHT + SPACE_1)

    def sizeHint(self) -> QSize:
        return QSize(200, self.heightForWidth(max(self.width(), 200)))

    def minimumSizeHint(self) -> QSize:
        return QSize(120, self.sizeHint().height())

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._break_lines()

    # ---- painting --------------------------------------------------------------------------------------------------

    def _rect(self, line: int, number: int) -> QRectF:
        return QRectF(self._left() + number * self._step(), line * LINE_HEIGHT, self._step(), LINE_HEIGHT)

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current()
        with QPainter(self) as painter:
            for row, (head, cells) in enumerate(self._lines):
                painter.setFont(mono_font(CAPTION) if cells else self.font())
                painter.setPen(QPen(theme.color("muted")))
                room = QRectF(0, row * LINE_HEIGHT, self._left() if cells else self.width(), LINE_HEIGHT)
                shown = painter.fontMetrics().elidedText(head, Qt.TextElideMode.ElideMiddle, int(room.width()))
                painter.drawText(room, int(Qt.AlignmentFlag.AlignVCenter | Qt.AlignmentFlag.AlignLeft), shown)
                for number, cell in enumerate(cells):
                    self._paint_cell(painter, self._rect(row, number), cell)

    def _paint_cell(self, painter: QPainter, rect: QRectF, cell: _Cell) -> None:
        theme = current()
        painter.setFont(mono_font(BASE))
        digit = painter.fontMetrics().horizontalAdvance("0")
        mask = cell.values.get(self._place, 0)
        marked = ((mask & 0xF0) != 0, (mask & 0x0F) != 0)
        for number, text in enumerate(f"{cell.value:02x}"):
            box = QRectF(rect.left() + number * digit, rect.top(), digit, rect.height())
            if marked[number]:
                painter.fillRect(box.adjusted(-0.5, 1, 0.5, -1), theme.color("accent"))
            painter.setPen(theme.color("on_accent" if marked[number] else "text" if cell.values else "muted"))
            painter.drawText(box, int(Qt.AlignmentFlag.AlignCenter), text)
        if cell.shared:
            pen = QPen(theme.series_color(1), 2)
            painter.setPen(pen)
            bottom = rect.bottom() - 2
            painter.drawLine(QPointF(rect.left(), bottom), QPointF(rect.left() + 2 * digit, bottom))

    # ---- pointer ---------------------------------------------------------------------------------------------------

    def _at(self, x: float, y: float) -> tuple[_Cell, bool] | None:
        """The byte there, and whether the pointer is on its first digit, the upper four bits."""
        row = int(y // LINE_HEIGHT)
        number = int((x - self._left()) // self._step())
        if not 0 <= row < len(self._lines) or not 0 <= number < len(self._lines[row][1]):
            return None
        return self._lines[row][1][number], x - self._rect(row, number).left() < (self._step() - SPACE_1) / 2

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        found = self._at(event.position().x(), event.position().y())
        place, tip = NOTHING, ""
        if found is not None:
            cell, upper = found
            mask = 0xF0 if upper else 0x0F
            place = next((p for p, bits in cell.values.items() if bits & mask), next(iter(cell.values), NOTHING))
            tip = f"Byte 0x{cell.offset:x}"
            if cell.values:
                tip += ": values " + ", ".join(str(p) for p in cell.values)
            if cell.shared:
                tip += ": " + ", ".join(cell.shared)
        self.setToolTip(tip)
        self._tell(place)

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self._tell(NOTHING)

    def _tell(self, place: int) -> None:
        if place != self._under:
            self._under = place
            self.highlight(place)
            self.hovered.emit(place)


class ByteArea(QScrollArea):
    """The strip with at most MOST_LINES lines in sight; what is marked is brought there."""

    hovered = Signal(int)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.strip = ByteStrip()
        self.strip.hovered.connect(self.hovered)
        self.setWidget(self.strip)
        self.setWidgetResizable(True)
        self.setFrameShape(QScrollArea.Shape.NoFrame)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setFocusPolicy(Qt.FocusPolicy.NoFocus)  # the table is what the keyboard reaches
        for each in (self.viewport(), self.strip):
            each.setAutoFillBackground(False)

    def show_group(self, group: ShownGroup | None) -> None:
        self.strip.show_group(group)
        self.setVisible(not self.strip.isHidden())
        self._fit()

    def highlight(self, place: int) -> None:
        self.strip.highlight(place)
        at = self.strip.marked_line()
        if at >= 0:
            self.ensureVisible(0, round((at + 0.5) * LINE_HEIGHT), 0, LINE_HEIGHT)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit()

    def _fit(self) -> None:
        whole = self.strip.heightForWidth(self.viewport().width())
        self.strip.setMinimumHeight(whole)
        self.setMinimumHeight(min(whole, FEWEST_LINES * LINE_HEIGHT))
        self.setMaximumHeight(min(whole, MOST_LINES * LINE_HEIGHT))
        self.updateGeometry()

    def sizeHint(self) -> QSize:
        return QSize(200, self.maximumHeight())


def _runs(group: ShownGroup) -> list[tuple[str, list[_Cell]]]:
    """Neighbouring bytes together, in the order of arrays and offsets."""
    if group.source is None:
        return []
    found: dict[tuple[int, int], tuple[int, dict[int, int], list[str]]] = {}

    def take(field: BitField, place: int, meaning: str) -> None:
        whole = ((1 << field.width) - 1) << field.bit
        for n, value in enumerate(field.data):
            _, values, shared = found.setdefault((field.array, field.offset + n), (value, {}, []))
            mask = whole >> (8 * n) & 0xFF
            if mask and place >= 0:
                values[place] = values.get(place, 0) | mask
            elif mask and meaning not in shared:
                shared.append(meaning)

    for item in group.source.metadata:
        for field in item.fields:
            take(field, NOTHING, item.meaning)
    for row in group.rows:
        for field in row.fields:
            take(field, row.place, "")
    runs: list[tuple[str, list[_Cell]]] = []
    last: tuple[int, int] | None = None
    for (array, offset), (value, values, shared) in sorted(found.items())[:MOST_BYTES]:
        if last is None or last != (array, offset - 1):
            stored = group.source.arrays[array]
            name = " · ".join(part for part in (stored.file, stored.name, stored.dtype) if part)
            if runs and last is not None and last[0] == array:
                name = ""  # further bytes of the same array
            runs.append((name, []))
        runs[-1][1].append(_Cell(offset, value, values, tuple(shared)))
        last = (array, offset)
    return runs
