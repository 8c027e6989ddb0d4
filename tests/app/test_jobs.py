"""Background work: lanes, newest wins, cancelling, progress, receivers that are gone, shutting down."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import shiboken6
from PySide6.QtCore import QObject, QThread, QTimer
from PySide6.QtWidgets import QApplication

from app.jobs import Job, JobRunner, JobState
from app.jobs.precedence import LONGEST, JobToken, window_first
from core.errors import UserError
from core.progress import CancelToken


@pytest.fixture
def jobs(qapp: QApplication) -> Iterator[JobRunner]:
    runner = JobRunner()
    yield runner
    assert runner.shutdown(5.0)


def wait_for(event: threading.Event) -> None:
    assert event.wait(5.0)


def until_cancelled(token: CancelToken) -> None:
    while True:
        token.check()
        time.sleep(0.002)


@dataclass(frozen=True)
class Step:
    number: int
    result: str | None = None


def test_result_arrives_on_the_gui_thread(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    seen: list[Any] = []
    job = jobs.run("sum", lambda _token: 2 + 3, lambda value: seen.append((value, QThread.currentThread())))
    qtbot.waitUntil(lambda: bool(seen))
    assert seen == [(5, QApplication.instance().thread())]
    assert job.state is JobState.DONE
    assert not jobs.jobs()


def test_error_reaches_its_receiver_or_the_runner(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    def fail(_token: CancelToken) -> None:
        raise UserError("The disk is full.", "Free 2 GB.")

    seen: list[BaseException] = []
    job = jobs.run("fail", fail, on_error=seen.append)
    qtbot.waitUntil(lambda: bool(seen))
    assert isinstance(seen[0], UserError)
    assert job.state is JobState.FAILED
    with qtbot.waitSignal(jobs.failed) as signal:
        jobs.run("fail", fail)
    assert str(signal.args[1]) == "The disk is full. Free 2 GB."


def test_older_result_never_overwrites_a_newer_one(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    started, release = threading.Event(), threading.Event()
    shown: list[str] = []

    def slow(_token: CancelToken) -> str:
        started.set()
        wait_for(release)
        return "old"

    first = jobs.run("old", slow, shown.append, latest_key="preview")
    wait_for(started)
    jobs.run("new", lambda _token: "new", shown.append, latest_key="preview")
    qtbot.waitUntil(lambda: shown == ["new"])
    release.set()
    qtbot.waitUntil(lambda: first not in jobs.jobs())
    assert shown == ["new"]
    assert first.token.cancelled


def test_result_that_waits_for_delivery_is_dropped_too(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    shown: list[str] = []
    first = jobs.run("old", lambda _token: "old", shown.append, latest_key="plan")
    while first.state is not JobState.DONE:
        time.sleep(0.001)  # done on its thread; the event loop has not run yet
    jobs.run("new", lambda _token: "new", shown.append, latest_key="plan")
    qtbot.waitUntil(lambda: bool(shown) and not jobs.jobs())
    assert shown == ["new"]


def test_discard_drops_without_a_successor(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    shown: list[object] = []
    jobs.run("gone", lambda _token: 1, shown.append, latest_key="preview")
    jobs.discard("preview")
    qtbot.waitUntil(lambda: not jobs.jobs())
    assert not shown


def test_cancel_ends_running_and_queued_jobs(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    cancelled: list[str] = []
    running = jobs.run("a", until_cancelled, lane="serial", on_cancelled=lambda: cancelled.append("a"))
    queued = jobs.run("b", until_cancelled, lane="serial", on_cancelled=lambda: cancelled.append("b"))
    qtbot.waitUntil(lambda: running.state is JobState.RUNNING)
    assert queued.state is JobState.QUEUED
    queued.cancel()
    running.cancel()
    qtbot.waitUntil(lambda: cancelled == ["a", "b"])
    assert running.state is queued.state is JobState.CANCELLED


def test_serial_lane_runs_one_at_a_time(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    active, most, done = [0], [0], []

    def work(_token: CancelToken) -> None:
        active[0] += 1
        most[0] = max(most[0], active[0])
        time.sleep(0.01)
        active[0] -= 1

    for _ in range(5):
        jobs.run("one", work, done.append, lane="serial")
    qtbot.waitUntil(lambda: len(done) == 5)
    assert most == [1]


def test_pause_and_resume(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    steps: list[int] = []
    done: list[object] = []

    def work(token: CancelToken) -> None:
        for number in range(20):
            token.check()
            steps.append(number)
            time.sleep(0.005)

    job = jobs.run("count", work, done.append)
    qtbot.waitUntil(lambda: len(steps) > 2)
    job.pause()
    qtbot.wait(30)
    assert job.state is JobState.PAUSED
    held = len(steps)
    qtbot.wait(50)
    assert len(steps) == held < 20
    job.resume()
    qtbot.waitUntil(lambda: bool(done))
    assert len(steps) == 20


def test_progress_is_at_most_ten_a_second_and_keeps_every_result(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    calls: list[tuple[float, tuple[Step, ...]]] = []
    done: list[str] = []

    def work(_token: CancelToken) -> Iterator[Step]:
        for number in range(300):
            yield Step(number, f"tensor {number}" if number % 50 == 0 else None)
            time.sleep(0.002)
        return "end"

    jobs.run("convert", work, done.append, on_progress=lambda values: calls.append((time.monotonic(), values)))
    qtbot.waitUntil(lambda: done == ["end"], timeout=10_000)
    seconds = max(calls[-1][0] - calls[0][0], 0.1)
    assert len(calls) <= seconds * 10 + 3
    values = [value for _, batch in calls for value in batch]
    assert [v.result for v in values if v.result] == [f"tensor {n}" for n in range(0, 300, 50)]
    assert [v.number for v in values] == sorted(v.number for v in values)
    assert values[-1].number == 299


def test_nothing_reaches_an_object_that_is_gone(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    class Page(QObject):
        def show(self, _value: object) -> None:
            raise AssertionError("a closed page was called")

    release = threading.Event()
    for owned in (True, False):
        page = Page()
        if owned:
            jobs.run("late", lambda _t: wait_for(release), lambda _v: pytest.fail("called"), owner=page)
        else:
            jobs.run("late", lambda _t: wait_for(release), page.show)
        page.deleteLater()
    qtbot.wait(20)
    release.set()
    qtbot.waitUntil(lambda: not jobs.jobs())


def test_job_of_an_owner_that_is_gone_is_cancelled(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    page = QObject()
    job = jobs.run("endless", until_cancelled, owner=page)
    page.deleteLater()
    qtbot.waitUntil(lambda: job.state is JobState.CANCELLED)


def test_a_finished_job_holds_nothing_of_its_work(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    class Model:
        pass

    model = Model()
    watched = weakref.ref(model)
    page = QObject()
    job = jobs.run("read", lambda _token, model=model: None, lambda _value, model=model: None, owner=page)
    del model
    qtbot.waitUntil(lambda: not jobs.jobs())
    qtbot.waitUntil(lambda: watched() is None)
    assert job.state is JobState.DONE


def test_shutdown_is_bounded_and_silent(qapp: QApplication, qtbot) -> None:  # type: ignore[no-untyped-def]
    runner = JobRunner()
    release = threading.Event()
    called: list[object] = []
    runner.run("stubborn", lambda _t: release.wait(10), called.append, called.append)
    runner.run("polite", until_cancelled, called.append, called.append, lane="serial")
    begun = time.monotonic()
    assert not runner.shutdown(0.3)
    assert time.monotonic() - begun < 2
    release.set()
    assert runner.shutdown(5)
    qtbot.wait(20)
    assert not called


def test_states_are_the_six_words() -> None:
    assert {state.value for state in JobState} == {"queued", "running", "paused", "cancelled", "failed", "done"}


def test_event_loop_runs_on_beside_python_work(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    def busy(token: CancelToken) -> None:
        total = 0
        while True:
            token.check()
            total += sum(range(2000))

    workers: list[Job] = [jobs.run("busy", busy) for _ in range(2)]
    gaps = _gaps(lambda: qtbot.wait(400))
    for job in workers:
        job.cancel()
    qtbot.waitUntil(lambda: not jobs.jobs())
    gaps.sort()
    assert gaps[len(gaps) * 9 // 10] < 0.05, gaps[-5:]


def _gaps(run: Callable[[], None]) -> list[float]:
    """Seconds between ticks of a 5 ms timer while `run` turns the event loop."""
    from PySide6.QtCore import QTimer

    ticks: list[float] = []
    timer = QTimer()
    timer.timeout.connect(lambda: ticks.append(time.monotonic()))
    timer.start(5)
    run()
    timer.stop()
    return [b - a for a, b in pairwise(ticks)]


def test_work_holds_while_the_window_is_busy_but_not_for_long() -> None:
    stop, checks = threading.Event(), [0]

    def work() -> None:
        token = JobToken()
        while not stop.is_set():
            token.check()
            checks[0] += 1

    def made(seconds: float) -> int:
        before = checks[0]
        time.sleep(seconds)
        return checks[0] - before

    worker = threading.Thread(target=work)
    worker.start()
    try:
        with window_first:
            time.sleep(0.01)  # whoever has just looked goes on until the next check
            with window_first:
                pass
            held = made(LONGEST / 2)
            time.sleep(LONGEST)
            let_go = made(LONGEST)
        free = made(LONGEST)
    finally:
        stop.set()
        worker.join()
    assert held <= 1
    assert let_go > 1
    assert free > 1


def test_window_does_one_thing_a_turn(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    class Receiver(QObject):
        def hear(self) -> None:
            done.append("gone")

    done: list[Any] = []
    gone = Receiver()
    jobs.turns.ask("first", lambda: done.append("stale"))
    jobs.turns.ask("gone", gone.hear)
    jobs.turns.ask("second", lambda: done.append("second"))
    jobs.turns.ask("first", lambda: done.append("first"))
    shiboken6.delete(gone)
    QTimer.singleShot(0, lambda: done.append("between"))
    QApplication.processEvents()
    assert "second" not in done
    qtbot.waitUntil(lambda: "second" in done)
    assert [word for word in done if word != "between"] == ["first", "second"]
    qtbot.wait(20)
    assert len(done) == 3


def test_last_progress_and_end_come_in_turns_of_their_own(jobs: JobRunner, qtbot) -> None:  # type: ignore[no-untyped-def]
    def work(_token: CancelToken) -> Iterator[Step]:
        yield Step(1, "result")
        return "end"

    heard: list[Any] = []
    turn = [0]
    beat = QTimer(interval=0)
    beat.timeout.connect(lambda: turn.__setitem__(0, turn[0] + 1))
    beat.start()
    jobs.run(
        "work", work, lambda end: heard.append((end, turn[0])), None, lambda v: heard.append((v[0].result, turn[0]))
    )
    qtbot.waitUntil(lambda: len(heard) == 2)
    assert [word for word, _ in heard] == ["result", "end"]
    assert heard[0][1] < heard[1][1]
