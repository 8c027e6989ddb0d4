"""Rules by pattern: tensors whose name matches get a format of their own. The first rule that matches decides."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QHBoxLayout, QLineEdit, QVBoxLayout, QWidget

from app.jobs.plan import RuleMatch
from app.models.rules import rule_columns
from app.models.table import RowsModel
from app.models.table_view import TablePanel
from app.theme import SPACE_2, SPACE_3
from app.widgets.basics import button, label, set_available, set_role
from app.widgets.calm import CalmCombo
from app.widgets.text import explain
from core.errors import UserError
from core.formats import FORMATS
from core.recipe import KEEP, Recipe, Rule
from core.targets import find_target


class RulesPanel(QWidget):
    """`edited(recipe)` when a rule is added or removed."""

    edited = Signal(object)

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._recipe = Recipe()
        self._offered = ("", "")  # container and ecosystem whose formats can be chosen
        self.table = TablePanel(
            RowsModel(rule_columns(), explain),
            "Rules",
            ("", "w8a16-channel-asym", "1 000 tensors", "channel 1 247 is 38 × the median"),
            totals=False,
        )
        self.table.filter.hide()
        self.pattern = QLineEdit()
        self.pattern.setPlaceholderText("part of a name, such as down_proj or blk\\.0\\.")
        self.pattern.setAccessibleName("Pattern of the new rule")
        self.pattern.setToolTip(f"{explain('pattern')}\nType {self.pattern.placeholderText()}")
        self.pattern.returnPressed.connect(self._add)
        self.pattern.textChanged.connect(self._on_text)
        self.format = CalmCombo()
        self.format.setAccessibleName("Format of the new rule")
        self.format.setToolTip("What the matching tensors become")
        self.error = label("", "error", wrap=True)
        self.error.setAccessibleName("Error of the new rule")
        self.add = button("Add rule", self._add, icon="plus", hint="Add the rule at the end of the list")
        self.remove = button("Remove", self._remove, icon="trash-2", hint="Remove the selected rule")
        row = QHBoxLayout()
        row.setSpacing(SPACE_2)
        row.addWidget(self.pattern, 1)
        row.addWidget(self.format)
        row.addWidget(self.add)
        self.none = label("There are no rules: every tensor gets what the target says.", "muted", wrap=True)
        self.none.setAlignment(Qt.AlignmentFlag.AlignTop)
        below = QHBoxLayout()
        below.addWidget(self.remove)
        below.addStretch(1)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, SPACE_3, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(
            label(
                "Tensors whose name contains the pattern get the rule's format. The first match decides.",
                "muted",
                wrap=True,
            )
        )
        layout.addLayout(row)
        layout.addWidget(self.error)
        layout.addWidget(self.none, 1)
        layout.addWidget(self.table, 1)
        layout.addLayout(below)
        self.error.hide()
        self.table.row_chosen.connect(lambda _row: self._update_buttons())
        self.show_recipe(self._recipe, [])

    def show_recipe(self, recipe: Recipe, matches: list[RuleMatch]) -> None:
        """The rules with how many tensors each decides; nothing is emitted."""
        self._recipe = recipe
        target = find_target(recipe.target)
        if (target.container, target.ecosystem) != self._offered:
            self._offered = (target.container, target.ecosystem)
            self.format.clear()
            self.format.addItem("keep 16 bits", KEEP)
            for f in FORMATS:
                if (f.container, f.ecosystem) == self._offered and f.contract.scale is not None:
                    self.format.addItem(f.name, f.name)
        self.table.model.set_rows(matches or [RuleMatch(r.pattern, r.format, 0, reason=r.reason) for r in recipe.rules])
        for part in (self.table, self.remove):
            part.setVisible(bool(recipe.rules))
        self.none.setVisible(not recipe.rules)
        self._update_buttons()

    def _on_text(self) -> None:
        self.error.hide()
        set_role(self.pattern, state="")
        self._update_buttons()

    def _update_buttons(self) -> None:
        set_available(self.add, "" if self.pattern.text() else "Write a pattern first: part of a tensor's name.")
        set_available(self.remove, "" if self.table.current_row() else "Select a rule in the list first.")

    def _add(self) -> None:
        text = self.pattern.text()
        if not text:
            return
        try:
            recipe = self._recipe.with_rule(Rule(text, self.format.currentData()))
        except UserError as error:
            self.show_error(error)
            return
        self.edited.emit(recipe)

    def accepted(self) -> None:
        """The new rule is in force: make room for the next one."""
        self.pattern.clear()

    def show_error(self, error: UserError) -> None:
        """Say beside the pattern what is wrong with it."""
        self.error.setText(str(error))
        self.error.show()
        set_role(self.pattern, state="error")
        self.pattern.setFocus(Qt.FocusReason.OtherFocusReason)

    def _remove(self) -> None:
        index = self.table.view.currentIndex()
        if index.isValid():
            rules = list(self._recipe.rules)
            chosen = self.table.model.row_at(index)
            rules = [r for r in rules if (r.pattern, r.format) != (chosen.pattern, chosen.format)]
            self.edited.emit(replace(self._recipe, rules=tuple(rules)))
