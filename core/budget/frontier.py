"""The best choice of one option a unit, for every number of bytes at once.

Units are taken in one after the other; of all partial choices only those stay that no other one beats in both bytes
and cost. That is exact. Where more than `LIMIT` are left, the range of bytes is cut into as many stretches and the
cheapest of each stays, with its exact bytes: what is lost then is less than a stretch a unit, and in practice nearly
nothing (tests compare with the bound that Lagrange multipliers give).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LIMIT = 8192


@dataclass(frozen=True, eq=False)
class Frontier:
    """Choices that none beats. bytes: int64 [P], rising; cost: float64 [P], falling."""

    bytes: np.ndarray
    cost: np.ndarray
    _options: tuple[np.ndarray, ...]  # of each unit, the option's number for every partial choice
    _before: tuple[np.ndarray, ...]  # and which choice of the units before it that one continues

    def __len__(self) -> int:
        return len(self.bytes)

    def choice(self, point: int) -> list[int]:
        """The option of each unit at a point."""
        found = []
        for options, before in zip(reversed(self._options), reversed(self._before), strict=True):
            found.append(int(options[point]))
            point = int(before[point])
        return found[::-1]

    def within(self, budget: int) -> int | None:
        """The point of the least cost that takes at most so many bytes; None where there is none."""
        at = int(np.searchsorted(self.bytes, budget, side="right")) - 1
        return None if at < 0 else at


def frontier(units: Sequence[Sequence[tuple[int, float]]], limit: int = LIMIT) -> Frontier:
    """units: of each its options as (bytes, cost), at least one. Raises ValueError for a unit without."""
    size, cost = np.zeros(1, np.int64), np.zeros(1)
    all_options, all_before = [], []
    for options in units:
        if not options:
            raise ValueError("a unit has no options")
        added = np.array([o[0] for o in options], np.int64), np.array([o[1] for o in options], np.float64)
        sizes = (size[:, None] + added[0]).reshape(-1)
        costs = (cost[:, None] + added[1]).reshape(-1)
        kept = _unbeaten(sizes, costs, limit)
        all_before.append((kept // len(options)).astype(np.int32))
        all_options.append((kept % len(options)).astype(np.int16))
        size, cost = sizes[kept], costs[kept]
    return Frontier(size, cost, tuple(all_options), tuple(all_before))


def _unbeaten(sizes: np.ndarray, costs: np.ndarray, limit: int) -> np.ndarray:
    """Numbers of those that no other one beats, by rising size; at most `limit` and the ends."""
    order = np.lexsort((costs, sizes))
    falling = costs[order]
    best = np.minimum.accumulate(falling)
    first = np.ones(len(order), bool)
    first[1:] = falling[1:] < best[:-1]
    order = order[first]
    if len(order) <= limit:
        return order
    low, high = int(sizes[order[0]]), int(sizes[order[-1]])
    stretch = ((sizes[order] - low) * limit // max(1, high - low)).astype(np.int64)
    last = np.append(stretch[1:] != stretch[:-1], True)  # costs fall: the last of a stretch is its cheapest
    last[0] = True
    return order[last]
