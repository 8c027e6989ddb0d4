"""A chooser that a page can be scrolled past."""

from __future__ import annotations

from PySide6.QtGui import QWheelEvent
from PySide6.QtWidgets import QComboBox


class CalmCombo(QComboBox):
    """Scrolling past it does not change it."""

    def wheelEvent(self, event: QWheelEvent) -> None:
        event.ignore()
