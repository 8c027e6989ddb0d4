"""Sums over the inputs of a weight: what methods need to know of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from core.methods.transform import InputStatistics
from core.threads import worker_count
from kernels import matrix

_BAND = 2048  # rows of a Gram matrix that are added to at a time
_MIRRORED = 256  # and that are copied below the diagonal


class Gram:
    """Mean of x xᵀ over rows x that come in pieces, float32 [K, K]. Nothing else of that size is held."""

    def __init__(self, columns: int) -> None:
        self._total = np.zeros((columns, columns), np.float32)
        self.rows = 0

    def add(self, x: np.ndarray) -> None:
        """x: float32 [R, K]; where the processor multiplies bfloat16, rounded to it, as products do with it."""
        self.rows += len(x)
        if matrix.add_gram(x, self._total, worker_count()):
            return
        size = len(self._total)
        for start in range(0, size, _BAND):  # the triangle of bands from the diagonal on
            self._total[start : start + _BAND, start:] += x[:, start : start + _BAND].T @ x[:, start:]

    def mean(self) -> np.ndarray:
        """All zero without rows. The sums are given away: nothing can be added any more."""
        total = self._total
        del self._total
        total *= np.float32(1 / max(self.rows, 1))
        for start in range(0, len(total), _MIRRORED):
            stop = start + _MIRRORED
            corner = np.triu(total[start:stop, start:stop])
            total[start:stop, start:stop] = corner + np.triu(corner, 1).T
            total[stop:, start:stop] = total[start:stop, stop:].T
        return total


def gram(pieces: Iterable[np.ndarray], columns: int) -> tuple[np.ndarray, int]:
    """Mean of x xᵀ over the rows of all pieces (float32 [R, K]) → float32 [K, K], and how many rows there were."""
    found = Gram(columns)
    for x in pieces:
        found.add(x)
    return found.mean(), found.rows


def squares(pieces: Iterable[np.ndarray], columns: int) -> tuple[np.ndarray, int]:
    """Σx² of each channel, float32 [K], and over how many rows."""
    total, rows = np.zeros(columns, np.float64), 0
    for x in pieces:
        total += np.einsum("rk,rk->k", x, x)
        rows += len(x)
    return total.astype(np.float32), rows


def drift(pieces: Iterable[np.ndarray], full: Iterable[np.ndarray], columns: int) -> np.ndarray:
    """Mean of (x_full − x) xᵀ, float32 [K, K], over the same rows of both."""
    total, rows = np.zeros((columns, columns), np.float32), 0
    for x, wanted in zip(pieces, full, strict=True):
        total += (wanted - x).T @ x
        rows += len(x)
    return total / np.float32(max(rows, 1))


def input_statistics(
    pieces: Iterable[np.ndarray], columns: int, rows: int, with_gram: bool, samples: int
) -> InputStatistics:
    """What transforms see of an input of so many rows; `samples` of them, evenly over all, are kept."""
    absolute, largest = np.zeros(columns, np.float64), np.zeros(columns, np.float32)
    total = Gram(columns) if with_gram else None
    step = max(1, -(-rows // max(1, samples)))
    kept, seen = [np.zeros((0, columns), np.float32)], 0
    for x in pieces:
        size = np.abs(x)
        absolute += size.sum(axis=0, dtype=np.float64)
        np.maximum(largest, size.max(axis=0, initial=0.0), out=largest)
        if total is not None:
            total.add(x)
        kept.append(x[-seen % step :: step].copy())
        seen += len(x)
    count = max(seen, 1)
    mean = (absolute / count).astype(np.float32)
    return InputStatistics(seen, mean, largest, total.mean() if total is not None else None, np.concatenate(kept))
