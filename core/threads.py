"""How many threads work gets."""

from __future__ import annotations

import os

import psutil


def worker_count() -> int:
    """Physical cores that this process may use (affinity and containers respected); BITSMITH_THREADS overrides."""
    wanted = os.environ.get("BITSMITH_THREADS", "")
    if wanted.isdigit() and int(wanted) > 0:
        return int(wanted)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed))
