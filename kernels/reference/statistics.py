"""Sums over rows. Value i of a row is added to lane i mod 16, the lanes in halves, the rows in order.

Values that are not finite in the source are counted and left out of all the rest.
"""

from __future__ import annotations

import numpy as np

_LANES = 16


def _differences(source: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """finite [R, K]; the source and the difference as float64, 0 where the source is not finite. NaN differs by Inf."""
    finite = np.isfinite(source)
    x = np.where(finite, source, 0).astype(np.float64)
    with np.errstate(invalid="ignore"):
        e = np.where(finite, other.astype(np.float64) - x, 0.0)
    return finite, x, np.where(np.isnan(e), np.inf, e)


def _row_sums(values: np.ndarray) -> np.ndarray:
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // _LANES) * _LANES))
    padded[:, :columns] = values
    lanes = np.zeros((rows, _LANES))
    for chunk in padded.reshape(rows, -1, _LANES).swapaxes(0, 1):
        lanes = lanes + chunk
    half = _LANES // 2
    while half:
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0]


def _in_order(values: np.ndarray) -> float:
    total = 0.0
    for value in values.tolist():
        total += value
    return total


def error_stats(
    source: np.ndarray, other: np.ndarray, limit: float, counts: np.ndarray, _threads: int
) -> tuple[float, float, float, int]:
    finite, x, e = _differences(source, other)
    if limit > 0 and len(counts):
        low = np.maximum((e + limit) * (len(counts) / (2 * limit)), 0.0)
        places = np.minimum(low, len(counts) - 1).astype(np.int64)
        counts += np.bincount(places[finite], minlength=len(counts))
    squares, error_squares = _in_order(_row_sums(x * x)), _in_order(_row_sums(e * e))
    return squares, error_squares, float(np.abs(e).max(initial=0.0)), int((~finite).sum())


def scan(x: np.ndarray, extremes: np.ndarray, nonfinite: np.ndarray, _threads: int) -> None:
    finite = np.isfinite(x)
    nonfinite[:] = (~finite).sum(axis=1)
    some = finite.any(axis=1)
    low = np.where(finite, x, np.inf).min(axis=1, initial=np.inf)
    high = np.where(finite, x, -np.inf).max(axis=1, initial=-np.inf)
    extremes[:, 0] = np.where(some, np.maximum(np.abs(low), np.abs(high)), 0)
    extremes[:, 1] = np.where(some, low, 0)
    extremes[:, 2] = np.where(some, high, 0)


def max_group_error_ratio(source: np.ndarray, other: np.ndarray, group: int, floor: float, _threads: int) -> float:
    finite = np.isfinite(source)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        e = np.abs(other - source)
        e = np.where(finite, np.where(np.isnan(e), np.inf, e), 0).astype(np.float32)
        size = np.where(finite, np.abs(source), 0).astype(np.float32)
        starts = np.arange(0, source.shape[1], group)
        errors = np.maximum.reduceat(e, starts, axis=1)
        sizes = np.maximum(np.maximum.reduceat(size, starts, axis=1), np.float32(floor))
        return float(np.where(errors == 0, 0, errors / sizes).max(initial=0.0))
