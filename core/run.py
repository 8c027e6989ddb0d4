"""Executes a Plan: journalled, resumable, verified, atomic. A generator that knows no threads of the window's."""

from __future__ import annotations

import contextlib
import hashlib
import math
import shlex
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import psutil

from core import heap
from core.blocks import Block, BlockResult, BlockWorker, split, values_of, with_options
from core.calibrate import calibrate
from core.checkpoint.base import Checkpoint
from core.cli_calibration import calibration_words
from core.disk import disk_errors
from core.encoded_on import encoded_on
from core.errors import UserError
from core.finished import is_finished
from core.formats import EncodeOptions
from core.journal import Entry, Journal, WrittenBlock, has_begun, journal_path, partial_path, read
from core.methods.prepare import Data, Prepared, prepare_weights, read_data
from core.methods.scratch import remove_scratch, scratch_path, waits
from core.metrics.combine import combined_snr
from core.metrics.error import ErrorSum
from core.output import OutputFiles, check_leftovers, check_memory, check_output, discard, output_size
from core.plan import DISK_BYTES_PER_SECOND, Plan, TensorPlan, calibration_seconds, thread_seconds
from core.progress import CancelToken, ErrorStats, Progress, TensorResult
from core.recipe import Misfit, Recipe
from core.recorder import Recorder, intact
from core.threads import worker_count
from core.units import format_count
from kernels import dispatch

Found = TypeVar("Found")
SYNC_SECONDS = 1.0  # finished tensors reach the journal at least this often: what a crash can cost
QUIET_SECONDS = 3.0  # no estimate before this


@dataclass(frozen=True)
class RunResult:
    """A finished, verified output. predicted_bytes and actual_bytes are equal, or it would not have been finished.

    snr_db: of all tensors together (`CombinedSnr`). was_there: a resumed run found nothing left to do, and measured no
    errors. notes: what came up while numbers were chosen from data, and what a GPU had to do with it.
    """

    output: Path
    predicted_bytes: int
    actual_bytes: int
    seconds: float
    peak_rss_bytes: int
    tensors: tuple[TensorResult, ...]
    snr_db: float = math.inf
    was_there: bool = False
    notes: tuple[str, ...] = ()


class OtherRun(UserError):
    """An unfinished output of the same name that this run can not go on with."""

    def __init__(self) -> None:
        super().__init__(
            "The unfinished output there belongs to another source, recipe or version, or to another calibration text.",
            "Start anew, without resuming, which deletes what it has kept; or choose another name for the output.",
            "resume",
        )


def job_id(plan: Plan) -> str:
    """Names a job for the journal: changes with the source, the recipe, or anything in the output's layout."""
    h = hashlib.sha256()
    h.update(plan.source_fingerprint.encode())
    h.update(plan.recipe.to_json().encode())
    for f in plan.layout.files:
        h.update(f"{f.name} {f.size}".encode())
        for _, content in f.fixed:
            h.update(content)
    for p in plan.layout.parts:
        h.update(f"{p.tensor} {p.part} {p.file} {p.offset} {p.nbytes}".encode())
    return h.hexdigest()


def unfinished(output: Path, plan: Plan) -> bool:
    """True when a run of this very job was interrupted and can go on."""
    entries = read(journal_path(output), job_id(plan))
    return entries is not None and (OutputFiles.present(output, plan.layout) or _is_named(output, plan, entries))


def others_work(output: Path, plan: Plan) -> bool:
    """Whether what was chosen from data for another job waits there: hours of work, perhaps."""
    return waits(output) and read(journal_path(output), job_id(plan)) is None


def run(
    plan: Plan,
    checkpoint: Checkpoint,
    output: Path,
    token: CancelToken,
    resume: bool = False,
    threads: int | None = None,
    overwrite: bool = False,
) -> Generator[Progress, None, RunResult]:
    """Write, verify and name the output; yields after every block, returns the result.

    resume: go on with an interrupted run of the same job, or find that it is finished; a journal of another job is an
    error then, and without it any unfinished output of that name starts anew. Raises UserError, or Cancelled, which
    leaves a resumable state.
    """
    output = Path(output).absolute()
    job = job_id(plan)
    clock = _Clock(plan)
    heap.keep()
    data = read_data(plan, checkpoint, token)
    plan = data.stamp(plan)
    check_memory(plan.expected_memory)
    if resume and (entries := read(journal_path(output), job, data.fingerprint)) and _is_named(output, plan, entries):
        journal_path(output).unlink(missing_ok=True)  # all that was left to do when the run was stopped
        return _run_result(output, plan, entries, clock)
    if resume and not overwrite and is_finished(plan, checkpoint, output, token):
        tensors = tuple(_result(t, None) for t in plan.tensors)
        size = output_size(output)
        return RunResult(output, plan.bytes_total, size, clock.elapsed, peak_rss_bytes(), tensors, was_there=True)
    work = scratch_path(output)
    check = partial(check_output, output, checkpoint, plan.layout, overwrite, plan.scratch_bytes, work)
    check()
    check_leftovers(output)
    threads = threads or worker_count()
    with disk_errors(output):
        journal = Journal(journal_path(output))
    files = None
    finished = False
    try:
        check()  # another run may have ended since
        done = _resumable(output, plan, job, data.fingerprint) if resume else []
        with disk_errors(output):
            if done:
                journal.go_on()
            else:
                journal.begin(
                    job, data.fingerprint
                )  # before the old files go: it must never speak of files that are not there
                discard(output)
        clock.skip(plan, done)
        files = OutputFiles(output, plan.layout, keep=bool(done))
        with dispatch.tally() as used:
            prepared = yield from _prepare(plan, checkpoint, data, output, token, clock, bool(resume))
            kept = prepared.reference is checkpoint  # transforms change what comes into the weights, too
            inputs = yield from _calibrate(plan, prepared.reference, done, token, clock, kept)
            entries, checked = yield from _write(plan, prepared, files, journal, done, token, clock, threads, inputs)
        files.sync()
        yield from _verify(plan, files, journal, entries, checked, token, clock, threads)
        files.finish(overwrite)
        remove_scratch(output)
        finished = True
    except MemoryError as e:
        raise UserError(
            "The memory of this computer did not suffice.", "Close other programs, then resume the run.", topic="memory"
        ) from e
    finally:
        # A disk that is gone refuses this, too; what counts has been said, or is on the disk.
        with contextlib.suppress(OSError):
            if files is not None:
                files.close()
        with contextlib.suppress(OSError):
            journal.close(done=finished)
        heap.give_back()
    return replace(_run_result(output, plan, entries, clock), notes=(*prepared.notes, *encoded_on(used)))


def _run_result(output: Path, plan: Plan, entries: list[Entry], clock: _Clock) -> RunResult:
    results = tuple(_result(plan.tensors[e.tensor], e.error) for e in sorted(entries, key=lambda e: e.tensor))
    snr = combined_snr(r.error for r in results if r.error is not None)
    return RunResult(output, plan.bytes_total, output_size(output), clock.elapsed, peak_rss_bytes(), results, snr)


def _is_named(output: Path, plan: Plan, entries: list[Entry]) -> bool:
    """True when a run was stopped between giving the verified output its name and removing the journal."""
    whole = len(entries) == len(plan.tensors) and output.exists() and not partial_path(output).exists()
    return whole and output_size(output) == plan.bytes_total


def _resumable(output: Path, plan: Plan, job: str, data: str) -> list[Entry]:
    """What is finished already; nothing when the run has to start anew."""
    entries = read(journal_path(output), job, data)
    if entries is None and has_begun(journal_path(output)) and partial_path(output).exists():
        raise OtherRun
    return entries if entries and OutputFiles.present(output, plan.layout) else []


class _Clock:
    """Work done and left. Each tensor is weighed by what its format costs, each byte of the check by reading it."""

    def __init__(self, plan: Plan) -> None:
        self._start = time.monotonic()
        self._cost = [thread_seconds(t) for t in plan.tensors]
        self._values = [max(1, t.values) for t in plan.tensors]
        self.check_bytes = sum(p.nbytes for p in plan.layout.parts)
        self.bytes_total = plan.source_bytes_read + self.check_bytes
        self._calibration = calibration_seconds(plan.tensors)
        self._choosing = plan.choosing_seconds
        self._total = sum(self._cost) + self.check_bytes / DISK_BYTES_PER_SECOND + self._calibration + self._choosing
        self._skipped = self._done = 0.0
        self.bytes_done = 0

    def skip(self, plan: Plan, done: list[Entry]) -> None:
        """What an earlier run has finished."""
        self._skipped = self._done = sum(self._cost[e.tensor] for e in done)
        self.bytes_done = sum(plan.tensors[e.tensor].source_bytes for e in done)

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    def block(self, b: Block, t: TensorPlan) -> None:
        share = values_of(t, b) / self._values[b.tensor]
        self._done += self._cost[b.tensor] * share
        self.bytes_done += round(t.source_bytes * share)

    def calibrated(self, share: float) -> None:
        """So much more of the calibration is done."""
        self._done += self._calibration * share

    def chosen(self, share: float) -> None:
        """So much more of what is chosen from data is done."""
        self._done += self._choosing * share

    def checked(self, nbytes: int) -> None:
        self._done += nbytes / DISK_BYTES_PER_SECOND
        self.bytes_done += nbytes

    def progress(self, phase: str, plan: Plan, index: int, result: TensorResult | None) -> Progress:
        fresh = self._done - self._skipped
        left = None
        if self.elapsed >= QUIET_SECONDS and fresh > 0:
            left = max(0.0, (self._total - self._done) * self.elapsed / fresh)
        return Progress(
            phase=phase,
            tensor=plan.tensors[index].name if plan.tensors else "",
            tensor_index=index,
            tensor_count=len(plan.tensors),
            bytes_done=min(self.bytes_done, self.bytes_total),
            bytes_total=self.bytes_total,
            seconds=self.elapsed,
            share=min(1.0, self._done / self._total) if self._total else 1.0,
            seconds_left=left,
            result=result,
        )


def _prepare(
    plan: Plan, checkpoint: Checkpoint, data: Data, output: Path, token: CancelToken, clock: _Clock, resume: bool
) -> Generator[Progress, None, Prepared]:
    """What the recipe wants chosen from data, before anything is written."""
    job = prepare_weights(plan, checkpoint, data, output, token, resume)
    return (yield from _followed(job, plan, token, clock, clock.chosen))


def _calibrate(
    plan: Plan, checkpoint: Checkpoint, done: list[Entry], token: CancelToken, clock: _Clock, use_cache: bool
) -> Generator[Progress, None, dict[str, float]]:
    """What the tensors that are left need to know of their activations."""
    written = {e.tensor for e in done}
    left = [t for i, t in enumerate(plan.tensors) if i not in written]
    job = calibrate(checkpoint, left, token, use_cache)
    return (yield from _followed(job, plan, token, clock, clock.calibrated))


class _Step(Protocol):
    """How far a calibration is: so many of all, and what it is at."""

    @property
    def done(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def name(self) -> str: ...


def _followed(
    job: Generator[_Step, None, Found], plan: Plan, token: CancelToken, clock: _Clock, more: Callable[[float], None]
) -> Generator[Progress, None, Found]:
    """A job's steps as a run's progress. more: tells the clock which further share is done."""
    before = 0.0
    while True:
        try:
            step = next(job)
        except StopIteration as stop:
            more(1.0 - before)
            return stop.value
        token.check()
        more(step.done / step.total - before)
        before = step.done / step.total
        now = clock.progress("calibrating", plan, 0, None)
        yield replace(now, tensor=step.name, tensor_index=max(0, step.done - 1), tensor_count=step.total)


def _write(
    plan: Plan,
    prepared: Prepared,
    files: OutputFiles,
    journal: Journal,
    done: list[Entry],
    token: CancelToken,
    clock: _Clock,
    threads: int,
    inputs: Mapping[str, float],
) -> Generator[Progress, None, tuple[list[Entry], set[int]]]:
    """All tensors that the journal does not have, and the numbers of those that were read back already.

    Blocks run in a small pool; results are taken in the plan's order.
    """
    entries = {e.tensor: e for e in done}
    worker = BlockWorker(prepared.checkpoint, prepared.tensors, plan.layout.parts, files, prepared.reference)
    building: dict[int, tuple[list[WrittenBlock], ErrorSum | None, int]] = {}
    queue: deque[Future[BlockResult]] = deque()
    left: dict[int, int] = {}
    known = 0
    recorder = Recorder(files, journal, SYNC_SECONDS, lambda: token.cancelled)
    pool = ThreadPoolExecutor(threads, thread_name_prefix="bitsmith-block")
    try:
        source = _blocks(plan, prepared, entries, threads, left, token, inputs)
        exhausted = False
        while queue or not exhausted:
            while not exhausted and len(queue) <= threads:
                item = next(source, None)
                if item is None:
                    exhausted = True
                else:
                    queue.append(pool.submit(worker.run, *item))
            if not queue:
                break
            result = queue.popleft().result()
            if token.paused:
                recorder.flush()  # a pause may be long: what is finished is safe first
            token.check()
            i = result.block.tensor
            t = plan.tensors[i]
            blocks, error, count = building.pop(i, ([], None, 0))
            blocks.extend(result.written)
            if result.error is not None:
                if error is None:
                    error = result.error
                else:
                    error.add(result.error)
            count += 1
            clock.block(result.block, t)
            now = recorder.checked_bytes
            clock.checked(now - known)
            known = now
            finished = None
            if count == left[i]:
                blocks.extend(worker.constants(i))
                entry = Entry(i, tuple(blocks), error.stats() if error else None)
                entries[i] = entry
                recorder.add(entry)
                finished = _result(t, entry.error)
            else:
                building[i] = (blocks, error, count)
            yield clock.progress("writing", plan, i, finished)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        with contextlib.suppress(UserError):  # a full disk: what is not recorded is done again
            recorder.close()
    clock.checked(recorder.checked_bytes - known)
    return [entries[i] for i in range(len(plan.tensors))], recorder.checked


def _blocks(
    plan: Plan,
    prepared: Prepared,
    entries: dict[int, Entry],
    threads: int,
    left: dict[int, int],
    token: CancelToken,
    inputs: Mapping[str, float],
) -> Iterator[tuple[Block, EncodeOptions]]:
    options = EncodeOptions(method=plan.recipe.method, threads=threads)
    families: dict[frozenset[str], EncodeOptions] = {}
    for i, t in enumerate(prepared.tensors):
        if i not in entries:
            own = replace(options, input_amax=inputs.get(t.name, 0.0))
            weighed = _weighed(own, prepared.importance.get(t.name))
            blocks = split(i, t, threads, len(weighed))
            left[i] = len(blocks)
            each = max(1, t.rows // len(weighed))
            for number, one in enumerate(weighed):
                some = blocks if len(weighed) == 1 else [b for b in blocks if b.start // each == number]
                yield from with_options(prepared.checkpoint, t, some, one, token, families)


def _weighed(options: EncodeOptions, importance: np.ndarray | None) -> list[EncodeOptions]:
    """For each of the matrices that a tensor stacks, where these have an importance [matrices, K] of their own."""
    return [options] if importance is None else [replace(options, importance=row) for row in importance]


def _verify(
    plan: Plan,
    files: OutputFiles,
    journal: Journal,
    entries: list[Entry],
    checked: set[int],
    token: CancelToken,
    clock: _Clock,
    threads: int,
) -> Generator[Progress, None, None]:
    """Read back what was not `checked` from the disk and compare each block's checksum with what it was written with.

    The journal forgets the tensors that differ, so that a resumed run writes them again.
    """
    if entries:
        yield clock.progress("verifying", plan, entries[0].tensor, None)  # also where all was read back beside the work
    files.drop_cache()
    bad = [] if files.plain_bytes_intact() else ["The header"]
    again = []

    def good(e: Entry) -> bool:
        return not token.cancelled and intact(files, e)

    pool = ThreadPoolExecutor(threads, thread_name_prefix="bitsmith-verify")
    try:
        for e, found in _in_order(pool, good, [e for e in entries if e.tensor not in checked], 4 * threads):
            token.check()
            if not found:
                again.append(e.tensor)
                bad.append(f"'{plan.tensors[e.tensor].name}'")
            clock.checked(sum(b.total for b in e.blocks))
            yield clock.progress("verifying", plan, e.tensor, None)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    if bad:
        with disk_errors(files.output):
            journal.forget(again)
        more = f" (and {format_count(len(bad) - 1)} more)" if len(bad) > 1 else ""
        raise UserError(
            f"{bad[0]}{more} reads back differently from what was written.",
            "Resume the run: only what differs is written again. If it happens once more, the disk or the memory of "
            "this computer is unreliable.",
        )


def _in_order(
    pool: ThreadPoolExecutor, check: Callable[[Entry], bool], entries: list[Entry], ahead: int
) -> Iterator[tuple[Entry, bool]]:
    """Each entry and what the check says; unlike `pool.map`, only so many are submitted before they are due."""
    due: deque[tuple[Entry, Future[bool]]] = deque()
    for e in entries:
        due.append((e, pool.submit(check, e)))
        if len(due) > ahead:
            first, found = due.popleft()
            yield first, found.result()
    yield from ((e, found.result()) for e, found in due)


def _result(t: TensorPlan, error: ErrorStats | None) -> TensorResult:
    return TensorResult(t.name, t.format_name, t.bytes.total, error)


def peak_rss_bytes() -> int:
    """Largest resident memory of this process so far."""
    if sys.platform == "win32":
        return int(psutil.Process().memory_info().peak_wset)
    with contextlib.suppress(OSError, ValueError, IndexError):
        # Linux: the high-water mark of this program alone; ru_maxrss would count what its parent had before exec.
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.split("VmHWM:")[1].split()[0]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def command_line(recipe: Recipe, source: Path, output: Path) -> str:
    """The command that does the same without a window."""
    words = ["bitsmith", "convert", str(source), "--to", recipe.target, "-o", str(output)]
    words += calibration_words(recipe.calibrated)
    if recipe.method is not Recipe().method and "--method" not in words:
        words += ["--method", recipe.method.value]
    for r in recipe.rules:
        words += ["--rule", f"{r.pattern}={r.format}"]
    for k in sorted(k.value for k in recipe.keep):
        words += ["--keep-group", k]
    if recipe.keep_first:
        words += ["--keep-first", str(recipe.keep_first)]
    if recipe.keep_last:
        words += ["--keep-last", str(recipe.keep_last)]
    if recipe.cache:
        words += ["--kv-cache", recipe.cache]
    if recipe.misfit is not Misfit.SMALLER:
        words += ["--misfit", recipe.misfit.value]
    return shlex.join(words)
