"""The download in progress: one at a time, on a lane of its own, so that it keeps nothing else waiting."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from PySide6.QtCore import QObject, Signal

from app.jobs.hub import Reach, discard_work, download_work
from app.jobs.runner import Job, JobRunner, JobState

if TYPE_CHECKING:
    from core.hub.download import DownloadProgress, Order

LANE = "downloads"


class Downloads(QObject):
    """`changed` follows each change of state or progress; `finished(path)` when a model is whole and checked.

    state: None before the first download.
    """

    changed = Signal()
    finished = Signal(object)

    def __init__(self, runner: JobRunner) -> None:
        super().__init__(runner)
        self._runner = runner
        self._job: Job | None = None
        self._reach = Reach()
        self.order: Order | None = None
        self.state: JobState | None = None
        self.progress: DownloadProgress | None = None
        self.error: BaseException | None = None
        self.result: Path | None = None

    @staticmethod
    def of(runner: JobRunner) -> Downloads:
        """The one of a runner, made when first asked for."""
        found = runner.findChild(Downloads)
        return found if found is not None else Downloads(runner)

    @property
    def pending(self) -> bool:
        return self.state is not None and not self.state.final

    def start(self, order: Order, reach: Reach) -> None:
        """Begin, or go on where an earlier try has stopped. Nothing while another one runs."""
        if self.pending:
            return
        if self.order is None or self.order.folder != order.folder:
            self.progress = None
        self.order, self._reach = order, reach
        self.error = self.result = None
        self._set(JobState.QUEUED)
        self._job = self._runner.run(
            f"Download {order.repository}", download_work(order, reach), self._done, self._failed, self._on_progress,
            on_cancelled=self._cancelled, lane=LANE, owner=self,
        )  # fmt: skip

    def pause(self) -> None:
        if self._job is not None and self.state in (JobState.QUEUED, JobState.RUNNING):
            self._job.pause()
            self._set(JobState.PAUSED)

    def resume(self) -> None:
        """A paused one at once; a cancelled or failed one from what is there."""
        if self.state is JobState.PAUSED and self._job is not None:
            self._job.resume()
            self._set(JobState.RUNNING)
        elif self.order is not None and not self.pending:
            self.start(self.order, self._reach)

    def cancel(self) -> None:
        if self._job is not None:
            self._job.cancel()

    def discard(self) -> None:
        """Delete what there is of files that are not whole, and forget about this download."""
        if self.order is not None and not self.pending:
            self._runner.run("Discard a download", discard_work(self.order.folder))
            self.forget()

    def forget(self) -> None:
        """Nothing is shown of it any more; what is on the disk stays."""
        if not self.pending:
            self.order = None
            self.state = None
            self.changed.emit()

    def _set(self, state: JobState) -> None:
        self.state = state
        self.changed.emit()

    def _on_progress(self, values: tuple[Any, ...]) -> None:
        self.progress = values[-1]
        if self.state is JobState.QUEUED:
            self.state = JobState.RUNNING
        self.changed.emit()

    def _done(self, path: Path) -> None:
        self.result = path
        self._set(JobState.DONE)
        self.finished.emit(path)

    def _failed(self, error: BaseException) -> None:
        self.error = error
        self._set(JobState.FAILED)

    def _cancelled(self) -> None:
        self._set(JobState.CANCELLED)
