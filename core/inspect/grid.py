"""The values that a format can store, scaled to a group or a tensor: what the distribution is rounded to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.inspect.group_map import GroupMap


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
        return 1.0 - self.used

    @property
    def effective_levels(self) -> float:
        """2^entropy of the counts: how many equally used levels would carry as much."""
        raise NotImplementedError


def grid_names() -> tuple[str, ...]:
    """Every name that `scaled_grid` takes."""
    raise NotImplementedError


def scaled_grid(name: str, low: float, high: float, values: np.ndarray | None = None) -> Grid:
    """A format's levels under one scale that just covers low … high; counts of `values` (of any shape), else zeros."""
    raise NotImplementedError


def group_grid(group: GroupMap) -> Grid:
    """The levels of the group as it is stored, by its own scale and zero point, and which its codes use."""
    raise NotImplementedError
