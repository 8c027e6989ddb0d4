"""A download on its way: how far it is, and what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QAbstractButton, QHBoxLayout, QVBoxLayout, QWidget

from app.jobs.downloading import Downloads
from app.jobs.runner import JobState
from app.theme import SPACE_2, SPACE_3, SPACE_4
from app.widgets.basics import Card, button, label
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel
from app.widgets.verdict import Verdict
from app.widgets.work_line import PROGRESS_STEPS, SEPARATOR, clock_text, progress_bar, show_buttons
from core import units

BUTTONS = {
    JobState.QUEUED: ("cancel",),
    JobState.RUNNING: ("pause", "cancel"),
    JobState.PAUSED: ("resume", "cancel"),
    JobState.CANCELLED: ("resume", "discard", "back"),
    JobState.FAILED: ("resume", "discard", "back"),
    JobState.DONE: ("open", "back"),
}
HINTS = (
    ("pause", "Pause", "pause", "Close the connections; Resume goes on where it was"),
    ("resume", "Resume", "play", "Go on from what is there"),
    ("cancel", "Cancel", "x", "Stop; what is there stays, and can be resumed"),
    ("open", "Open", "box", "Open the model"),
    ("discard", "Discard", "trash-2", "Delete what there is of files that are not whole"),
    ("back", "Get another", "search", "Back to the search; what is there stays"),
)


class TransferView(QWidget):
    """Shows `downloads`. asked(word): 'open' or 'back'; the other buttons act by themselves."""

    asked = Signal(str)

    def __init__(self, downloads: Downloads) -> None:
        super().__init__()
        self._downloads = downloads
        self._shown: tuple[object, ...] = ()
        self.verdict = Verdict("queued")
        self.verdict.setMinimumWidth(88)
        self.name = ElidedLabel(role="heading")
        self.bar = progress_bar("Progress of the download")
        self.text = label("", selectable=True)
        self.text.setAccessibleName("Progress")
        self.file = ElidedLabel(role="muted", mono=True)
        self.where = ElidedLabel(role="muted")
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.buttons: dict[str, QAbstractButton] = {}
        head = QHBoxLayout()
        head.setSpacing(SPACE_2)
        head.addWidget(self.verdict)
        head.addWidget(self.name, 1)
        for word, title, icon, hint in HINTS:
            made = button(title, lambda word=word: self._do(word), icon=icon, hint=hint)
            self.buttons[word] = made
            head.addWidget(made)
        card = Card()
        card.body.setSpacing(SPACE_3)
        card.add(head)
        card.add(self.bar)
        card.add(self.text)
        card.add(self.file)
        card.add(self.where)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(SPACE_4)
        layout.addWidget(card)
        layout.addWidget(self.error)
        layout.addStretch(1)
        downloads.changed.connect(self.refresh)
        self.refresh()

    def refresh(self) -> None:
        """Show the download as it is now."""
        downloads, state = self._downloads, self._downloads.state
        if downloads.order is None or state is None:
            return
        step = downloads.progress
        share = 1.0 if state is JobState.DONE else min(step.share, 0.99) if step is not None else 0.0
        self.bar.setValue(round(PROGRESS_STEPS * share))
        text = status_text(downloads)
        if text != self.text.text():
            self.text.setText(text)
            self.setAccessibleDescription(text)
        self.file.setText(step.file if step is not None and state is JobState.RUNNING else "")
        shown = (state, downloads.error, downloads.order)
        if shown != self._shown:
            self._shown = shown
            self._show_state(state)

    def _show_state(self, state: JobState) -> None:
        order = self._downloads.order
        assert order is not None
        self.verdict.set(state.value)
        self.name.setText(f"{order.repository}, {order.choice.title}")
        self.where.setText(f"to {order.folder}")
        self.bar.setVisible(state is not JobState.DONE)
        self.text.setWordWrap(state.final)  # while it runs, its height must not change with every number
        self.file.setVisible(state in (JobState.QUEUED, JobState.RUNNING))
        if state is JobState.FAILED and self._downloads.error is not None:
            self.error.show_error(self._downloads.error)
        else:
            self.error.hide()
        self.buttons["resume"].setText("Try again" if state is JobState.FAILED else "Resume")
        show_buttons(self.buttons, BUTTONS[state], self.window().focusWidget())
        self.setAccessibleName(f"Download of {order.repository}, {state.value}")

    def _do(self, word: str) -> None:
        match word:
            case "pause":
                self._downloads.pause()
            case "resume":
                self._downloads.resume()
            case "cancel":
                self._downloads.cancel()
            case "discard":
                self._downloads.discard()
                self.asked.emit("back")
            case _:
                self.asked.emit(word)


def status_text(downloads: Downloads) -> str:
    """One line that says how far it is or what came of it."""
    step, state = downloads.progress, downloads.state
    if state is JobState.DONE:
        size = units.format_bytes(downloads.order.choice.bytes) if downloads.order is not None else ""
        return f"{size}, every checksum as the hub names it"
    if step is None:
        return {JobState.FAILED: "nothing was fetched", JobState.CANCELLED: "stopped before anything was fetched"}.get(
            state or JobState.QUEUED, "starting"
        )
    if step.phase == "checking":
        return f"checking {step.file}, which is there already"
    parts = [
        units.format_percent(min(step.share, 0.99), 0),
        f"{units.format_decimal(step.bytes_done)} of {units.format_bytes(step.bytes_total)}",
        f"{units.format_count(step.files_done)} of {units.format_count(step.files)} files whole",
    ]
    if state is JobState.RUNNING and step.note:
        parts.append(step.note)
    elif state is JobState.RUNNING and step.rate is not None:
        parts.append(units.format_rate(step.rate))
        if step.seconds_left is not None:
            parts.append(f"{clock_text(step.seconds_left)} left")
    if state in (JobState.CANCELLED, JobState.FAILED):
        parts.append("what is there stays, and can be resumed")
    return SEPARATOR.join(parts)
