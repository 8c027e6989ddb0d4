"""The values that a group can hold as it is stored, and which of them its codes use."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from core.inspect.group_types import GroupMap


@dataclass(frozen=True)
class Grid:
    """levels: float32, rising, weight units, each once. counts: int64, how many of the group's codes stand for each."""

    format: str
    levels: np.ndarray
    counts: np.ndarray

    @property
    def used(self) -> float:
        """Share of the levels that at least one value goes to."""
        return float(np.count_nonzero(self.counts) / len(self.levels)) if len(self.levels) else 0.0


def group_grid(group: GroupMap) -> Grid:
    """The levels of the group as it is stored, by its own scale and zero point, and which its codes use.

    Plain types have no levels.
    """
    levels, at = np.unique(group.grid, return_inverse=True)
    counts = np.zeros(len(levels), np.int64)
    if levels.size:
        np.add.at(counts, at.reshape(-1)[np.minimum(group.codes.astype(np.int64), len(group.grid) - 1)], 1)
    return Grid(group.format, levels, counts)
