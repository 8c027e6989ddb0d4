"""The values that a format can store, scaled to a group or a tensor: what the distribution is rounded to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from core.contract import ElementType
from core.errors import UserError
from core.formats import FORMATS
from core.inspect.bit_layout import BLOCK_TYPES, level_table
from core.inspect.group_map import GroupMap
from kernels.layouts import E2M1_LEVELS
from kernels.reference import floats

# NF4's sixteen values: quantiles of the normal distribution, scaled to ±1 (Dettmers et al., QLoRA, 2023, appendix E).
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
# Integers of any width under one scale: (bits, symmetric). Symmetric ones reach from −2^(b−1) to 2^(b−1) − 1 by a scale
# of 2 · amax / (2^b − 1), as compressed-tensors has it; asymmetric ones share low … high out, 0 being one of them.
_INTEGERS = {
    f"INT{bits}{'' if symmetric else ' asymmetric'}": (bits, symmetric)
    for bits in (2, 3, 4, 5, 6, 8)
    for symmetric in (True, False)
}
_OTHERS = ("NF4", "FP4", "FP8 E4M3", "FP8 E5M2")


@dataclass(frozen=True)
class Grid:
    """levels: float32, rising, weight units, each once. counts: how many of the looked-at values go to each level.

    even: evenly spaced. format: of the tree, or 'NF4', 'FP4', 'FP8 E4M3', 'FP8 E5M2', 'INT4', 'INT8' ….
    """

    format: str
    levels: np.ndarray
    counts: np.ndarray
    even: bool

    @property
    def used(self) -> float:
        """Share of the levels that at least one value goes to."""
        return float(np.count_nonzero(self.counts) / len(self.levels)) if len(self.levels) else 0.0

    @property
    def wasted(self) -> float:
        """Share of the levels that no value goes to."""
        return 1.0 - self.used

    @property
    def effective_levels(self) -> float:
        """2^entropy of the counts: how many equally used levels would carry as much; 0 without values."""
        total = self.counts.sum()
        if not total:
            return 0.0
        share = self.counts[self.counts > 0] / total
        return float(2.0 ** -(share * np.log2(share)).sum())


def grid_names() -> tuple[str, ...]:
    """Every name that `scaled_grid` takes: the tree's formats that have scales, then others to compare with."""
    return (*(f.name for f in FORMATS if f.contract.scale is not None), *_INTEGERS, *_OTHERS)


def scaled_grid(name: str, low: float, high: float, values: np.ndarray | None = None) -> Grid:
    """A format's levels under one scale that just covers low … high; counts of `values` (of any shape), else zeros.

    A value goes to the nearest level; NaN and Inf are left out. Formats with sub-scales are shown under the finest
    exact scale of one group. Raises UserError for a name that has no levels.
    """
    if not (np.isfinite([low, high]).all() and low <= high):
        raise ValueError(f"a range from {low} to {high}")
    shape = _shape(name)
    amax = max(abs(low), abs(high))
    if shape.affine:
        bottom, top = min(low, 0.0), max(high, 0.0)
        if shape.holds_zero:  # an integer zero point
            step = (top - bottom) / (len(shape.levels) - 1) or 1.0
            levels = (shape.levels - np.clip(round(-bottom / step), 0, len(shape.levels) - 1)) * step
        else:
            levels = low + shape.levels / shape.levels[-1] * (high - low)
    else:
        levels = shape.levels * (amax / shape.reach)
    return _counted(name, np.unique(levels.astype(np.float32)), shape.even, values)


def group_grid(group: GroupMap) -> Grid:
    """The levels of the group as it is stored, by its own scale and zero point, and which its codes use.

    Plain types have no levels.
    """
    levels, at = np.unique(group.grid, return_inverse=True)
    counts = np.zeros(len(levels), np.int64)
    if levels.size:
        np.add.at(counts, at.reshape(-1)[np.minimum(group.codes.astype(np.int64), len(group.grid) - 1)], 1)
    steps = np.diff(levels)
    even = bool(len(steps) and np.allclose(steps, steps[0], rtol=1e-3))
    return Grid(group.format, levels, counts, even)


def nearest_levels(levels: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Index of the nearest of rising levels for each finite value, ties to the lower; int64, flat."""
    flat = np.asarray(values, np.float32).reshape(-1)
    flat = flat[np.isfinite(flat)]
    between = (levels[:-1].astype(np.float64) + levels[1:].astype(np.float64)) / 2
    return np.searchsorted(between, flat, side="left")


def _counted(name: str, levels: np.ndarray, even: bool, values: np.ndarray | None) -> Grid:
    counts = np.zeros(len(levels), np.int64)
    if values is not None:
        counts += np.bincount(nearest_levels(levels, values), minlength=len(levels))
    return Grid(name, levels, counts, even)


@dataclass(frozen=True)
class _Shape:
    """Levels before scaling, rising. reach: the one that the largest |x| is scaled to. affine: low and high are fitted
    separately; holds_zero: by a whole zero point."""

    levels: np.ndarray
    reach: float
    even: bool
    affine: bool = False
    holds_zero: bool = False


@lru_cache(maxsize=64)
def _shape(name: str) -> _Shape:
    if name in _INTEGERS:
        return _integers(*_INTEGERS[name])
    if name == "NF4":
        return _Shape(np.array(NF4), 1.0, False)
    if name == "FP4":
        return _floats(np.array(E2M1_LEVELS))
    if name.startswith("FP8 "):
        table = floats.table("F8_" + name.removeprefix("FP8 "))
        return _floats(table[np.isfinite(table)])
    found = next((f for f in FORMATS if f.name == name and f.contract.scale is not None), None)
    if found is None:
        raise UserError(f"{name} has no levels to draw.", f"Use one of: {', '.join(grid_names())}.")
    c = found.contract
    if c.element is ElementType.INT and name.startswith("w"):
        return _integers(int(c.bits), c.symmetric)
    kind = BLOCK_TYPES[name]
    levels = np.unique(level_table(name))
    if name == "Q8_0":
        levels = levels[1:]  # −128 is no code that an encoder writes
    reach = float(np.abs(levels).max())
    affine = c.zero is not None
    return _Shape(levels.astype(np.float64), reach, not kind.levels, affine)


def _integers(bits: int, symmetric: bool) -> _Shape:
    half = 1 << (bits - 1)
    if symmetric:
        return _Shape(np.arange(-half, half, dtype=np.float64), half - 0.5, True)
    return _Shape(np.arange(2 * half, dtype=np.float64), 2.0 * half - 1, True, True, True)


def _floats(positive: np.ndarray) -> _Shape:
    levels = np.unique(np.concatenate([positive, -positive])).astype(np.float64)
    return _Shape(levels, float(levels[-1]), False)
