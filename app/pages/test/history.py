"""Stored results: look one up, compare two, take them along."""

from __future__ import annotations

from collections.abc import Sequence

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QStackedWidget, QVBoxLayout, QWidget

from app.models.results import history_columns, stored_columns, stored_rows
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.theme import SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import Splitter, button, label, set_available
from app.widgets.text import explain
from core.runtime.results import StoredResult, markdown

WIDE, NARROW = 480, 200  # px of a result's column, alone and beside another
HINT = "Select one result to see it, or two (with Ctrl) to compare them."


class HistoryPanel(QWidget):
    """`remove_asked(results)` follows the button; everything else happens here."""

    remove_asked = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.table = TablePanel(
            RowsModel(history_columns(), explain), "Stored results",
            ("", "2026-01-01 00:00", "int8 per 32 values", "a processor's name", "Bitsmith 0.1"),
            filter_hint="Filter results by any word", totals=False,
        )  # fmt: skip
        self.detail = TablePanel(
            RowsModel(stored_columns(), explain), "Numbers of the selected results",
            ("", "999.99 MB (999.99 MiB)", "999.99 MB (999.99 MiB)", "99.99 ×"), totals=False,
        )  # fmt: skip
        self.detail.filter.hide()
        self.detail.view.setSortingEnabled(False)
        self.names = label(HINT, "muted", wrap=True)
        self.copy = button(
            "Copy as Markdown", self._copy, icon="copy", hint="The selected results as a table for an issue or a page"
        )
        self.remove = button(
            "Remove", self._remove, icon="trash-2", hint="Take the selected results out of the history"
        )
        self._empty = label(
            "No result is stored yet: each generation and each sweep that ends is kept here, with its machine, "
            "versions and contract.",
            "muted",
            wrap=True,
        )
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(self.names, 1)
        row.addWidget(self.copy)
        row.addWidget(self.remove)
        below = QWidget()
        column = QVBoxLayout(below)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(SPACE_2)
        column.addLayout(row)
        column.addWidget(self.detail, 1)
        split = Splitter(SPACE_4)
        split.setOrientation(Qt.Orientation.Vertical)
        split.addWidget(self.table)
        split.addWidget(below)
        self._stack = QStackedWidget()
        self._stack.addWidget(self._empty)
        self._stack.addWidget(split)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.addWidget(self._stack)
        self.table.view.selectionModel().selectionChanged.connect(lambda *_: self._show())
        self.show_stored(())

    def show_stored(self, results: Sequence[StoredResult]) -> None:
        """Every stored result, newest first."""
        self.table.model.set_rows(results)
        self._stack.setCurrentIndex(1 if results else 0)
        if results:
            self.table.view.selectRow(0)
        self._show()

    def selected(self) -> list[StoredResult]:
        """The selected results in the order of the table, the older one first when there are two."""
        rows = sorted(i.row() for i in self.table.view.selectionModel().selectedRows())
        found = [self.table.model.row_at(row) for row in rows]
        return sorted(found, key=lambda one: one.when)

    def _show(self) -> None:
        chosen = self.selected()
        self.detail.model.set_rows(stored_rows(chosen))
        self.detail.view.setColumnHidden(2, len(chosen) < 2)
        self.detail.view.setColumnHidden(3, len(chosen) < 2)
        self.detail.view.horizontalHeader().resizeSection(1, WIDE if len(chosen) < 2 else NARROW)
        self.detail.fit_first_column()
        if len(chosen) >= 2:
            self.names.setText(f"A: {chosen[0].title}   B: {chosen[1].title}")
        else:
            self.names.setText(HINT)
        why = "" if chosen else "Select a result in the table first."
        set_available(self.copy, why)
        set_available(self.remove, why)

    def _copy(self) -> None:
        QGuiApplication.clipboard().setText(markdown(self.selected()))

    def _remove(self) -> None:
        self.remove_asked.emit(tuple(self.selected()))
