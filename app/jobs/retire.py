"""Close a model that another has taken the place of, as soon as no job reads it any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from PySide6.QtCore import QObject

from app.jobs.runner import Job, JobRunner
from app.session import Session, SessionStore

if TYPE_CHECKING:
    from core.checkpoint.base import Checkpoint


class Retirement(QObject):
    """Follows the session. Conversions open their source for themselves, so only jobs of the pool are waited for."""

    def __init__(self, store: SessionStore, jobs: JobRunner) -> None:
        super().__init__(jobs)
        self._jobs = jobs
        self._waiting: list[tuple[Checkpoint, set[Job]]] = []
        store.changed.connect(self._on_session)
        jobs.changed.connect(self._on_job)

    @property
    def waiting(self) -> int:
        """Models that are replaced but still read."""
        return len(self._waiting)

    def _on_session(self, old: Session, new: Session) -> None:
        if old.checkpoint is not None and old.checkpoint is not new.checkpoint:
            self._waiting.append((old.checkpoint, set(self._jobs.jobs("pool"))))
            self._close()

    def _on_job(self, job: Job) -> None:
        if self._waiting and job.state.final:
            for _, readers in self._waiting:
                readers.discard(job)
            self._close()

    def _close(self) -> None:
        for checkpoint, readers in self._waiting:
            if not readers:
                checkpoint.close()
        self._waiting = [(checkpoint, readers) for checkpoint, readers in self._waiting if readers]
