"""Tables of figures that may stand in a narrow place."""

from __future__ import annotations

from typing import Any

from PySide6.QtGui import QFontMetrics

from app.models.table_view import CELL_PADDING, TablePanel
from app.theme import mono_font

NOTHING = -1


class NarrowTable(TablePanel):
    """Its first column is never narrower than its sample, and takes what is left only if it `stretches`."""

    stretches = False  # whether the first column also takes what is left

    def fit_first_column(self) -> None:
        header = self.view.horizontalHeader()
        if not hasattr(self, "_least"):
            self._least = header.sectionSize(0)
        if self.stretches:
            others = header.length() - header.sectionSize(0)
            header.resizeSection(0, max(self.view.viewport().width() - others, self._least))

    def mark(self, number: int) -> None:
        """Select row `number` of set_rows, or none with −1; nothing is emitted."""
        at = self.model.position(number) if number != NOTHING else None
        selection = self.view.selectionModel()
        selection.blockSignals(True)
        if at is None:
            self.view.clearSelection()
        else:
            self.view.selectRow(at)
        selection.blockSignals(False)
        self.view.viewport().update()


class FittingTable(TablePanel):
    """Where the columns do not fit beside whole names, those of `spare` are left out, the first of them first."""

    def __init__(self, *arguments: Any, name_sample: str, spare: tuple[int, ...], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._spare = spare
        self.name_width = QFontMetrics(mono_font()).horizontalAdvance(name_sample) + CELL_PADDING
        self._wanted = [self.view.columnWidth(column) for column in range(len(self.model.columns))]

    def fit_first_column(self) -> None:
        if hasattr(self, "_wanted"):
            room = self.view.viewport().width() - self.name_width - sum(self._wanted[1:])
            for column in self._spare:
                self.view.setColumnHidden(column, room < 0)
                room += self._wanted[column] if room < 0 else 0
        super().fit_first_column()
