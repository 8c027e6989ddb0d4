"""Speed over the batch: 16 bits against quantized, one linear layer or a whole decode step, with the roofs above them.

At batch 1 a product reads every weight once for two operations, so memory decides and fewer bits are faster. With the
batch the operations grow and the bytes do not: from some batch on arithmetic decides, and compression stops helping.
"""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

import numpy as np
import psutil

from core.errors import UserError
from core.hardware.bandwidth import last_level_cache, measured_bandwidth
from core.progress import CancelToken
from core.runtime.device import Place, device_matrices, open_device, out_of_memory
from core.runtime.generate import PROMPT_BATCH
from core.runtime.layers import decode_flops, sample_matrix
from core.runtime.model import Model
from core.runtime.results import Number
from core.runtime.steps import Watch, step
from core.units import format_count
from kernels.matrix import Activations, Matrix, product

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SIDE_NAMES = ("16 bits", "quantized")
BUDGET = 0.2  # seconds for one batch of both sides, after which no further repetition starts
LEAST, MOST = 3, 15  # repetitions of one batch
PEAK_SIZE = 1024  # rows of the square product that measures arithmetic: 2·1024³ operations, some 30 ms on two cores
SEED = 11


@dataclass(frozen=True)
class SweepPoint:
    """One batch on one side (0: 16 bits, 1: quantized). seconds: median of one product or step.

    bytes: weights, and what goes in and out, once each. flops: operations, a multiplication and an addition being two.
    """

    side: int
    batch: int
    seconds: float
    bytes: float
    flops: float

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.bytes / self.seconds

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.flops / self.seconds

    @property
    def intensity(self) -> float:
        """Operations for each byte."""
        return self.flops / self.bytes


@dataclass(frozen=True)
class Sweep:
    """crossover: the smallest batch from which on the quantized side is no faster; None when it always is.

    traffic: (way, bytes moved by one product or step at batch 1). bandwidth, peak: measured roofs in bytes/s and
    float32 operations/s; integer kernels can pass the second.
    """

    title: str
    names: tuple[str, str]
    points: tuple[SweepPoint, ...]
    traffic: tuple[tuple[str, float], ...] = ()
    bandwidth: float | None = None
    peak: float | None = None
    note: str = ""

    def side(self, number: int) -> tuple[SweepPoint, ...]:
        return tuple(sorted((p for p in self.points if p.side == number), key=lambda p: p.batch))

    @property
    def speedups(self) -> tuple[tuple[int, float], ...]:
        """(batch, 16-bit time ÷ quantized time)."""
        quantized = {p.batch: p.seconds for p in self.side(1)}
        return tuple((p.batch, p.seconds / quantized[p.batch]) for p in self.side(0) if p.batch in quantized)

    @property
    def crossover(self) -> int | None:
        found = None
        for batch, ratio in reversed(self.speedups):
            if ratio > 1:
                break
            found = batch
        return found

    def roof(self, point: SweepPoint) -> float | None:
        """Operations a second that the roofs allow at the point's intensity."""
        if not self.bandwidth:
            return None
        return min(self.bandwidth * point.intensity, self.peak or float("inf"))

    @property
    def numbers(self) -> tuple[Number, ...]:
        """For the history."""
        found = [Number(f"Speed-up at batch {batch}", "", ratio) for batch, ratio in self.speedups]
        found += [
            Number(f"{self.names[p.side]} at batch {p.batch}", "s", p.seconds)
            for p in sorted(self.points, key=lambda p: (p.side, p.batch))
        ]
        return tuple(found)


def layer_sweep(
    plain: Matrix,
    packed: Matrix,
    activations: Activations,
    threads: int,
    batches: Sequence[int] = BATCHES,
    cancel: CancelToken | None = None,
) -> Generator[SweepPoint, None, Sweep]:
    """One linear layer in both forms, of one shape. The caches are emptied before each product, as the other layers of
    a model would do it. Raises Cancelled.
    """
    cancel = cancel or CancelToken()
    matrices = (plain, packed)
    rng = np.random.default_rng(SEED)
    points: list[SweepPoint] = []
    for batch in batches:
        x = rng.standard_normal((batch, plain.columns), dtype=np.float32)
        runs = [_product(x, matrix, activations, threads) for matrix in matrices]
        for number, seconds in enumerate(_alternate(runs, cancel)):
            moved = matrices[number].nbytes + 4.0 * batch * (plain.columns + plain.rows)
            flops = 2.0 * plain.rows * plain.columns * batch
            points.append(SweepPoint(number, batch, seconds, moved, flops))
            yield points[-1]
    return Sweep(
        f"{plain.rows} × {plain.columns}",
        (plain.format, packed.format),
        tuple(points),
        traffic(plain, packed),
        measured_bandwidth(),
        measured_peak(),
        "The caches are emptied before each product, as the other layers of a model do it.",
    )


def device_layer_sweep(
    place: Place,
    shape: tuple[str, int, int],
    activations: Activations,
    batches: Sequence[int] = BATCHES,
    cancel: CancelToken | None = None,
) -> Generator[SweepPoint, None, Sweep]:
    """As `layer_sweep`, on a GPU, of weights made up: shape is (format, rows, columns). 16 bits are the library's.

    Raises UserError where the place can not be used or its memory does not suffice, and ValueError for a format that
    no weights can be made in.
    """
    from kernels.gpu.runtime.engine import timed_product
    from kernels.gpu.runtime.failures import OutOfMemory, forget

    cancel, device = cancel or CancelToken(), open_device(place)
    name, rows, columns = shape
    made = device_matrices(device, activations)
    rng = np.random.default_rng(SEED)
    points: list[SweepPoint] = []
    try:
        matrices = sample_matrix("BF16", rows, columns, made), sample_matrix(name, rows, columns, made)
        for batch in batches:
            x = rng.standard_normal((batch, columns), dtype=np.float32)
            runs = [timed_product(device, matrix, x, activations) for matrix in matrices]
            taken = [_median(run, cancel) for run in runs]
            for number, seconds in enumerate(taken):
                moved = matrices[number].nbytes + batch * (2.0 * columns + 4.0 * rows)
                points.append(SweepPoint(number, batch, seconds, moved, 2.0 * rows * columns * batch))
                yield points[-1]
        roofs = device.bandwidth(), device.peak()
    except OutOfMemory as error:
        forget(error)
        device.empty()
        raise out_of_memory(place, error.wanted, error.free) from None
    return Sweep(
        f"{rows} × {columns}", (matrices[0].format, matrices[1].format), tuple(points), traffic(*matrices), *roofs,
        f"On {place.name}, by the device's clock; its caches are emptied before each product.",
    )  # fmt: skip


def _median(run: Callable[[], float], cancel: CancelToken) -> float:
    """Of several measurements, after one that does not count."""
    run()
    taken: list[float] = []
    until = time.perf_counter() + BUDGET
    while len(taken) < LEAST or (len(taken) < MOST and time.perf_counter() < until):
        cancel.check()
        taken.append(run())
    return median(taken)


def _product(x: np.ndarray, matrix: Matrix, activations: Activations, threads: int) -> Callable[[], object]:
    return lambda: product(x, matrix, activations, threads)


def _alternate(runs: Sequence[Callable[[], object]], cancel: CancelToken, empty: bool = True) -> list[float]:
    """Median seconds of each, taken in turn, after one unmeasured time."""
    taken: list[list[float]] = [[] for _ in runs]
    for run in runs:
        cancel.check()
        run()
    until = time.perf_counter() + BUDGET
    while len(taken[0]) < LEAST or (len(taken[0]) < MOST and time.perf_counter() < until):
        for times, run in zip(taken, runs, strict=True):
            cancel.check()
            if empty:
                _empty_caches()
            begin = time.perf_counter()
            run()
            times.append(time.perf_counter() - begin)
    return [median(times) for times in taken]


@cache
def _filler() -> np.ndarray:
    size = min(2 * last_level_cache(), int(psutil.virtual_memory().available) // 8)
    return np.ones(max(size, 1) // 8 + 1, np.int64)


def _empty_caches() -> None:
    """Read something else of twice their size."""
    np.add.reduce(_filler())


def traffic(plain: Matrix, packed: Matrix, batch: int = 1) -> tuple[tuple[str, float], ...]:
    """Bytes that one product moves: in 16 bits, fused, and when the weights are written out as 16 bits first."""
    values = 4.0 * batch * (plain.columns + plain.rows)
    copy = 2.0 * plain.rows * plain.columns
    return (
        (f"{plain.format}", plain.nbytes + values),
        (f"{packed.format}, fused", packed.nbytes + values),
        (f"{packed.format}, dequantized into a copy first", packed.nbytes + 2 * copy + values),
    )


@cache
def measured_peak() -> float:
    """float32 operations/s of a large matrix product by numpy's library on all cores: the best of a few."""
    rng = np.random.default_rng(SEED)
    a, b = (rng.standard_normal((PEAK_SIZE, PEAK_SIZE), dtype=np.float32) for _ in range(2))
    a @ b
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - begin)
    return 2.0 * PEAK_SIZE**3 / best


def decode_sweep(
    models: tuple[Model, Model],
    context: int = 128,
    batches: Sequence[int] = BATCHES,
    cancel: CancelToken | None = None,
) -> Generator[SweepPoint, None, Sweep]:
    """One step of `batch` sequences that each have `context` tokens, by a 16-bit and a quantized model in turn.

    Batches for which a cache has no sequences are left out, and the note says so. Raises UserError when the context
    does not fit; Cancelled.
    """
    cancel = cancel or CancelToken()
    room = min(model.capacity for model in models)
    if not 0 <= context < room:
        raise UserError(
            f"A context of {format_count(context)} tokens and one more do not fit the cache of {format_count(room)}.",
            "Choose a shorter one, or load the models with a larger context.",
        )
    most = min(model.sequences for model in models)
    left_out = [batch for batch in batches if batch > most]
    points: list[SweepPoint] = []
    filled = 0
    with Watch(models, cancel):
        for batch in [b for b in batches if b <= most]:
            for model in models:
                for sequence in range(filled, batch):
                    _fill(model, sequence, context, cancel)
            filled = max(filled, batch)
            # What a step reads is larger than the caches, or really stays there from step to step: nothing to empty.
            runs = [_decode_step(model, batch, context, cancel) for model in models]
            for number, seconds in enumerate(_alternate(runs, cancel, empty=False)):
                model = models[number]
                flops = decode_flops(model.program) * batch
                points.append(SweepPoint(number, batch, seconds, float(model.engine.bytes_per_token), flops))
                yield points[-1]
    reads = [float(model.engine.bytes_per_token) for model in models]
    copy = decode_flops(models[0].program)  # two operations a weight, two bytes a weight
    return Sweep(
        f"decode step, context {format_count(context)}",
        SIDE_NAMES,
        tuple(points),
        (
            ("16 bits", reads[0]),
            ("quantized, fused", reads[1]),
            ("quantized, dequantized into a copy first", reads[1] + 2 * copy),
        ),
        bandwidth_of(models[1]),
        peak_of(models[1]),
        f"Batches over {most} are left out: the cache has no more sequences." if left_out else "",
    )


def _fill(model: Model, sequence: int, context: int, cancel: CancelToken) -> None:
    for start in range(0, context, PROMPT_BATCH):
        cancel.check()
        positions = np.arange(start, min(start + PROMPT_BATCH, context), dtype=np.int32)
        sequences = np.full(len(positions), sequence, np.int32)
        step(model, np.zeros(len(positions), np.int32), sequences, positions, np.empty(0, np.int32), cancel)


def _decode_step(model: Model, batch: int, context: int, cancel: CancelToken) -> Callable[[], object]:
    numbers = np.arange(batch, dtype=np.int32)
    tokens, positions = np.zeros(batch, np.int32), np.full(batch, context, np.int32)
    return lambda: step(model, tokens, numbers, positions, numbers, cancel)


def bandwidth_of(model: Model) -> float | None:
    """Bytes/s where the model runs."""
    own: Callable[[], float] | None = getattr(model.engine, "read_bandwidth", None)
    return own() if own is not None else measured_bandwidth()


def peak_of(model: Model) -> float:
    """Operations/s where the model runs."""
    own: Callable[[], float] | None = getattr(model.engine, "peak", None)
    return own() if own is not None else measured_peak()


COLUMNS = ("side", "batch", "seconds", "bytes", "flop", "bytes_per_s", "flop_per_s", "roof_flop_per_s", "speedup")


def sweep_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """One row a point, by COLUMNS; speedup is that of the quantized side."""
    ratios = dict(sweep.speedups)
    return [
        {
            "side": sweep.names[p.side],
            "batch": p.batch,
            "seconds": p.seconds,
            "bytes": p.bytes,
            "flop": p.flops,
            "bytes_per_s": p.bandwidth,
            "flop_per_s": p.rate,
            "roof_flop_per_s": sweep.roof(p),
            "speedup": ratios.get(p.batch) if p.side else 1.0,
        }
        for side in (0, 1)
        for p in sweep.side(side)
    ]


def sweep_csv(sweep: Sweep) -> str:
    """The rows as CSV, with one line of names."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: "" if v is None else v for k, v in row.items()} for row in sweep_rows(sweep))
    return out.getvalue()


def sweep_data(sweep: Sweep) -> dict[str, Any]:
    """The sweep as plain values for JSON."""
    return {
        "title": sweep.title,
        "sides": list(sweep.names),
        "points": sweep_rows(sweep),
        "compression_stops_helping_at_batch": sweep.crossover,
        "bandwidth_bytes_per_s": sweep.bandwidth,
        "peak_flop_per_s": sweep.peak,
        "traffic_bytes": dict(sweep.traffic),
        "note": sweep.note or None,
    }


def titled(sweep: Sweep, title: str) -> Sweep:
    """The same under another title."""
    return replace(sweep, title=title)
