"""A warning in place: one sentence that stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt
from PySide6.QtGui import QAction, QGuiApplication
from PySide6.QtWidgets import QBoxLayout, QHBoxLayout, QWidget

from app.theme import SPACE_2
from app.widgets.basics import IconLabel, label
from app.widgets.text import breakable


class WarningLine(QWidget):
    """Icon, the word 'Warning' and one sentence."""

    def __init__(self, text: str) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(IconLabel("triangle-alert", "warning"), 0, Qt.AlignmentFlag.AlignTop)
        words = label(breakable(f"Warning: {text}"), wrap=True)
        copy = QAction("Copy", words)
        copy.triggered.connect(lambda: QGuiApplication.clipboard().setText(text))
        words.addAction(copy)
        words.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        layout.addWidget(words, 1)
        self.setAccessibleName(f"Warning: {text}")


def show_warnings(place: QBoxLayout, warnings: Sequence[str]) -> None:
    """These instead of those that stand there."""
    while place.count():
        widget = place.takeAt(0).widget()
        widget.hide()
        widget.deleteLater()
    for text in warnings:
        place.addWidget(WarningLine(text))
