"""What stays in 16 bits, and what becomes of tensors whose rows do not divide."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Signal
from PySide6.QtWidgets import (
    QButtonGroup,
    QCheckBox,
    QGridLayout,
    QHBoxLayout,
    QRadioButton,
    QSpinBox,
    QVBoxLayout,
    QWidget,
)

from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import Card, label
from app.widgets.text import explain
from core import units
from core.recipe import KeepGroup, Misfit, Recipe

GROUPS = {
    KeepGroup.EMBEDDING: ("Embedding", "embedding"),
    KeepGroup.HEAD: ("Output head", "output head"),
    KeepGroup.ROUTER: ("Expert router", "expert router"),
    KeepGroup.ATTENTION: ("Attention", "attention"),
    KeepGroup.FFN_DOWN: ("Feed-forward down", "feed-forward down"),
}
POLICIES = {
    Misfit.SMALLER: "Take a smaller block for them",
    Misfit.KEEP: "Keep them in 16 bits",
    Misfit.STOP: "Stop before anything is written",
}


class LayerCount(QSpinBox):
    """Scrolling past it does not change it."""

    def __init__(self, name: str, hint: str) -> None:
        super().__init__()
        self.setRange(0, 512)
        self.setAccessibleName(name)
        self.setToolTip(hint)
        self.setKeyboardTracking(False)
        self.lineEdit().setTextMargins(SPACE_2 - 2, 0, 0, 0)

    def wheelEvent(self, event: object) -> None:
        event.ignore()


class KeepPanel(QWidget):
    """`edited(recipe)` when a control is moved."""

    edited = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self.groups = {g: QCheckBox(title) for g, (title, _) in GROUPS.items()}
        keep = Card("Keep in 16 bits")
        keep.add(label("More bits where errors hurt most; the result shows what it costs.", "muted", wrap=True))
        grid = QGridLayout()
        grid.setVerticalSpacing(SPACE_2)
        for i, (group, box) in enumerate(self.groups.items()):
            box.setToolTip(explain(GROUPS[group][1]))
            box.clicked.connect(self._on_groups)
            grid.addWidget(box, i // 2, i % 2)
        keep.body.addLayout(grid)
        self.first = LayerCount("First layers kept", "Decoder layers at the start that stay in 16 bits")
        self.last = LayerCount("Last layers kept", "Decoder layers at the end that stay in 16 bits")
        layers = QHBoxLayout()
        layers.setSpacing(SPACE_2)
        for text, box in (("First", self.first), ("and last", self.last)):
            layers.addWidget(label(text, "muted"))
            box.setFixedWidth(72)
            layers.addWidget(box)
        layers.addWidget(label("layers", "muted"))
        layers.addStretch(1)
        keep.body.addLayout(layers)
        self.first.valueChanged.connect(lambda n: self._edit(keep_first=n))
        self.last.valueChanged.connect(lambda n: self._edit(keep_last=n))
        self.policies = {m: QRadioButton(text) for m, text in POLICIES.items()}
        self._costs = {m: label("", "muted") for m in Misfit}
        misfit = Card("Rows that do not divide into blocks")
        self._group = QButtonGroup(self)
        policies = QGridLayout()
        policies.setColumnStretch(0, 1)
        for row, (policy, radio) in enumerate(self.policies.items()):
            radio.setToolTip(explain("misfit"))
            self._group.addButton(radio)
            policies.addWidget(radio, row, 0)
            policies.addWidget(self._costs[policy], row, 1)
            radio.clicked.connect(lambda _checked=False, policy=policy: self._edit(misfit=policy))
        misfit.body.addLayout(policies)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addWidget(keep)
        layout.addWidget(misfit)
        layout.addStretch(1)
        self.show_recipe(self._recipe)

    def show_recipe(self, recipe: Recipe) -> None:
        """Set every control to the recipe's values; nothing is emitted."""
        self._recipe = recipe
        for group, box in self.groups.items():
            box.setChecked(group in recipe.keep)
        for box, value in ((self.first, recipe.keep_first), (self.last, recipe.keep_last)):
            box.blockSignals(True)
            box.setValue(value)
            box.blockSignals(False)
        self.policies[recipe.misfit].setChecked(True)

    def show_costs(self, costs: dict[Misfit, int | None] | None) -> None:
        """Output bytes under each policy; None while they are worked out."""
        for policy, text in self._costs.items():
            if costs is None:
                text.setText("…")
            elif costs.get(policy) is None:
                text.setText("stops" if policy is Misfit.STOP else "not possible")
            else:
                text.setText(units.format_bytes(costs[policy] or 0))
            self.policies[policy].setAccessibleDescription(text.text())

    def _on_groups(self) -> None:
        self._edit(keep=frozenset(g for g, box in self.groups.items() if box.isChecked()))

    def _edit(self, **changes: object) -> None:
        recipe = replace(self._recipe, **changes)  # type: ignore[arg-type]
        if recipe != self._recipe:
            self.edited.emit(recipe)
