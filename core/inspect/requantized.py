"""A tensor before and after quantization: how often which magnitude occurs, and which levels its groups have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint
from core.formats import EncodeOptions
from core.inspect.grid import group_grid
from core.inspect.group_map import planned_group
from core.inspect.statistics import LOWEST_OCTAVE, MAGNITUDE_BINS, STEPS_PER_OCTAVE
from core.models.gguf_tensors import MappedTensor
from core.models.read_mapped import interleaved, read_mapped
from core.plan import Plan, TensorPlan
from core.preview import round_trip, sample_ranges
from core.progress import CancelToken
from core.threads import worker_count
from kernels import ops

MAX_VALUES = 1_000_000  # that are quantized: evenly spread rows, about a tenth of a second


@dataclass(frozen=True, eq=False)
class Requantized:
    """before, after: int64 [MAGNITUDE_BINS], how many |x| of the same `seen` values are in each bin of
    `core.inspect.statistics.magnitude_edges()` before and after. zeros_before, zeros_after: how many are 0.
    share: seen values of all of the tensor's."""

    format: str
    before: np.ndarray
    after: np.ndarray
    zeros_before: int
    zeros_after: int
    seen: int
    share: float


@dataclass(frozen=True, eq=False)
class GroupLevels:
    """Magnitudes that a group's scale lets its codes have: float32 rising, each once; used: whether a value of the
    group goes there, with either sign. row, column: a place in the group, as the plan counts rows. amax: largest |x|.
    """

    row: int
    column: int
    amax: float
    levels: np.ndarray
    used: np.ndarray


def requantized(
    checkpoint: Checkpoint,
    plan: Plan,
    index: int,
    token: CancelToken,
    expert: int | None = None,
    max_values: int = MAX_VALUES,
) -> Requantized:
    """Encode and decode planned tensor number `index`, or evenly spread rows of it. expert: of a stack, only this one.

    Raises UserError when the values can not be stored, Cancelled.
    """
    tensor = plan.tensors[index]
    blocks = []
    for first, last, columns in _ranges(tensor, expert, max_values):
        token.check()
        blocks.append(read_mapped(checkpoint, tensor.source, first, last, columns))
    amax = max((float(ops.scan(b).amax) for b in blocks), default=0.0)
    options = EncodeOptions(method=plan.recipe.method, amax=amax, threads=worker_count())
    before, after = np.zeros(MAGNITUDE_BINS, np.int64), np.zeros(MAGNITUDE_BINS, np.int64)
    zeros = [0, 0]
    for block in blocks:
        token.check()
        for number, (counts, values) in enumerate(((before, block), (after, round_trip(tensor, block, options)))):
            counts += magnitude_counts(values)
            zeros[number] += values.size - int(np.count_nonzero(values))
    seen = sum(b.size for b in blocks)
    whole = tensor.values if expert is None else tensor.values // tensor.shape[0]
    return Requantized(tensor.format_name, before, after, zeros[0], zeros[1], seen, seen / whole if whole else 1.0)


def _ranges(tensor: TensorPlan, expert: int | None, max_values: int) -> list[tuple[int, int, tuple[int, int]]]:
    if expert is None or len(tensor.shape) < 3:
        return sample_ranges(tensor, max_values)
    matrix = tensor.shape[-2]
    height = min(matrix, max(1, max_values // tensor.columns))
    unit = tensor.format.row_multiple if tensor.format else 1
    first = expert * matrix
    return [(first, first + max(unit, height // unit * unit), (0, tensor.columns))]


def magnitude_counts(values: np.ndarray) -> np.ndarray:
    """int64 [MAGNITUDE_BINS]: how many finite |x| ≠ 0 are in each eighth of an octave; those outside are left out."""
    magnitudes = np.abs(values[np.isfinite(values) & (values != 0)])
    bins = np.floor(np.log2(magnitudes) * STEPS_PER_OCTAVE).astype(np.int64) - LOWEST_OCTAVE * STEPS_PER_OCTAVE
    inside = bins[(bins >= 0) & (bins < MAGNITUDE_BINS)]
    return np.bincount(inside, minlength=MAGNITUDE_BINS)


def group_levels(checkpoint: Checkpoint, plan: Plan, index: int, row: int, column: int) -> GroupLevels:
    """The levels of the group of value (row, column) of planned tensor `index`; none where values are kept as they are.

    Raises UserError when its values can not be stored.
    """
    tensor = plan.tensors[index]
    group = planned_group(checkpoint, plan, index, row, column)
    amax = float(np.abs(group.original).max()) if group.original is not None and group.original.size else 0.0
    if tensor.format is None or not len(group.grid):
        return GroupLevels(row, column, amax, np.zeros(0, np.float32), np.zeros(0, bool))
    grid = group_grid(group)
    levels, places = np.unique(np.abs(grid.levels), return_inverse=True)
    used = np.zeros(len(levels), bool)
    np.logical_or.at(used, places, np.asarray(grid.counts) > 0)
    return GroupLevels(row, column, amax, levels.astype(np.float32), used)


def planned_rows(source: MappedTensor, name: str) -> np.ndarray:
    """For each row of the source tensor of that name, which of the planned tensor it becomes: int64, −1 for none."""
    order = np.arange(source.rows)
    if source.permute_heads and len(source.shape) > 1:
        place = np.empty_like(order)
        place[interleaved(source.rows, source.permute_heads)] = order
        order = place
    tensor = next(p.tensor for p in source.pieces if p.tensor.name == name)
    rows = np.full(max(1, tensor.rows), -1, np.int64)
    base = 0
    for piece in source.pieces:
        size = piece.stop - piece.start
        if piece.tensor.name == name:
            rows[piece.start : piece.stop] = order[base : base + size]
        base += size
    return rows
