"""The queue of conversions: what waits, what runs, what became of it. One after another, on the serial lane."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from PySide6.QtCore import QObject, Signal

from app.jobs.convert import Order, Planned, convert_work, discard_work
from app.jobs.convert_rate import RateMeter
from app.jobs.runner import Job, JobRunner, JobState
from app.models.tensors import TensorRun
from core import journal
from core.progress import CancelToken, Progress, TensorResult
from core.recipe import Recipe

if TYPE_CHECKING:
    from app.settings import Settings
    from core.plan import Plan

UNFINISHED = "convert/unfinished"  # settings key: orders that have not ended, so that they can go on after a crash


@dataclass(eq=False)
class Entry:
    """One conversion, on the GUI thread only. rows: one TensorRun a tensor, in the plan's order.

    plan: None until it is known.
    """

    number: int
    order: Order
    state: JobState = JobState.QUEUED
    plan: Plan | None = None
    rows: list[TensorRun] = field(default_factory=list)
    progress: Progress | None = None
    meter: RateMeter = field(default_factory=RateMeter)
    resumed: bool = False
    result: Any = None  # core.run.RunResult
    error: BaseException | None = None
    newest: int | None = None  # row of the tensor that was finished last
    job: Job | None = None
    memory: int = 0
    verified: int = 0  # tensors read back so far
    stopping: bool = False  # asked to stop, still in its present block
    index: dict[str, int] = field(default_factory=dict)
    touched: list[int] = field(default_factory=list)  # rows that have changed and are still to be told

    @property
    def title(self) -> str:
        return self.order.output.name

    @property
    def share(self) -> float:
        """Share done, 0…1; below 1 until the file stands under its final name."""
        if self.state is JobState.DONE:
            return 1.0
        p = self.progress
        return min(p.share, 0.99) if p is not None else 0.0

    @property
    def pending(self) -> bool:
        return not self.state.final

    @property
    def resumable(self) -> bool:
        """It has ended without a result and can go on."""
        return self.state in (JobState.CANCELLED, JobState.FAILED)


class ConversionQueue(QObject):
    """Holds the entries, newest last. added(entry); changed(entry): state or numbers; tensors_changed(entry, rows)."""

    added = Signal(object)
    changed = Signal(object)
    removed = Signal(object)
    planned = Signal(object)
    tensors_changed = Signal(object, object)

    def __init__(self, runner: JobRunner, settings: Settings) -> None:
        super().__init__(runner)
        self._runner = runner
        self._settings = settings
        self._next = 1
        self.entries: list[Entry] = []
        self.told = False  # whether the window has said that some of an earlier session can go on
        self._unsaved = ""
        self._writing = threading.Lock()
        self._process = psutil.Process()
        self._load_unfinished()

    @staticmethod
    def of(runner: JobRunner, settings: Settings) -> ConversionQueue:
        """The one queue of a runner, made when first asked for; every page gets the same."""
        found = runner.findChild(ConversionQueue)
        return found if found is not None else ConversionQueue(runner, settings)

    @property
    def pending(self) -> list[Entry]:
        return [e for e in self.entries if e.pending]

    # ---- what a page can ask for -----------------------------------------------------------------------------------

    def add(self, order: Order) -> Entry:
        """Append an order; it starts as soon as the ones before it have ended."""
        old = next((e for e in self.entries if e.order.output == order.output and not e.pending), None)
        if old is not None:
            self.remove(old)
        entry = Entry(self._next, order)
        self._next += 1
        if order.plan is not None:
            self._set_plan(entry, order.plan)
        self.entries.append(entry)
        self.added.emit(entry)
        self._submit(entry)
        return entry

    def pause(self, entry: Entry) -> None:
        if entry.job is not None and entry.state is JobState.RUNNING:
            entry.job.pause()
            entry.meter.pause()
            self._set_state(entry, JobState.PAUSED)

    def resume(self, entry: Entry) -> None:
        """Go on: a paused entry at once, a cancelled or failed one from where its unfinished file stands."""
        if entry.state is JobState.PAUSED and entry.job is not None:
            entry.job.resume()
            entry.meter.resume()
            self._set_state(entry, JobState.RUNNING)
        elif entry.resumable:
            self._again(entry, resume=True)

    def start_anew(self, entry: Entry) -> None:
        """Run an ended entry from its beginning; what is kept of any run of that name is deleted."""
        if entry.resumable:
            self._again(entry, resume=False)

    def _again(self, entry: Entry, *, resume: bool) -> None:
        entry.order = replace(entry.order, resume=resume)
        entry.error = None
        entry.progress = None
        entry.stopping = False
        entry.meter = RateMeter()
        if entry.plan is not None:
            self._set_plan(entry, entry.plan)
        self._submit(entry)

    def cancel(self, entry: Entry) -> None:
        """Stop. The unfinished file stays, so that `resume` can go on; nothing exists under the final name."""
        if not entry.pending or entry.job is None:
            return
        entry.job.cancel()
        entry.stopping = True
        # A queued job is asked when its turn comes; its row says at once what will happen.
        if entry.state is JobState.QUEUED:
            entry.job.stale = True
            self._end(entry, JobState.CANCELLED)
        else:
            self._tell(entry)

    def remove(self, entry: Entry) -> None:
        """Take an ended entry off the list. Files stay as they are."""
        if not entry.pending and entry in self.entries:
            self.entries.remove(entry)
            self._save_unfinished()
            self.removed.emit(entry)

    def discard(self, entry: Entry) -> None:
        """Take a conversion that has not ended well off the list, and delete what it has left for going on."""
        if entry.resumable:
            self._runner.run(
                f"discard {entry.title}", discard_work(entry.order.output),
                on_done=lambda _none, e=entry: self.remove(e),
                on_error=lambda error, e=entry: self._on_error(e, error), owner=self,
            )  # fmt: skip

    # ---- the job's life --------------------------------------------------------------------------------------------

    def _submit(self, entry: Entry) -> None:
        job = self._runner.run(
            f"convert {entry.title}",
            convert_work(entry.order),
            on_done=lambda result, e=entry: self._on_done(e, result),
            on_error=lambda error, e=entry: self._on_error(e, error),
            on_progress=lambda values, e=entry: self._on_progress(e, values),
            on_cancelled=lambda e=entry: self._end(e, JobState.CANCELLED),
            lane="serial",
            owner=self,
        )
        entry.job = job
        self._set_state(entry, JobState.QUEUED)
        self._save_unfinished()

    def _on_progress(self, entry: Entry, values: tuple[Any, ...]) -> None:
        if entry.state is JobState.QUEUED:
            entry.state = JobState.RUNNING
        newest = None
        for value in values:
            if isinstance(value, Planned):
                entry.resumed = value.resumed
                entry.meter.begin(time.monotonic(), value.resumed)
                if value.plan is not entry.plan:
                    self._set_plan(entry, value.plan)
                for finished in value.finished:
                    self._take_result(entry, finished)
            elif isinstance(value, Progress):
                newest = value
                if value.result is not None:
                    self._take_result(entry, value.result)
        if newest is not None:
            self._take(entry, newest)
        entry.memory = self._process.memory_info().rss
        self._tell(entry)

    def _take(self, entry: Entry, p: Progress) -> None:
        entry.progress = p
        entry.meter.take(p.bytes_done, p.share, time.monotonic())
        if p.phase == "verifying":
            self._mark_verified(entry, p.tensor_index + 1)

    def _take_result(self, entry: Entry, result: TensorResult) -> None:
        row = entry.index.get(result.name)
        if row is not None:
            name, form, size = entry.rows[row][:3]
            entry.rows[row] = TensorRun(name, form, size, "written", result)
            entry.newest = row
            entry.touched.append(row)

    def _mark_verified(self, entry: Entry, count: int) -> None:
        """The first `count` tensors have been read back and are what was written."""
        for row in range(entry.verified, min(count, len(entry.rows))):
            entry.rows[row] = entry.rows[row]._replace(state="verified")
            entry.touched.append(row)
        entry.verified = max(entry.verified, count)

    def _on_done(self, entry: Entry, result: Any) -> None:
        entry.result = result
        for finished in result.tensors:
            row = entry.index.get(finished.name)
            if row is not None and entry.rows[row].result is None:
                self._take_result(entry, finished)
        self._mark_verified(entry, len(entry.rows))
        self._end(entry, JobState.DONE)

    def _on_error(self, entry: Entry, error: BaseException) -> None:
        entry.error = error
        self._end(entry, JobState.FAILED)

    def _end(self, entry: Entry, state: JobState) -> None:
        entry.meter.pause()
        entry.stopping = False
        if state is not JobState.DONE:
            self._mark_unwritten(entry)
        self._set_state(entry, state)
        self._save_unfinished()

    def _mark_unwritten(self, entry: Entry) -> None:
        for number, row in enumerate(entry.rows):
            if row.result is None:
                entry.rows[number] = row._replace(state="not written")
                entry.touched.append(number)

    def _set_state(self, entry: Entry, state: JobState) -> None:
        entry.state = state
        self._tell(entry)

    def _tell(self, entry: Entry) -> None:
        if entry.touched:
            rows, entry.touched = entry.touched, []
            self.tensors_changed.emit(entry, rows)
        self.changed.emit(entry)

    def _set_plan(self, entry: Entry, plan: Plan) -> None:
        entry.plan = plan
        entry.newest = None
        entry.verified = 0
        entry.touched = []
        entry.rows = [TensorRun(t.name, t.format_name, t.bytes.total) for t in plan.tensors]
        entry.index = {t.name: i for i, t in enumerate(plan.tensors)}
        self.planned.emit(entry)

    # ---- after a crash ---------------------------------------------------------------------------------------------

    def _save_unfinished(self) -> None:
        orders = [
            {"source": str(e.order.source), "output": str(e.order.output), "recipe": e.order.recipe.to_json()}
            for e in self.entries
            if e.state is not JobState.DONE
        ]
        self._unsaved = json.dumps(orders)
        self._runner.run("remember conversions", self._write_unfinished)

    def _write_unfinished(self, _token: CancelToken) -> None:
        with self._writing:  # whoever comes last writes the newest
            self._settings.write_through(UNFINISHED, self._unsaved)

    def _load_unfinished(self) -> None:
        """Conversions of an earlier session that have not ended stand in the list as cancelled, ready to go on."""
        try:
            saved = json.loads(self._settings.text(UNFINISHED, "[]"))
            orders = [Order(Path(o["source"]), Recipe.from_json(o["recipe"]), Path(o["output"])) for o in saved]
        except Exception:  # noqa: BLE001 - a damaged settings file costs the list, not the start of the program
            return
        for order in orders:
            if order.source.exists() and journal.journal_path(order.output).exists():
                self.entries.append(Entry(self._next, order, state=JobState.CANCELLED))
                self._next += 1
