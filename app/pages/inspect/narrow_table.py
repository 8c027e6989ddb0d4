"""A table of figures that may stand in a narrow place."""

from __future__ import annotations

from app.models.table_view import TablePanel

NOTHING = -1


class NarrowTable(TablePanel):
    """A table of numbers: its first column takes no more than it needs."""

    def fit_first_column(self) -> None:
        pass

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
