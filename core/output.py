"""The output while it is being written: partial files, exact sizes, what it may not harm."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from core import preferences
from core.checkpoint.base import Checkpoint
from core.checkpoint.files import cannot_read
from core.disk import disk_errors, free_bytes, give_name, sync_folder, too_little_room
from core.errors import UserError
from core.export.layout import Layout
from core.journal import journal_path, partial_path
from core.parts import Run
from core.readback import DirectFile
from core.units import format_bytes, format_count
from kernels import stretches

RESERVE = 16_000_000  # bytes left free beside the output, for the journal and the file system's own needs


def check_output(
    output: Path,
    checkpoint: Checkpoint,
    layout: Layout,
    overwrite: bool,
    beside: int = RESERVE,
    work: Path | None = None,
) -> None:
    """Refuse an output that would harm something: the source, an existing file, or a disk without room.

    beside, work: as `check_space`.
    """
    with disk_errors(output):
        if not output.name:
            raise UserError(f"{output} has no name that could be given to the output.", "Name a file or a new folder.")
        _check_source(output, checkpoint, layout)
        if output.is_dir() and not layout.folder:
            raise UserError(
                f"{output} is a folder; this target writes one file.", f"Name a file, such as {output / 'model.gguf'}."
            )
        if output.is_dir() and (output.is_symlink() or os.path.ismount(output)):
            raise UserError(f"{output} can not be replaced by a finished folder.", "Name a folder inside it.")
        if output.exists() and not _empty_folder(output):
            if not overwrite:
                raise UserError(f"{output} exists already.", "Choose another name, or delete it first.")
            if layout.folder or not output.is_file():
                raise UserError(f"{output} exists already, and only files are replaced.", "Choose another name.")
        output.parent.mkdir(parents=True, exist_ok=True)
        check_space(output, layout, beside, work)


def _check_source(output: Path, checkpoint: Checkpoint, layout: Layout) -> None:
    """Nothing of the source may lie where the output, its unfinished files or its journal go."""
    same = UserError("Output and input are the same.", "Choose another name or folder for the output.")
    source = checkpoint.path
    files = [source, *checkpoint.files, *checkpoint.side_files]
    if source.is_dir():
        files += [source / "config.json", *source.glob("*.index.json")]
    places = [_resolve(output), _resolve(partial_path(output)), _resolve(journal_path(output))]
    for file in files:
        real = _resolve(file)
        if real in places or real.is_relative_to(places[1]) or (layout.folder and real.is_relative_to(places[0])):
            raise same
        if output.exists() and file.exists() and output.samefile(file):
            raise same


def check_file(path: Path, overwrite: bool, checkpoints: Iterable[Checkpoint], hint: str = "") -> None:
    """Refuse, before minutes of work, a report or another small file that can not be written, that is there already, or
    that is a part of one of the models. hint: which option names it."""
    place = next((p for p in path.absolute().parents if p.exists()), path.parent)
    if path.is_dir() or not place.is_dir() or not os.access(place, os.W_OK):
        raise UserError(f"{path.name or path} can not be written.", f"Choose another place{hint}.")
    if not path.exists():
        return
    for checkpoint in checkpoints:
        inside = checkpoint.path.is_dir() and checkpoint.path.resolve() in path.resolve().parents
        files = [checkpoint.path, *checkpoint.files, *checkpoint.side_files]
        if inside or any(f.exists() and path.samefile(f) for f in files):
            raise UserError(f"{path} belongs to the model.", f"Choose another name{hint}.")
    if not overwrite:
        raise UserError(f"{path} exists already.", f"Choose another name{hint}, or add --overwrite.")


def check_leftovers(output: Path) -> None:
    """Unfinished files are only taken over, or deleted, with the journal that says whose they are."""
    partial = partial_path(output)
    with disk_errors(output):
        foreign = partial.exists() and not journal_path(output).exists()
    if foreign:
        raise UserError(
            f"{partial.name} lies where the unfinished output goes, and no journal says that it is one.",
            "Move it away or delete it, or choose another name for the output.",
        )


def check_memory(expected: int) -> None:
    """Raise UserError when a run would take more memory, in bytes, than the settings allow."""
    limit = preferences.current().memory
    if limit and expected > limit:
        raise UserError(
            f"This run takes about {format_bytes(expected)} of memory; the settings allow {format_bytes(limit)}.",
            "Raise that limit, take fewer samples, or choose a method without data.",
            topic="memory",
        )


def check_space(output: Path, layout: Layout, beside: int = RESERVE, work: Path | None = None) -> None:
    """Raise UserError when the output does not fit on its disk; what a partial output already takes counts as there.

    beside: bytes that the run needs besides until it is done, RESERVE among them; the others go into the folder `work`,
    which may be on another disk and hold what an earlier run left.
    """
    kept = sum(_allocated(p) for p in work.iterdir()) if work is not None and work.is_dir() else 0
    waits = max(0, beside - RESERVE - kept)
    here = work is None or _on_one_disk(work.parent, output.parent)
    free = free_bytes(output.parent)
    there = sum(_allocated(p) for p in _partial_files(output, layout))
    missing = layout.total_bytes + RESERVE - there - free + (waits if here else 0)
    if free >= 0 and missing > 0:
        raise UserError(
            *too_little_room(output.parent, free, layout.total_bytes, missing, beside - RESERVE if here else 0)
        )
    if work is not None and not here:
        free = free_bytes(work.parent)
        missing = waits + RESERVE - free
        if free >= 0 and waits and missing > 0:
            raise UserError(*too_little_room(work.parent, free, waits, missing))


def _on_one_disk(a: Path, b: Path) -> bool:
    """Whether two folders, which need not exist yet, are on the same one."""

    def disk(folder: Path) -> int | None:
        for place in (folder, *folder.parents):
            with contextlib.suppress(OSError):
                return place.stat().st_dev
        return None

    return disk(a) == disk(b)


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
        self.output = output
        self._layout = layout
        self._paths = _partial_files(output, layout)
        self._handles: list[int] = []
        self._direct: list[DirectFile] = []
        self._writes: list[threading.Lock] = []
        self._lock = None if hasattr(os, "pwrite") else threading.Lock()
        try:
            with disk_errors(output):
                self._open(keep)
        except UserError:
            with contextlib.suppress(OSError):
                self.close()
            raise

    def _open(self, keep: bool) -> None:
        if self._layout.folder:
            partial_path(self.output).mkdir(exist_ok=True)
        for number, (path, f) in enumerate(zip(self._paths, self._layout.files, strict=True)):
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0) | (0 if keep else os.O_TRUNC)
            fd = os.open(path, flags, 0o644)
            self._handles.append(fd)
            self._direct.append(DirectFile(path))
            self._writes.append(threading.Lock())
            os.ftruncate(fd, f.size)
            for offset, content in f.fixed:
                self._pwrite(fd, offset, memoryview(content))
            for offset, nbytes in self._layout.gaps(number) if keep else ():
                self._pwrite(fd, offset, memoryview(bytes(nbytes)))

    def plain_bytes_intact(self) -> bool:
        """Whether headers and padding are on the disk as they should be."""
        return all(
            all(self._intact(number, offset, memoryview(content)) for offset, content in f.fixed)
            and not any(self.read(number, *gap).any() for gap in self._layout.gaps(number))
            for number, f in enumerate(self._layout.files)
        )

    def _intact(self, number: int, offset: int, content: memoryview) -> bool:
        step = 1 << 20
        chunks = ((at, content[at : at + step]) for at in range(0, len(content), step))
        return all(self.read(number, offset + at, len(chunk)).tobytes() == chunk for at, chunk in chunks)

    @staticmethod
    def present(output: Path, layout: Layout) -> bool:
        """True when every partial file is there with its final size."""
        return all(
            p.is_file() and p.stat().st_size == f.size
            for p, f in zip(_partial_files(output, layout), layout.files, strict=True)
        )

    def write(self, file: int, run: Run, data: np.ndarray) -> None:
        """Bytes, uint8 [run.total], into their stretches of the file."""
        fd, view = self._handles[file], memoryview(data)
        # The file system lets one thread write a file at a time, and others would spin until it is their turn.
        with disk_errors(self.output), self._writes[file]:
            if run.count > 1 and stretches.available:
                stretches.write(fd, run.offset, run.stride, data.reshape(run.count, run.nbytes))
                return
            for i in range(run.count):
                self._pwrite(fd, run.offset + i * run.stride, view[i * run.nbytes : (i + 1) * run.nbytes])

    def read(self, file: int, offset: int, nbytes: int) -> np.ndarray:
        """Bytes of a file, uint8, from the disk where the system can. Good until this thread reads again.

        Raises UserError when the file ends before them.
        """
        with disk_errors(self.output):
            out = self._direct[file].read(offset, nbytes)
            if out is None:
                out = np.empty(nbytes, np.uint8)
                out = out[: self._pread(self._handles[file], offset, memoryview(out))]
        if out.size != nbytes:
            raise UserError(f"{self._paths[file]} became shorter while it was written.", "Run the conversion again.")
        return out

    def sync(self) -> None:
        with disk_errors(self.output):
            for fd in self._handles:
                os.fsync(fd)

    def drop_cache(self) -> None:
        """Where the disk can not be read directly, ask the system to forget the pages; a hint only."""
        if hasattr(os, "posix_fadvise"):
            for fd in [fd for fd, direct in zip(self._handles, self._direct, strict=True) if not direct.available]:
                with contextlib.suppress(OSError):
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        """All of them, whatever the disk says. Raises OSError where it said something."""
        for direct in self._direct:
            direct.close()
        handles, self._handles = self._handles, []
        problems = []
        for fd in handles:
            try:
                os.close(fd)
            except OSError as e:  # a disk that reports late; the handle is gone all the same
                problems.append(e)
        if problems:
            raise problems[0]

    def finish(self, overwrite: bool) -> None:
        """Write the side files, sync, and give the output its name. The files are closed.

        Raises UserError, and leaves the output unfinished, when a file has come to have that name meanwhile, or when
        the bytes are not those of the layout.
        """
        partial = partial_path(self.output)
        with disk_errors(self.output):
            for path in self._paths:
                path.stat()  # the disk may have gone, and then nothing is to be made in the folder where it was
            if self._layout.folder:
                self._write_extras(partial)
            self.close()
            actual, planned = output_size(partial), self._layout.total_bytes
            if actual != planned:
                raise UserError(
                    f"The output has {format_count(actual)} bytes where {format_count(planned)} were planned.",
                    "Run it again; if nothing has changed in the source's folder, report this with the command.",
                )
            if _empty_folder(self.output):
                self.output.rmdir()  # the user made it
            elif self.output.exists() and (self._layout.folder or not overwrite):
                raise UserError(f"{self.output} exists by now.", "Move it away, then resume the run.")
            give_name(partial, self.output)
            sync_folder(self.output.parent)

    def _write_extras(self, partial: Path) -> None:
        expected = {partial / name for name, _ in self._layout.extras} | set(self._paths)
        for stale in [p for p in partial.rglob("*") if p.is_file() and p not in expected]:
            stale.unlink()  # of an earlier attempt, when the source's folder had another file
        for name, content in self._layout.extras:
            target = partial / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                target.write_bytes(content)
            else:
                try:
                    content.stat()
                except OSError as e:
                    raise cannot_read(content, e) from e
                shutil.copyfile(content, target)
            with target.open("rb+") as f:
                os.fsync(f.fileno())
            sync_folder(target.parent)
        sync_folder(partial)

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


def output_size(path: Path) -> int:
    """Bytes of a file, or of all files of a folder."""
    return sum(f.stat().st_size for f in path.rglob("*") if f.is_file()) if path.is_dir() else path.stat().st_size
