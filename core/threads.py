"""How many threads work gets, and work on pieces that come back in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import psutil

from core import preferences
from core.progress import CancelToken

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 1024  # that a pool of the engine has


def worker_count() -> int:
    """Physical cores that this process may use (affinity and containers respected), or what BITSMITH_THREADS, else the
    settings, say.

    At most MAX_THREADS.
    """
    wanted = os.environ.get("BITSMITH_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return min(int(wanted), MAX_THREADS)
    if preferences.current().threads:
        return min(preferences.current().threads, MAX_THREADS)
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(psutil.cpu_count(logical=False) or allowed, allowed, MAX_THREADS))


@contextmanager
def whole_products() -> Iterator[None]:
    """numpy's products each on one thread, for work that runs several of them side by side.

    Its own threads spin for some milliseconds after each product in the hope of another: of short ones, and with work
    in between, that was a sixth of a calibration's processor time.
    """
    import threadpoolctl

    with threadpoolctl.threadpool_limits(limits=1, user_api="blas"):
        yield


def in_parallel(
    work: Callable[[Item], Result], items: Iterable[Item], token: CancelToken
) -> Generator[Result, None, None]:
    """work(item) for each, on all physical cores, in order; few are in flight. Raises what work does, Cancelled."""
    threads = worker_count()
    waiting: deque[Future[Result]] = deque()
    with ThreadPoolExecutor(threads, thread_name_prefix="bitsmith") as pool:
        try:
            for item in items:
                token.check()
                waiting.append(pool.submit(work, item))
                while len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                token.check()
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
