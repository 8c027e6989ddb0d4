"""Where what was measured is kept between two runs of the program. It may be deleted at any time."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PARTIAL, ABANDONED = ".partial-", 3600.0  # a file that is being written; seconds after which nobody is any more
_SUM = b"bitsmith-crc32 "
MOST_BYTES = 256 << 20  # of the folder: the files that were used longest ago go first


def cache_folder() -> Path:
    """For inspections, in the user's cache folder of this program; it need not exist yet. Linux: XDG_CACHE_HOME."""
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        return base / "bitsmith" / "cache" / "inspect"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bitsmith" / "inspect"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bitsmith" / "inspect"


def keep(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write a file of the folder, whole or not at all; a folder that can not be written to is no error.

    Older files go while all of them take more than `MOST_BYTES`.
    """
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=path.parent)
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                fill(file)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        _prune(path)


def checked(data: bytes) -> bytes:
    """With a checksum behind them."""
    return data + _SUM + zlib.crc32(data).to_bytes(4, "little")


def whole(path: Path) -> bytes | None:
    """What was kept by `checked`; None when there is nothing. Raises DamagedFile when it is not what was written."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    content, mark, digest = data[: -len(_SUM) - 4], data[-len(_SUM) - 4 : -4], data[-4:]
    if mark != _SUM or zlib.crc32(content).to_bytes(4, "little") != digest:
        raise DamagedFile(path.name)
    return content


class DamagedFile(Exception):
    """What was kept is not what was written: it is made anew, and said."""

    note = "What was kept of an earlier measurement was damaged, so it was measured anew."


def used(path: Path) -> None:
    """A file was read: it is among the last to go."""
    with suppress(OSError):
        os.utime(path)


def _prune(newest: Path) -> None:
    files = []
    for path in newest.parent.iterdir():
        with suppress(OSError):
            stat = path.stat()
            if path.name.startswith(PARTIAL) and stat.st_mtime < time.time() - ABANDONED:
                path.unlink()  # of a program that was killed
                continue
            files.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= MOST_BYTES:
            return
        if path != newest:
            with suppress(OSError):
                path.unlink()
                total -= size
