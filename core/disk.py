"""What a disk or a folder refuses, in plain words; room, locks and names. Outputs and downloads share it.

One table says what an error number means, so that the same refusal is told in the same sentence everywhere.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import BinaryIO

from core.errors import UserError
from core.units import format_bytes

RENAMES = 10
_LONGEST_NAME = 60  # characters of a name in a sentence
_PLACE_TRIES = 20


class Refusal(Enum):
    """Kinds of refusals: one sentence and one next step each. {again}: how to go on, such as 'resume the run'."""

    FULL = ("The disk of {where} is full.", "Free some space, then {again}.")
    DENIED = ("This program may not write to {where}.", "Choose a folder of your own.")
    READ_ONLY = ("{where} is read-only.", "Choose another folder.")
    TOO_LARGE = ("The file system of {where} does not hold files this large.", "Choose another disk.")
    NO_FOLDER = ("{where} is a file, not a folder.", "Choose another folder.")
    IN_THE_WAY = ("{path} is in the way.", "Move it away, or choose another folder.")
    TOO_LONG = ("The path of {name} is too long for its disk.", "Choose a shorter name, or a folder nearer the top.")
    NAME = ("The disk of {where} takes no file named {name}.", "Choose a name of plain letters and digits.")
    IN_USE = ("{path} is in use by another program.", "Close that program, then {again}.")
    GONE = ("{where} has disappeared.", "Check that its disk is connected, then {again}.")
    FAILING = (
        "The disk of {where} does not answer as it should.",
        "Check its cable and its health, then {again}.",
    )
    OTHER = ("{path} could not be written: {reason}.", "Check the disk, then {again}.")


_NUMBERS = {
    Refusal.FULL: ("ENOSPC", "EDQUOT"),
    Refusal.DENIED: ("EACCES", "EPERM"),
    Refusal.READ_ONLY: ("EROFS",),
    Refusal.TOO_LARGE: ("EFBIG", "EOVERFLOW"),
    Refusal.NO_FOLDER: ("EEXIST", "ENOTDIR"),  # EEXIST: mkdir met a file
    Refusal.IN_THE_WAY: ("EISDIR", "ENOTEMPTY"),
    Refusal.TOO_LONG: ("ENAMETOOLONG",),
    Refusal.NAME: ("EINVAL", "EILSEQ"),  # FAT and exFAT know fewer characters; some disks take UTF-8 only
    Refusal.IN_USE: ("EBUSY", "ETXTBSY"),
    Refusal.GONE: (
        *("ENOENT", "ENODEV", "ENXIO", "ESTALE", "ENOTCONN", "ESHUTDOWN", "EHOSTDOWN", "EHOSTUNREACH", "ENOMEDIUM"),
        *("ETIMEDOUT", "ECONNRESET", "ECONNABORTED", "ECONNREFUSED", "ENETDOWN", "ENETUNREACH"),
    ),
    Refusal.FAILING: ("EIO", "EREMOTEIO", "EUCLEAN", "EBADMSG"),
}
_BY_NUMBER = {getattr(errno, n): kind for kind, names in _NUMBERS.items() for n in names if hasattr(errno, n)}
# Windows' own numbers where Python's translation loses what is meant (winerror.h).
_BY_WINDOWS_NUMBER = {
    19: Refusal.READ_ONLY,  # ERROR_WRITE_PROTECT
    21: Refusal.GONE,  # ERROR_NOT_READY
    32: Refusal.IN_USE,  # ERROR_SHARING_VIOLATION
    33: Refusal.IN_USE,  # ERROR_LOCK_VIOLATION
    39: Refusal.FULL,  # ERROR_HANDLE_DISK_FULL
    53: Refusal.GONE,  # ERROR_BAD_NETPATH
    55: Refusal.GONE,  # ERROR_DEV_NOT_EXIST
    59: Refusal.GONE,  # ERROR_UNEXP_NET_ERR
    64: Refusal.GONE,  # ERROR_NETNAME_DELETED
    112: Refusal.FULL,  # ERROR_DISK_FULL
    123: Refusal.NAME,  # ERROR_INVALID_NAME
    206: Refusal.TOO_LONG,  # ERROR_FILENAME_EXCED_RANGE
    433: Refusal.GONE,  # ERROR_NO_SUCH_DEVICE
    1006: Refusal.GONE,  # ERROR_FILE_INVALID: the volume was taken out
    1117: Refusal.FAILING,  # ERROR_IO_DEVICE
    1167: Refusal.GONE,  # ERROR_DEVICE_NOT_CONNECTED
    1392: Refusal.FAILING,  # ERROR_FILE_CORRUPT
    1393: Refusal.FAILING,  # ERROR_DISK_CORRUPT
}
# What a file system says that can not sync a folder, which then needs none or has to do without.
_NO_FOLDER_SYNC = {
    getattr(errno, n) for n in ("EINVAL", "ENOTSUP", "EOPNOTSUPP", "ENOSYS", "EBADF", "EACCES", "EPERM", "ENOTTY")
}


def refusal(error: OSError) -> Refusal:
    """The kind of an error of the disk."""
    windows = getattr(error, "winerror", None)
    found = _BY_WINDOWS_NUMBER.get(windows or 0) or _BY_NUMBER.get(error.errno or 0, Refusal.OTHER)
    # EINVAL speaks of the name only where a name was given, not where an open file was written.
    return Refusal.OTHER if found is Refusal.NAME and error.filename is None else found


def in_words(error: OSError, path: Path, again: str) -> tuple[str, str]:
    """A sentence and a next step. path: the file that was written. again: how to go on, 'resume the run'."""
    name = path.name if len(path.name) <= _LONGEST_NAME else f"{path.name[:_LONGEST_NAME]}…"
    words = {
        "where": printable(str(path.parent)),
        "path": printable(str(path)),
        "name": printable(name),
        "reason": error.strerror or error,
        "again": again,
    }
    sentence, step = refusal(error).value
    return sentence.format(**words), step.format(**words)


def printable(text: str) -> str:
    """A path whose bytes are no UTF-8 can be shown all the same."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


@contextlib.contextmanager
def disk_errors(path: Path, again: str = "resume the run") -> Iterator[None]:
    """Turn the errors that a disk or a folder causes into one sentence and a next step."""
    try:
        yield
    except OSError as e:
        raise UserError(*in_words(e, path, again)) from e


def free_bytes(folder: Path) -> int:
    """Room on the disk that `folder` is on, or would be on; −1 when that can not be told."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            try:
                usage = shutil.disk_usage(place)
            except (FileNotFoundError, NotADirectoryError):
                raise
            except OSError:
                return -1
            return usage.free if usage.total > 0 else -1  # disks in a cloud say that they have none at all
    return -1


def too_little_room(folder: Path, free: int, needed: int, missing: int, beside: int = 0) -> tuple[str, str]:
    """A sentence and a next step for an output that does not fit. beside: bytes that are needed until it is done."""
    more = f", and {format_bytes(beside)} beside it until it is done" if beside else ""
    return (
        f"The disk of {printable(str(folder))} has {format_bytes(free)} free; this needs {format_bytes(needed)}{more}.",
        f"Free {format_bytes(missing)} more, or choose a folder on another disk.",
    )


def give_name(partial: Path, path: Path) -> None:
    """Rename; a virus scanner that looks at the new file is waited for. Raises OSError."""
    for _ in range(RENAMES):
        try:
            partial.replace(path)
            return
        except PermissionError:
            time.sleep(0.1)
    partial.replace(path)


def sync_folder(path: Path) -> None:
    """Make names in a folder survive a loss of power, where the file system can. Raises OSError."""
    if os.name != "posix":
        return
    try:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as e:
        if e.errno not in _NO_FOLDER_SYNC:
            raise


def open_locked(path: Path, taken: UserError, position: int = 0) -> BinaryIO:
    """The file, made if it is not there, open for appending and locked. Raises `taken` when another program has it,
    and OSError. position: of the byte that Windows locks, which nobody can read then.
    """
    for turn in range(_PLACE_TRIES):
        file = path.open("a+b", buffering=0)
        try:
            if not lock(file.fileno(), position):
                raise taken
        except BaseException:
            file.close()
            raise
        # Some file systems number a file anew whenever it is asked for; they are believed in the end.
        if _is_at(file.fileno(), path) or turn == _PLACE_TRIES - 1:
            return file
        file.close()  # whoever had the lock has just ended and removed the file
    raise taken


def remove_locked(file: BinaryIO, path: Path) -> None:
    """Remove a locked file, then give up the lock. Raises OSError."""
    if os.name == "posix":
        try:
            path.unlink(missing_ok=True)  # before the lock is given up: another may wait for it
        finally:
            file.close()
    else:
        file.close()
        with contextlib.suppress(OSError):  # another has opened it by now
            path.unlink(missing_ok=True)


def lock(fd: int, position: int) -> bool:
    """Lock an open file until it is closed; False when another program has the lock."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            os.lseek(fd, position, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True  # some network file systems have no locks; each file still appears whole or not at all
    return True


def _is_at(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except OSError:
        return False
