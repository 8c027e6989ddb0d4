"""Parts in a grid where there is room; where there is too little height, all but the first in tabs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PySide6.QtCore import QSize
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QGridLayout, QSizePolicy, QTabWidget, QVBoxLayout, QWidget

from app.theme import SPACE_1, SPACE_2, SPACE_3


@dataclass(frozen=True)
class Part:
    """title: of its tab. row, column: its place in the grid. rows: how many it takes there."""

    title: str
    widget: QWidget
    row: int
    column: int
    rows: int = 1


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
        self._holders = {part: _Holder(part.widget) for part in parts}
        self._fold(False)

    def set_height(self, height: int) -> None:
        """Another height from which the grid is used."""
        self._height = height
        self._fold(self.height() < height)

    def set_beside(self, on: bool) -> None:
        """Whether the first part, folded, keeps its place beside the tabs."""
        if on != self._beside:
            self._beside = on
            folded, self.folded = self.folded, None
            self._fold(bool(folded))

    def minimumSizeHint(self) -> QSize:
        return QSize(320, 160)  # never asks for more: it folds

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._fold(self.height() < self._height)

    def _fold(self, on: bool) -> None:
        if on == self.folded:
            return
        self.folded = on
        while self.tabs.count():
            self.tabs.removeTab(0)
        for part, holder in self._holders.items():
            self._grid.removeWidget(holder)
            if on and (not self._beside or part is not self._parts[0]):
                self.tabs.addTab(holder, part.title)
                continue
            holder.setParent(self)
            self._grid.addWidget(holder, 0 if on else part.row, part.column, len(self._parts) if on else part.rows, 1)
            holder.show()
        self._grid.removeWidget(self.tabs)
        if on:
            self._grid.addWidget(self.tabs, 0, 1 if self._beside else 0, len(self._parts), -1)
        self.tabs.setVisible(on)


class _Holder(QWidget):
    """Takes the height that it is given: parts that ask for a height by their width would upset the shares."""

    def __init__(self, widget: QWidget) -> None:
        super().__init__()
        self.setSizePolicy(QSizePolicy.Policy.Ignored, QSizePolicy.Policy.Ignored)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_1, 0, 0)
        layout.addWidget(widget)

    def hasHeightForWidth(self) -> bool:
        return False

    def set_beside(self, on: bool) -> None:
        """Whether the first part, folded, keeps its place beside the tabs."""
        if on != self._beside:
            self._beside = on
            folded, self.folded = self.folded, None
            self._fold(bool(folded))

    def minimumSizeHint(self) -> QSize:
        return QSize(0, 0)
