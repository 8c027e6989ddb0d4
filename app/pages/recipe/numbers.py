"""Target, bits, granularity and symmetry: the numbers of the recipe, for who wants them under control."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QCheckBox, QComboBox, QFormLayout, QVBoxLayout, QWidget

from app.jobs.plan import with_target
from app.pages.recipe.contract_card import ContractCard
from app.theme import SPACE_3
from app.widgets.basics import label, set_available
from app.widgets.calm import CalmCombo
from app.widgets.text import explain, term
from core.catalog import Kind, Knob, Use, base_of, bits_text, kind_of, knob_text, knob_value, use_of, uses
from core.export.cache_scales import CACHE_HINT, why_no_cache
from core.recipe import Recipe
from core.targets import Target, find_target

_SWITCHES = {Knob.SYMMETRIC: "symmetric: no zero points", Knob.DOUBLE: "scales are quantized, too"}
_TERMS = {
    Knob.BITS: "payload bits",
    Knob.GRANULARITY: "granularity",
    Knob.SYMMETRIC: "zero point",
    Knob.DOUBLE: "double quantization",
}


class NumbersPanel(QWidget):
    """First for whom, then which kind of format, then what its members differ in. `edited(recipe)` at every change."""

    edited = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self._columns: Collection[int] = ()
        self._lossless: frozenset[str] = frozenset()
        self._filled: tuple[Use, Kind, frozenset[str]] | None = None  # what the choosers offer at present
        self.use = CalmCombo()
        for use in uses():
            self.use.addItem(use.title, use.key)
        self.kind = CalmCombo()
        self.target = CalmCombo()
        self.knobs: dict[Knob, QComboBox | QCheckBox] = {
            Knob.BITS: CalmCombo(),
            Knob.GRANULARITY: CalmCombo(),
            Knob.SYMMETRIC: QCheckBox(_SWITCHES[Knob.SYMMETRIC]),
            Knob.DOUBLE: QCheckBox(_SWITCHES[Knob.DOUBLE]),
        }
        self.cache = QCheckBox("with scales for 8 bits (fp8): half the memory")
        self.cache.clicked.connect(lambda on: self._take(replace(self._recipe, cache="fp8" if on else "")))
        self.contract = ContractCard()
        form = QFormLayout()
        form.setLabelAlignment(Qt.AlignmentFlag.AlignLeft)
        form.setHorizontalSpacing(SPACE_3)
        form.setVerticalSpacing(SPACE_3 - 4)
        rows: list[tuple[str, str, QComboBox | QCheckBox]] = [
            ("For", "runtime", self.use),
            ("Format", "format", self.kind),
            *((knob.title, _TERMS[knob], control) for knob, control in self.knobs.items()),
            ("Target", "target", self.target),
            ("KV cache", "8-bit cache", self.cache),
        ]
        for title, word, control in rows:
            name = term(word, title, "muted")
            name.setBuddy(control)
            form.addRow(name, control)
            control.setAccessibleName(title)
            control.setToolTip(explain(word))
            if isinstance(control, QComboBox):
                control.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
                control.setMinimumContentsLength(12)
        self.note = label("", "muted", wrap=True)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_3)
        layout.addLayout(form)
        layout.addWidget(self.note)
        layout.addWidget(self.contract)
        layout.addStretch(1)
        self.use.activated.connect(self._on_use)
        self.kind.activated.connect(lambda row: self._choose(self.kind_at(row).nearest(self._target)))
        self.target.activated.connect(lambda row: self._choose(find_target(self.target.itemData(row))))
        for knob, control in self.knobs.items():
            signal = control.activated if isinstance(control, QComboBox) else control.clicked
            signal.connect(partial(self._on_knob, knob))
        self.show_recipe(self._recipe)

    @property
    def _target(self) -> Target:
        return find_target(self._recipe.target)

    def show_model(self, columns: Collection[int], lossless: frozenset[str]) -> None:
        """Row lengths of the open model, and the targets that keep its numbers."""
        self._columns = columns
        if lossless != self._lossless:
            self._lossless = lossless
            self.show_recipe(self._recipe)

    def show_recipe(self, recipe: Recipe) -> None:
        """Set every control to the recipe's values; nothing is emitted."""
        self._recipe = recipe
        target = self._target
        use, kind = use_of(target), kind_of(target)
        self._fill(use, kind)
        self.use.setCurrentIndex(self.use.findData(use.key))
        self.kind.setCurrentIndex(use.kinds.index(kind))
        self.target.setCurrentIndex(self.target.findData(target.name))
        for knob, control in self.knobs.items():
            value = knob_value(target, knob)
            if isinstance(control, QCheckBox):
                control.setChecked(bool(value))
            else:
                control.setCurrentIndex(kind.values(knob).index(value))
        self.cache.setChecked(bool(recipe.cache))
        why = why_no_cache(target)
        set_available(self.cache, f"{why} {CACHE_HINT}" if why and not recipe.cache else "")
        self.note.setText(self._note(kind))
        self.note.setVisible(bool(self.note.text()))
        self.contract.show_contract(base_of(target).contract)

    def _fill(self, use: Use, kind: Kind) -> None:
        """What the choosers below a use and a kind offer."""
        if self._filled == (use, kind, self._lossless):
            return
        self._filled = (use, kind, self._lossless)
        _offer(self.kind, [(self._marked(k.title, *(t.name for t in k.targets)), k.key) for k in use.kinds])
        set_available(self.kind, "" if len(use.kinds) > 1 else f"{use.title} has one kind of format here.")
        _offer(self.target, [(self._marked(f"{t.name} — {t.summary}", t.name), t.name) for t in kind.targets])
        for row, t in enumerate(kind.targets):
            tip = f"{t.summary}; {bits_text(t)} bits a weight"
            self.target.setItemData(row, tip, Qt.ItemDataRole.ToolTipRole)
        set_available(self.target, "" if len(kind.targets) > 1 else "There is one format of this kind.")
        for knob, control in self.knobs.items():
            if isinstance(control, QComboBox):
                _offer(control, [(knob_text(knob, value), value) for value in kind.values(knob)])
            set_available(control, kind.fixed(knob))

    def _marked(self, text: str, *names: str) -> str:
        return f"{text} · lossless" if any(n in self._lossless for n in names) else text

    def _note(self, kind: Kind) -> str:
        """Why controls are off, readable without a pointer."""
        words = (
            []
            if self._recipe.target not in self._lossless
            else ["Lossless: weights that are quantized keep their numbers."]
        )
        fixed = [knob_text(knob, knob_value(self._target, knob)) for knob in Knob if kind.fixed(knob)]
        if not self._target.is_folder:
            words.append("A GGUF type fixes what is off here; choose another one under Target.")
        elif fixed:
            words.append(f"Fixed in this kind of format: {', '.join(fixed)}.")
        if not self.cache.isEnabled():
            words.append("Scales of an 8-bit cache have a place in compressed-tensors and ModelOpt folders only.")
        return " ".join(words)

    def kind_at(self, row: int) -> Kind:
        """The kind in a row of its chooser."""
        return next(k for use in uses() for k in use.kinds if k.key == self.kind.itemData(row))

    def _on_use(self, row: int) -> None:
        """The kind and member that are most like the present ones; else what is usual there."""
        use, now = uses()[row], self._target
        if use == use_of(now):
            return
        element = base_of(now).contract.element
        alike = [k for k in use.kinds if now.is_folder and base_of(k.targets[0]).contract.element is element]
        kept = [k for k in use.kinds if any(t.name in self._lossless for t in k.targets)]
        kind = (kept or alike or list(use.kinds))[0]
        wanted = [t.name for t in kind.targets if t.name in self._lossless]
        if alike and use.key != "gguf" and not wanted:
            self._choose(kind.nearest(now))
        else:
            self._choose(kind.usual(self._columns, wanted))

    def _on_knob(self, knob: Knob, *_: object) -> None:
        control = self.knobs[knob]
        value = control.currentData() if isinstance(control, QComboBox) else control.isChecked()
        self._choose(kind_of(self._target).with_knob(self._target, knob, value))

    def _choose(self, target: Target) -> None:
        self._take(with_target(self._recipe, target.name))

    def _take(self, recipe: Recipe) -> None:
        if recipe != self._recipe:
            self.edited.emit(recipe)


def _offer(chooser: QComboBox, items: list[tuple[str, object]]) -> None:
    chooser.clear()
    for text, data in items:
        chooser.addItem(text, data)
