"""What the present recipe will give: exact bytes, change, how many tensors, and everything to be warned of."""

from __future__ import annotations

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHBoxLayout, QVBoxLayout, QWidget

from app.jobs.calibration import cost_text
from app.jobs.plan import PlanReply
from app.theme import SPACE_1, SPACE_2
from app.widgets.basics import Card, label
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel
from app.widgets.tiles import Tiles
from app.widgets.warning_line import show_warnings
from core import units


class OutcomeCard(Card):
    """`show_plan`, `show_working` or `show_problem`: one of them is what the card says."""

    def __init__(self, parent: QWidget | None = None) -> None:
        super().__init__(parent=parent)
        self.setAccessibleName("Result")
        self.size = label("", "title", selectable=True)
        self.size.setAccessibleName("Exact size of the result")
        self.state = ElidedLabel("", "muted")  # comes and goes, and must not push the columns about
        self.state.setMinimumWidth(0)
        self.state.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.facts = Tiles(("Change", "Quantized", "Bits per weight", "Time"))
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.lossless = label("", "ok", wrap=True)
        self.lossless.setAccessibleName("What loses nothing")
        self.calibration = label("", wrap=True)
        self.calibration.setAccessibleName("What calibration adds")
        self.calibration.hide()
        self._warnings = QVBoxLayout()
        self._warnings.setSpacing(SPACE_1)
        head = QHBoxLayout()
        head.addWidget(self.size)
        head.addWidget(self.state, 1)
        self.body.setSpacing(SPACE_2)
        self.add(head)
        self.add(self.facts)
        self.add(self.lossless)
        self.add(self.calibration)
        self.add(self._warnings)
        self.add(self.error)

    def show_plan(self, reply: PlanReply) -> None:
        """The plan is the one in force."""
        plan = reply.plan
        change = units.format_percent(plan.change, signed=True)
        self.size.setText(units.format_bytes(plan.bytes_total))
        self.size.setToolTip(f"Exactly {units.format_count(plan.bytes_total)} bytes, headers and padding included")
        self.state.setText("")
        self.facts.set("Change", change, f"The source has {units.format_bytes(plan.source_bytes)}.")
        counts = f"{units.format_count(reply.quantized)} of {units.format_count(len(plan.tensors))}"
        self.facts.set("Quantized", counts, "Tensors that get fewer bits, of all tensors")
        self.facts.set("Bits per weight", f"{reply.bits_per_weight:.2f}")
        memory = (
            f"An estimate for this computer; it takes about {units.format_decimal(plan.expected_memory)} of memory."
        )
        self.facts.set("Time", f"~ {units.format_duration(max(plan.expected_seconds, 1.0))}", memory)
        self._show_lossless(plan.lossless_note)
        self._show_calibration(cost_text(plan))
        self._show_warnings(plan.warnings)
        self.error.hide()
        self.facts.show()

    def show_working(self) -> None:
        """A new plan is being made; the numbers of the old one are gone."""
        self.state.setText("working it out…")
        self.error.hide()

    def show_problem(self, error: BaseException) -> None:
        """The recipe can not be carried out."""
        self.size.setText("No result")
        self.size.setToolTip("")
        self.state.setText("")
        self._show_lossless("")
        self._show_calibration("")
        self._show_warnings(())
        self.facts.hide()
        self.error.show_error(error)

    def _show_lossless(self, text: str) -> None:
        self.lossless.setText(text)
        self.lossless.setVisible(bool(text))

    def _show_calibration(self, text: str) -> None:
        self.calibration.setText(text)
        self.calibration.setVisible(bool(text))

    def _show_warnings(self, warnings: tuple[str, ...]) -> None:
        show_warnings(self._warnings, warnings)
