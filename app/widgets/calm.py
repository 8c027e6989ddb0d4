"""Choosers that a page can be scrolled past: the wheel does not change them."""

from __future__ import annotations

from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QHelpEvent, QPaintEvent, QWheelEvent
from PySide6.QtWidgets import (
    QComboBox,
    QDoubleSpinBox,
    QSpinBox,
    QStyle,
    QStyleOptionComboBox,
    QStylePainter,
    QToolTip,
)

from app.theme import SPACE_2

WHOLE = (QComboBox.SizeAdjustPolicy.AdjustToContents, QComboBox.SizeAdjustPolicy.AdjustToContentsOnFirstShow)


class CalmCombo(QComboBox):
    """Scrolling past it does not change it. What has no room is left out in the middle, and the tooltip has it."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()

    def shown_text(self) -> str:
        """What is painted at the present width."""
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        field = self.style().subControlRect(
            QStyle.ComplexControl.CC_ComboBox, option, QStyle.SubControl.SC_ComboBoxEditField, self
        )
        text = self.currentText()
        if self.width() >= self.sizeHint().width() and self.sizeAdjustPolicy() in WHOLE:
            return text  # the style has made room for each of its texts
        return self.fontMetrics().elidedText(text, Qt.TextElideMode.ElideMiddle, field.width())

    def paintEvent(self, _event: QPaintEvent) -> None:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        with QStylePainter(self) as painter:
            painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
            if self.currentIndex() >= 0:
                option.currentText = self.shown_text()
            painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            whole = self.currentText()
            if whole and self.shown_text() != whole:
                QToolTip.showText(event.globalPos(), "\n".join(filter(None, (whole, self.toolTip()))), self)
                return True
        return super().event(event)


class CalmNumber(QSpinBox):
    """A whole number, told once it is whole and not at every digit. name: what a screen reader says."""

    def __init__(self, name: str, low: int, high: int, hint: str) -> None:
        super().__init__()
        self.setRange(low, high)
        self.setAccessibleName(name)
        self.setToolTip(hint)
        self.setKeyboardTracking(False)
        self.lineEdit().setTextMargins(SPACE_2, 0, 0, 0)  # a style sheet's padding does not reach this inner field

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class CalmDecimal(QDoubleSpinBox):
    """The same for a number with a fraction."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__()
        self.setAccessibleName(name)
        self.setToolTip(hint)
        self.setKeyboardTracking(False)
        self.lineEdit().setTextMargins(SPACE_2, 0, 0, 0)

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


class CalmFraction(CalmDecimal):
    """From 0 to 1, in steps of 0.05."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(name, hint)
        self.setRange(0.0, 1.0)
        self.setSingleStep(0.05)
        self.setDecimals(2)
