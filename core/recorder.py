"""What a run has finished, made safe beside the work: synced to the disk, read back, then told to the journal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
from numpy.lib.stride_tricks import as_strided

from core.disk import disk_errors
from core.journal import Entry, Journal, WrittenBlock
from core.output import OutputFiles
from kernels import ops

CHUNK = 4 << 20  # bytes read at once


def intact(files: OutputFiles, entry: Entry) -> bool:
    """Whether the bytes of a finished tensor are on the disk as they were written. Raises UserError like a read."""
    return all(_whole_intact(files, b) for b in entry.blocks if b.count == 1) and all(
        _lines_intact(files, group) for group in _side_by_side(entry.blocks)
    )


def _whole_intact(files: OutputFiles, b: WrittenBlock) -> bool:
    crc = 0
    for start in range(0, b.nbytes, CHUNK):
        crc = ops.crc32(files.read(b.file, b.offset + start, min(CHUNK, b.nbytes - start)), crc)
    return crc == b.crc


def _side_by_side(blocks: Iterable[WrittenBlock]) -> list[list[WrittenBlock]]:
    """Blocks in stretches, those together that share the lines of a stored array."""
    groups: list[list[WrittenBlock]] = []
    for b in sorted((b for b in blocks if b.count > 1), key=lambda b: (b.file, b.offset)):
        first = groups[-1][0] if groups else None
        same = first and (first.file, first.count, first.stride) == (b.file, b.count, b.stride)
        if first and same and b.offset + b.nbytes <= first.offset + first.stride:
            groups[-1].append(b)
        else:
            groups.append([b])
    return groups


def _lines_intact(files: OutputFiles, group: list[WrittenBlock]) -> bool:
    """The lines are read as they lie on the disk, and each block's checksum is taken of its stretches of them."""
    first, last = group[0], group[-1]
    width = last.offset + last.nbytes - first.offset
    crcs = [0] * len(group)
    for line in range(0, first.count, step := max(1, CHUNK // first.stride)):
        n = min(step, first.count - line)
        read = files.read(first.file, first.offset + line * first.stride, (n - 1) * first.stride + width)
        for i, b in enumerate(group):
            stretches = as_strided(read[b.offset - first.offset :], (n, b.nbytes), (b.stride, 1))
            crcs[i] = ops.crc32(np.ascontiguousarray(stretches).reshape(-1), crcs[i])
    return all(crc == b.crc for crc, b in zip(crcs, group, strict=True))


class Recorder:
    """Has a thread of its own, so that no block waits for the disk.

    What does not read back as it was written is not recorded; the check at the end of the run finds it again. That
    check, which has all threads, also takes what this one has not come to when nothing is left to write.
    """

    def __init__(self, files: OutputFiles, journal: Journal, seconds: float, stopped: Callable[[], bool]) -> None:
        """seconds: between two syncs, what a crash can cost at most. stopped: True when the run is to end soon."""
        self.checked: set[int] = set()  # tensors that were read back
        self.checked_bytes = 0
        self._files = files
        self._journal = journal
        self._seconds = seconds
        self._stopped = stopped
        self._waiting: list[Entry] = []
        self._closing = False
        self._begun = time.monotonic()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="bitsmith-journal")
        self._last: Future[None] | None = None

    def add(self, entry: Entry) -> None:
        """A finished tensor. Raises UserError when the disk refused what was recorded before."""
        self._waiting.append(entry)
        busy = self._last is not None and not self._last.done()
        if not busy and time.monotonic() - self._begun > self._seconds:
            self._begin(check=True)

    def flush(self) -> None:
        """Return when everything added is safe, though not read back. Raises UserError when the disk refuses."""
        self._begin(check=False)
        self._wait()

    def close(self) -> None:
        """Like flush, then end the thread."""
        self._closing = True
        try:
            self.flush()
        finally:
            self._pool.shutdown()

    def _begin(self, check: bool) -> None:
        self._wait()
        entries, self._waiting = self._waiting, []
        self._begun = time.monotonic()
        if entries:
            self._last = self._pool.submit(self._record, entries, check)

    def _wait(self) -> None:
        if self._last is not None:
            last, self._last = self._last, None
            last.result()

    def _record(self, entries: list[Entry], check: bool) -> None:
        self._files.sync()
        if check:
            self._files.drop_cache()
            entries = [e for e in entries if self._closing or self._stopped() or self._reads_back(e)]
        with disk_errors(self._files.output):
            self._journal.append(entries)

    def _reads_back(self, entry: Entry) -> bool:
        good = intact(self._files, entry)
        if good:
            self.checked.add(entry.tensor)
            self.checked_bytes += sum(b.total for b in entry.blocks)
        return good
