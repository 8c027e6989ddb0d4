"""Sums over rows. Value i of a row is added to lane i mod 16, the lanes in halves, the rows in order.

Values that are not finite in the source are counted and left out of all the rest.
"""

from __future__ import annotations

import numpy as np

from kernels.reference.arithmetic import clamp

_LANES = 16
_RUN = 8  # squares of a lane that are added in float32, in a row whose sums neither overflow nor come near underflow
_LEAST = 2.0**-100


def _differences(source: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """finite [R, K]; the source and the difference in float32, 0 where the source is not finite. NaN differs by Inf."""
    finite = np.isfinite(source)
    with np.errstate(invalid="ignore", over="ignore"):
        e = other - source
    return finite, np.where(finite, source, 0), np.where(finite, np.where(np.isnan(e), np.inf, e), 0).astype(np.float32)


def row_sums(values: np.ndarray) -> np.ndarray:
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


def _row_squares(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σv² of each row, [R] float64: of runs of eight in a lane, added in float32; and all in float64."""
    rows, columns = values.shape
    padded = np.zeros((rows, -(-columns // (_RUN * _LANES)) * _RUN * _LANES), np.float32)
    padded[:, :columns] = values
    with np.errstate(over="ignore", under="ignore"):
        each = np.square(padded).reshape(rows, -1, _RUN, _LANES)
        runs = np.zeros((*each.shape[:2], _LANES), np.float32)
        for i in range(_RUN):
            runs = runs + each[:, :, i]
    wide = values.astype(np.float64)
    return row_sums(runs.reshape(rows, -1)), row_sums(wide * wide)


def _in_order(values: np.ndarray) -> float:
    total = 0.0
    for value in values.tolist():
        total += value
    return total


def error_stats(
    source: np.ndarray, other: np.ndarray, limit: float, counts: np.ndarray, every: int, _threads: int
) -> tuple[float, float, float, int]:
    finite, x, e = _differences(source, other)
    if limit > 0 and len(counts):
        limit32, bins = np.float32(limit), np.float32(len(counts))
        place = (e + limit32) * (bins / (np.float32(2) * limit32))
        bin_numbers = clamp(place, 0.0, bins - np.float32(1)).astype(np.int64)
        counts += np.bincount(bin_numbers[::every][finite[::every]], minlength=len(counts))
    squares, error_squares = _row_squares(x), _row_squares(e)
    plain = finite.all(axis=1) & (squares[0] >= _LEAST) & np.isfinite(squares[0]) & np.isfinite(error_squares[0])
    plain &= (error_squares[0] >= _LEAST) | ((e == 0).all(axis=1))
    total, errors = (_in_order(np.where(plain, *both)) for both in (squares, error_squares))
    return total, errors, float(np.abs(e).max(initial=0.0)), int((~finite).sum())


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
    _, x, e = _differences(source, other)
    starts = np.arange(0, source.shape[1], group)
    errors = np.maximum.reduceat(np.abs(e), starts, axis=1)
    sizes = np.maximum(np.maximum.reduceat(np.abs(x), starts, axis=1), np.float32(floor))
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        return float(np.where(errors == 0, 0, errors / sizes).max(initial=0.0))
