"""Target, granularity, symmetry and method: the numbers of the recipe, for who wants them under control."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QFormLayout, QVBoxLayout, QWidget

from app.jobs.plan import with_target
from app.pages.recipe.contract_card import ContractCard
from app.theme import SPACE_3
from app.widgets.basics import label, set_available
from app.widgets.calm import CalmCombo
from app.widgets.text import explain, term
from core.formats import Method, find_format
from core.recipe import Recipe
from core.targets import TARGETS, find_target

_SCHEME = re.compile(r"w(4|8)a16-(g\d+|channel)(-asym)?")
GRANULARITIES = (("g32", "groups of 32"), ("g64", "groups of 64"), ("g128", "groups of 128"), ("channel", "whole rows"))
METHODS = (
    (Method.SEARCH, "search: the scale with the smallest error"),
    (Method.ROUND, "round to nearest: the plain scale"),
    (Method.HALF_QUADRATIC, "half-quadratic (HQQ): the zero point that outliers do not move"),
)
_FIXED = "A GGUF format fixes this. Choose a target whose name starts with w4a16 or w8a16 to change it."


@dataclass(frozen=True)
class Scheme:
    """The parts of a compressed-tensors target's name."""

    bits: str
    granularity: str
    symmetric: bool

    @property
    def name(self) -> str:
        return f"w{self.bits}a16-{self.granularity}" + ("" if self.symmetric else "-asym")


def scheme_of(target: str) -> Scheme | None:
    """Parts of 'w4a16-g64-asym'; None for a GGUF target."""
    found = _SCHEME.fullmatch(target)
    return Scheme(found[1], found[2], found[3] is None) if found else None


class NumbersPanel(QWidget):
    """`edited(recipe)` when a control is moved."""

    edited = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self.target = CalmCombo()
        for t in TARGETS:
            self.target.addItem(f"{t.name} — {t.summary}", t.name)
            self.target.setItemData(self.target.count() - 1, t.summary, Qt.ItemDataRole.ToolTipRole)
        self.granularity = CalmCombo()
        for key, words in GRANULARITIES:
            self.granularity.addItem(words, key)
        self.symmetric = QCheckBox("symmetric: no zero points")
        self.symmetric.setToolTip(explain("symmetric"))
        self.method = CalmCombo()
        for method, words in METHODS:
            self.method.addItem(words, method)
        self.contract = ContractCard()
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        form.setHorizontalSpacing(SPACE_3)
        form.setVerticalSpacing(SPACE_3 - 4)
        rows = (
            ("Target", "target", self.target),
            ("Granularity", "granularity", self.granularity),
            ("Zero points", "zero point", self.symmetric),
            ("Method", "method", self.method),
        )
        for title, word, control in rows:
            name = term(word, title, "muted")
            name.setBuddy(control)
            form.addRow(name, control)
            control.setAccessibleName(title)
            if isinstance(control, QComboBox):
                control.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
                control.setMinimumContentsLength(12)
                control.setToolTip(explain(word))
        self.note = label(_FIXED, "muted", wrap=True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addLayout(form)
        layout.addWidget(self.note)
        layout.addWidget(self.contract)
        layout.addStretch(1)
        self.target.activated.connect(lambda row: self._take(with_target(self._recipe, self.target.itemData(row))))
        self.granularity.activated.connect(self._on_scheme)
        self.symmetric.clicked.connect(self._on_scheme)
        self.method.activated.connect(
            lambda row: self._take(replace(self._recipe, method=Method(self.method.itemData(row))))
        )
        self.show_recipe(self._recipe)

    def show_recipe(self, recipe: Recipe) -> None:
        """Set every control to the recipe's values; nothing is emitted."""
        self._recipe = recipe
        self.target.setCurrentIndex(self.target.findData(recipe.target))
        scheme = scheme_of(recipe.target)
        for control in (self.granularity, self.symmetric):
            set_available(control, "" if scheme else _FIXED)
        self.note.setVisible(scheme is None)
        if scheme is not None:
            self.granularity.setCurrentIndex(self.granularity.findData(scheme.granularity))
            self.symmetric.setChecked(scheme.symmetric)
        else:
            self.granularity.setCurrentIndex(-1)
            self.symmetric.setChecked(False)
        self.method.setCurrentIndex([m for m, _ in METHODS].index(recipe.method))
        target = find_target(recipe.target)
        self.contract.show_contract(find_format(target.base, target.container).contract)

    def _on_scheme(self, *_: object) -> None:
        scheme = scheme_of(self._recipe.target)
        if scheme is not None:
            wanted = Scheme(scheme.bits, self.granularity.currentData(), self.symmetric.isChecked())
            self._take(with_target(self._recipe, wanted.name))

    def _take(self, recipe: Recipe) -> None:
        if recipe != self._recipe:
            self.edited.emit(recipe)
