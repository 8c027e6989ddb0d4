"""Chooses what the key-value cache is kept in: the usual formats, and the way to all others."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QPaintEvent, QStandardItem, QStandardItemModel
from PySide6.QtWidgets import QComboBox, QStyle, QStyleOptionComboBox, QStylePainter

from app.language import say
from core import units

if TYPE_CHECKING:
    from core.kv.scheme import CacheScheme

# By who keeps a cache in them. All others are in the planner.
COMMON = (
    ("Any program", ("F16",)),
    ("llama.cpp", ("Q8_0", "Q5_1", "Q4_1", "Q4_0", "IQ4_NL")),
    ("vLLM, SGLang", ("FP8", "INT8", "INT4")),
    ("MLX", ("U8-g64", "U4-g64")),
    ("Bitsmith", ("INT8-g64,rotate", "INT4-g32,rotate")),
)
PLANNER = "Plan the cache…"
HINT = "What keys and values are kept in while a model runs; fewer bits hold more tokens"
NAME = Qt.ItemDataRole.UserRole + 1
USUAL_HEAD = 128  # values of a head, while no model says another


class NamedPicker(QComboBox):
    """Shows an item's name alone, shortened where it must be; the list that opens says more."""

    def paintEvent(self, _event: QPaintEvent) -> None:
        option = QStyleOptionComboBox()
        self.initStyleOption(option)
        with QStylePainter(self) as painter:
            name = self.itemData(self.currentIndex(), NAME) or self.placeholderText()
            painter.drawComplexControl(QStyle.ComplexControl.CC_ComboBox, option)
            room = self.width() - 40  # padding at the left, arrow at the right
            option.currentText = self.fontMetrics().elidedText(name, Qt.TextElideMode.ElideRight, room)
            painter.drawControl(QStyle.ControlElement.CE_ComboBoxLabel, option)


class CachePicker(NamedPicker):
    """`chosen(text)`: a scheme's text. `planner_asked`: its last entry."""

    chosen = Signal(str)
    planner_asked = Signal()

    def __init__(self) -> None:
        super().__init__()
        self.setAccessibleName(say("Format of the KV cache"))
        self._shown: tuple[str, str, int] | None = None
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(6)
        self.setMaxVisibleItems(20)
        self.view().setMinimumWidth(220)
        self.activated.connect(self._on_activated)

    def show_scheme(self, scheme: CacheScheme, of_recipe: CacheScheme, head_dim: int = 0) -> None:
        """The scheme in force, and the one that the planned file asks for. head_dim: 0: not known."""
        state = scheme.text, of_recipe.text, head_dim or USUAL_HEAD
        if state == self._shown:
            return
        self._shown = state
        self._fill(scheme, of_recipe, head_dim or USUAL_HEAD)
        names = [self.itemData(row, NAME) for row in range(self.count())]
        self.setCurrentIndex(names.index(scheme.text))
        self.setToolTip(say(HINT))

    def _fill(self, scheme: CacheScheme, of_recipe: CacheScheme, head_dim: int) -> None:
        from core.kv.scheme import CacheScheme

        model = QStandardItemModel(self)
        known = {name for _, names in COMMON for name in names}
        groups = COMMON if scheme.text in known else (("Chosen", (scheme.text,)), *COMMON)
        for title, names in groups:
            heading = QStandardItem(say(title))
            heading.setEnabled(False)
            heading.setToolTip(say("Choose one of the formats below."))
            model.appendRow(heading)
            for name in names:
                each = CacheScheme.parse(name)
                alike = each.keys == each.values and replace(each, rotate_keys=False, rotate_values=False).is_plain
                bits = f" · {units.format_number(each.key_format.bits_per_value(head_dim), 3)} bits" if alike else ""
                end = " · as the recipe" if name == of_recipe.text and name != "F16" else ""
                item = QStandardItem(name + bits + end)
                item.setData(name, NAME)
                model.appendRow(item)
        model.appendRow(QStandardItem(say(PLANNER)))
        self.setModel(model)

    def _on_activated(self, row: int) -> None:
        name = self.itemData(row, NAME)
        shown = self._shown
        if name is not None:
            self.chosen.emit(name)
        elif shown is not None:  # a heading can not be chosen, so this is the last one
            self.setCurrentIndex(next(r for r in range(self.count()) if self.itemData(r, NAME) == shown[0]))
            self.planner_asked.emit()
