"""The folder that a download goes into: room, errors in plain words, one program at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from core.hub.problems import HubError, Kind
from core.units import format_bytes

RENAMES = 10
RESERVE = 64_000_000  # bytes left free beside a download
LOCK_NAME = ".bitsmith-download.lock"
_WRONG_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what a disk refuses into one sentence and a next step."""
    try:
        yield
    except OSError as error:
        raise disk_problem(error, path) from error


def disk_problem(error: OSError, path: Path) -> HubError:
    """What a refusal of the disk means."""
    where = path.parent
    if error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", -1)):
        return HubError(Kind.DISK, f"The disk of {where} is full.", "Free some space, then go on: what is there stays.")
    if error.errno in (errno.EACCES, errno.EPERM):
        return HubError(Kind.DISK, f"This program may not write to {where}.", "Choose a folder of your own.")
    if error.errno == errno.EROFS:
        return HubError(Kind.DISK, f"{where} is read-only.", "Choose another folder.")
    if error.errno == errno.EFBIG:
        return HubError(Kind.DISK, f"The file system of {where} holds no file this large.", "Choose another disk.")
    if error.errno in (errno.EEXIST, errno.ENOTDIR, errno.EISDIR):
        return HubError(Kind.DISK, f"{path} is in the way.", "Move it away, or choose another folder.")
    if error.errno in _WRONG_NAME or getattr(error, "winerror", 0) == 206:
        return HubError(
            Kind.DISK, f"{where} takes no name as long as {path.name}.", "Choose a folder with a shorter path."
        )
    if error.errno in (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.ESTALE if hasattr(errno, "ESTALE") else -1):
        return HubError(Kind.DISK, f"{where} has disappeared.", "Check that its disk is connected, then go on.")
    return HubError(Kind.DISK, f"{path} can not be written: {error.strerror or error}.", "Check the disk, then go on.")


def give_name(partial: Path, path: Path) -> None:
    """Rename; a virus scanner that looks at the new file is waited for. Raises OSError."""
    for _ in range(RENAMES):
        try:
            partial.replace(path)
            return
        except PermissionError:
            time.sleep(0.1)
    partial.replace(path)


def free_bytes(folder: Path) -> int:
    """Room on the disk that `folder` is on, or would be on; −1 when that can not be told."""
    for place in (folder, *folder.parents):
        try:
            if place.exists():
                return shutil.disk_usage(place).free
        except OSError:
            return -1
    return -1


def check_room(folder: Path, needed: int) -> None:
    """Raise HubError when so many more bytes do not fit."""
    free = free_bytes(folder)
    missing = needed + RESERVE - free
    if free >= 0 and needed > 0 and missing > 0:
        raise HubError(
            Kind.DISK,
            f"The disk of {folder} has {format_bytes(free)} free; this needs {format_bytes(needed)}.",
            f"Free {format_bytes(missing)} more, or choose a folder on another disk.",
        )


class FolderLock:
    """Held while a download writes into a folder; a second one is refused, also by another program."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME

    def __enter__(self) -> Self:
        while True:
            with disk_errors(self._path):
                self._file = self._path.open("a+b", buffering=0)
            try:
                self._take(self._file.fileno())
            except HubError:
                self._file.close()
                raise
            with contextlib.suppress(OSError):
                if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                    return self
            self._file.close()  # whoever had it has just ended and removed the file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if os.name == "posix":
            self._path.unlink(missing_ok=True)  # before the lock is given up: another may wait for it
        self._file.close()
        if os.name != "posix":
            with contextlib.suppress(OSError):
                self._path.unlink(missing_ok=True)

    def _take(self, fd: int) -> None:
        taken = HubError(
            Kind.TAKEN,
            f"Another download is writing to {self._path.parent} at this moment.",
            "Wait for it to end, or choose another folder.",
        )
        try:
            import fcntl
        except ImportError:
            import msvcrt

            try:
                os.lseek(fd, 0, os.SEEK_SET)
                msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
            except OSError:
                raise taken from None
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        except OSError:
            return  # some network file systems have no locks; each file still appears whole or not at all
