"""The support matrix as a table: rows are targets, columns are runtimes, for one device and the open model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, Qt

from app.icons import icon
from app.models.table import Index
from app.theme import current, mono_font
from core.hardware.matrix import Cell, State, cell_for_model, misfit_columns, runtimes
from core.targets import TARGETS, Target
from core.units import format_count

# state → (glyph, colour role, word in the cell). The outlines differ, so the states also differ without colour.
LOOKS = {
    State.NATIVE: ("circle-check", "ok", "native"),
    State.EMULATED: ("circle-dot", "text", "emulated"),
    State.STORED: ("circle", "muted", "stored only"),
    State.IMPOSSIBLE: ("ban", "muted", "impossible"),
    State.UNKNOWN: ("circle-slash", "muted", "unknown"),
}
NAME, MODEL = 0, 1  # the columns before the runtimes


@dataclass(frozen=True)
class Judged:
    """One row: a target, the row lengths of the model that its blocks do not divide, and a Cell for each runtime."""

    target: Target
    misfits: tuple[int, ...]
    cells: tuple[Cell, ...]


class MatrixModel(QAbstractTableModel):
    """`judge` fills it. Runtimes that can read nothing of what Bitsmith writes have no column."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.runtimes: tuple[str, ...] = ()
        self.rows: tuple[Judged, ...] = ()
        self._folders = True

    def judge(self, hardware_class: str, columns: Collection[int], folders: bool = True) -> None:
        """Fill every cell for hardware of that class and a model whose weights have rows of these lengths.

        folders: whether the model can become a folder, which a GGUF can not.
        """
        self.beginResetModel()
        self._folders = folders
        names = runtimes()
        rows = [
            Judged(
                t,
                misfit_columns(t.name, columns),
                tuple(cell_for_model(t.name, r, hardware_class, columns) for r in names),
            )
            for t in TARGETS
        ]
        useful = [i for i in range(len(names)) if any(row.cells[i].state not in _USELESS for row in rows)]
        useful = useful or list(range(len(names)))
        self.runtimes = tuple(names[i] for i in useful)
        self.rows = tuple(Judged(r.target, r.misfits, tuple(r.cells[i] for i in useful)) for r in rows)
        self.endResetModel()

    def texts(self) -> list[set[str]]:
        """What stands in each column."""
        return [
            {self.data(self.index(row, column)) for row in range(len(self.rows))}
            for column in range(self.columnCount())
        ]

    def row_of(self, target: str) -> int:
        """The row of a target's name, −1 when it has none."""
        return next((i for i, row in enumerate(self.rows) if row.target.name == target), -1)

    def cell(self, index: Index) -> Cell | None:
        """The cell under a runtime's column."""
        place = index.column() - 2
        return self.rows[index.row()].cells[place] if index.isValid() and place >= 0 else None

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else 2 + len(self.runtimes)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            return ("Target", "This model", *self.runtimes)[section]
        if role == Qt.ItemDataRole.ToolTipRole:
            if section >= 2:
                return f"What {self.runtimes[section - 2]} does with such a file on the chosen device"
            return ("What the file will be", "Whether the blocks divide the rows of the open model's weights")[section]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.rows[index.row()]
        cell = self.cell(index)
        if cell is not None:
            return self._cell_data(cell, row, index, role)
        if index.column() == NAME:
            return {
                Qt.ItemDataRole.DisplayRole: row.target.name,
                Qt.ItemDataRole.ToolTipRole: row.target.summary,
                Qt.ItemDataRole.AccessibleTextRole: f"{row.target.name}: {row.target.summary}",
                Qt.ItemDataRole.FontRole: mono_font(),
            }.get(role)
        if row.target.is_folder and not self._folders:
            return self._no_folder(role)
        fits = not row.misfits
        lengths = ", ".join(format_count(k) for k in row.misfits)
        if role == Qt.ItemDataRole.DisplayRole:
            return "fits" if fits else "in part"
        if role == Qt.ItemDataRole.DecorationRole:
            return icon("circle-check", "ok") if fits else icon("triangle-alert", "warning")
        if role in (Qt.ItemDataRole.ToolTipRole, Qt.ItemDataRole.AccessibleTextRole):
            return "Every row divides." if fits else f"Rows of {lengths} values do not divide into its blocks."
        return None

    def _no_folder(self, role: int) -> Any:
        return {
            Qt.ItemDataRole.DisplayRole: "not from GGUF",
            Qt.ItemDataRole.DecorationRole: icon("ban", "muted"),
            Qt.ItemDataRole.ToolTipRole: "It needs the original Hugging Face folder; a GGUF file is open.",
            Qt.ItemDataRole.AccessibleTextRole: "It needs the original Hugging Face folder; a GGUF file is open.",
        }.get(role)

    def _cell_data(self, cell: Cell, row: Judged, index: Index, role: int) -> Any:
        glyph, color, word = LOOKS[cell.state]
        if role == Qt.ItemDataRole.DisplayRole:
            return word
        if role == Qt.ItemDataRole.DecorationRole:
            return icon(glyph, color)
        if role == Qt.ItemDataRole.ForegroundRole:
            return current().color("text" if cell.state is State.NATIVE else color)
        if role == Qt.ItemDataRole.ToolTipRole:
            return f"{cell.state.value}. {cell.reason}"
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{row.target.name} in {self.runtimes[index.column() - 2]}: {cell.state.value}. {cell.reason}"
        return None


_USELESS = (State.IMPOSSIBLE, State.UNKNOWN)
