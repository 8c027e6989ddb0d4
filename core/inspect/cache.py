"""Where what was measured is kept between two runs of the program. It may be deleted at any time."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

PARTIAL, ABANDONED = ".partial-", 3600.0  # a file that is being written; seconds after which nobody is any more
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
