"""One conversion of the queue: its state, how far it is, and what can be done about it."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QKeyEvent, QMouseEvent
from PySide6.QtWidgets import QAbstractButton, QFrame, QHBoxLayout, QVBoxLayout, QWidget

from app.jobs.convert_queue import Entry
from app.jobs.runner import JobState
from app.pages.convert.serve import ServeRow
from app.theme import SPACE_1, SPACE_2, SPACE_3
from app.widgets.basics import button, label, set_role
from app.widgets.flow import FlowRow
from app.widgets.inline_error import InlineError
from app.widgets.text import ElidedLabel
from app.widgets.verdict import Verdict
from app.widgets.warning_line import show_warnings
from app.widgets.work_line import PROGRESS_STEPS, SEPARATOR, clock_text, progress_bar, show_buttons
from core import units
from core.kv.scheme import CacheScheme
from core.methods.scratch import scratch_path
from core.run import OtherRun
from core.serving import serving_target
from core.targets import find_target

BAR_WIDTH = 64  # px that the bar keeps when its text is long
NAME_WIDTH = 160  # px for the output's name before buttons stand under it
BUTTONS = {
    JobState.QUEUED: ("cancel",),
    JobState.RUNNING: ("pause", "cancel"),
    JobState.PAUSED: ("resume", "cancel"),
    JobState.CANCELLED: ("resume", "discard", "command", "remove"),
    JobState.FAILED: ("resume", "discard", "command", "remove"),
    JobState.DONE: ("test", "folder", "open", "inspect", "command", "remove"),
}
ANEW = ("anew", "discard", "command", "remove")  # where another run's work lies in the way


class EntryCard(QFrame):
    """`chosen(entry)` on a click, Enter or Space; `asked(word, entry)` follows the buttons.

    Words: pause, resume, anew, cancel, folder, open, inspect, discard, command, remove.
    """

    chosen = Signal(object)
    asked = Signal(str, object)

    def __init__(self, entry: Entry, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self.entry = entry
        self._shown: tuple[JobState, BaseException | None] | None = None
        self._selected = False
        self._scheme: CacheScheme | None = None  # of the cache, where it is not the recipe's
        self._head_dim = 0
        self.setProperty("frameRole", "card")
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.verdict = Verdict("queued")
        self.verdict.setMinimumWidth(88)
        self.name = ElidedLabel(str(entry.order.output), mono=True)
        self.bar = progress_bar(f"Progress of {entry.title}")
        self.bar.setMinimumWidth(BAR_WIDTH)
        self.text = label("", "muted", selectable=True)
        self.text.setAccessibleName("Progress")
        self.notes = QVBoxLayout()  # what came up while numbers were chosen from data
        self.notes.setSpacing(SPACE_1)
        self.serve = ServeRow()
        self.error = InlineError()
        self.error.set_dismissable(False)
        self.buttons: dict[str, QAbstractButton] = {}
        self._titles: dict[str, str] = {}
        self._room = 0
        self._below = False  # whether the buttons stand under the text
        first = self._first = QHBoxLayout()
        first.setSpacing(SPACE_2)
        first.addWidget(self.verdict)
        first.addWidget(self.name, 1)
        for word, title, icon, hint in (
            ("pause", "Pause", "pause", "Hold the conversion; it goes on with Resume"),
            ("resume", "Resume", "play", "Go on from where it stopped"),
            ("anew", "Start anew", "rotate-ccw", "Delete what the other run has kept, and run from the beginning"),
            ("cancel", "Cancel", "x", "Stop; what is written so far stays, and can be resumed"),
            ("test", "Test it", "flask-conical", "Ask the original and the result the same question, side by side"),
            ("folder", "Open folder", "folder-open", "Show the result in the file manager"),
            ("open", "Open result", "box", "Open the result as a model"),
            ("inspect", "Open in Inspect", "search", "Open the result as a model and go to the Inspect page"),
            ("discard", "Discard", "trash-2", "Delete what is kept to go on, and remove this from the list"),
            ("command", "Copy command", "terminal", "Copy the command that does the same without a window"),
            ("remove", "", "x", "Remove from this list; files stay as they are"),
        ):
            made = button(title, lambda word=word: self.asked.emit(word, self.entry), icon=icon, hint=hint)
            self.buttons[word], self._titles[word] = made, title
        self.actions = FlowRow(space=SPACE_2)
        self.actions.set_parts(tuple(self.buttons.values()))
        first.addWidget(self.actions)
        second = self._second = QHBoxLayout()
        second.setSpacing(SPACE_3)
        second.addWidget(self.bar, 1)
        second.addWidget(self.text)
        second.addStretch(0)
        layout = self._column = QVBoxLayout(self)
        layout.setContentsMargins(SPACE_3, SPACE_2, SPACE_3, SPACE_2)
        layout.setSpacing(SPACE_1 + 2)
        layout.addLayout(first)
        layout.addLayout(second)
        layout.addLayout(self.notes)
        layout.addWidget(self.serve)
        layout.addWidget(self.error)
        self.refresh()

    def set_selected(self, on: bool) -> None:
        set_role(self, selected=on)
        self._selected = on
        self._show_serving()

    def set_cache(self, scheme: CacheScheme | None, head_dim: int) -> None:
        """What programs are told to keep keys and values in; None: as the recipe has it. head_dim: 0: not known."""
        self._scheme, self._head_dim = scheme, head_dim
        self._show_serving()

    def refresh(self) -> None:
        """Show the entry as it is now."""
        entry, state = self.entry, self.entry.state
        self.bar.setUpdatesEnabled(False)  # it would paint, and with it all else that is to be painted, at once
        self.bar.setValue(round(PROGRESS_STEPS * entry.share))
        self.bar.setUpdatesEnabled(True)
        text = status_text(entry)
        if text != self.text.text():
            self.text.setText(text)
            self.setAccessibleDescription(text)
        if (state, entry.error) != self._shown:  # ten times a second is no time to lay everything out anew
            self._shown = state, entry.error
            self._show_state(state)

    def _show_state(self, state: JobState) -> None:
        entry = self.entry
        self.verdict.set(state.value)
        self.bar.setVisible(state in (JobState.RUNNING, JobState.PAUSED))
        self._show_serving()
        if state is JobState.FAILED and entry.error is not None:
            self.error.show_error(entry.error)
        else:
            self.error.hide()
        show_buttons(self.buttons, self._words(), self.window().focusWidget())
        self._titles["resume"] = "Try again" if state is JobState.FAILED else "Resume"
        self.text.setWordWrap(state.final)  # while it runs, its height must not change with every number
        self._second.setStretchFactor(self.text, int(state.final))
        self.fit(self._room)
        self.setAccessibleName(f"{entry.title}, {state.value}")

    def _show_serving(self) -> None:
        """Of the chosen card only: a queue of them would have no room."""
        entry = self.entry
        done = self._selected and entry.state is JobState.DONE and entry.result is not None
        recipe, output = entry.order.recipe, entry.order.output
        show_warnings(self.notes, entry.result.notes if done else ())
        target = find_target(recipe.target)
        how = recipe.cache, self._scheme, self._head_dim, recipe.online
        words = serving_target(target, output, *how) if done else ()
        self.serve.show_commands(words)

    def fit(self, width: int) -> None:
        """Where the card has less room than its buttons need beside the name, they stand at its end."""
        self._room = width
        for word in self._words():
            self._name(word, self._titles[word])
        needed = self.actions.whole_width()
        below = bool(width) and needed + self.verdict.minimumWidth() + NAME_WIDTH > width
        if below != self._below:
            self._below = below
            (self._first if below else self._column).removeWidget(self.actions)
            (self._column if below else self._first).addWidget(self.actions)
        self.actions.set_line(0 if below else needed)

    def _words(self) -> tuple[str, ...]:
        """The buttons of the entry as it is."""
        other = self.entry.state is JobState.FAILED and isinstance(self.entry.error, OtherRun)
        return ANEW if other else BUTTONS[self.entry.state]

    def _name(self, word: str, text: str) -> None:
        if self.buttons[word].text() != text:
            self.buttons[word].setText(text)
        if self._titles[word]:
            self.buttons[word].setAccessibleName(self._titles[word])

    def main_button(self) -> QAbstractButton | None:
        """What Ctrl+Enter presses: the one step that is most likely wanted."""
        word = {
            JobState.PAUSED: "resume",
            JobState.CANCELLED: "resume",
            JobState.FAILED: self._words()[0],
            JobState.DONE: "test",
        }.get(self.entry.state)
        return self.buttons[word] if word else None

    def mousePressEvent(self, event: QMouseEvent) -> None:
        super().mousePressEvent(event)
        self.chosen.emit(self.entry)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter, Qt.Key.Key_Space) and not event.modifiers():
            self.chosen.emit(self.entry)
        else:
            super().keyPressEvent(event)


def status_text(entry: Entry) -> str:
    """One line that says how far it is or what came of it."""
    match entry.state:
        case JobState.QUEUED:
            return "starts when the conversions before it have ended"
        case JobState.RUNNING | JobState.PAUSED:
            return SEPARATOR.join(_running(entry))
        case JobState.CANCELLED:
            where = f" at {units.format_percent(entry.share, 0)}" if entry.progress is not None else ""
            return f"stopped{where}; {_kept(entry)}, and no file of this name exists yet"
        case JobState.FAILED:
            where = f"stopped at {units.format_percent(entry.share, 0)}; " if entry.progress is not None else ""
            kept = f"{_kept(entry)}; " if _has_scratch(entry) else ""
            if isinstance(entry.error, OtherRun):
                kept = "what the other run has kept is untouched; "
            return f"{where}{kept}no file of this name was made"
        case JobState.DONE:
            return SEPARATOR.join(_done(entry))


def _has_scratch(entry: Entry) -> bool:
    calibrated = entry.order.recipe.calibrated
    return calibrated is not None and calibrated.needs_blocks


def _kept(entry: Entry) -> str:
    """What is there to go on with."""
    if _has_scratch(entry):
        return f"{scratch_path(entry.order.output).name} is kept to go on with Resume, Discard deletes it"
    return "Resume goes on from there"


def _running(entry: Entry) -> list[str]:
    p = entry.progress
    if entry.stopping:
        return ["stopping after the present block"]
    if p is None:
        return ["starting"] if entry.order.recipe.calibrated is None else ["choosing the calibration text"]
    what = "layer" if p.phase == "calibrating" else "tensor"
    parts = [
        units.format_percent(entry.share, 0),
        f"{p.phase} {what} {units.format_count(p.tensor_index + 1)} of {units.format_count(p.tensor_count)}",
    ]
    if entry.state is JobState.RUNNING and entry.meter.rate:
        parts.append(f"{entry.meter.rate / 1e6:.1f} MB/s")
    parts.append(f"{clock_text(entry.meter.elapsed())} elapsed")
    left = entry.meter.time_left()
    if entry.state is JobState.RUNNING and left is not None:
        parts.append(f"{clock_text(left)} left")
    if entry.memory:
        parts.append(f"memory {units.format_decimal(entry.memory)}")
    return parts


def _done(entry: Entry) -> list[str]:
    r = entry.result
    same = "exactly as predicted" if r.actual_bytes == r.predicted_bytes else (
        f"predicted {units.format_bytes(r.predicted_bytes)}"
    )  # fmt: skip
    return [
        f"{units.format_bytes(r.actual_bytes)}, {same} ({units.format_count(r.actual_bytes)} bytes)",
        f"SNR {units.format_decibels(r.snr_db)}",
        f"{units.format_duration(r.seconds)}",
        f"peak memory of the whole program {units.format_decimal(r.peak_rss_bytes)}",
    ]
