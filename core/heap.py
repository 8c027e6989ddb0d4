"""Memory that large arrays leave behind stays with the process while one job makes as many again.

The C library of Linux gives every freed array of some megabytes back to the system, and the next one of that size is
new pages, each cleared and mapped as it is first touched: half of a conversion's processor time.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from functools import cache
from typing import Any

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGEST_MMAP_THRESHOLD = 32 << 20  # what glibc accepts on 64 bits
_KEPT = 256 << 20  # free memory that one thread's heap may keep


@cache
def _c_library() -> Any:
    """glibc, or None where another C library has no such settings."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None


@cache
def keep() -> bool:
    """From now on freed arrays of up to 32 MB are used again. True where this C library can do it."""
    with contextlib.suppress(OSError, AttributeError):
        if library := _c_library():
            kept = library.mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD)
            # Heaps of other threads give back what exceeds 64 MB whatever is asked of them, so all share the first.
            library.mallopt(_ARENA_MAX, 1)
            return bool(kept and library.mallopt(_TRIM_THRESHOLD, _KEPT))
    return False


def give_back() -> None:
    """Return to the system what lies free, at the end of a job."""
    with contextlib.suppress(OSError, AttributeError):
        if library := _c_library():
            library.malloc_trim(0)
