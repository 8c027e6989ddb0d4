"""The record of an unfinished run, beside its partial output: what is written, so that the job can go on after a crash.

Each line is a JSON object after its CRC-32 in hex. The first names the job; the others are finished tensors, with the
checksum of every block, or tensors that have to be written again. A line is written only after the data it speaks of
has been synced; from the first damaged line on nothing counts.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.disk import open_locked, printable, remove_locked
from core.errors import UserError
from core.metrics.error import histogram_edges
from core.progress import ErrorStats

VERSION = 5
LOCK_POSITION = 1 << 40  # Windows locks bytes, and no one may read these: far behind the text


@dataclass(frozen=True)
class WrittenBlock:
    """Bytes in one of the output's files, and their CRC-32: `count` stretches of `nbytes` each, `stride` apart."""

    file: int
    offset: int
    nbytes: int
    crc: int
    count: int = 1
    stride: int = 0

    @property
    def total(self) -> int:
        return self.nbytes * self.count


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


def read(path: Path, job: str, data: str | None = None) -> list[Entry] | None:
    """Finished tensors of that job; None when there is no journal, or it speaks of another job.

    data: fingerprint of what numbers were chosen from, '' without; None: of anything.
    """
    head, entries, _ = _parse(path)
    if not isinstance(head, Mapping) or (head.get("version"), head.get("job")) != (VERSION, job):
        return None
    return entries if data is None or head.get("data") == data else None


def has_begun(path: Path) -> bool:
    """False when the file ends before its first line does: a run was stopped before it wrote anything."""
    try:
        with path.open("rb") as file:
            return b"\n" in file.read(1 << 16)
    except OSError:
        return False


def _parse(path: Path) -> tuple[Any, list[Entry], int]:
    """The first line, the finished tensors in order, and how many bytes can be trusted."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError:
        lines = []
    head: Any = None
    entries: dict[int, Entry] = {}
    size = 0
    for number, line in enumerate(lines):
        data = _checked(line)
        try:
            if number == 0:
                head = data
            elif "again" in data:
                for tensor in data["again"]:
                    entries.pop(tensor, None)
            else:
                blocks = tuple(WrittenBlock(*b) for b in data["blocks"])
                error = _stats(data["error"]) if data["error"] else None
                entries[data["tensor"]] = Entry(data["tensor"], blocks, error)
        except (KeyError, TypeError):
            break
        size += len(line) + 1
    return head, list(entries.values()), size


def _checked(line: bytes) -> Any:
    """The object of a line, or None when a byte of it has changed."""
    crc, _, text = line.partition(b" ")
    try:
        return json.loads(text) if int(crc, 16) == zlib.crc32(text) else None
    except (ValueError, RecursionError):
        return None


def _stats(data: dict) -> ErrorStats:
    limit = data.pop("limit")
    counts = tuple(data.pop("counts"))
    return ErrorStats(**data, edges=histogram_edges(limit, len(counts)) if limit else (), counts=counts)


def _stats_data(error: ErrorStats) -> dict[str, Any]:
    """The fields, with the histogram's limit in place of its edges, which follow from it."""
    fields = dict(vars(error))
    edges = fields.pop("edges")
    return {**fields, "limit": edges[-1] if edges else 0.0}


def _block_data(b: WrittenBlock) -> list[int]:
    plain = [b.file, b.offset, b.nbytes, b.crc]
    return plain if b.count == 1 else [*plain, b.count, b.stride]


class Journal:
    """Append-only, locked: a second program that wants the same output is told so."""

    def __init__(self, path: Path) -> None:
        """Open and lock; what the file holds stays until `begin`. Raises UserError when another run has it."""
        self._path = path
        busy = UserError(
            f"Another run is writing {printable(path.name.removesuffix('.partial.journal'))} at this moment.",
            "Wait for it to finish, or choose another output.",
        )
        self._file = open_locked(path, busy, LOCK_POSITION)

    def begin(self, job: str, data: str = "") -> None:
        """Start anew: nothing is written yet. data: see `read`."""
        self._file.truncate(0)
        self._write([{"version": VERSION, "job": job, "data": data}])

    def go_on(self) -> None:
        """Cut off a last line that is not whole, so that others can follow."""
        self._file.truncate(_parse(self._path)[2])

    def append(self, entries: Iterable[Entry]) -> None:
        """Add finished tensors. Raises OSError when the disk refuses; the file is then as before."""
        self._write(
            {
                "tensor": e.tensor,
                "blocks": [_block_data(b) for b in e.blocks],
                "error": _stats_data(e.error) if e.error else None,
            }
            for e in entries
        )

    def forget(self, tensors: Iterable[int]) -> None:
        """These tensors are to be written again."""
        self._write([{"again": list(tensors)}])

    def _write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        texts = [json.dumps(line).encode() for line in lines]
        left = memoryview(b"".join(b"%08x %s\n" % (zlib.crc32(text), text) for text in texts))
        size = self._file.seek(0, os.SEEK_END)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(size)
            raise

    def close(self, done: bool = False) -> None:
        """Unlock. The file goes when the run is done, or when nothing has begun."""
        if self._file.closed:
            return
        try:
            if done or self._file.seek(0, os.SEEK_END) == 0:
                remove_locked(self._file, self._path)
        finally:
            self._file.close()
