"""Sums over the inputs of a weight: what methods need to know of them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from core.methods.factor import side_by_side
from core.methods.transform import InputStatistics
from core.progress import CancelToken
from core.threads import worker_count
from kernels import matrix

_PRODUCTS = 1 << 33  # multiplications between two looks at the token, on each core
_MIRRORED = 256  # and that are copied below the diagonal


class Gram:
    """Mean of x xᵀ over rows x that come in pieces, float32 [K, K]. Nothing else of that size is held."""

    def __init__(self, columns: int, token: CancelToken) -> None:
        self._token = token
        self._total = np.empty((columns, columns), np.float32)
        for start in range(
            0, columns, _MIRRORED
        ):  # the system clears pages when they are first touched: that takes long
            token.check()
            self._total[start : start + _MIRRORED] = 0
        self.rows = 0

    def add(self, x: np.ndarray) -> None:
        """x: float32 [R, K]."""
        self.rows += len(x)
        size, threads = len(self._total), worker_count()
        step = max(64, 2 * threads * _PRODUCTS // size**2)
        for start in range(0, len(x), step):
            self._token.check()
            matrix.add_gram(x[start : start + step], self._total, threads)

    def mean(self) -> np.ndarray:
        """All zero without rows. The sums are given away: nothing can be added any more."""
        total = self._total
        del self._total
        for start in range(0, len(total), _MIRRORED):
            self._token.check()
            stop = start + _MIRRORED
            total[start:stop, start:] *= np.float32(1 / max(self.rows, 1))
            corner = np.triu(total[start:stop, start:stop])
            total[start:stop, start:stop] = corner + np.triu(corner, 1).T
            for below in range(stop, len(total), _MIRRORED):  # corner by corner: rows of one lie in the cache
                total[below : below + _MIRRORED, start:stop] = total[start:stop, below : below + _MIRRORED].T
        return total


def gram(pieces: Iterable[np.ndarray], columns: int, token: CancelToken) -> tuple[np.ndarray, int]:
    """Mean of x xᵀ over the rows of all pieces (float32 [R, K]) → float32 [K, K], and how many rows there were."""
    found = Gram(columns, token)
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


def cross(pairs: Iterable[tuple[np.ndarray, np.ndarray]], rows: int, columns: int, token: CancelToken) -> np.ndarray:
    """Mean of y xᵀ, float32 [rows, columns], over the tokens of all pairs y [R, rows] and x [R, columns]."""
    total, tokens = np.zeros((rows, columns), np.float32), 0
    for y, x in pairs:

        def add(start: int, count: int, y: np.ndarray = y, x: np.ndarray = x) -> None:
            stop = min(start + count, rows)
            total[start:stop] += y[:, start:stop].T @ x

        side_by_side(add, 0, rows, x.size, token)
        tokens += len(x)
    for start in range(0, rows, _MIRRORED):
        token.check()
        total[start : start + _MIRRORED] /= np.float32(max(tokens, 1))
    return total


def drift(pairs: Iterable[tuple[np.ndarray, np.ndarray]], columns: int, token: CancelToken) -> np.ndarray:
    """Mean of (x_full − x) xᵀ, float32 [K, K], over pairs of x and x_full − x."""
    return cross(((difference, x) for x, difference in pairs), columns, columns, token)


def input_statistics(pieces: Iterable[np.ndarray], columns: int, rows: int, samples: int) -> InputStatistics:
    """What transforms see of an input of so many rows; `samples` of them, evenly over all, are kept."""
    absolute, largest = np.zeros(columns, np.float64), np.zeros(columns, np.float32)
    step = max(1, -(-rows // max(1, samples)))
    kept, seen = [np.zeros((0, columns), np.float32)], 0
    for x in pieces:
        size = np.abs(x)
        absolute += size.sum(axis=0, dtype=np.float64)
        np.maximum(largest, size.max(axis=0, initial=0.0), out=largest)
        kept.append(x[-seen % step :: step].copy())
        seen += len(x)
    count = max(seen, 1)
    mean = (absolute / count).astype(np.float32)
    return InputStatistics(seen, mean, largest, np.concatenate(kept))
