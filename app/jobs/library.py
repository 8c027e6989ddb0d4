"""Models that are at hand: those on this computer, and the sample that can be downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.jobs.runner import Work
from core.progress import CancelToken

if TYPE_CHECKING:
    from core.checkpoint.library import LocalModel
    from core.hub.download import Unfinished

LIBRARY_KEY = "library"
SAMPLE_KEY = "sample-model"


@dataclass(frozen=True)
class Library:
    """models: what is on this computer. unfinished: downloads that can go on."""

    models: tuple[LocalModel, ...] = ()
    unfinished: tuple[Unfinished, ...] = ()


def library_work(folder: Path) -> Work:
    """The result is a Library. folder: where downloads go."""

    def work(token: CancelToken) -> Library:
        from core.checkpoint.library import local_models
        from core.hub.download import unfinished

        token.check()
        return Library(local_models(folders=[folder]), unfinished(folder))

    return work


def sample_work() -> Work:
    """The result is the sample's path, downloaded when it is not there yet. Raises UserError."""

    def work(token: CancelToken) -> Path:
        from core.sample import sample_path

        token.check()
        return sample_path()

    return work
