"""What the present recipe will give: exact bytes, change, how many tensors, and everything to be warned of."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.theme import SPACE_1, SPACE_2, SPACE_4
from app.widgets.basics import Card, label
from app.widgets.inline_error import InlineError
from app.widgets.text import KeyValue
from app.widgets.verdict import Verdict
from core import units
from core.plan import Action, Plan


class OutcomeCard(Card):
    """`show_plan`, `show_working` or `show_problem`: one of them is what the card says."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__("Result", parent)
        self.size = label("", "title", selectable=True)
        self.size.setAccessibleName("Exact size of the result")
        self.state = label("", "muted")
        self.facts = KeyValue()
        self.more = KeyValue()
        self.error = InlineError()
        self.error.set_dismissable(False)
        self._warnings = QVBoxLayout()
        self._warnings.setSpacing(SPACE_1)
        head = QHBoxLayout()
        head.addWidget(self.size)
        head.addStretch(1)
        head.addWidget(self.state)
        numbers = QHBoxLayout()
        numbers.setSpacing(SPACE_4)
        numbers.addWidget(self.facts, 1)
        numbers.addWidget(self.more, 1)
        self.body.setSpacing(SPACE_2)
        self.add(head)
        self.add(numbers)
        self.add(self._warnings)
        self.add(self.error)

    def show_plan(self, plan: Plan) -> None:
        """The plan is the one in force."""
        changed = sum(t.action is Action.QUANTIZE for t in plan.tensors)
        change = units.format_percent(plan.change, signed=True)
        self.size.setText(units.format_bytes(plan.bytes_total))
        self.size.setToolTip(f"Exactly {units.format_count(plan.bytes_total)} bytes, headers and padding included")
        self.state.setText("")
        self.facts.set("Change", change)
        self.facts.set("Source", units.format_decimal(plan.source_bytes))
        self.facts.set("Quantized", f"{changed} of {len(plan.tensors)}", term_name="quantize")
        self.more.set("Bits per weight", f"{plan.bits_per_weight:.2f}")
        self.more.set("Memory", units.format_decimal(plan.expected_memory))
        self.more.set("Time", f"about {units.format_duration(max(plan.expected_seconds, 1.0))}")
        self._show_warnings(plan.warnings)
        self.error.hide()
        for part in (self.facts, self.more):
            part.show()

    def show_working(self) -> None:
        """A new plan is being made; the numbers of the old one are gone."""
        self.state.setText("working it out…")
        self.error.hide()

    def show_problem(self, error: BaseException) -> None:
        """The recipe can not be carried out."""
        self.size.setText("No result")
        self.size.setToolTip("")
        self.state.setText("")
        self._show_warnings(())
        self.facts.hide()
        self.more.hide()
        self.error.show_error(error)

    def _show_warnings(self, warnings: tuple[str, ...]) -> None:
        while self._warnings.count():
            widget = self._warnings.takeAt(0).widget()
            widget.hide()
            widget.deleteLater()
        for text in warnings:
            self._warnings.addWidget(WarningLine(text))


class WarningLine(QWidget):
    """Icon, the word 'Warning' for screen readers, and one sentence."""

    def __init__(self, text: str) -> None:
        super().__init__()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_2)
        layout.addWidget(Verdict("warning", "Warning"), 0, Qt.AlignmentFlag.AlignTop)
        layout.addWidget(label(text, wrap=True, selectable=True), 1)
        self.setAccessibleName(f"Warning: {text}")
