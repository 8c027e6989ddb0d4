"""A view whose figures come of a run through the model's layers: how far the run is, and what ends it."""

from __future__ import annotations

from typing import Any

from PySide6.QtWidgets import QAbstractButton, QLabel, QProgressBar, QWidget

from app.jobs import Job
from app.jobs.runner import Work
from app.services import Services
from app.widgets.basics import set_available
from app.widgets.inline_error import InlineError


class MeasuringView(QWidget):
    """Views make the parts named below and have `show_found`. found: of the last run, None before the first."""

    progress: QProgressBar
    state_text: QLabel
    error: InlineError
    start: QAbstractButton
    again: QAbstractButton
    cancel: QAbstractButton
    found: Any

    def __init__(self, services: Services, parent: QWidget | None = None) -> None:
        super().__init__(parent)
        self._services = services
        self.running = False
        self._job: Job | None = None

    def show_found(self, found: Any) -> None:
        """Show what a run has given."""
        raise NotImplementedError

    def measure(self, name: str, work: Work, key: str) -> None:
        """Submit the work; a newer one with the same key takes its place."""
        self.error.hide()
        self.set_running(True)
        self._job = self._services.jobs.run(
            name, work, self._on_done, self._on_error, self._on_progress, on_cancelled=self._on_cancelled,
            latest_key=key, owner=self,
        )  # fmt: skip

    def stop(self) -> None:
        """Ask the run to end."""
        if self._job is not None:
            self._job.cancel()
            self.state_text.setText("Stopping…")

    def set_running(self, on: bool) -> None:
        """Show the controls of a run, or those that begin one."""
        self.running = on
        self.progress.setRange(0, 0 if on else 1)
        self.progress.setVisible(on)
        self.cancel.setVisible(on)
        self.again.setVisible(not on and self.found is not None)
        self.state_text.setText("Reading the first layer…" if on else "")
        for part in (self.start, self.again):
            set_available(part, "It is running already; Cancel stops it." if on else "")

    def _on_progress(self, values: tuple[Any, ...]) -> None:
        newest = values[-1]
        self.progress.setRange(0, max(1, newest.total))
        self.progress.setValue(newest.done)
        self.state_text.setText(f"Layer {newest.done} of {newest.total}")

    def _on_done(self, found: Any) -> None:
        self.set_running(False)
        self.show_found(found)

    def _on_error(self, error: BaseException) -> None:
        self.set_running(False)
        self.error.show_error(error)

    def _on_cancelled(self) -> None:
        self.set_running(False)
        self.state_text.setText("Cancelled.")
