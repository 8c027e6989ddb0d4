"""A view that runs the open model over some tokens, layer by layer: its buttons, its progress, and how it ends."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QProgressBar, QWidget

from app.jobs.runner import Job, Work
from app.pages.inspect.state import InspectState
from app.services import Services
from app.widgets.basics import PrimaryButton, button, label, number_box, set_available
from app.widgets.inline_error import InlineError
from core.inspect.layerwise import TOKENS

MOST_TOKENS = 4096


class MeasuringView(QWidget):
    """A view has `run`, which asks `_measure`, and `show_found` for what that gives; `found` is what it shows now."""

    def __init__(self, state: InspectState, services: Services, hint: str, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._state, self._services = state, services
        self.found: Any = None
        self.running = False
        self._job: Job | None = None
        self.start = PrimaryButton("Run a few hundred tokens", self.run, icon="play", hint=hint)
        self.tokens = number_box("Tokens", 16, MOST_TOKENS, TOKENS, hint="How many tokens of the text at most")
        self.again = button("Run", self.run, icon="play", hint=hint)
        self.cancel = button("Cancel", self._cancel, icon="x", hint="Stop; nothing is shown of an unfinished run")
        self.progress = QProgressBar()
        self.progress.setTextVisible(False)
        self.progress.setAccessibleName("Progress over the layers")
        self.state_text = label("", "muted")
        self.error = InlineError()

    def run(self) -> None:
        """Measure the open model."""
        raise NotImplementedError

    def show_found(self, found: Any) -> None:
        """Show a measurement of the open model."""
        raise NotImplementedError

    def _measure(self, title: str, work: Work, key: str) -> None:
        """Yields steps with `done` and `total` layers, returns what is shown."""
        self.error.hide()
        self._set_running(True)
        self._job = self._services.jobs.run(
            title, work, self._on_done, self._on_error, self._on_progress, on_cancelled=self._on_cancelled,
            latest_key=key, owner=self,
        )  # fmt: skip

    def _forget(self, key: str) -> None:
        """Another model, or none: nothing of the one before stays."""
        self._services.jobs.discard(key)
        self.found = None
        self.error.hide()
        self._set_running(False)

    def _cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()
            self.state_text.setText("Stopping…")

    def _on_progress(self, values: tuple[Any, ...]) -> None:
        newest = values[-1]
        self.progress.setRange(0, max(1, newest.total))
        self.progress.setValue(newest.done)
        self.state_text.setText(f"Layer {newest.done} of {newest.total}")

    def _on_done(self, found: Any) -> None:
        self.found = found
        self._set_running(False)
        self.show_found(found)

    def _on_error(self, error: BaseException) -> None:
        self._set_running(False)
        self.error.show_error(error)

    def _on_cancelled(self) -> None:
        self._set_running(False)
        self.state_text.setText("Cancelled.")

    def _set_running(self, on: bool) -> None:
        self.running = on
        self.progress.setRange(0, 0 if on else 1)
        self.progress.setVisible(on)
        self.cancel.setVisible(on)
        self.again.setVisible(not on and self.found is not None)
        self.state_text.setText("Reading the first layer…" if on else "")
        for part in (self.start, self.again):
            set_available(part, "It is running already; Cancel stops it." if on else "")
