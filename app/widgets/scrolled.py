"""An area that scrolls down when there is too little room, and sideways in windows smaller than we plan for."""

from __future__ import annotations

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QFrame, QScrollArea, QSizePolicy, QWidget

BESIDE_BAR = 4  # px between contents and the bar
WIDEST = 440  # px that an area's contents can ask for; a window of 1,100 px has two of these


def scrolled(panel: QWidget, *, whole: bool = False) -> QScrollArea:
    """The panel in an area that scrolls down when there is too little room. whole: as high as the panel, and no higher,
    where there is room for it."""
    area = _Scrolled()
    area.whole = whole
    if whole:
        area.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Maximum)
    area.setWidgetResizable(True)
    area.setFrameShape(QFrame.Shape.NoFrame)
    area.setFocusPolicy(Qt.FocusPolicy.NoFocus)
    area.setWidget(panel)
    area.verticalScrollBar().rangeChanged.connect(area.keep_apart)
    for each in (area.viewport(), panel):
        each.setAutoFillBackground(False)  # `setWidget` turns it on; the page's own background is right
    return area


class _Scrolled(QScrollArea):
    """As wide as its contents need, up to WIDEST: below, they are scrolled to. The contents are as high as their texts
    are at that width, which Qt's own area does not ask for."""

    whole = False
    _margin: int | None = None  # at the right of the contents, without a bar

    def keep_apart(self, _least: int, most: int) -> None:
        """Contents do not touch the bar where there is one, unless they had to be scrolled sideways for that."""
        layout = self.widget().layout() if self.widget() is not None else None
        if layout is None:
            return
        if self._margin is None:
            self._margin = layout.contentsMargins().right()
        margins = layout.contentsMargins()
        spare = self.viewport().width() - self.widget().minimumSizeHint().width() + margins.right()
        margins.setRight(max(self._margin, min(BESIDE_BAR, spare) if most else 0))
        layout.setContentsMargins(margins)

    def sizeHint(self) -> QSize:
        hint = super().sizeHint()
        return QSize(hint.width(), self.widget().sizeHint().height()) if self.whole and self.widget() else hint

    def minimumSizeHint(self) -> QSize:
        hint = super().minimumSizeHint()
        if self.widget() is None:
            return hint
        needed = self.widget().minimumSizeHint().width() + self.verticalScrollBar().sizeHint().width()
        return QSize(min(max(hint.width(), needed), WIDEST), hint.height())

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.widget() and event.type() == QEvent.Type.LayoutRequest:
            self.updateGeometry()
            self._fit_height()
        return super().eventFilter(watched, event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fit_height()

    def _fit_height(self) -> None:
        layout = self.widget().layout() if self.widget() is not None else None
        if layout is not None and layout.hasHeightForWidth():
            needed = layout.minimumHeightForWidth(self.viewport().width())
            if self.widget().minimumHeight() != needed:
                self.widget().setMinimumHeight(needed)
