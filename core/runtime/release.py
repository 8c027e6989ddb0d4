"""Freed memory back to the system."""

from __future__ import annotations

import ctypes
import sys


def release_memory() -> None:
    """After a model was let go of: glibc keeps freed blocks of up to 32 MB, and what other threads had allocated.

    Does nothing where the C library has no such call; there, freed blocks of this size go back by themselves.
    """
    if sys.platform != "linux":
        return
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # musl
        return
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    trim(0)
