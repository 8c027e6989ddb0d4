"""The output while it is being written: partial files, exact sizes, errors of the disk in plain words."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.layout import Layout
from core.journal import partial_path
from core.units import format_bytes

RESERVE = 16_000_000  # bytes left free beside the output, for the journal and the file system's own needs


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn the errors that a disk or a folder causes into one sentence and a next step."""
    try:
        yield
    except OSError as e:
        raise _explain(e, path) from e


def _explain(e: OSError, path: Path) -> UserError:
    where = path.parent
    if e.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", -1)):
        return UserError(f"The disk of {where} is full.", "Free some space; the run can then be resumed.")
    if e.errno in (errno.EACCES, errno.EPERM):
        return UserError(f"This program may not write to {where}.", "Choose a folder of your own as output.")
    if e.errno == errno.EROFS:
        return UserError(f"{where} is read-only.", "Choose another folder as output.")
    if e.errno == errno.EFBIG:
        return UserError(
            f"The file system of {where} does not hold files this large.", "Choose another disk as output."
        )
    if e.errno == errno.ENAMETOOLONG:
        return UserError("The output's name is too long.", "Choose a shorter name.")
    if e.errno == errno.ENOENT:
        return UserError(f"{path} has disappeared.", "Check that the disk is still connected, then resume.")
    return UserError(f"{path} could not be written: {e.strerror or e}.", "Check the disk, then resume the run.")


def check_output(output: Path, checkpoint: Checkpoint, layout: Layout, overwrite: bool) -> None:
    """Refuse an output that would harm something: the source, an existing file, or a disk without room."""
    same = UserError("Output and input are the same.", "Choose another name or folder for the output.")
    resolved = _resolve(output)
    source = _resolve(checkpoint.path)
    if resolved == source or any(resolved == _resolve(f) for f in checkpoint.files):
        raise same
    if layout.folder and (
        source.is_relative_to(resolved) or any(_resolve(f).parent == resolved for f in checkpoint.files)
    ):
        raise same
    if output.is_dir() and not layout.folder:
        raise UserError(
            f"{output} is a folder; this target writes one file.", f"Name a file, such as {output / 'model.gguf'}."
        )
    if output.exists() and not _empty_folder(output):
        if not overwrite:
            raise UserError(f"{output} exists already.", "Choose another name, or delete it first.")
        if layout.folder or output.is_dir():
            raise UserError(f"{output} exists already, and folders are not replaced.", "Choose another name.")
    with disk_errors(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        check_space(output, layout)


def check_space(output: Path, layout: Layout) -> None:
    """Raise UserError when the output does not fit on its disk; what a partial output already takes counts as there."""
    free = shutil.disk_usage(output.parent).free
    there = sum(_allocated(p) for p in _partial_files(output, layout))
    missing = layout.total_bytes + RESERVE - there - free
    if missing > 0:
        raise UserError(
            f"The disk of {output.parent} has {format_bytes(free)} free; this output needs "
            f"{format_bytes(layout.total_bytes)}.",
            f"Free {format_bytes(missing)} more, or choose another disk.",
        )


def _resolve(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _allocated(path: Path) -> int:
    try:
        stat = path.stat()
    except OSError:
        return 0
    return min(stat.st_size, getattr(stat, "st_blocks", stat.st_size // 512) * 512)


def _partial_files(output: Path, layout: Layout) -> list[Path]:
    partial = partial_path(output)
    return [partial / f.name if layout.folder else partial for f in layout.files]


class OutputFiles:
    """The partial files of one output, open for reading and writing at any offset from any thread."""

    def __init__(self, output: Path, layout: Layout, keep: bool) -> None:
        """keep: go on with files that are there (a resumed run) instead of starting from empty ones."""
        self._output = output
        self._layout = layout
        self._paths = _partial_files(output, layout)
        self._handles: list[int] = []
        self._lock = None if hasattr(os, "pwrite") else threading.Lock()
        with disk_errors(output):
            if layout.folder:
                partial_path(output).mkdir(exist_ok=True)
            for path, f in zip(self._paths, layout.files, strict=True):
                path.parent.mkdir(parents=True, exist_ok=True)
                flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | (0 if keep else os.O_TRUNC)
                fd = os.open(path, flags, 0o644)
                self._handles.append(fd)
                os.ftruncate(fd, f.size)
                self._pwrite(fd, 0, memoryview(f.header))

    @staticmethod
    def present(output: Path, layout: Layout) -> bool:
        """True when every partial file is there with its final size."""
        return all(
            p.is_file() and p.stat().st_size == f.size
            for p, f in zip(_partial_files(output, layout), layout.files, strict=True)
        )

    def write(self, file: int, offset: int, data: np.ndarray) -> None:
        with disk_errors(self._output):
            self._pwrite(self._handles[file], offset, memoryview(data))

    def read(self, file: int, offset: int, nbytes: int) -> np.ndarray:
        """Bytes as uint8. Raises UserError when the file ends before them."""
        out = np.empty(nbytes, np.uint8)
        with disk_errors(self._output):
            got = self._pread(self._handles[file], offset, memoryview(out))
        if got != nbytes:
            raise UserError(f"{self._paths[file]} became shorter while it was written.", "Run the conversion again.")
        return out

    def sync(self) -> None:
        with disk_errors(self._output):
            for fd in self._handles:
                os.fsync(fd)

    def drop_cache(self) -> None:
        """Ask the system to forget the pages, so that the check reads the disk and not the memory; a hint only."""
        if hasattr(os, "posix_fadvise"):
            for fd in self._handles:
                with contextlib.suppress(OSError):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        for fd in self._handles:
            os.close(fd)
        self._handles = []

    def finish(self) -> int:
        """Write the side files, sync, give the output its name, and return its bytes. The files are closed."""
        partial = partial_path(self._output)
        with disk_errors(self._output):
            for name, content in self._layout.extras:
                target = partial / name
                target.parent.mkdir(parents=True, exist_ok=True)
                if isinstance(content, bytes):
                    target.write_bytes(content)
                else:
                    shutil.copyfile(content, target)
                with target.open("rb+") as f:
                    os.fsync(f.fileno())
            self.close()
            if self._output.is_dir():
                self._output.rmdir()  # an empty folder that the user made
            partial.replace(self._output)
            _sync_folder(self._output.parent)
            files = [f for f in self._output.rglob("*") if f.is_file()] if self._layout.folder else [self._output]
            return sum(f.stat().st_size for f in files)

    def _pwrite(self, fd: int, offset: int, data: memoryview) -> None:
        while data.nbytes:
            if self._lock is None:
                n = os.pwrite(fd, data, offset)
            else:
                with self._lock:
                    os.lseek(fd, offset, os.SEEK_SET)
                    n = os.write(fd, data)
            data, offset = data[n:], offset + n

    def _pread(self, fd: int, offset: int, out: memoryview) -> int:
        done = 0
        while done < out.nbytes:
            if self._lock is None:
                n = os.preadv(fd, [out[done:]], offset + done)
            else:
                with self._lock:
                    os.lseek(fd, offset + done, os.SEEK_SET)
                    chunk = os.read(fd, out.nbytes - done)
                    n = len(chunk)
                    out[done : done + n] = chunk
            if n == 0:
                break
            done += n
        return done


def discard(output: Path) -> None:
    """Delete the partial files of an unfinished output."""
    partial = partial_path(output)
    with disk_errors(output):
        if partial.is_dir():
            shutil.rmtree(partial)
        else:
            partial.unlink(missing_ok=True)


def _sync_folder(path: Path) -> None:
    if os.name != "posix":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
