"""The folder that a download goes into: room, errors in plain words, one program at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from core.disk import free_bytes, in_words, open_locked, printable, remove_locked, too_little_room
from core.hub.problems import HubError, Kind

RESERVE = 64_000_000  # bytes left free beside a download
LOCK_NAME = ".bitsmith-download.lock"


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a disk refuses into one sentence and a next step."""
    try:
        yield
    except OSError as error:
        raise disk_problem(error, path) from error


def disk_problem(error: OSError, path: Path) -> HubError:
    """What a refusal of the disk means."""
    return HubError(Kind.DISK, *in_words(error, path, "go on: what is there stays"))


def check_room(folder: Path, needed: int) -> None:
    """Raise HubError when so many more bytes do not fit."""
    free = free_bytes(folder)
    missing = needed + RESERVE - free
    if free >= 0 and needed > 0 and missing > 0:
        raise HubError(Kind.DISK, *too_little_room(folder, free, needed, missing))


class FolderLock:
    """Held while a download writes into a folder; a second one is refused, also by another program."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME

    def __enter__(self) -> Self:
        taken = HubError(
            Kind.TAKEN,
            f"Another download is writing to {printable(str(self._path.parent))} at this moment.",
            "Wait for it to end, or choose another folder.",
        )
        with disk_errors(self._path):
            self._file = open_locked(self._path, taken)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # a disk that is gone takes the lock along
            remove_locked(self._file, self._path)
