"""A verdict: always an icon and a word, never a colour alone."""

from __future__ import annotations

from PySide6.QtWidgets import QHBoxLayout, QWidget

from app.theme import SPACE_1
from app.widgets.basics import IconLabel, label, set_role

# state → (icon, colour role). Different outlines, so that they also differ in grey.
STATES = {
    "ok": ("circle-check", "ok"),
    "warning": ("triangle-alert", "warning"),
    "error": ("circle-x", "error"),
    "info": ("info", "accent"),
    "unknown": ("circle-slash", "muted"),
    "queued": ("clock", "muted"),
    "running": ("circle-play", "accent"),
    "paused": ("pause", "warning"),
    "cancelled": ("ban", "muted"),
    "failed": ("circle-x", "error"),
    "done": ("circle-check", "ok"),
}


class Verdict(QWidget):
    """`set(state, word)`; the word defaults to the state's name. STATES lists the states."""

    def __init__(self, state: str = "unknown", word: str = "", parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._icon = IconLabel("circle-slash")
        self._word = label()
        layout = QHBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_1 + 2)
        layout.addWidget(self._icon)
        layout.addWidget(self._word)
        self.state = ""
        self.set(state, word)

    @property
    def text(self) -> str:
        return self._word.text()

    def set(self, state: str, word: str = "") -> None:
        icon, role = STATES[state]
        self.state = state
        self._icon.set(icon, role)
        self._word.setText(word or state)
        set_role(self._word, textRole=role)
        self.setAccessibleName(self._word.text())
