"""One remedy: what it is, what it costs and what it gains, and the button that puts it into the recipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.theme import SPACE_1, SPACE_2
from app.widgets.basics import IconLabel, button, label, set_available, set_role
from core.units import (
    MINUS,
    format_bytes,
    format_decibels,
    format_decimal,
    format_decimals,
    format_percent,
    format_signed,
)

if TYPE_CHECKING:
    from core.inspect.remedies import Remedy

WORKING = "The plan is being worked out."


class RemedyRow(QFrame):
    """`asked(remedy)` when its button is pressed."""

    asked = Signal(object)

    def __init__(self, remedy: Remedy, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.setProperty("frameRole", "card")
        self.remedy = remedy
        self.title = label("", "", wrap=True)
        self.bytes = label("", "")
        self.bytes.setToolTip("What the whole file grows or shrinks by, exactly")
        self.gain = label("", "muted", wrap=True)
        self.why_not = label("", "muted", wrap=True)
        self._icon = IconLabel("check", "ok")
        self._icon.hide()
        self.put = button("Put into the recipe", lambda: self.asked.emit(self.remedy), icon="plus")
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self._icon)
        head.addWidget(self.title, 1)
        head.addWidget(self.bytes)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_2, SPACE_2, SPACE_2, SPACE_2)
        layout.setSpacing(SPACE_1)
        layout.addLayout(head)
        layout.addWidget(self.gain)
        layout.addWidget(self.why_not)
        layout.addWidget(self.put)
        self.show_remedy(remedy, taken=False)

    def show_remedy(self, remedy: Remedy, *, taken: bool) -> None:
        """The same remedy with more exact figures. taken: the recipe has it already."""
        self.remedy = remedy
        title = remedy.title[:1].upper() + remedy.title[1:]
        self.title.setText(title)
        self.bytes.setText(signed_bytes(remedy.bytes_change) if remedy.possible else "")
        self.bytes.setAccessibleName(f"Change in bytes: {self.bytes.text()}")
        self.bytes.setToolTip(
            f"The file changes by exactly {format_signed(remedy.bytes_change)} bytes "
            f"({format_bytes(abs(remedy.bytes_change))})"
        )
        self.gain.setText(gain_text(remedy))
        self.gain.setVisible(remedy.possible)
        self.why_not.setText("" if remedy.possible else f"Not possible here: {remedy.why_not}.")
        self.why_not.setVisible(not remedy.possible)
        self.put.setVisible(remedy.possible)
        self.put.setAccessibleName(f"Put into the recipe: {title}")
        self._icon.setVisible(taken)
        set_role(self.title, textRole="" if remedy.possible else "muted")
        set_available(self.put, "The recipe has it already; Undo takes it out." if taken else "")
        self.setAccessibleName(title)
        price = f"{self.bytes.text()}, {self.gain.text()}" if remedy.possible else self.why_not.text()
        self.setAccessibleDescription(price)

    def set_busy(self, busy: bool) -> None:
        if not busy:
            self.show_remedy(self.remedy, taken=self._icon.isVisibleTo(self))
        else:
            set_available(self.put, WORKING)


def signed_bytes(change: int) -> str:
    """'+1.23 MB', '−40.00 kB' or 'same size'."""
    if not change:
        return "same size"
    return f"{'+' if change > 0 else MINUS}{format_decimal(abs(change))}"


def gain_text(remedy: Remedy) -> str:
    """'SNR 18.20 → 24.22 dB, error −50 %': of the tensor, and of its RMS error."""
    before, after = (s.snr_db if s is not None else math.inf for s in (remedy.before, remedy.after))
    if remedy.before is None:
        return f"SNR {format_decibels(after)}; as planned it can not be stored"
    if math.isfinite(before) and math.isfinite(after):
        share = 10 ** ((before - after) / 20) - 1
        words = (
            f"SNR {format_decimals(before, 2)} → {format_decibels(after)}, error "
            f"{format_percent(share, 0, signed=True)}"
        )
        words += ": worse than now" if after < before else ""
    else:
        words = f"SNR {format_decibels(before)} → {format_decibels(after)}"
    return words + (" (on a sample so far)" if remedy.sampled else "")
