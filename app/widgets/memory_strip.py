"""The painted part of the memory bar: one segment for each use of the memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt
from PySide6.QtGui import QBrush, QColor, QHelpEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.theme import SPACE_4, Theme, current
from core.units import format_bytes

if TYPE_CHECKING:
    from core.memory import MemoryEstimate, Segment

_SERIES = {"payload": 0, "scales": 1, "kept": 2, "kv": 3, "workspace": 4}
GAP = 2  # px between segments


def segment_brush(key: str, theme: Theme) -> QBrush:
    """How a segment is filled: a colour of the series; padding as hatching; free as the surface."""
    if key in _SERIES:
        return QBrush(theme.series_color(_SERIES[key]))
    if key == "padding":
        return QBrush(theme.color("border"), Qt.BrushStyle.BDiagPattern)
    return QBrush(theme.color("surface"))


class MemoryStrip(QWidget):
    """Segments over the device's capacity. What does not fit is drawn past a line at the capacity, crossed out."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._estimate: MemoryEstimate | None = None
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMouseTracking(True)

    def sizeHint(self) -> QSize:
        return QSize(400, SPACE_4 + 2)

    def set_estimate(self, estimate: MemoryEstimate | None) -> None:
        self._estimate = estimate
        self.update()

    def segment_rects(self) -> list[tuple[Segment, QRectF]]:
        """Where each segment that is at least a hair wide is drawn, in order."""
        if self._estimate is None:
            return []
        inner = QRectF(self.rect()).adjusted(1, 1, -1, -1)
        total = max(self._estimate.used, self._estimate.capacity or 0, 1)
        rects, left = [], inner.left()
        for segment in self._estimate.segments:
            width = inner.width() * segment.bytes / total
            if width >= 0.5:
                gap = GAP if width > 3 * GAP and segment.key != "free" else 0
                rects.append((segment, QRectF(left, inner.top(), max(width - gap, 1.0), inner.height())))
            left += width
        return rects

    def paintEvent(self, _event: QPaintEvent) -> None:
        theme = current()
        with QPainter(self) as painter:
            frame = QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5)
            painter.setPen(QPen(theme.color("border"), 1))
            painter.setBrush(theme.color("surface" if self._estimate is not None else "window"))
            painter.drawRect(frame)
            painter.setPen(Qt.PenStyle.NoPen)
            for segment, rect in self.segment_rects():
                painter.fillRect(rect, segment_brush(segment.key, theme))
            if self._estimate is not None and self._estimate.shortfall and self._estimate.capacity:
                self._paint_overflow(painter, theme, self._estimate)

    def _paint_overflow(self, painter: QPainter, theme: Theme, estimate: MemoryEstimate) -> None:
        x = 1 + (self.width() - 2) * (estimate.capacity or 0) / estimate.used
        veil = QColor(theme.color("surface"))
        veil.setAlpha(120)
        beyond = QRectF(x, 1, self.width() - 1 - x, self.height() - 2)
        painter.fillRect(beyond, veil)
        painter.fillRect(beyond, QBrush(theme.color("error"), Qt.BrushStyle.DiagCrossPattern))
        painter.setPen(QPen(theme.color("error"), 3))
        painter.drawLine(QPointF(x, 0), QPointF(x, self.height()))

    def event(self, event: QEvent) -> bool:
        if event.type() == QEvent.Type.ToolTip and isinstance(event, QHelpEvent):
            hit = next((s for s, r in self.segment_rects() if r.contains(QPointF(event.pos()))), None)
            if hit is not None:
                QToolTip.showText(event.globalPos(), f"{hit.label}: {format_bytes(hit.bytes)}", self)
            else:
                QToolTip.hideText()
            return True
        return super().event(event)
