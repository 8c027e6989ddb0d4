"""What colours stand for, on one line below a picture whose strips have scales of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PySide6.QtCore import QRectF, QSize, Qt
from PySide6.QtGui import QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QWidget

from app.plots.color_bar import BAR, short
from app.plots.colors import SHADES, picture
from app.theme import CAPTION, SPACE_1, SPACE_2, SPACE_4, current, themes, ui_font

RAMP = 96  # px


@dataclass(frozen=True)
class ColorKeyItem:
    """Magnitudes from 0 (dark) to `top` (bright), evenly. colors: name of the map."""

    title: str
    colors: str
    top: float


class ColorKey(QWidget):
    """`show_items`; what there is no room for is left out from the end."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._items: tuple[ColorKeyItem, ...] = ()
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setAccessibleName("What the colours mean")
        themes().changed.connect(self._on_theme)

    def _on_theme(self, _theme: object) -> None:
        self.update()

    def show_items(self, items: Sequence[ColorKeyItem]) -> None:
        self._items = tuple(items)
        self.setVisible(bool(items))
        self.setAccessibleDescription("; ".join(self._words(item) for item in items))
        self.update()

    @staticmethod
    def _words(item: ColorKeyItem) -> str:
        return f"{item.title}: dark 0, bright {short(item.top)}"

    def sizeHint(self) -> QSize:
        return QSize(200, CAPTION + SPACE_2)

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current()
        ramp = np.arange(SHADES, dtype=np.uint8)[None]
        with QPainter(self) as painter:
            painter.setFont(ui_font(CAPTION))
            metrics = painter.fontMetrics()
            left, height = 0.0, float(self.height())
            for item in self._items:
                texts = [f"{item.title}  0", short(item.top)]
                widths = [metrics.horizontalAdvance(text) for text in texts]
                if left + sum(widths) + RAMP + 2 * SPACE_1 > self.width():
                    return
                for text, width in zip(texts, widths, strict=True):
                    painter.setPen(theme.color("muted"))
                    side = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
                    painter.drawText(QRectF(left, 0, width + 1, height), int(side), text)
                    left += width + SPACE_1
                    if text is texts[0]:
                        bar = QRectF(left, (height - BAR) / 2, RAMP, BAR)
                        painter.drawImage(bar, picture(ramp, item.colors, theme))
                        painter.setPen(QPen(theme.color("border"), 1))
                        painter.drawRect(bar)
                        left += RAMP + SPACE_1
                left += SPACE_4
