"""One table model for every table of the window: columns are data, rows are frozen values.

Sorting and filtering happen here, on keys computed once a column, not in a proxy that calls Python for every
comparison: 10,000 rows sort in about 20 ms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from PySide6.QtCore import QAbstractTableModel, QModelIndex, QObject, QPersistentModelIndex, Qt

from app.theme import current, mono_font

ROW = Qt.ItemDataRole.UserRole  # the row's own value
_RIGHT = Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter
_LEFT = Qt.AlignmentFlag.AlignLeft | Qt.AlignmentFlag.AlignVCenter
_DIGITS = re.compile(r"(\d+)")
_WIDEST = 20  # digits of the largest number in a name that sorts rightly

Index = QModelIndex | QPersistentModelIndex


@lru_cache(maxsize=1 << 15)  # each new plan has the same names
def natural_key(text: str) -> str:
    """A key that puts 'layers.2' before 'layers.10', in any case of letters."""
    parts = _DIGITS.split(text.casefold())
    parts[1::2] = [digits.zfill(_WIDEST) for digits in parts[1::2]]
    return "".join(parts)


@dataclass(frozen=True)
class Column:
    """What a column shows of a row.

    text: what stands in the cell. key: what it is sorted by. number: right-aligned, tabular digits. term: glossary term
    whose explanation is the header's tooltip. role: a colour role of the theme for this row's cell, '' for plain text.
    total: text of the totals row for the rows shown. mono: the cell is a name or code. icon: a QIcon or None.
    """

    title: str
    text: Callable[[Any], str]
    key: Callable[[Any], Any] | None = None
    number: bool = False
    term: str = ""
    mono: bool = False
    role: Callable[[Any], str] | None = None
    icon: Callable[[Any], Any] | None = None
    tooltip: Callable[[Any], str] | None = None
    total: Callable[[Sequence[Any]], str] | None = None

    def sort_key(self, row: Any) -> Any:
        return self.key(row) if self.key else natural_key(self.text(row))


class RowsModel(QAbstractTableModel):
    """Rows of one kind under fixed columns. `explain` gives the tooltip of a glossary term, '' for unknown ones."""

    def __init__(
        self, columns: Sequence[Column], explain: Callable[[str], str] | None = None, parent: QObject | None = None
    ) -> None:
        super().__init__(parent)
        self.columns = tuple(columns)
        self._explain = explain or (lambda _term: "")
        self._rows: list[Any] = []
        self._order: list[int] = []
        self._needle = ""
        self._sorted_by: tuple[int, bool] | None = None
        self._keys: dict[int, list[Any]] = {}  # column → key of each row
        self._words: list[str] | None = None  # what the filter looks through, for each row

    # ---- content ---------------------------------------------------------------------------------------------------

    def set_rows(self, rows: Sequence[Any]) -> None:
        """Replace all rows; filter and sorting stay as they are."""
        self.beginResetModel()
        self._rows = list(rows)
        self._keys.clear()
        self._words = None
        self._order = self._arranged()
        self.endResetModel()

    def replace_rows(self, rows: Mapping[int, Any]) -> None:
        """Replace rows by their number in the order of set_rows, where they stand; they are not arranged anew."""
        for number, row in rows.items():
            self._rows[number] = row
            for column, keys in self._keys.items():
                keys[number] = self.columns[column].sort_key(row)
            if self._words is not None:
                self._words[number] = self._words_of(row)
        if not rows or not self._order:
            return
        if self._needle or self._sorted_by is not None:
            first, last = 0, len(self._order) - 1
        else:
            first, last = min(rows), max(rows)
        self.dataChanged.emit(self.index(first, 0), self.index(last, len(self.columns) - 1))

    def rows(self) -> list[Any]:
        """All rows, in the order of set_rows."""
        return list(self._rows)

    def shown(self) -> list[Any]:
        """The rows that pass the filter, as sorted."""
        return [self._rows[i] for i in self._order]

    def row_at(self, index: Index | int) -> Any:
        """The value shown at a model row."""
        return self._rows[self._order[index if isinstance(index, int) else index.row()]]

    def position(self, number: int) -> int | None:
        """Where row `number` of set_rows is shown; None when the filter hides it."""
        try:
            return self._order.index(number)
        except ValueError:
            return None

    def set_filter(self, text: str) -> None:
        """Show only rows in which every word of `text` occurs, in any column of texts and any case."""
        if text.casefold().strip() == self._needle:
            return
        self.beginResetModel()
        self._needle = text.casefold().strip()
        self._order = self._arranged()
        self.endResetModel()

    def total(self, column: int) -> str:
        """Text of that column in the totals row, over the rows shown."""
        text = self.columns[column].total
        return text(self.shown()) if text else ""

    def totals(self) -> list[str]:
        """Text of the totals row, one a column, over the rows shown."""
        return [self.total(column) for column in range(len(self.columns))]

    # ---- Qt --------------------------------------------------------------------------------------------------------

    def rowCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self._order)

    def columnCount(self, parent: Index = QModelIndex()) -> int:  # noqa: B008
        return 0 if parent.isValid() else len(self.columns)

    def data(self, index: Index, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if not index.isValid():
            return None
        column = self.columns[index.column()]
        row = self._rows[self._order[index.row()]]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.text(row)
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if column.number else _LEFT
        if role == Qt.ItemDataRole.ToolTipRole:
            return column.tooltip(row) if column.tooltip else column.text(row)
        if role == Qt.ItemDataRole.AccessibleTextRole:
            return f"{column.title}: {column.text(row)}"
        if role == Qt.ItemDataRole.FontRole:
            return mono_font() if column.mono else None
        if role == Qt.ItemDataRole.ForegroundRole and column.role:
            name = column.role(row)
            return current().color(name) if name else None
        if role == Qt.ItemDataRole.DecorationRole and column.icon:
            return column.icon(row)
        if role == ROW:
            return row
        return None

    def headerData(self, section: int, orientation: Qt.Orientation, role: int = Qt.ItemDataRole.DisplayRole) -> Any:
        if orientation != Qt.Orientation.Horizontal or not 0 <= section < len(self.columns):
            return None
        column = self.columns[section]
        if role == Qt.ItemDataRole.DisplayRole:
            return column.title
        if role == Qt.ItemDataRole.TextAlignmentRole:
            return _RIGHT if column.number else _LEFT
        if role == Qt.ItemDataRole.ToolTipRole:
            return (self._explain(column.term) if column.term else "") or column.title
        return None

    def sort(self, column: int, order: Qt.SortOrder = Qt.SortOrder.AscendingOrder) -> None:
        """Sort by a column, ties in the original order; a negative column restores the original order."""
        self._sorted_by = (column, order == Qt.SortOrder.DescendingOrder) if column >= 0 else None
        self.layoutAboutToBeChanged.emit()
        before = self.persistentIndexList()
        numbers = [self._order[i.row()] for i in before]
        self._order = self._arranged()
        where = {number: place for place, number in enumerate(self._order)}
        after = [self.index(where[n], i.column()) for n, i in zip(numbers, before, strict=True)]
        self.changePersistentIndexList(before, after)
        self.layoutChanged.emit()

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _arranged(self) -> list[int]:
        order = list(range(len(self._rows)))
        if self._needle:
            wanted, texts = self._needle.split(), self._filter_texts()
            order = [i for i in order if all(word in texts[i] for word in wanted)]
        if self._sorted_by is not None:
            number, descending = self._sorted_by
            order.sort(key=self._sort_keys(number).__getitem__, reverse=descending)
        return order

    def _sort_keys(self, column: int) -> list[Any]:
        if column not in self._keys:
            key = self.columns[column].sort_key
            self._keys[column] = [key(row) for row in self._rows]
        return self._keys[column]

    def _filter_texts(self) -> list[str]:
        if self._words is None:
            self._words = [self._words_of(row) for row in self._rows]
        return self._words

    def _words_of(self, row: Any) -> str:
        return "\n".join([c.text(row) for c in self.columns if not c.number]).casefold()
