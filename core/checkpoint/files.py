"""Reading parts of files: by position, complete or not at all, and never through a memory map.

A map of a file that shrinks or lies on a lost network share ends the process (SIGBUS), and its pages count as ours;
reads into a buffer do neither.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from core.errors import UserError
from core.units import format_count

LFS_PREFIX = b"version https://git-lfs"


@dataclass(frozen=True)
class OpenedFile:
    """A file as it was when its header was read. A later read checks that it still is that file."""

    path: Path
    size: int
    mtime_ns: int
    header_bytes: int = 0

    @staticmethod
    def of(path: Path, header_bytes: int = 0) -> OpenedFile:
        """Size and time of the file. Raises UserError when it can not be looked at."""
        try:
            stat = path.stat()
        except OSError as error:
            raise cannot_read(path, error) from error
        return OpenedFile(path, stat.st_size, stat.st_mtime_ns, header_bytes)


def cannot_read(path: Path, error: OSError) -> UserError:
    """The error for a file that the system refuses to give."""
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path.name} is not there.", f"Check the path {path}.")
    if isinstance(error, PermissionError):
        return UserError(f"{path.name} may not be read by you.", "Change its permissions, or copy it elsewhere.")
    reason = error.strerror or type(error).__name__
    return UserError(f"{path.name} can not be read: {reason}.", "Check the disk or the network share it lies on.")


def read_start(path: Path, count: int) -> bytes:
    """The first `count` bytes, or all when there are fewer. Raises UserError when the file can not be read."""
    try:
        with path.open("rb", buffering=0) as file:
            return (
                file.read(min(count, os.fstat(file.fileno()).st_size)) or b""
            )  # read() allocates what it is asked for
    except OSError as error:
        raise cannot_read(path, error) from error


@contextlib.contextmanager
def _open_unchanged(file: OpenedFile) -> Iterator[io.FileIO]:
    """The file anew: safe from any thread, holds no handle that would lock it on Windows, and costs some 10 µs."""
    try:
        with io.FileIO(file.path) as handle:
            stat = os.fstat(handle.fileno())
            if (stat.st_size, stat.st_mtime_ns) != (file.size, file.mtime_ns):
                raise UserError(
                    f"{file.path.name} changed while it was in use.",
                    "Wait until nothing writes to it, then open it again.",
                )
            yield handle
    except OSError as error:
        raise cannot_read(file.path, error) from error


def read_exactly(file: OpenedFile, offset: int, out: np.ndarray) -> None:
    """Fill `out` (contiguous uint8) with the bytes from `offset` on.

    Raises UserError when the file changed since its header was read, or ends early.
    """
    read_stretches(file, offset, 0, out.reshape(1, -1))


def read_stretches(file: OpenedFile, offset: int, stride: int, out: np.ndarray) -> None:
    """Fill each row of `out` (contiguous uint8 [n, bytes]) from `offset` on, rows `stride` apart in the file.

    Raises UserError when the file changed since its header was read, or ends early.
    """
    with _open_unchanged(file) as handle:
        for number, row in enumerate(out):
            at, view = offset + number * stride, memoryview(row.data).cast("B")
            handle.seek(at)
            done = 0
            while done < len(view):
                count = handle.readinto(view[done:])
                if not count:
                    raise _ended(file, at + done)
                done += count


def read_bytes(file: OpenedFile, offset: int, count: int) -> bytes:
    """`count` bytes from `offset` on; they are held once. Raises UserError like `read_exactly`."""
    with _open_unchanged(file) as handle:
        handle.seek(offset)
        raw = handle.read(count) or b""
        while len(raw) < count:  # the system gives less at once for no good reason, if ever
            more = handle.read(count - len(raw))
            if not more:
                raise _ended(file, offset + len(raw))
            raw += more
    return raw


def _ended(file: OpenedFile, at: int) -> UserError:
    return UserError(
        f"{file.path.name} ended after {format_count(at)} bytes, before the end of a tensor.",
        "Download or copy the file again.",
    )


def digest_headers(files: Sequence[OpenedFile]) -> str:
    """SHA-256 over each file's name, size, modification time and header bytes, as hex."""
    import hashlib

    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path.name}\0{file.size}\0{file.mtime_ns}\0{file.header_bytes}\0".encode())
        left, offset = file.header_bytes, 0
        while left:
            block = np.empty(min(left, 1 << 20), np.uint8)
            read_exactly(file, offset, block)
            digest.update(block.data)
            offset += block.size
            left -= block.size
    return digest.hexdigest()


def check_is_weights(path: Path, start: bytes, size: int) -> None:
    """Raise UserError for what is often found under the name of a model file and is none: `start` is its beginning."""
    if size == 0:
        raise UserError(f"{path.name} is empty.", "Download the file again.")
    if start.startswith(LFS_PREFIX):
        raise UserError(
            f"{path.name} is a Git LFS pointer, not the file itself.",
            "Run `git lfs pull` in that folder, or download the file from the model's page.",
        )
    text = start[:64].lstrip().lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        raise UserError(
            f"{path.name} is a web page, not a model file.",
            "Log in to the site, accept the model's licence, and download the file again.",
        )
    if text.startswith((b'{"error"', b"invalid username", b"access to model", b"entry not found")):
        raise UserError(
            f"{path.name} holds a server's error message, not a model.", "Log in to the site and download it again."
        )
    if len(start) >= 64 and not any(start):
        raise UserError(
            f"{path.name} begins with zeros where its header should be.",
            "The download or copy did not finish: fetch the file again.",
        )
