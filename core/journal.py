"""The record of an unfinished run, beside its partial output: what is written, so that the job can go on after a crash.

One JSON object a line. The first names the job; each other is a finished tensor with the checksum of every block. A
line counts only when it is whole, and is written only after the data it speaks of has been synced.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from core.errors import UserError
from core.progress import ErrorStats

VERSION = 1


@dataclass(frozen=True)
class WrittenBlock:
    """A run of bytes in one of the output's files, and its CRC-32."""

    file: int
    offset: int
    nbytes: int
    crc: int


@dataclass(frozen=True)
class Entry:
    """A finished tensor, by its number in the plan."""

    tensor: int
    blocks: tuple[WrittenBlock, ...]
    error: ErrorStats | None


def partial_path(output: Path) -> Path:
    """Where the output lies until it is whole."""
    return output.with_name(output.name + ".partial")


def journal_path(output: Path) -> Path:
    return output.with_name(output.name + ".partial.journal")


def read(path: Path, job: str) -> list[Entry] | None:
    """Finished tensors of that job; None when there is no journal, or it speaks of another job."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return None
    try:
        head = json.loads(lines[0])
        if head.get("version") != VERSION or head.get("job") != job:
            return None
    except (ValueError, AttributeError):
        return None
    entries = []
    for line in lines[1:]:
        try:
            data = json.loads(line)
            blocks = tuple(WrittenBlock(*b) for b in data["blocks"])
            error = _stats(data["error"]) if data["error"] else None
            entries.append(Entry(int(data["tensor"]), blocks, error))
        except (ValueError, KeyError, TypeError):
            break  # torn by the crash: what follows can not be trusted
    return entries


def _stats(data: dict) -> ErrorStats:
    data["edges"], data["counts"] = tuple(data["edges"]), tuple(data["counts"])
    return ErrorStats(**data)


class Journal:
    """Append-only, locked: a second program that wants the same output is told so."""

    def __init__(self, path: Path) -> None:
        """Open and lock; what the file holds stays until `begin`."""
        self._path = path
        self._file = path.open("a+b")
        try:
            _lock(self._file.fileno(), path)
        except UserError:
            self._file.close()
            raise

    def begin(self, job: str, entries: list[Entry]) -> None:
        """Start anew with these entries."""
        self._file.truncate(0)
        self._write({"version": VERSION, "job": job})
        self.append(entries)

    def append(self, entries: list[Entry]) -> None:
        for e in entries:
            blocks = [[b.file, b.offset, b.nbytes, b.crc] for b in e.blocks]
            self._write({"tensor": e.tensor, "blocks": blocks, "error": asdict(e.error) if e.error else None})
        self._file.flush()
        os.fsync(self._file.fileno())

    def _write(self, data: dict) -> None:
        self._file.write(json.dumps(data).encode() + b"\n")

    def close(self) -> None:
        """Unlock; a journal in which nothing has begun leaves no file behind."""
        empty = self._file.seek(0, os.SEEK_END) == 0
        self._file.close()
        if empty:
            self._path.unlink(missing_ok=True)


def _lock(fd: int, path: Path) -> None:
    busy = UserError(
        f"Another run is writing {path.name.removesuffix('.partial.journal')} at this moment.",
        "Wait for it to finish, or choose another output.",
    )
    try:
        import fcntl
    except ImportError:
        import msvcrt

        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            raise busy from None
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise busy from None
    except OSError:
        return  # some network file systems have no locks; the run is still atomic
