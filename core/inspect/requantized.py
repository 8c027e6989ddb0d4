"""A tensor after quantization: how often which magnitude occurs, and which levels its groups have."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.checkpoint.base import Checkpoint, Columns
from core.formats import EncodeOptions
from core.inspect.grid import group_grid
from core.inspect.group_map import planned_group
from core.inspect.statistics import LOWEST_OCTAVE, MAGNITUDE_BINS, STEPS_PER_OCTAVE
from core.models.read_mapped import read_mapped
from core.plan import Plan, TensorPlan
from core.preview import CHUNKS, round_trip, sample_ranges
from core.progress import CancelToken
from core.threads import worker_count
from kernels import ops

MAX_VALUES = 1_000_000  # that are quantized: evenly spread rows, about a tenth of a second


@dataclass(frozen=True, eq=False)
class Requantized:
    """after: int64 [MAGNITUDE_BINS], how many |x̂| of the `seen` values are in each bin of
    `core.inspect.statistics.magnitude_edges()`. zeros_after: how many are 0. share: seen values of all of the tensor's.
    """

    format: str
    after: np.ndarray
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
    rows: tuple[int, int] | None = None,
    max_values: int = MAX_VALUES,
) -> Requantized:
    """Encode and decode planned tensor number `index`, or evenly spread rows of it. rows: only of these, first … last.

    Raises UserError when the values can not be stored, Cancelled.
    """
    tensor = plan.tensors[index]
    blocks = []
    for first, last, columns in _ranges(tensor, rows, max_values):
        token.check()
        blocks.append(read_mapped(checkpoint, tensor.source, first, last, columns))
    amax = max((float(ops.scan(b).amax) for b in blocks), default=0.0)
    options = EncodeOptions(method=plan.recipe.method, amax=amax, threads=worker_count())
    after, zeros = np.zeros(MAGNITUDE_BINS, np.int64), 0
    for block in blocks:
        token.check()
        decoded = round_trip(tensor, block, options)
        after += magnitude_counts(decoded)
        zeros += decoded.size - int(np.count_nonzero(decoded))
    seen = sum(b.size for b in blocks)
    whole = tensor.values if rows is None else (rows[1] - rows[0]) * tensor.columns
    return Requantized(tensor.format_name, after, zeros, seen, seen / whole if whole else 1.0)


def _ranges(tensor: TensorPlan, rows: tuple[int, int] | None, max_values: int) -> list[tuple[int, int, Columns]]:
    if rows is None or rows == (0, tensor.rows):
        return sample_ranges(tensor, max_values)
    unit = tensor.format.unit_rows(tensor.shape) if tensor.format else 1
    height = max(unit, max_values // CHUNKS // tensor.columns // unit * unit)
    starts = range(rows[0], rows[1], max(height, (rows[1] - rows[0]) // CHUNKS // unit * unit))
    return [(start, min(rows[1], start + height), (0, tensor.columns)) for start in starts][: CHUNKS + 1]


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
