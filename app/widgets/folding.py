"""Parts in a grid where there is room; where there is too little height, all but the first in tabs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QTabWidget, QVBoxLayout, QWidget

from app.theme import SPACE_2, SPACE_3


@dataclass(frozen=True)
class Part:
    """title: of its tab. row, column: its place in the grid."""

    title: str
    widget: QWidget
    row: int
    column: int


class FoldingGrid(QWidget):
    """parts: the first is the main one. height: px from which the grid is used. rows: how its height is shared out.

    beside: folded, the first part keeps its place beside the tabs; else it is the first of them.
    """

    def __init__(
        self, parts: Sequence[Part], height: int, rows: Sequence[int], name: str, *, beside: bool = True
    ) -> None:
        super().__init__()
        self._parts, self._height, self._beside = tuple(parts), height, beside
        self.folded: bool | None = None
        self.tabs = QTabWidget()
        self.tabs.setAccessibleName(name)
        self.tabs.tabBar().setAccessibleName(name)
        self.tabs.setDocumentMode(True)
        self.tabs.tabBar().setDrawBase(False)
        self._grid = QGridLayout(self)
        self._grid.setContentsMargins(0, 0, 0, 0)
        self._grid.setHorizontalSpacing(SPACE_3)
        self._grid.setVerticalSpacing(SPACE_2)
        for row, share in enumerate(rows):
            self._grid.setRowStretch(row, share)
        for column in {part.column for part in parts}:
            self._grid.setColumnStretch(column, 1)
        for part in parts:
            part.widget.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        self._columns = 1 + max(part.column for part in parts)
        self._fold(False)

    def minimumSizeHint(self) -> QSize:
        return QSize(320, 160)  # never asks for more: it folds

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fold(self.height() < self._height)

    def show_part(self, widget: QWidget) -> None:
        """Bring a part to the front if it is in a tab."""
        holder = next((p.widget.parentWidget() for p in self._parts if p.widget is widget), None)
        if self.folded and holder is not None and self.tabs.indexOf(holder) >= 0:
            self.tabs.setCurrentWidget(holder)

    def _fold(self, on: bool) -> None:
        if on == self.folded:
            return
        self.folded = on
        for part in self._parts:
            self._grid.removeWidget(part.widget)
        self._grid.removeWidget(self.tabs)
        in_tabs = self._parts[1 if self._beside else 0 :] if on else ()
        for part in self._parts:
            if part not in in_tabs:
                part.widget.setParent(self)
                last = len(self._parts) if on else 1  # folded, the first has the whole height
                self._grid.addWidget(part.widget, 0 if on else part.row, part.column, last, 1)
                part.widget.show()
        for part in in_tabs:
            page = QWidget()
            layout = QVBoxLayout(page)
            layout.setContentsMargins(0, SPACE_2, 0, 0)
            layout.addWidget(part.widget)
            self.tabs.addTab(page, part.title)
            part.widget.show()
        if on:
            self._grid.addWidget(self.tabs, 0, 1 if self._beside else 0, len(self._parts), 1)
        while not on and self.tabs.count():
            page = self.tabs.widget(0)
            self.tabs.removeTab(0)
            page.deleteLater()
        self.tabs.setVisible(on)
