"""Codes chosen column by column, so that later columns make up for earlier errors; and one sweep of descent.

The definition, a column at a time over all rows; kernels/cpu/solve has the same sums in the same order.
"""

from __future__ import annotations

import numpy as np

from kernels.reference.arithmetic import LARGEST, ONE, ZERO


def nearest_index(t: np.ndarray, levels: np.ndarray, middles: np.ndarray, even: bool) -> np.ndarray:
    """int64 of t's shape: the nearest level, of two equally near ones the even index (even spacing) or the lower."""
    if even:
        return np.rint(np.clip(t - levels[0], ZERO, np.float32(len(levels) - 1))).astype(np.int64)
    return np.searchsorted(middles, t, side="left")


def feedback(
    w: np.ndarray,
    matrix: np.ndarray,
    steps: np.ndarray,
    offsets: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
    middles: np.ndarray,
    even: bool,
    stop: np.ndarray,
    _threads: int,
) -> np.ndarray:
    """As `kernels.solve.feedback`, with the middles between levels, and whether these are evenly spaced by 1."""
    index = np.empty(w.shape, np.uint8)
    target = w.copy()
    safe = np.where(steps == 0, ONE, steps)
    with np.errstate(over="ignore"):
        inverse = np.where(steps == 0, ZERO, np.clip(ONE / safe, -LARGEST, LARGEST))
    for j in range(w.shape[1]):
        if stop[0]:
            break
        g = group[j]
        found = nearest_index((target[:, j] - offsets[:, g]) * inverse[:, g], levels, middles, even)
        index[:, j] = found
        error = w[:, j] - (steps[:, g] * levels[found] + offsets[:, g])
        target[:, j + 1 :] += error[:, None] * matrix[j + 1 :, j]
    return index


def descend(
    gradient: np.ndarray,
    h: np.ndarray,
    steps: np.ndarray,
    offsets: np.ndarray,
    group: np.ndarray,
    levels: np.ndarray,
    middles: np.ndarray,
    even: bool,
    index: np.ndarray,
    stop: np.ndarray,
    _threads: int,
) -> int:
    """As `kernels.solve.descend`."""
    changed = 0
    for j in range(len(h)):
        if stop[0]:
            break
        if not h[j, j] > 0:
            continue
        step, offset = steps[:, group[j]], offsets[:, group[j]]
        now = step * levels[index[:, j]] + offset
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            wanted = (now + gradient[:, j] / h[j, j] - offset) / np.where(step == 0, ONE, step)
        best = np.where(step == 0, index[:, j], nearest_index(wanted, levels, middles, even))
        rows = np.flatnonzero(best != index[:, j])
        change = (step * levels[best] + offset)[rows] - now[rows]
        gradient[rows] -= change[:, None] * h[j]
        index[rows, j] = best[rows]
        changed += len(rows)
    return changed
