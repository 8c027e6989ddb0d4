"""How many threads work gets."""

from __future__ import annotations

import os

import psutil

MAX_THREADS = 1024  # that a pool of the engine has


def worker_count() -> int:
    """Physical cores that this process may use (affinity and containers respected); BITSMITH_THREADS overrides.

    At most MAX_THREADS.
    """
    wanted = os.environ.get("BITSMITH_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return min(int(wanted), MAX_THREADS)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed, MAX_THREADS))
