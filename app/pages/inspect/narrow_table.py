"""A table of figures that may stand in a narrow place."""

from __future__ import annotations

from app.models.table_view import TablePanel

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
