"""Quantize one tensor, or a sample of it, at once with the present controls: what the Recipe page shows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from core.blocks import quantize
from core.checkpoint.base import Checkpoint, Columns
from core.checkpoint.reading import PIECE
from core.formats import EncodeOptions, Method
from core.metrics.error import BINS, ErrorSum, measure
from core.models.read_mapped import read_mapped
from core.plan import Action, Plan, TensorPlan
from core.progress import CancelToken, ErrorStats
from core.threads import worker_count
from kernels import ops

CHUNKS = 16  # runs of rows that a sample takes, spread evenly over the tensor
MAX_VALUES = 4_000_000  # of a sample, however long the rows
SAMPLE_VALUES = 200_000  # of each tensor, when the whole model is sampled


@dataclass(frozen=True)
class PreviewResult:
    """Error of one tensor in its planned format. rows, sampled_rows: how much of it was looked at; of rows too long to
    be held only pieces are, each with a scale of its own, and sampled_rows says how many whole rows that makes.

    source_edges, source_counts: histogram of the source's finite values, with as many bins as the error's.
    effective_bits: bytes of payload and metadata a value, from the exact sizes. seconds: what it took.
    """

    name: str
    format: str
    error: ErrorStats
    source_edges: tuple[float, ...]
    source_counts: tuple[int, ...]
    rows: int
    sampled_rows: int
    effective_bits: float
    seconds: float


def preview(
    checkpoint: Checkpoint, tensor: TensorPlan, method: Method, token: CancelToken, max_values: int = MAX_VALUES
) -> PreviewResult:
    """Encode and decode a tensor (evenly spread rows when it has more than max_values values); writes nothing.

    Raises UserError when its values can not be stored in the format, Cancelled when the token is set.
    """
    start = time.perf_counter()
    ranges = sample_ranges(tensor, max_values)
    blocks = []
    for first, last, columns in ranges:
        token.check()
        blocks.append(read_mapped(checkpoint, tensor.source, first, last, columns))
    amax = max((float(ops.scan(b).amax) for b in blocks), default=0.0)
    options = EncodeOptions(method=method, amax=amax, threads=worker_count())
    total = ErrorSum()
    for source in blocks:
        token.check()
        total.add(measure(source, round_trip(tensor, source, options)))
    edges, counts = _histogram(blocks)
    return PreviewResult(
        name=tensor.name,
        format=tensor.format_name,
        error=total.stats(),
        source_edges=edges,
        source_counts=counts,
        rows=tensor.rows,
        sampled_rows=sum(b.size for b in blocks) // max(1, tensor.columns),
        effective_bits=8 * (tensor.bytes.total - tensor.bytes.padding) / tensor.values if tensor.values else 0.0,
        seconds=time.perf_counter() - start,
    )


def sample_model(checkpoint: Checkpoint, plan: Plan, token: CancelToken) -> Iterator[tuple[int, int, PreviewResult]]:
    """A small sample of every tensor that is quantized: yields (number, how many, result)."""
    chosen = [t for t in plan.tensors if t.action is Action.QUANTIZE]
    for i, t in enumerate(chosen):
        yield i, len(chosen), preview(checkpoint, t, plan.recipe.method, token, SAMPLE_VALUES)


def round_trip(tensor: TensorPlan, source: np.ndarray, options: EncodeOptions) -> np.ndarray:
    """What is read back of these rows, float32 of the same shape; the rows themselves where bytes are copied."""
    if tensor.format is None or tensor.lossless:
        return source
    parts = quantize(tensor, source, options)
    return tensor.format.decode(parts, *source.shape)


def sample_ranges(tensor: TensorPlan, max_values: int) -> list[tuple[int, int, Columns]]:
    """Runs of rows, spread evenly, that together have about max_values values; everything when it is less."""
    rows, unit = tensor.rows, tensor.format.unit_rows(tensor.shape) if tensor.format else 1
    whole = (0, tensor.columns)
    if tensor.values <= max_values:
        return [(0, rows, whole)]
    if 4 * unit * tensor.columns > MAX_VALUES:
        return _pieces_of_rows(tensor, unit, max_values)
    height = max(unit, max_values // tensor.columns // CHUNKS // unit * unit)
    chunks = min(CHUNKS, rows // height, max(1, MAX_VALUES // (height * tensor.columns))) or 1
    stride = max(height, (rows - height) // max(1, chunks - 1) // unit * unit)
    starts = [i * stride for i in range(chunks) if i * stride + height <= rows]
    return [(s, min(rows, s + height), whole) for s in starts or [0]]


def _pieces_of_rows(tensor: TensorPlan, unit: int, max_values: int) -> list[tuple[int, int, Columns]]:
    """The same where even a few rows are too many values: pieces, along the diagonal of the tensor."""
    rows, columns = tensor.rows, tensor.columns
    width = min(columns, max(PIECE, max_values // CHUNKS // unit // PIECE * PIECE))
    out = []
    for i in range(CHUNKS):
        start = (rows - 1) * i // (CHUNKS - 1) // unit * unit
        left = (columns - width) * i // (CHUNKS - 1) // PIECE * PIECE
        out.append((start, min(rows, start + unit), (left, left + width)))
    return out


def _histogram(blocks: list[np.ndarray]) -> tuple[tuple[float, ...], tuple[int, ...]]:
    limit = max((float(ops.scan(b).amax) for b in blocks), default=0.0)
    if limit == 0.0:
        return (), ()
    counts = np.zeros(BINS, np.int64)
    for b in blocks:
        counts += np.asarray(ops.error_stats(np.zeros_like(b), b, limit, BINS).counts, np.int64)
    return tuple(float(v) for v in np.linspace(-limit, limit, BINS + 1)), tuple(int(c) for c in counts)
