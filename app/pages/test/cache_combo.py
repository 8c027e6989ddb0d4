"""What a column's keys and values are kept in: those formats that the engine runs; others are grey, and say why."""

from __future__ import annotations

from collections.abc import Callable

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QStandardItem, QStandardItemModel

from app.widgets.cache_picker import COMMON
from app.widgets.calm import CalmCombo
from app.widgets.text import explain

MIXED = ("Q8_0/Q4_0",)  # keys suffer first
AUTOMATIC, AUTOMATIC_HINT = "Automatic", "FP8 where the file has scales for it, else F16"


class CacheCombo(CalmCombo):
    """`chosen(text)`: the scheme's text."""

    chosen = Signal(str)

    def __init__(self, name: str, automatic: bool = False) -> None:
        """automatic: the file's own format can be chosen, whose text is ''."""
        super().__init__()
        self._automatic = automatic
        self._shown: tuple[tuple[str, str], ...] = ()
        self.setAccessibleName(name)
        self.setToolTip(explain("cache format"))
        self.setMinimumContentsLength(6)
        self.view().setMinimumWidth(160)
        self.activated.connect(lambda row: self.chosen.emit(self.itemData(row)))

    def show_cache(self, cache: str, refusal: Callable[[str], str]) -> None:
        """cache: the one in force. refusal: why a scheme can not be kept; '' where it can."""
        names = dict.fromkeys([name for _, group in COMMON for name in group] + [*MIXED, cache])
        if self._automatic:
            names = {"": None} | names
        offered = tuple((name, refusal(name) if name else "") for name in names)
        if offered != self._shown:
            self._shown = offered
            model = QStandardItemModel(self)
            for name, why in offered:
                item = QStandardItem(name or AUTOMATIC)
                item.setData(name, Qt.ItemDataRole.UserRole)
                item.setEnabled(not why)
                item.setToolTip(why or (f"Keys and values in {name}" if name else AUTOMATIC_HINT))
                model.appendRow(item)
            self.setModel(model)
        self.setCurrentIndex(self.findData(cache))
