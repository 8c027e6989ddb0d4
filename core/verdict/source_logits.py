"""The source's distributions over a text, kept in a file: every further artifact is compared without the source.

One file a source (by fingerprint and configuration), text and arithmetic, in `core.metrics.divergence.SourceRows`'s
form: a header, then for each window its likeliest tokens, −log P of the right ones, and the gaps; then the CRC-32 of
each window. It may be deleted at any time.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import tempfile
import time
import zlib
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import numpy as np

from core.checkpoint.base import Checkpoint
from core.disk import free_bytes
from core.inspect.cache import ABANDONED, PARTIAL, DamagedFile, cache_folder, used
from core.metrics.divergence import SourceRows
from core.progress import CancelToken

VERSION = 2
MAGIC = b"bitsmith logits\n"
MOST_BYTES = 4 << 30  # of all files together: those that were used longest ago go first
FREE_SHARE = 0.5  # of the disk's free space that a file may take
ALIGN = 64
_PIECE = 32 << 20  # bytes between two looks at the token


def folder() -> Path:
    """In the user's cache folder of this program; it need not exist yet."""
    return cache_folder().parent / "logits"


def source_key(checkpoint: Checkpoint, ids: np.ndarray, first: int, arithmetic: str, cache_dtype: str) -> str:
    """Changes when the source, its configuration, the text or the arithmetic does."""
    config = json.dumps(dict(checkpoint.config), sort_keys=True, default=str)
    about = f"{VERSION} {checkpoint.fingerprint()} {config} {ids.shape} {first} {arithmetic} {cache_dtype}"
    digest = hashlib.sha256(about.encode("utf-8", "backslashreplace"))
    digest.update(np.ascontiguousarray(ids, "<i4").tobytes())
    return digest.hexdigest()[:40]


class _Layout:
    """Where each window's arrays lie."""

    def __init__(self, windows: int, rows: int, width: int, start: int) -> None:
        self.windows, self.rows, self.width, self.start = windows, rows, width, start
        self.sizes = (_up(4 * rows), _up(8 * rows), _up(2 * rows * width))
        self.window = sum(self.sizes)
        self.total = start + windows * self.window

    def at(self, window: int, array: int) -> int:
        return self.start + window * self.window + sum(self.sizes[:array])


def _up(n: int) -> int:
    return -(-n // ALIGN) * ALIGN


def _header(key: str, windows: int, rows: int, width: int) -> bytes:
    text = json.dumps({"version": VERSION, "key": key, "windows": windows, "rows": rows, "width": width}).encode()
    head = MAGIC + struct.pack("<I", len(text)) + text
    return head.ljust(_up(len(head)), b"\0")


class SourceLogits:
    """A finished file, mapped; reading a window touches only its pages."""

    def __init__(self, path: Path, layout: _Layout) -> None:
        self._layout = layout
        self._data: np.ndarray = np.memmap(path, np.uint8, "r")

    @staticmethod
    def open(key: str, windows: int, rows: int, width: int, token: CancelToken) -> SourceLogits | None:
        """None where there is none. Raises DamagedFile for one that is not what was written; Cancelled."""
        path = folder() / f"{key}.logits"
        head = _header(key, windows, rows, width)
        layout = _Layout(windows, rows, width, len(head))
        try:
            with path.open("rb") as file:
                whole = file.read(len(head)) == head and os.fstat(file.fileno()).st_size == layout.total + 4 * windows
                if not whole:
                    raise DamagedFile(path.name)
            found = SourceLogits(path, layout)
            found._check(path.name, token)
            used(path)
            return found
        except (OSError, ValueError):
            return None

    def _check(self, name: str, token: CancelToken) -> None:
        sums = self._data[self._layout.total :].tobytes()
        if sums != _sums(self._data, self._layout, token):
            self.close()
            raise DamagedFile(name)

    def rows(self, window: int, part: slice) -> SourceRows:
        """Some scored rows of a window; the gaps are a view of the file."""
        at, rows, width = self._layout.at, self._layout.rows, self._layout.width
        top = self._data[at(window, 0) :][: 4 * rows].view("<i4")[part]
        nll = self._data[at(window, 1) :][: 8 * rows].view("<f8")[part]
        gaps = self._data[at(window, 2) :][: 2 * rows * width].view("<f2").reshape(rows, width)[part]
        return SourceRows(gaps, np.array(top), np.array(nll))

    def close(self) -> None:
        """Forget the map."""
        self._data = np.zeros(0, np.uint8)


def _sums(data: np.ndarray, layout: _Layout, token: CancelToken) -> bytes:
    """CRC-32 of each window, a little-endian u32 each. Raises Cancelled."""
    found = []
    for window in range(layout.windows):
        crc, end = 0, layout.at(window + 1, 0)
        for start in range(layout.at(window, 0), end, _PIECE):
            token.check()
            crc = zlib.crc32(data[start : min(start + _PIECE, end)], crc)
        found.append(crc)
    return struct.pack(f"<{len(found)}I", *found)


class LogitsWriter:
    """Writes a file window by window; it appears under its name when it is whole.

    Raises OSError. As a context manager, an unfinished file is removed at its end.
    """

    def __init__(self, key: str, windows: int, rows: int, width: int) -> None:
        self._path = folder() / f"{key}.logits"
        head = _header(key, windows, rows, width)
        self._layout = _Layout(windows, rows, width, len(head))
        self._path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=PARTIAL, dir=self._path.parent)
        self._partial, self._file = Path(name), os.fdopen(handle, "wb")
        self._file.write(head)

    @staticmethod
    def fits(windows: int, rows: int, width: int) -> bool:
        """Whether such a file may be kept: within MOST_BYTES and half of the free space."""
        size = _Layout(windows, rows, width, 0).total + 4 * windows
        free = free_bytes(folder())
        return size <= min(MOST_BYTES, FREE_SHARE * free)

    def write(self, window: int, part: slice, rows: SourceRows) -> None:
        """Scored rows of a window."""
        width = self._layout.width
        for array, (values, size) in enumerate(
            ((rows.top.astype("<i4"), 4), (rows.nll.astype("<f8"), 8), (rows.gaps.astype("<f2", copy=False), 2 * width))
        ):
            _write_at(self._file, self._layout.at(window, array) + part.start * size, values)

    def finish(self, token: CancelToken) -> None:
        """Everything was written. Raises Cancelled."""
        self._file.truncate(self._layout.total)
        self._file.flush()
        sums = _sums(np.memmap(self._partial, np.uint8, "r"), self._layout, token)
        _write_at(self._file, self._layout.total, np.frombuffer(sums, np.uint8))
        self._file.close()
        self._partial.replace(self._path)
        _prune(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self._partial.unlink(missing_ok=True)


def _write_at(file: IO[bytes], offset: int, values: np.ndarray) -> None:
    file.seek(offset)
    file.write(memoryview(np.ascontiguousarray(values)).cast("B"))


def _prune(newest: Path) -> None:
    files = []
    for path in newest.parent.iterdir():
        with suppress(OSError):
            stat = path.stat()
            if path.name.startswith(PARTIAL) and stat.st_mtime < time.time() - ABANDONED:
                path.unlink()  # of a program that was killed
            else:
                files.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files, key=lambda entry: entry[0]):
        if total <= MOST_BYTES:
            return
        if path != newest:
            with suppress(OSError):
                path.unlink()
                total -= size
