"""The support matrix as a table: rows are families of formats, columns runtimes, for one device and the open model."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, Qt

from app.icons import icon
from app.models.table import Index
from app.theme import current, mono_font
from core.catalog import Kind, family_rows, use_of
from core.hardware.matrix import Cell, State, cell_for_model, misfit_columns, runtimes
from core.targets import Target
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
_USELESS = (State.IMPOSSIBLE, State.UNKNOWN)
_NO_FOLDER = "It needs the original Hugging Face folder; a GGUF file is open."


@dataclass(frozen=True)
class Judged:
    """One row. target: the member that suits the model best, which the row stands for. lossless: members whose numbers
    the open model has. misfits: row lengths of the model that the target's blocks do not divide. cells: a runtime each.
    """

    kind: Kind
    target: Target
    lossless: tuple[str, ...]
    misfits: tuple[int, ...]
    cells: tuple[Cell, ...]

    @property
    def native(self) -> bool:
        """Whether any runtime has kernels of its own for it."""
        return any(cell.state is State.NATIVE for cell in self.cells)


class MatrixModel(QAbstractTableModel):
    """`judge` fills it. Runtimes that can read nothing of what Bitsmith writes have no column."""

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self.runtimes: tuple[str, ...] = ()
        self.rows: tuple[Judged, ...] = ()
        self._folders = True

    def judge(
        self,
        hardware_class: str,
        columns: Collection[int],
        folders: bool = True,
        lossless: Collection[str] = (),
        only_native: bool = False,
    ) -> None:
        """Fill every cell for hardware of that class and a model whose weights have rows of these lengths.

        folders: whether the model can become a folder, which a GGUF can not. lossless: targets that keep its numbers.
        only_native: leave out rows that no runtime has kernels for on that hardware.
        """
        self.beginResetModel()
        self._folders = folders
        names = runtimes()
        rows = [_judged(kind, hardware_class, columns, lossless) for kind in family_rows()]
        rows = [row for row in rows if row.native or not only_native]
        useful = [i for i in range(len(names)) if any(row.cells[i].state not in _USELESS for row in rows)]
        useful = useful or list(range(len(names)))
        self.runtimes = tuple(names[i] for i in useful)
        self.rows = tuple(
            Judged(r.kind, r.target, r.lossless, r.misfits, tuple(r.cells[i] for i in useful)) for r in rows
        )
        self.endResetModel()

    def texts(self) -> list[set[str]]:
        """What stands in each column."""
        return [
            {self.data(self.index(row, column)) for row in range(len(self.rows))}
            for column in range(self.columnCount())
        ]

    def row_of(self, target: str) -> int:
        """The row that has a target, −1 when none has it."""
        return next((i for i, row in enumerate(self.rows) if any(t.name == target for t in row.kind.targets)), -1)

    def cell(self, index: Index) -> Cell | None:
        """The cell under a runtime's column."""
        place = index.column() - 2
        return self.rows[index.row()].cells[place] if index.isValid() and place >= 0 else None

    def sentence(self, index: Index) -> str:
        """Everything that a cell says, in words."""
        row, cell = self.rows[index.row()], self.cell(index)
        if index.column() == NAME:
            return members_text(row)
        if cell is None:
            return f"{row.kind.title}: {self._fit(row)[3]}"
        return f"{row.kind.title} in {self.runtimes[index.column() - 2]}: {cell.state.value}. {cell.reason}"

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.rows)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else 2 + len(self.runtimes)

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal:
            return None
        if role == Qt.ItemDataRole.DisplayRole:
            return ("Format", "This model", *self.runtimes)[section]
        if role == Qt.ItemDataRole.ToolTipRole:
            if section >= 2:
                return f"What {self.runtimes[section - 2]} does with such a file on the chosen device"
            return ("What the file will be", "Whether the blocks divide the rows of the open model's weights")[section]
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
        return None

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        row = self.rows[index.row()]
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return self.sentence(index)
        cell = self.cell(index)
        if cell is not None:
            return _cell_data(cell, role)
        if index.column() == NAME:
            return {
                Qt.ItemDataRole.DisplayRole: row.kind.title,
                Qt.ItemDataRole.ToolTipRole: members_text(row),
                Qt.ItemDataRole.FontRole: mono_font(),
            }.get(role)
        word, glyph, color, sentence = self._fit(row)
        if role == Qt.ItemDataRole.DisplayRole:
            return word
        if role == Qt.ItemDataRole.DecorationRole:
            return icon(glyph, color)
        if role == Qt.ItemDataRole.ToolTipRole:
            return sentence
        return None

    def _fit(self, row: Judged) -> tuple[str, str, str, str]:
        """What the row is to the open model: word, glyph, colour role, sentence."""
        if row.target.is_folder and not self._folders:
            return ("not from GGUF", "ban", "muted", _NO_FOLDER)
        if row.lossless:
            names = ", ".join(row.lossless)
            return (
                "lossless",
                "circle-check",
                "ok",
                f"{names}: the weights that are quantized keep their numbers, only their packing changes.",
            )
        if row.misfits:
            lengths = ", ".join(format_count(k) for k in row.misfits)
            sentence = f"Rows of {lengths} values do not divide into the blocks of {row.target.name}."
            return ("in part", "triangle-alert", "warning", sentence)
        return ("fits", "circle-check", "ok", f"Every row divides into the blocks of {row.target.name}.")


def members_text(row: Judged) -> str:
    """Which targets a row has, and which of them a click chooses."""
    use = use_of(row.target).title
    if len(row.kind.targets) == 1:
        return f"{row.target.name}: {row.target.summary}. For {use}."
    names = ", ".join(t.name for t in row.kind.targets)
    return f"For {use}: {names}. A click chooses {row.target.name} ({row.target.summary})."


def _judged(kind: Kind, hardware_class: str, columns: Collection[int], lossless: Collection[str]) -> Judged:
    kept = tuple(t.name for t in kind.targets if t.name in lossless)
    target = kind.usual(columns, kept)
    cells = tuple(cell_for_model(target.name, r, hardware_class, columns) for r in runtimes())
    return Judged(kind, target, kept, misfit_columns(target.name, columns), cells)


def _cell_data(cell: Cell, role: int) -> Any:
    glyph, color, word = LOOKS[cell.state]
    if role == Qt.ItemDataRole.DisplayRole:
        return word
    if role == Qt.ItemDataRole.DecorationRole:
        return icon(glyph, color)
    if role == Qt.ItemDataRole.ForegroundRole:
        return current().color("text" if cell.state is State.NATIVE else color)
    if role == Qt.ItemDataRole.ToolTipRole:
        source = f"\nAs of {cell.checked}, from {cell.source}" if cell.source else ""
        return f"{cell.state.value}. {cell.reason}{source}"
    return None
