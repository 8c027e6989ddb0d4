"""Rows with one scale each that are too long to be held: their scales from pieces, and the codes of a piece.

The bytes are those of `ops.encode_groups` with the whole row as the group. The rows are read once for their ranges and,
with search, three times more: for all the first tries, and for each of two fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels import dispatch, ops
from kernels.reference.arithmetic import maximum
from kernels.reference.fit import TRACE, exponent_bits, inverse_power
from kernels.reference.groups import SUM_PIECE, GroupScale, fit_groups

# Each call reads the same rows from left to right: pieces float32 [R, n], n a multiple of SUM_PIECE but for the last.
ReadPieces = Callable[[], Iterable[np.ndarray]]


@dataclass(frozen=True)
class RowScales:
    """Of R rows: scales as stored and unsigned zeros, float32 [R]; amax: the largest |value| of each."""

    scales: np.ndarray
    zeros: np.ndarray
    amax: np.ndarray


def largest_of_rows(read: ReadPieces, threads: int = 1) -> np.ndarray:
    """max |value| of each row, float32 [R]; values that are not finite are left out."""
    return _ranges(read, threads).amax


def fit_rows(
    read: ReadPieces,
    bits: int,
    symmetric: bool,
    scale_dtype: str,
    search: bool,
    importance: np.ndarray | None = None,
    threads: int = 1,
) -> RowScales:
    """The scales that `ops.encode_groups` finds for whole rows. Raises ValueError for NaN and Inf."""
    ranges = _ranges(read, threads)
    if ranges.nonfinite:
        raise ValueError("NaN or Inf can not be encoded")
    half = np.float32(1 << (bits - 1))
    weights = None if importance is None else _normalised(importance)
    run = dispatch.find("group_sums").function

    def sums(tries: Sequence[GroupScale]) -> np.ndarray:
        scales, zeros = np.stack([g.scale for g in tries]), np.stack([g.zero + half for g in tries])
        total = np.zeros((len(tries), scales[0].size * 3))
        at = 0
        for piece in read():
            w = None if weights is None else weights[at : at + piece.shape[1]]
            run(piece, w, scales, zeros, bits, total, threads)
            at += piece.shape[1]
            if at % SUM_PIECE and at != ranges.length:
                raise ValueError(f"pieces of a row are multiples of {SUM_PIECE} values")
        return total.reshape(len(tries), -1, 3)

    found = fit_groups(ranges.low, ranges.high, bits, symmetric, scale_dtype, sums if search else None)
    return RowScales(found.scale, found.zero + half, ranges.amax)


def encode_piece(x: np.ndarray, rows: RowScales, bits: int, threads: int = 1) -> np.ndarray:
    """Unsigned codes, uint8 [R, n], of a piece of the rows that `rows` was found for."""
    return dispatch.find("group_codes").function(x, rows.scales, rows.zeros, bits, threads)


@dataclass(frozen=True)
class _Ranges:
    """Lowest and highest of each row, widened to hold 0; how long the rows are, and how many values are not finite."""

    low: np.ndarray
    high: np.ndarray
    length: int
    nonfinite: int

    @property
    def amax(self) -> np.ndarray:
        return np.maximum(-self.low, self.high)


def _ranges(read: ReadPieces, threads: int) -> _Ranges:
    low = high = np.zeros(0, np.float32)
    length = nonfinite = 0
    for piece in read():
        if not length:
            low, high = np.zeros(len(piece), np.float32), np.zeros(len(piece), np.float32)
        length += piece.shape[1]
        for row, values in enumerate(piece):
            found = ops.scan(values[None], threads)
            low[row], high[row] = min(low[row], found.min), max(high[row], found.max)
            nonfinite += found.nonfinite
    return _Ranges(low, high, length, nonfinite)


def _normalised(importance: np.ndarray) -> np.ndarray:
    """As `fit.normalise_weights`, for one group."""
    scale = inverse_power(exponent_bits(importance.max(keepdims=True)))
    return maximum(importance * scale, TRACE)
