"""Choosers that a page can be scrolled past: the wheel does not change them."""

from __future__ import annotations

from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QComboBox, QDoubleSpinBox, QSpinBox

from app.theme import SPACE_2


class CalmCombo(QComboBox):
    """Scrolling past it does not change it."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()


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
