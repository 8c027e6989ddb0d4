"""A GPU's memory: what the driver says is in use, and beside it what was predicted for the model."""

from __future__ import annotations

from PySide6.QtCore import QRectF, QSize
from PySide6.QtGui import QPainter, QPaintEvent
from PySide6.QtWidgets import QHBoxLayout, QSizePolicy, QWidget

from app.jobs.testing import DeviceMemory
from app.jobs.testing_bench import Slot
from app.theme import SPACE_2, current
from app.widgets.text import ElidedLabel, explain
from core import units

HEIGHT, GAP, WIDTH = 5, 2, 96  # px: of each bar, between them, and how long they are


class DeviceMemoryBar(QWidget):
    """Two bars of one scale, the upper one the driver's, and both numbers in words."""

    def __init__(self, slot: Slot, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName(f"GPU memory of the {slot.title.lower()} file")
        self.setToolTip(explain("GPU memory"))
        self.bars = _Bars()
        self.words = ElidedLabel(role="muted")
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(self.bars)
        layout.addWidget(self.words, 1)

    def show_memory(self, memory: DeviceMemory | None) -> None:
        """None: the model is on the processor, or the driver says nothing."""
        self.setVisible(memory is not None)
        if memory is None:
            return
        used, total, predicted = map(units.format_decimal, (memory.used, memory.total, memory.predicted))
        self.words.setText(f"driver {used} of {total} · predicted {predicted}")
        self.setAccessibleDescription(self.words.text())
        self.bars.show_memory(memory)


class _Bars(QWidget):
    def __init__(self) -> None:
        super().__init__()
        self._memory: DeviceMemory | None = None
        self.setSizePolicy(QSizePolicy.Policy.Fixed, QSizePolicy.Policy.Fixed)

    def sizeHint(self) -> QSize:
        return QSize(WIDTH, 2 * HEIGHT + GAP)

    def show_memory(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.update()

    def paintEvent(self, _event: QPaintEvent) -> None:
        if self._memory is None:
            return
        theme, painter = current(), QPainter(self)
        total = max(self._memory.total, 1)
        for row, value in enumerate((self._memory.used, self._memory.predicted)):
            top = row * (HEIGHT + GAP)
            painter.fillRect(QRectF(0, top, self.width(), HEIGHT), theme.color("sunken"))
            share = min(value / total, 1.0)
            painter.fillRect(QRectF(0, top, share * self.width(), HEIGHT), theme.series_color(row))
