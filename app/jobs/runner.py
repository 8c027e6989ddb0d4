"""Background work. The only place in the window that starts threads.

A job is a plain function of a cancel token. It may be a generator: what it yields is progress, what it returns is the
result. All callbacks run on the GUI thread, never after their receiver is gone, and never for a job that a newer one
with the same `latest_key` has replaced.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum
from functools import partial
from typing import Any

import shiboken6
from PySide6.QtCore import QObject, Qt, QTimer, Signal

from app.jobs.importing import one_at_a_time
from app.jobs.precedence import JobToken, window_first
from app.jobs.turn_queue import TurnQueue
from core.errors import Cancelled
from core.progress import CancelToken

log = logging.getLogger(__name__)

PULL_MS = 100  # progress reaches the window at most ten times a second
# Seconds that a worker may hold the interpreter while the window waits for it; Python's own is 0.005. The window waits
# anew after nearly every call into Qt, a hundred times a picture.
SWITCH_INTERVAL = 0.0001

Work = Callable[[CancelToken], Any]


class JobState(Enum):
    """Exactly the states that a job can be in; the word is what the window shows."""

    QUEUED = "queued"
    RUNNING = "running"
    PAUSED = "paused"
    CANCELLED = "cancelled"
    FAILED = "failed"
    DONE = "done"

    @property
    def final(self) -> bool:
        return self in (JobState.CANCELLED, JobState.FAILED, JobState.DONE)


class Job:
    """A handle on submitted work. `state` is true for this very moment; callbacks follow on the GUI thread."""

    def __init__(self, number: int, name: str, lane: str, work: Work, latest_key: str | None) -> None:
        self.number = number
        self.name = name
        self.lane = lane
        self.latest_key = latest_key
        self.token = JobToken()
        self.error: BaseException | None = None
        self.stale = False  # a newer job with the same key has been submitted
        self._work: Work | None = work
        self._state = JobState.QUEUED
        self._lock = threading.Lock()
        self._kept: list[Any] = []
        self._newest: Any = None
        self._has_newest = False

    @property
    def state(self) -> JobState:
        if self.token.paused and not self._state.final:
            return JobState.PAUSED
        return self._state

    def cancel(self) -> None:
        """Ask it to stop. It ends at its next check; a queued job ends without having started."""
        self.token.cancel()

    def pause(self) -> None:
        self.token.pause()

    def resume(self) -> None:
        self.token.resume()

    def _push(self, value: Any) -> None:
        with self._lock:
            if getattr(value, "result", None) is not None:
                self._kept.append(value)
                self._has_newest = False
            else:
                self._newest, self._has_newest = value, True

    @property
    def _has_progress(self) -> bool:
        return self._has_newest or bool(self._kept)

    def _take(self) -> tuple[Any, ...]:
        with self._lock:
            values = (*self._kept, self._newest) if self._has_newest else tuple(self._kept)
            self._kept, self._newest, self._has_newest = [], None, False
        return values

    def _execute(self) -> Any:
        """Run the work on the calling thread and return its result."""
        work, self._work = self._work, None  # what the work holds, such as a model, must not outlive it in the handle
        self.token.check()
        assert work is not None
        self._state = JobState.RUNNING
        outcome = work(self.token)
        if not isinstance(outcome, Iterator):
            return outcome
        try:
            while True:
                self._push(next(outcome))
        except StopIteration as end:
            return end.value
        finally:
            close = getattr(outcome, "close", None)
            if close:
                close()


class _Lane:
    """A queue and up to `width` daemon threads that work on it; a thread starts when first needed."""

    def __init__(self, name: str, width: int, perform: Callable[[Job], None]) -> None:
        self._name, self._width, self._perform = name, width, perform
        self._queue: deque[Job] = deque()
        self._ready = threading.Condition()
        self._idle = 0
        self._closed = False
        self.threads: list[threading.Thread] = []

    def put(self, job: Job) -> None:
        with self._ready:
            self._queue.append(job)
            if len(self._queue) > self._idle and len(self.threads) < self._width:
                # Daemon threads: a native call that does not return can not keep the program from ending.
                thread = threading.Thread(target=self._loop, name=f"bitsmith-{self._name}", daemon=True)
                self.threads.append(thread)
                thread.start()
            self._ready.notify()

    def close(self) -> None:
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    def _loop(self) -> None:
        while True:
            with self._ready:
                self._idle += 1
                self._ready.wait_for(lambda: self._queue or self._closed)
                self._idle -= 1
                if not self._queue:
                    return
                job = self._queue.popleft()
            self._perform(job)


class JobRunner(QObject):
    """Runs jobs on lanes: 'serial' and 'downloads' (one after another each), 'pool' (everything else, a few at once).

    `changed(job)` follows each change of a job's state. `failed(job, exception)` follows a failure nobody handles.
    """

    changed = Signal(object)
    failed = Signal(object, object)
    _posted = Signal(object)

    def __init__(self, parent: QObject | None = None, pool_width: int = 3) -> None:
        super().__init__(parent)
        self._switch_interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_INTERVAL)
        one_at_a_time()
        self._lanes = {
            "serial": _Lane("serial", 1, self._perform),
            "pool": _Lane("pool", pool_width, self._perform),
            "downloads": _Lane("downloads", 1, self._perform),
        }
        self.turns = TurnQueue(self)
        self._numbers = itertools.count(1)
        self._latest: dict[str, Job] = {}
        self._callbacks: dict[Job, _Callbacks] = {}
        self._closed = False
        self._posted.connect(self._finish, Qt.ConnectionType.QueuedConnection)
        self._timer = QTimer(self, interval=PULL_MS)
        self._timer.timeout.connect(self._pull)

    def run(
        self,
        name: str,
        work: Work,
        on_done: Callable[[Any], object] | None = None,
        on_error: Callable[[BaseException], object] | None = None,
        on_progress: Callable[[tuple[Any, ...]], object] | None = None,
        *,
        on_cancelled: Callable[[], object] | None = None,
        lane: str = "pool",
        latest_key: str | None = None,
        owner: QObject | None = None,
    ) -> Job:
        """Submit `work(token)` and return its handle. Call from the GUI thread.

        on_progress gets, at most ten times a second, what was yielded since the last call: every value whose `result`
        is set, and the newest of the others; never an empty tuple. on_error gets the exception, mostly a UserError.
        latest_key: a newer job with the same key cancels this one and no callback of it is called any more.
        owner: callbacks are dropped, and the job cancelled, once this object is gone; bound methods of a QObject are
        guarded without it.
        """
        job = Job(next(self._numbers), name, lane, work, latest_key)
        if latest_key is not None:
            older = self._latest.get(latest_key)
            if older is not None:
                older.stale = True
                older.cancel()
            self._latest[latest_key] = job
        self._callbacks[job] = _Callbacks(on_done, on_error, on_progress, on_cancelled, owner)
        if self._closed:
            job.cancel()
        self._lanes[lane].put(job)
        if not self._timer.isActive():
            self._timer.start()
        self.changed.emit(job)
        return job

    def jobs(self, lane: str | None = None) -> list[Job]:
        """Jobs that have not been delivered yet, oldest first."""
        return [job for job in self._callbacks if lane is None or job.lane == lane]

    def discard(self, latest_key: str) -> None:
        """Cancel the job with this key; its result, finished or not, is not delivered."""
        job = self._latest.pop(latest_key, None)
        if job is not None:
            job.stale = True
            job.cancel()

    def shutdown(self, timeout: float = 3.0) -> bool:
        """Cancel everything and wait up to `timeout` seconds in all. True when every thread has ended."""
        self._closed = True
        self._timer.stop()
        for job in list(self._callbacks):
            job.stale = True
            job.cancel()
        deadline = time.monotonic() + timeout
        for lane in self._lanes.values():
            lane.close()
        threads = [thread for lane in self._lanes.values() for thread in lane.threads]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        sys.setswitchinterval(self._switch_interval)
        return not any(thread.is_alive() for thread in threads)

    def _perform(self, job: Job) -> None:
        """On a worker thread: run the job and post its end to the GUI thread."""
        result: Any = None
        try:
            result = job._execute()
            job._state = JobState.DONE
        except Cancelled:
            job._state = JobState.CANCELLED
        except BaseException as error:  # noqa: BLE001 - whatever ends the work is told on the GUI thread
            job.error = error
            job._state = JobState.FAILED
        if shiboken6.isValid(self):
            self._posted.emit((job, result))

    def _pull(self) -> None:
        for job, callbacks in list(self._callbacks.items()):
            if callbacks.owner_gone:
                job.cancel()
            if callbacks.on_progress is not None and job._has_progress:
                self.turns.ask((job, "progress"), partial(self._deliver_progress, job))
        if not self._callbacks:
            self._timer.stop()

    def _deliver_progress(self, job: Job) -> bool:
        callbacks = self._callbacks.get(job)
        if job.stale or callbacks is None or callbacks.on_progress is None:
            return False
        values = job._take()
        if values:
            with window_first:
                callbacks.call(callbacks.on_progress, values)
        return bool(values)

    def _finish(self, outcome: tuple[Job, Any]) -> None:
        """The last progress, then, in a turn of its own, the end."""
        job, result = outcome
        if self._deliver_progress(job):
            self.turns.ask((job, "end"), partial(self._end, job, result))
        else:
            self._end(job, result)

    def _end(self, job: Job, result: Any) -> None:
        with window_first:
            self._deliver_end(job, result)

    def _deliver_end(self, job: Job, result: Any) -> None:
        callbacks = self._callbacks.get(job)
        if callbacks is None:
            return
        del self._callbacks[job]
        if job.latest_key is not None and self._latest.get(job.latest_key) is job:
            del self._latest[job.latest_key]
        self.changed.emit(job)
        if job.stale:
            return
        if job.state is JobState.DONE:
            callbacks.call(callbacks.on_done, result)
        elif job.state is JobState.CANCELLED:
            callbacks.call(callbacks.on_cancelled)
        elif job.error is not None:
            log.info("job %s failed", job.name, exc_info=job.error)
            if callbacks.on_error is None:
                self.failed.emit(job, job.error)
            else:
                callbacks.call(callbacks.on_error, job.error)


class _Callbacks:
    """What a job calls on the GUI thread, dropped when the receiver is gone."""

    def __init__(
        self,
        on_done: Callable[[Any], object] | None,
        on_error: Callable[[BaseException], object] | None,
        on_progress: Callable[[tuple[Any, ...]], object] | None,
        on_cancelled: Callable[[], object] | None,
        owner: QObject | None,
    ) -> None:
        self.on_done, self.on_error, self.on_progress, self.on_cancelled = on_done, on_error, on_progress, on_cancelled
        self._owner = owner

    @property
    def owner_gone(self) -> bool:
        return self._owner is not None and not shiboken6.isValid(self._owner)

    def call(self, function: Callable[..., object] | None, *arguments: Any) -> None:
        if function is None or self.owner_gone:
            return
        receiver = getattr(function, "__self__", None)
        if isinstance(receiver, QObject) and not shiboken6.isValid(receiver):
            return
        function(*arguments)
