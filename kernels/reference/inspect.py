"""Statistics of stored values, of BF16 and F16 as uint16 [R, K], of F32 as float32. NaN and Inf are left out.

Squares and powers are added in float64: those of a row value i in lane i mod 16 and the lanes in halves, those of a
column row after row.
"""

from __future__ import annotations

import numpy as np

from kernels.reference import floats
from kernels.reference.statistics import row_sums

CELL = 8  # rows and columns of a cell of the picture; kernels/cpu/table.h has it too


def values(x: np.ndarray, dtype: str) -> np.ndarray:
    return x if dtype == "F32" else floats.from_half(x, dtype, 1)


def count_patterns(x: np.ndarray, counts: np.ndarray, _threads: int) -> None:
    upper = x.view(np.uint32) >> 16 if x.dtype == np.float32 else x
    counts += np.bincount(upper.reshape(-1).astype(np.int64), minlength=65536)


def add_powers(x: np.ndarray, pivot: float, sums: np.ndarray, _threads: int) -> None:
    finite = np.isfinite(x)
    d = np.where(finite, np.where(finite, x, 0).astype(np.float64) - pivot, 0)
    square = d * d
    for k, power in enumerate((d, square, square * d, square * square)):
        for total in row_sums(power).tolist():
            sums[k] += total


def channel_sums(
    x: np.ndarray,
    dtype: str,
    row_max: np.ndarray,
    row_median: np.ndarray,
    row_squares: np.ndarray,
    row_finite: np.ndarray,
    column_max: np.ndarray,
    column_squares: np.ndarray,
    column_bad: np.ndarray,
    cells: np.ndarray,
    medians: bool,
    _threads: int,
) -> None:
    v = values(x, dtype)
    finite = np.isfinite(v)
    kept = np.where(finite, v, 0)
    size = np.abs(kept)
    row_max[:] = size.max(axis=1, initial=0)
    if medians:
        row_median[:] = _medians(v)
    row_finite[:] = finite.sum(axis=1)
    squares = kept.astype(np.float64) ** 2
    row_squares[:] = row_sums(squares)
    np.maximum(column_max, size.max(axis=0, initial=0), out=column_max)
    column_bad += (~finite).sum(axis=0)
    for row in squares:
        column_squares += row
    rows, columns = (_edges(n) for n in x.shape)
    if cells.size:
        cells[:] = pool_max(x, dtype, *rows, *columns, 1)


def column_medians(x: np.ndarray, dtype: str, _threads: int) -> np.ndarray:
    return _medians(np.ascontiguousarray(values(x, dtype).T))


def pool_max(
    x: np.ndarray,
    dtype: str,
    row_starts: np.ndarray,
    row_stops: np.ndarray,
    column_starts: np.ndarray,
    column_stops: np.ndarray,
    _threads: int,
) -> np.ndarray:
    size = np.abs(values(x, dtype))
    keys = size.view(np.uint32)  # NaN has a larger one than Inf, Inf than all numbers
    bands = np.array([keys[a:b].max(axis=0) for a, b in zip(row_starts, row_stops, strict=True)], np.uint32)
    bands = bands.reshape(len(row_starts), x.shape[1])
    out = [bands[:, a:b].max(axis=1) for a, b in zip(column_starts, column_stops, strict=True)]
    return np.ascontiguousarray(np.array(out, np.uint32).reshape(len(column_starts), len(bands)).T).view(np.float32)


def _edges(n: int) -> tuple[np.ndarray, np.ndarray]:
    starts = np.arange(0, n, CELL)
    return starts, np.minimum(starts + CELL, n)


def _medians(v: np.ndarray) -> np.ndarray:
    """Of the finite |x| of each row, the mean of the middle two for an even count; 0 where there are none."""
    finite = np.isfinite(v)
    ordered = np.sort(np.where(finite, np.abs(v), np.inf), axis=1).astype(np.float64)
    count = finite.sum(axis=1)
    if not v.shape[1]:
        return np.zeros(len(v), np.float32)
    row = np.arange(len(v))
    middle = (ordered[row, np.maximum(count - 1, 0) // 2] + ordered[row, np.minimum(count // 2, v.shape[1] - 1)]) * 0.5
    return np.where(count > 0, middle, 0).astype(np.float32)
