"""The strip that tells what number a colour stands for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from PySide6.QtCore import QRectF, Qt
from PySide6.QtGui import QPainter, QPen

from app.plots.colors import SHADES, Scale, picture
from app.theme import CAPTION, SPACE_1, SPACE_2, Theme, ui_font
from core.units import format_number

BAR = 12  # px, its thickness
_APART = 14  # px between the middles of two labels


def short(value: float) -> str:
    """A number for a tick: '0.05', '10⁻⁷', '2 400'."""
    return format_number(value, 2)


def paint_bar(
    painter: QPainter,
    area: QRectF,
    scale: Scale,
    title: str,
    theme: Theme,
    *,
    text: Callable[[float], str] = short,
    below: bool = False,
) -> None:
    """Upright in `area`, large numbers on top unless they are the dark end; its title above, the numbers at its right.

    below: some numbers are smaller than the dark end, which is then marked with ≤.
    """
    painter.save()
    painter.setFont(ui_font(CAPTION))
    metrics = painter.fontMetrics()
    painter.setPen(theme.color("muted"))
    head = metrics.height() + SPACE_1
    side = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignTop
    room = QRectF(area.left() + SPACE_2, area.top(), area.width() - SPACE_2, head)
    painter.drawText(room, side, metrics.elidedText(title, Qt.TextElideMode.ElideRight, int(room.width())))
    bar = QRectF(area.left() + SPACE_2, area.top() + head + 2, BAR, area.height() - head - 4)
    ramp = np.arange(SHADES - 1, -1, -1, dtype=np.uint8)[:, None]
    painter.drawImage(bar, picture(ramp, scale.name, theme))
    painter.setPen(QPen(theme.color("border"), 1))
    painter.drawRect(bar)
    painter.setPen(theme.color("muted"))
    left = bar.right() + SPACE_1 + 2
    for value, label in _labels(scale, text, below, bar.height()):
        y = bar.bottom() - scale.share(value) * bar.height()
        painter.drawLine(int(bar.right()) + 1, round(y), int(bar.right()) + 3, round(y))
        middle = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        painter.drawText(QRectF(left, y - 8, area.right() - left, 16), middle, label)
    painter.restore()


def _labels(scale: Scale, text: Callable[[float], str], below: bool, height: float) -> Sequence[tuple[float, str]]:
    """The ends always, and the round numbers that have room between."""
    dark = ("≥ " if scale.falling else "≤ ") if below else ""
    ends = [(scale.high, text(scale.high)), (scale.low, text(scale.low))]
    number = 0 if scale.falling else 1
    ends[number] = (ends[number][0], dark + ends[number][1])
    taken = [scale.share(value) * height for value, _ in ends]
    between = []
    for value in scale.ticks():
        place = scale.share(value) * height
        if all(abs(place - other) >= _APART for other in taken):
            taken.append(place)
            between.append((value, text(value)))
    return [*ends, *between]
