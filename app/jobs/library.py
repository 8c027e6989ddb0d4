"""Models that are at hand: those on this computer, and the sample that can be downloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from app.jobs.runner import Work
from core.progress import CancelToken

LIBRARY_KEY = "library"
SAMPLE_KEY = "sample-model"


def library_work() -> Work:
    """The result is a list of `core.checkpoint.library` entries, largest collections last to be looked at."""

    def work(token: CancelToken) -> list[Any]:
        from core.checkpoint.library import local_models

        token.check()
        return list(local_models())

    return work


def sample_work() -> Work:
    """The result is the sample's path, downloaded when it is not there yet. Raises UserError."""

    def work(token: CancelToken) -> Path:
        from core.sample import sample_path

        token.check()
        return sample_path()

    return work
