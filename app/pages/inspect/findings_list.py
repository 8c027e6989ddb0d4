"""The findings of a model as a list of sentences, worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from PySide6.QtCore import QEvent, QObject, QSize, Qt
from PySide6.QtWidgets import QListWidget, QListWidgetItem, QWidget

from app.pages.inspect.changes import Key, key_of
from app.theme import SPACE_1, Theme, current, themes

MOST = 100  # findings in the list; the rest is only counted
FINDING = Qt.ItemDataRole.UserRole


class FindingsList(QListWidget):
    """`show_findings` replaces all; what hardly matters is written in the muted colour, besides saying so."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setAccessibleName("Findings, worst first")
        self.setToolTip("Choose one to see what can be done about it; Enter or a double click shows its tensor")
        self.setWordWrap(True)
        self.setHorizontalScrollBarPolicy(Qt.ScrollBarPolicy.ScrollBarAlwaysOff)
        self.setMinimumHeight(96)
        self.viewport().installEventFilter(self)
        themes().changed.connect(self._on_theme)

    def show_findings(self, found: Sequence[Any], kept: Key | None) -> None:
        """The one that is `kept` stays chosen if it is among them; nothing is emitted."""
        self.blockSignals(True)
        self.clear()
        for finding in found[:MOST]:
            item = QListWidgetItem(finding.text)
            item.setData(FINDING, finding)
            item.setToolTip(finding.tensor)
            self.addItem(item)
            if key_of(finding) == kept:
                self.setCurrentItem(item)
        self.blockSignals(False)
        self._on_theme(current())
        self._fit_items()

    def choose_first(self, keys: Sequence[Key]) -> bool:
        """Choose the first of these that is there and matters, else the first that is there; whether one was."""
        items = [self.item(number) for number in range(self.count())]
        numbers = {key_of(item.data(FINDING)): n for n, item in enumerate(items)}
        there = [numbers[key] for key in keys if key in numbers]
        if not there:
            return False
        self.setCurrentRow(next((n for n in there if not items[n].data(FINDING).minor), there[0]))
        return True

    def _on_theme(self, theme: Theme) -> None:
        for number in range(self.count()):
            item = self.item(number)
            item.setForeground(theme.color("muted" if item.data(FINDING).minor else "text"))

    def eventFilter(self, watched: QObject, event: QEvent) -> bool:
        if watched is self.viewport() and event.type() == QEvent.Type.Resize:
            self._fit_items()
        return False

    def _fit_items(self) -> None:
        """Heights for wrapped sentences: Qt's own hint knows one line only."""
        width = self.viewport().width() - 6 * SPACE_1
        metrics = self.fontMetrics()
        for number in range(self.count()):
            item = self.item(number)
            box = metrics.boundingRect(0, 0, max(width, 40), 10_000, int(Qt.TextFlag.TextWordWrap), item.text())
            item.setSizeHint(QSize(0, box.height() + 3 * SPACE_1))
