"""The same tensor after quantization: where the error is."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from core.blocks import LONG_ROW, lanes_of, split, with_options
from core.checkpoint.base import Checkpoint, Columns
from core.formats import EncodeOptions, Method
from core.inspect.channel_errors import BlockErrors, ChannelErrors, block_errors
from core.inspect.tracing import matrix_amax, matrix_rows
from core.models.read_mapped import read_mapped
from core.plan import TensorPlan
from core.preview import round_trip
from core.progress import CancelToken, ErrorStats
from core.threads import in_parallel, worker_count
from kernels import ops

TASK_VALUES = 1 << 18  # values encoded at once by one thread: their error then stays in the cache
LONG_SCAN = 1 << 23  # values whose largest takes so long to find that a first map does not wait for it
BETWEEN = 0.5  # seconds between two maps after the first


@dataclass(frozen=True)
class ChannelError:
    """axis: 'output' (rows) or 'input' (columns). max, rms: float32, one a channel, of |x−x̂|, weight units; NaN where
    no value was looked at yet. share: float32, of the squared error seen so far that is in the channel (sums to 1)."""

    axis: str
    max: np.ndarray
    rms: np.ndarray
    share: np.ndarray


@dataclass(frozen=True)
class ErrorChannel:
    """One channel of an error map: what ChannelError holds of it."""

    axis: str
    index: int
    max: float
    rms: float
    share: float


@dataclass(frozen=True)
class ErrorMap:
    """cells: float32 [h, w], the largest |x−x̂| in each cell, NaN where nothing was looked at yet. row_edges,
    column_edges: cells' borders, h+1 and w+1 numbers. stats: of the values looked at. nrmse: √(Σ(x−x̂)² / Σx²).
    done: share of the rows looked at; the last map of an iteration has 1."""

    tensor: str
    format: str
    expert: int | None
    cells: np.ndarray
    row_edges: np.ndarray
    column_edges: np.ndarray
    rows: ChannelError
    columns: ChannelError
    stats: ErrorStats
    nrmse: float
    done: float

    def ranked(self, count: int = 50) -> tuple[ErrorChannel, ...]:
        """Of each axis the `count` channels with the largest error; of both together, those first whose largest error
        is the largest multiple of their axis' median one."""
        rows: list[tuple[float, ErrorChannel]] = []
        for e in (self.rows, self.columns):
            seen = np.nan_to_num(e.max, nan=0.0)
            middle = float(np.median(seen[seen > 0])) if (seen > 0).any() else 1.0
            for i in np.argsort(-seen, kind="stable")[:count]:
                if seen[i] > 0:
                    channel = ErrorChannel(e.axis, int(i), float(e.max[i]), float(e.rms[i]), float(e.share[i]))
                    rows.append((float(seen[i]) / middle, channel))
        rows.sort(key=lambda pair: -pair[0])
        return tuple(channel for _, channel in rows)


def error_map(
    checkpoint: Checkpoint,
    tensor: TensorPlan,
    method: Method,
    token: CancelToken,
    height: int = 256,
    width: int = 256,
    expert: int | None = None,
    seconds: float = 0.2,
    of: str = "",
) -> Iterator[ErrorMap]:
    """Maps of ever more rows: the first of rows spread evenly, within about `seconds`, the last of all of them.

    The rows are those of the output. of: name of one of the tensors that it is made of: then that tensor's rows, in
    its own order (rotary heads are permuted in a GGUF, and experts stacked). expert: this matrix of a stack only.
    Memory does not grow with the rows. Where a format needs the largest value of a large matrix, the first map is made
    with that of a few rows and does not count for the others. A tensor that is copied has no error.
    Raises UserError when the values can not be stored, IndexError for an expert or name that is not there, Cancelled.
    """
    rows = _rows(tensor, expert, of)
    total = _Sums(tensor, expert, rows, height, width)
    if tensor.format is None:
        yield total.exact()
        return
    run = partial(_run, checkpoint, tensor, rows, total.column_starts)
    last, wanted = time.perf_counter(), seconds
    if tensor.format.needs_amax and len(rows.output) * tensor.columns > LONG_SCAN and tensor.columns <= LONG_ROW:
        rough = _Sums(tensor, expert, rows, height, width)
        amax = _rough_amax(checkpoint, tensor, rows)
        tasks = next(_phases(checkpoint, tensor, method, rows, total.height, token, amax))
        with closing(in_parallel(run, tasks, token)) as parts:
            for part in parts:
                rough.add(part)
                if time.perf_counter() - last > wanted:
                    break
        yield rough.map()
        last, wanted = time.perf_counter(), BETWEEN
    for tasks in _phases(checkpoint, tensor, method, rows, total.height, token):
        with closing(in_parallel(run, tasks, token)) as parts:
            for part in parts:
                total.add(part)
                if time.perf_counter() - last > wanted:
                    yield total.map()
                    last, wanted = time.perf_counter(), BETWEEN
        if wanted == seconds and 0 < total.done < 1:
            yield total.map()
            last, wanted = time.perf_counter(), BETWEEN
    yield total.map()


@dataclass(frozen=True)
class _Rows:
    """Which rows of the output are looked at, rising, and where each goes in the picture; how many that has."""

    output: np.ndarray
    shown: np.ndarray
    count: int


def _rows(t: TensorPlan, expert: int | None, of: str) -> _Rows:
    if not of:
        height = t.rows // t.shape[0] if expert is not None else t.rows
        first = height * (expert or 0)
        if not 0 <= first < t.rows:
            raise IndexError(f"expert {expert} of {t.name}")
        return _Rows(np.arange(first, first + height), np.arange(height), height)
    source = next((s for s in t.source.sources if s.name == of), None)
    if source is None:
        raise IndexError(f"{of} is not part of {t.name}")
    output, shown = matrix_rows(t.source, source, expert)
    if not output.size:
        raise IndexError(f"expert {expert} of {of}")
    return _Rows(output, shown, source.rows if expert is None else source.rows // source.shape[0])


@dataclass(frozen=True)
class _Task:
    """Runs of rows (first, last) of the output that are encoded together, and which of their columns."""

    runs: tuple[tuple[int, int], ...]
    columns: Columns
    options: EncodeOptions


def _phases(
    checkpoint: Checkpoint,
    t: TensorPlan,
    method: Method,
    rows: _Rows,
    cells: int,
    token: CancelToken,
    amax: float | None = None,
) -> Iterator[Iterator[_Task]]:
    """An overview, one run of rows for each row of cells; then all other rows. Both spread evenly from the start on.

    amax: to be taken for that of each matrix, None to find it.
    """
    options = EncodeOptions(method=method)
    if t.columns > LONG_ROW and lanes_of(t) is None:
        blocks = [b for b in split(0, t, worker_count()) if np.isin(np.arange(b.start, b.stop), rows.output).any()]
        found = with_options(checkpoint, t, blocks, options, token)
        yield (_Task(((b.start, b.stop),), b.columns, replace(o, threads=1)) for b, o in found)
        return
    unit = t.format.unit_rows(t.shape) if t.format else 1
    starts = np.unique(rows.output // unit) * unit
    stride = max(1, len(starts) // cells)
    overview = np.zeros(len(starts), bool)
    overview[stride // 2 :: stride] = True
    for chosen in (starts[overview], starts[~overview]):
        yield _tasks(checkpoint, t, options, chosen, unit, token, amax)


def _rough_amax(checkpoint: Checkpoint, t: TensorPlan, rows: _Rows) -> float:
    """Largest |value| of a few rows: NVFP4's tensor scale leaves room above the largest value, so it seldom differs."""
    some = rows.output[:: max(1, len(rows.output) // 16)]
    return max(float(ops.scan(read_mapped(checkpoint, t.source, int(row), int(row) + 1)).amax) for row in some)


def _tasks(
    checkpoint: Checkpoint,
    t: TensorPlan,
    options: EncodeOptions,
    starts: np.ndarray,
    unit: int,
    token: CancelToken,
    amax: float | None = None,
) -> Iterator[_Task]:
    """Tasks of about TASK_VALUES, each of neighbouring runs; far ones follow each other."""
    needs_amax = t.format is not None and t.format.needs_amax
    matrix = t.shape[-2] if needs_amax and len(t.shape) > 1 else t.rows
    count = max(1, TASK_VALUES // (unit * t.columns))
    for first in range(0, t.rows, max(1, matrix)):
        own = starts[(starts >= first) & (starts < first + matrix)]
        if not own.size:
            continue
        if needs_amax:
            options = replace(options, amax=matrix_amax(checkpoint, t, first, token) if amax is None else amax)
        pieces = np.array_split(own, -(-len(own) // count))
        for i in _far_apart(len(pieces)):
            yield _Task(_joined(pieces[i], unit, t.rows), (0, t.columns), options)


def _joined(starts: np.ndarray, unit: int, rows: int) -> tuple[tuple[int, int], ...]:
    """Runs of `unit` rows as few runs as there are gaps."""
    cuts = np.flatnonzero(np.diff(starts) != unit) + 1
    return tuple((int(part[0]), min(rows, int(part[-1]) + unit)) for part in np.split(starts, cuts))


def _far_apart(count: int) -> list[int]:
    """0 … count − 1 so that the first few are spread evenly: by their reversed bits."""
    bits = max(1, (count - 1).bit_length())
    order = [int(f"{i:0{bits}b}"[::-1], 2) for i in range(1 << bits)]
    return [i for i in order if i < count]


@dataclass(frozen=True)
class _Part:
    """What a task found. rows: in the picture. cells: the largest |x−x̂| by row in each of the picture's cells."""

    rows: np.ndarray
    columns: Columns
    errors: BlockErrors
    cells: np.ndarray


def _run(checkpoint: Checkpoint, t: TensorPlan, rows: _Rows, column_starts: np.ndarray, task: _Task) -> _Part:
    assert t.format is not None
    blocks = [read_mapped(checkpoint, t.source, first, last, task.columns) for first, last in task.runs]
    source = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
    decoded = round_trip(t, source, task.options)
    numbers = np.concatenate([np.arange(first, last) for first, last in task.runs])
    at = np.searchsorted(rows.output, numbers)
    wanted = rows.output[np.minimum(at, len(rows.output) - 1)] == numbers
    if not wanted.all():
        source, decoded, at = source[wanted], decoded[wanted], at[wanted]
    errors, error = block_errors(source, decoded, into=decoded)
    left, right = task.columns
    # Cells of the picture that these columns reach, at the first column of each within them.
    inside = np.unique(np.clip(column_starts, left, right - 1)) - left
    return _Part(rows.shown[at], task.columns, errors, np.maximum.reduceat(error, inside, axis=1))


class _Sums:
    """Everything gathered so far."""

    def __init__(self, t: TensorPlan, expert: int | None, rows: _Rows, height: int, width: int) -> None:
        self._tensor, self._expert, self._rows = t, expert, rows
        self.height, width = min(height, rows.count), min(width, t.columns)
        self._row_edges = np.arange(self.height + 1) * rows.count // self.height
        self._column_edges = np.arange(width + 1) * t.columns // width
        self._cells = np.full((self.height, width), np.nan, np.float32)
        self._channels = ChannelErrors(rows.count, t.columns)

    @property
    def column_starts(self) -> np.ndarray:
        return self._column_edges[:-1]

    @property
    def done(self) -> float:
        return self._channels.values / max(1, len(self._rows.output) * self._tensor.columns)

    def add(self, p: _Part) -> None:
        self._channels.add(p.errors, p.rows, slice(*p.columns))
        own = np.searchsorted(self._row_edges, p.rows, side="right") - 1
        first = int(np.searchsorted(self._column_edges, p.columns[0], side="right")) - 1
        block = self._cells[:, first : first + p.cells.shape[1]]
        np.fmax.at(block, own, p.cells)

    def exact(self) -> ErrorMap:
        """No error anywhere, every value looked at."""
        self._cells[:] = 0
        self._channels.set_exact(len(self._rows.output) * self._tensor.columns)
        return self.map()

    def map(self) -> ErrorMap:
        e = self._channels.error
        return ErrorMap(
            tensor=self._tensor.name,
            format=self._tensor.format_name,
            expert=self._expert,
            cells=self._cells.copy(),
            row_edges=self._row_edges,
            column_edges=self._column_edges,
            rows=self._of_axis(0, "output"),
            columns=self._of_axis(1, "input"),
            stats=e.stats(),
            nrmse=e.nrmse,
            done=min(1.0, self.done),
        )

    def _of_axis(self, axis: int, name: str) -> ChannelError:
        found = self._channels
        rms, share = found.rms(axis).astype(np.float32), found.shares(axis).astype(np.float32)
        return ChannelError(name, found.axes[axis].largest.copy(), rms, share)
