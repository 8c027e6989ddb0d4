"""What a file holds on its disk: read past the copies that the system keeps in memory, where the system lets us.

That is what a check after writing is about. It is also cheaper: no page of memory is taken for bytes that are looked at
once, and what other programs have in memory stays there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

import numpy as np

ALIGNMENT = 4096  # bytes; of offsets, lengths and memory in direct reads: a page, and the largest usual sector
_REFUSED = (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)  # what file systems answer that have no direct reads


class DirectFile:
    """A file that was written and synced, read directly from its disk (Linux: O_DIRECT). Safe from any thread."""

    def __init__(self, path: Path) -> None:
        """Raises nothing: `available` says whether it can be read so."""
        self._handle: int | None = None
        self._own = threading.local()  # each thread's buffer, used again: new pages would cost more than the reading
        self.available = False
        if hasattr(os, "O_DIRECT"):
            with contextlib.suppress(OSError):
                self._handle = os.open(path, os.O_RDONLY | os.O_DIRECT)
                self.available = True

    def read(self, offset: int, nbytes: int) -> np.ndarray | None:
        """Bytes from `offset` on, uint8, fewer where the file ends; None when the file system has no direct reads.

        Good until this thread reads again. Raises OSError as a read does.
        """
        if self._handle is None or not self.available:
            return None
        before = offset % ALIGNMENT
        whole = self._buffer(-(-(before + nbytes) // ALIGNMENT) * ALIGNMENT)
        got = 0
        try:
            while got < whole.size and got % ALIGNMENT == 0:  # an odd number of bytes: the end of the file
                n = os.preadv(self._handle, [memoryview(whole)[got:]], offset - before + got)
                if n == 0:
                    break
                got += n
        except OSError as e:
            if e.errno not in _REFUSED:
                raise
            self.available = False
            return None
        return whole[before : min(got, before + nbytes)]

    def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            with contextlib.suppress(OSError):  # nothing was written through it
                os.close(handle)

    def _buffer(self, nbytes: int) -> np.ndarray:
        found: np.ndarray | None = getattr(self._own, "buffer", None)
        if found is None or found.size < nbytes:
            raw = np.empty(nbytes + ALIGNMENT, np.uint8)
            start = -raw.ctypes.data % ALIGNMENT
            found = self._own.buffer = raw[start : start + nbytes]
        return found[:nbytes]
