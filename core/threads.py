"""How many threads work gets, and work on pieces that come back in order."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

import psutil

from core import preferences
from core.progress import CancelToken

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 1024  # that a pool of the engine has
_POLL = 0.05  # seconds between two looks at the token


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


def aside(job: Callable[[], Result], token: CancelToken) -> Result:
    """job() on a thread of its own, for what can not be stopped. Raises what it does; Cancelled, and nobody waits."""
    done: Future[Result] = Future()

    def work() -> None:
        try:
            done.set_result(job())
        except BaseException as error:  # noqa: BLE001 - raised again where the result is asked for
            done.set_exception(error)

    token.check()
    threading.Thread(target=work, name="bitsmith-aside", daemon=True).start()
    while not done.done():
        wait((done,), _POLL)
        token.check()
    return done.result()
