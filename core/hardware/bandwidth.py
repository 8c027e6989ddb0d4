"""How fast this computer reads its memory: measured once a session, in under 0.3 s."""

from __future__ import annotations

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Barrier

import numpy as np
import psutil

from core.threads import worker_count

DEFAULT_CACHE = 32 * 2**20  # last-level cache assumed when the system does not say
CACHES_READ = 4  # the array is this many times the last-level cache, so that little of it can stay there
SMALLEST, LARGEST = 64 * 2**20, 2**30
_PATIENCE = 10.0  # seconds that threads wait for each other to begin
TIME_BUDGET = 0.12  # seconds of reading; allocating and first touching the array costs about as much again


@cache
def measured_bandwidth() -> float | None:
    """Bytes/s that all cores together read from a large array, the best of a few passes; None without the memory."""
    size = array_size(last_level_cache(), int(psutil.virtual_memory().available))
    return read_bandwidth(size, worker_count()) if size else None


def array_size(cache_bytes: int, available: int) -> int:
    """Bytes to read: CACHES_READ caches between SMALLEST and LARGEST, at most a quarter of free memory, else 0."""
    size = min(max(CACHES_READ * cache_bytes, SMALLEST), LARGEST)
    return size if size <= available // 4 else 0


def read_bandwidth(size: int, threads: int, budget: float = TIME_BUDGET) -> float:
    """Bytes/s of summing `size` bytes of integers, one slice a thread, repeated for `budget` seconds; best pass.

    Integer sums are one load and one add a vector: memory is the limit from a single core on. numpy releases the
    interpreter lock while it sums. A thread's time is that of its processor, where the system counts it finely: other
    programs that run beside do not make the memory look slow.
    """
    values = np.empty(size // 8, np.int64)
    slices = np.array_split(values, max(threads, 1))
    together = Barrier(len(slices), timeout=_PATIENCE)  # a thread that read alone would find the memory faster
    with ThreadPoolExecutor(max(threads, 1)) as pool:
        for _ in pool.map(_fill, slices):  # pages that were never written would all be one page of zeros
            pass
        best, start = 0.0, time.perf_counter()
        while True:
            before = time.perf_counter()
            best = max(best, sum(pool.map(_rate, slices, [together] * len(slices))))
            now = time.perf_counter()
            if 2 * now - before - start > budget:
                return best


def _rate(values: np.ndarray, together: Barrier) -> float:
    """Bytes/s of one thread, which begins when all do; 0 where it was too short for the clock."""
    together.wait()
    before = _clock()
    np.add.reduce(values)
    seconds = _clock() - before
    return values.nbytes / seconds if seconds > 0 else 0.0


def _clock() -> float:
    return time.perf_counter() if sys.platform == "win32" else time.thread_time()  # Windows counts it in steps of 16 ms


def _fill(values: np.ndarray) -> None:
    values.fill(1)


def last_level_cache(root: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> int:
    """Bytes of the largest cache that Linux lists; DEFAULT_CACHE elsewhere."""
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    sizes = [0]
    for path in root.glob("index*/size"):
        try:
            text = path.read_text(encoding="ascii").strip()
            sizes.append(int(text.rstrip("KMG")) * units.get(text[-1:], 1))
        except (OSError, ValueError):
            continue
    return max(sizes) or DEFAULT_CACHE
