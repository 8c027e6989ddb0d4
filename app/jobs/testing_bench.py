"""The two files under test: loaded, asked, measured, unloaded. One job at a time; the page shows and asks."""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from PySide6.QtCore import QCoreApplication, QObject, Signal

from app.jobs.convert_queue import ConversionQueue
from app.jobs.runner import Job, JobRunner, JobState
from app.jobs.testing import (
    SIDES,
    Answered,
    Backend,
    DeviceMemory,
    Devices,
    LoadStep,
    Measured,
    Piece,
    Point,
    Question,
    Setup,
    SweepOrder,
)
from app.jobs.testing_cache import CacheOrder, CacheStep, cache_work
from app.jobs.testing_quality import QualityOrder, QualityStep, quality_work
from app.jobs.testing_work import (
    Asking,
    Failed,
    Loaded,
    Wanted,
    answer_work,
    close_work,
    devices_work,
    history_work,
    load_work,
    memory_work,
    sweep_work,
)
from app.models.answers import Comparison
from app.session import Session
from core.runtime.logits import LogitDifference
from core.runtime.results import StoredResult
from core.runtime.sweep import SIDE_NAMES, Sweep

HISTORY_KEY = "test-history"
DEVICES_KEY, MEMORY_KEY = "test-devices", "test-memory"
CPU = "cpu"


class SlotState(Enum):
    """What a column says about its file."""

    EMPTY = "no file"
    CHOSEN = "not loaded"
    LOADING = "loading"
    LOADED = "loaded"
    FAILED = "failed"


@dataclass(eq=False)
class Slot:
    """One column. pinned: chosen by hand, so the session leaves it alone. waiting: its turn has not come yet."""

    side: int
    path: Path | None = None
    pinned: bool = False
    state: SlotState = SlotState.EMPTY
    share: float = 0.0
    model: Any = None
    setup: Setup | None = None
    device: str = "cpu"
    cache: str = ""  # text of a CacheScheme; '': the file's own
    memory: DeviceMemory | None = None
    error: BaseException | None = None
    pieces: list[Piece] = field(default_factory=list)
    measured: Measured | None = None
    waiting: bool = False

    @property
    def title(self) -> str:
        return SIDES[self.side]


class Bench(QObject):
    """Follows the session. slot_changed(side): file, state or progress. asked(): the old answers are gone.
    pieces_added(side, pieces), answered(side): the answer grows, is whole. ended(state): the job is over.
    devices_changed(): the GPUs are known. memory_changed(side): what its device's driver says.
    busy_changed(): `busy` is 'loading', 'generating', 'sweeping', 'judging', 'caching' or ''.
    swept(sweep): points so far, or all.
    quality_asked(order), quality_step(step), judged(evaluation), judge_failed(error): of a measurement of quality.
    caches_asked(order), cache_step(step), caches_compared(found), caches_failed(error): the same of caches.
    """

    slot_changed = Signal(int)
    asked = Signal()
    pieces_added = Signal(int, object)
    answered = Signal(int)
    ended = Signal(object)
    busy_changed = Signal()
    swept = Signal(object)
    sweep_failed = Signal(object)
    quality_asked = Signal(object)
    quality_step = Signal(object)
    judged = Signal(object)
    judge_failed = Signal(object)
    caches_asked = Signal(object)
    cache_step = Signal(object)
    caches_compared = Signal(object)
    caches_failed = Signal(object)
    history_changed = Signal(object)
    devices_changed = Signal()
    memory_changed = Signal(int)

    def __init__(self, backend: Backend, jobs: JobRunner, queue: ConversionQueue, parent: QObject) -> None:
        super().__init__(parent)
        self.backend = backend
        self._jobs = jobs
        self._queue = queue
        self._job: Job | None = None
        self.slots = (Slot(0), Slot(1))
        self.busy = ""
        self.stopping = False
        self.comparison: Comparison | None = None
        self.slower = ""  # why the quantized file is, if it is
        self.question: Question | None = None
        self.disturbed = ""
        self.sweep: Sweep | None = None
        self.partial = Sweep("", SIDE_NAMES, ())
        self.arithmetic = "fast"
        self.context = 2048
        self.fallback = False
        self.devices: Devices | None = None  # not known yet
        self.logits: LogitDifference | None = None
        app = QCoreApplication.instance()
        if app is not None:
            app.aboutToQuit.connect(self._let_go)

    # ---- which files -----------------------------------------------------------------------------------------------

    def follow(self, session: Session) -> None:
        """Fill the columns that nobody has filled by hand: the opened model, and the last finished conversion."""
        if self.busy:
            return
        done = next((e for e in reversed(self._queue.entries) if e.state is JobState.DONE), None)
        opened = session.checkpoint.path if session.checkpoint is not None else None
        source, result = opened, None
        if done is not None:
            if opened in (None, done.order.output):
                source = done.order.source
            result = done.order.output
        for side, path in enumerate((source, result)):
            slot = self.slots[side]
            if not slot.pinned and path is not None and path != slot.path and path.exists():
                self._set_path(slot, path)

    def take(self, source: Path, result: Path) -> None:
        """Take both files, until another conversion ends or others are chosen."""
        if self.busy:
            return
        for slot, path in zip(self.slots, (source, result), strict=True):
            slot.pinned = False
            if path != slot.path and path.exists():
                self._set_path(slot, path)

    def choose(self, side: int, path: Path) -> None:
        """Take this file for a column."""
        slot = self.slots[side]
        if self.busy:
            return
        slot.pinned = True
        self._set_path(slot, path)

    def _set_path(self, slot: Slot, path: Path) -> None:
        self._drop(slot)
        slot.path, slot.state, slot.error = path, SlotState.CHOSEN, None
        slot.pieces, slot.measured, self.comparison, self.slower, self.logits = [], None, None, "", None
        self.slot_changed.emit(slot.side)
        self.asked.emit()

    def place(self, side: int, device: str) -> None:
        """Run a column's file there from now on; a loaded one is let go of when it is asked the next time."""
        if not self.busy and self.slots[side].device != device:
            self.slots[side].device = device
            self.slot_changed.emit(side)

    def keep(self, side: int, cache: str) -> None:
        """Keep a column's keys and values in this scheme from now on, in the same way."""
        if not self.busy and self.slots[side].cache != cache:
            self.slots[side].cache = cache
            self.slot_changed.emit(side)

    def look_for_devices(self) -> None:
        """Once; torch takes seconds to say which GPUs there are."""
        if self.devices is None:
            self._jobs.run(
                "Look for GPUs", devices_work(self.backend), self._on_devices, self._on_no_devices,
                latest_key=DEVICES_KEY, owner=self,
            )  # fmt: skip

    def look_at_memory(self, side: int) -> None:
        """Ask the driver of a column's device."""
        slot = self.slots[side]
        if slot.model is None or slot.setup is None or slot.setup.device == CPU:
            slot.memory = None
            self.memory_changed.emit(side)
            return
        self._jobs.run(
            "Ask the driver", memory_work(slot.model), partial(self._on_memory, side), lambda _error: None,
            latest_key=f"{MEMORY_KEY}-{side}", owner=self,
        )  # fmt: skip

    def _on_devices(self, devices: Devices) -> None:
        self.devices = devices
        self.devices_changed.emit()

    def _on_no_devices(self, error: BaseException) -> None:
        self._on_devices(Devices((), f"looking for one has failed ({error})"))

    def _on_memory(self, side: int, memory: DeviceMemory | None) -> None:
        self.slots[side].memory = memory
        self.memory_changed.emit(side)

    @property
    def paths(self) -> tuple[Path | None, Path | None]:
        return self.slots[0].path, self.slots[1].path

    @property
    def ready(self) -> list[Slot]:
        """Columns with a file."""
        return [slot for slot in self.slots if slot.path is not None]

    # ---- load and unload -------------------------------------------------------------------------------------------

    def load(self, side: int) -> None:
        """Read one file into memory."""
        slot = self.slots[side]
        if slot.path is not None and not self.busy:
            self._start("loading", f"Load {slot.path.name}", load_work(self.backend, [self._wanted(slot)]))

    def unload(self, side: int) -> None:
        """Give one file's memory back."""
        slot = self.slots[side]
        if slot.model is not None and not self.busy:
            self._drop(slot)
            slot.state = SlotState.CHOSEN
            self.slot_changed.emit(side)

    def _drop(self, slot: Slot) -> None:
        if slot.model is not None:
            model, slot.model, slot.setup = slot.model, None, None
            self.look_at_memory(slot.side)
            self._jobs.run(f"Unload {slot.title}", close_work([model]))

    def _let_go(self) -> None:
        """The program ends: models go before the interpreter does."""
        for slot in self.slots:
            if slot.model is not None:
                slot.model.close()
                slot.model = None

    def _wanted(self, slot: Slot) -> Wanted:
        assert slot.path is not None
        gpu = slot.device != CPU
        setup = Setup(slot.path, self.arithmetic, self.context, slot.device, gpu and self.fallback, slot.cache)
        if slot.model is not None and slot.setup == setup:
            return Wanted(slot.side, setup, slot.model)
        stale, slot.model, slot.setup = slot.model, None, None
        slot.state, slot.share, slot.error = SlotState.LOADING, -1.0, None
        self.slot_changed.emit(slot.side)
        return Wanted(slot.side, setup, None, stale)

    # ---- generate --------------------------------------------------------------------------------------------------

    def ask(self, question: Question) -> None:
        """Load what is not loaded, then let each file answer."""
        if self.busy or not self.ready:
            return
        self.question = question
        self.comparison, self.slower, self.logits = None, "", None
        pending = bool(self._queue.pending)
        self.disturbed = "A conversion ran meanwhile, so these times are longer than they need be." if pending else ""
        for slot in self.slots:
            slot.pieces, slot.measured, slot.error = [], None, None
            slot.waiting = slot.path is not None
        self.asked.emit()
        wanted = [self._wanted(slot) for slot in self.ready]
        self._start("generating", "Generate", answer_work(self.backend, wanted, question))

    def run_sweep(self, order: SweepOrder) -> None:
        """Measure over the batch."""
        if self.busy:
            return
        self.sweep = None
        names = SIDE_NAMES if order.shape.decode else (SIDE_NAMES[0], order.shape.format)
        self.partial = Sweep(order.shape.label, names, ())
        # A decode step loads both files for many sequences.
        stale = self._taken() if order.shape.decode else []
        self.swept.emit(self.partial)
        self._start("sweeping", f"Sweep {order.shape.label}", sweep_work(self.backend, order, stale))

    def judge(self, order: QualityOrder) -> None:
        """Measure the quantized file against the source."""
        if self.busy:
            return
        work = quality_work(self.backend, order, self._taken())
        self.quality_asked.emit(order)
        self._start("judging", f"Judge {order.paths[1].name}", work)

    def compare_caches(self, order: CacheOrder) -> None:
        """Measure what formats of the cache cost one file."""
        if self.busy:
            return
        work = cache_work(self.backend, order, self._taken())
        self.caches_asked.emit(order)
        self._start("caching", f"{order.measure.value}, {order.path.name}", work)

    def _taken(self) -> list[Any]:
        """The loaded models, for a job that loads the files in its own way: they need not be in memory twice."""
        found = []
        for slot in self.slots:
            if slot.model is not None:
                found.append(slot.model)
                slot.model, slot.setup, slot.state, slot.memory = None, None, SlotState.CHOSEN, None
                self.slot_changed.emit(slot.side)
        return found

    def made_by(self, path: Path) -> tuple[str, str]:
        """Method and calibration of a file that was converted in this session, in words; '' where that is not known."""
        done = (e for e in reversed(self._queue.entries) if e.state is JobState.DONE and e.order.output == path)
        entry = next(done, None)
        if entry is None:
            return "", ""
        recipe = entry.order.recipe
        calibrated = recipe.calibrated
        if calibrated is None:
            return f"{recipe.target}, {recipe.method.value}", "none"
        text = calibrated.text
        return f"{recipe.target}, {calibrated.name}", f"{text.samples} × {text.length} tokens"

    def cancel(self) -> None:
        """Stop the running job; what has come so far stays."""
        if self._job is not None and not self.stopping:
            self.stopping = True
            self._job.cancel()
            self.busy_changed.emit()

    def refresh_history(self, remove: tuple[StoredResult, ...] = ()) -> None:
        """Read the stored results again, without those of `remove`."""
        self._jobs.run(
            "Read the history", history_work(self.backend, remove), self.history_changed.emit,
            latest_key=HISTORY_KEY, owner=self,
        )  # fmt: skip

    # ---- the job speaks --------------------------------------------------------------------------------------------

    def _start(self, busy: str, name: str, work: Any) -> None:
        self.busy, self.stopping = busy, False
        self._job = self._jobs.run(
            name, work, self._on_done, self._on_error, self._on_progress, on_cancelled=self._on_cancelled, owner=self
        )
        self.busy_changed.emit()

    def _on_progress(self, values: tuple[Any, ...]) -> None:
        fresh: dict[int, list[Piece]] = {}
        for value in values:
            match value:
                case Piece(side=side):
                    fresh.setdefault(side, []).append(value)
                    self.slots[side].pieces.append(value)
                case LoadStep(side=side, share=share):
                    slot = self.slots[side]
                    slot.state, slot.share = SlotState.LOADING, share
                    self.slot_changed.emit(side)
                case Loaded(side=side):
                    slot = self.slots[side]
                    slot.state, slot.model, slot.setup, slot.share = SlotState.LOADED, value.model, value.setup, 1.0
                    self.slot_changed.emit(side)
                    self.look_at_memory(side)
                case Asking(side=side):
                    self.slots[side].waiting = False
                    self.slot_changed.emit(side)
                case Answered(side=side):
                    self._flush(fresh)
                    self.slots[side].measured = value.measured
                    self.slots[side].memory = value.measured.device_memory or self.slots[side].memory
                    self.memory_changed.emit(side)
                    self.answered.emit(side)
                case Failed(side=side):
                    self._fail(self.slots[side], value.error)
                case CacheStep():
                    self.cache_step.emit(value)
                case QualityStep():
                    self.quality_step.emit(value)
                case Point():
                    self.partial = replace(self.partial, points=(*self.partial.points, value.result))
        self._flush(fresh)
        if self.busy == "sweeping":
            self.swept.emit(self.partial)

    def _flush(self, fresh: dict[int, list[Piece]]) -> None:
        for side, pieces in fresh.items():
            self.pieces_added.emit(side, tuple(pieces))
        fresh.clear()

    def _fail(self, slot: Slot, error: BaseException) -> None:
        slot.error, slot.waiting = error, False
        if slot.model is None:
            slot.state = SlotState.FAILED
        self.slot_changed.emit(slot.side)

    def _on_done(self, result: Any) -> None:
        if self.busy == "generating":
            self.comparison, self.slower, self.logits = result.comparison, result.slower, result.logits
        elif self.busy == "sweeping":
            self.sweep = result
            self.swept.emit(result)
        elif self.busy == "judging":
            self.judged.emit(result)
        elif self.busy == "caching":
            self.caches_compared.emit(result)
        self._end(JobState.DONE)

    def _on_error(self, error: BaseException) -> None:
        if self.busy == "sweeping":
            self.sweep_failed.emit(error)
        elif self.busy == "judging":
            self.judge_failed.emit(error)
            _forget_frames(error)
        elif self.busy == "caching":
            self.caches_failed.emit(error)
            _forget_frames(error)
        else:
            self._fail(next((s for s in self.ready if s.state is SlotState.LOADING), self.slots[0]), error)
        self._end(JobState.FAILED)

    def _on_cancelled(self) -> None:
        self._end(JobState.CANCELLED)

    def _end(self, state: JobState) -> None:
        was, self.busy, self.stopping, self._job = self.busy, "", False, None
        for slot in self.slots:
            slot.waiting = False
            _forget_frames(slot.error)
            if slot.state is SlotState.LOADING:
                slot.state = SlotState.CHOSEN
            self.slot_changed.emit(slot.side)
        self.busy_changed.emit()
        self.ended.emit(state)
        if was and was != "loading" and state is JobState.DONE:
            self.refresh_history()


def _forget_frames(error: BaseException | None) -> None:
    """Let go of what the functions had at hand when it failed, such as a model; where they were is still known."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
