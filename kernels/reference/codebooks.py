"""Codes of a table of sixteen levels, one scale for a group of neighbours along a row: x ≈ scale · table[code].

Without search: bitsandbytes' CPU quantizer. The scale maps the largest magnitude to the table's, each value is times
the reciprocal of the scale, and one that is halfway goes to the lower level. A group of zeros has scale 0.
The compiled kernel is kernels/cpu/encode/codebook.h.
"""

from __future__ import annotations

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import (
    LARGEST,
    ONE,
    ZERO,
    bf16_bits,
    bf16_values,
    inverse,
    maximum,
    minimum,
    round_f16,
)
from kernels.reference.groups import SUM_PIECE

# bitsandbytes divides by no less.
_LEAST_DIVISOR = np.float32(1e-38)
# What the search tries, as shares of the scale that maps the largest magnitude to the table's; below 0.8 a value could
# be clipped by more than the widest gap of a table rounds it.
_SHARES = tuple(np.float32(80 + 2 * k) / np.float32(100) for k in range(15))
_LEAST, _MOST, _REFITS = _SHARES[0], np.float32(1.25), 2
# The search leaves smaller scales as they are: their reciprocals are not exact enough.
_SMALLEST_SEARCHED = np.float32(2.0**-120)


def round_signed(scale: np.ndarray, scale_type: str) -> np.ndarray:
    """A scale of either sign as it is stored: finite, and 0 only if it was."""
    size = np.abs(scale)
    stored, smallest = minimum(size, LARGEST), np.float32(2.0**-149)
    if scale_type == "F16":
        stored, smallest = minimum(round_f16(size), np.float32(65504)), np.float32(2.0**-24)
    elif scale_type == "BF16":
        largest_bf16 = np.uint32(0x7F7F0000).view(np.float32)
        stored, smallest = minimum(bf16_values(bf16_bits(size)), largest_bf16), np.float32(2.0**-133)
    stored = np.where((stored == ZERO) & (size != ZERO), smallest, stored)
    return np.copysign(stored, scale)


def pieces_of(x: np.ndarray) -> list[np.ndarray]:
    """[G, n] as pieces of SUM_PIECE columns: sums are float32 inside one and float64 over them."""
    return [x[:, at : at + SUM_PIECE] for at in range(0, x.shape[1], SUM_PIECE)]


def add_pieces(pieces: list[np.ndarray]) -> np.ndarray:
    if len(pieces) == 1:
        return pieces[0]
    total = np.zeros(pieces[0].shape)
    for piece in pieces:
        total += piece
    return total.astype(np.float32)


class Levels:
    """A table in ascending order (of equal levels the lower code first) and the middles between neighbours."""

    def __init__(self, table: np.ndarray) -> None:
        self.order = np.argsort(table, kind="stable").astype(np.uint8)
        self.levels = table[self.order]
        self.middles = (self.levels[1:] + self.levels[:-1]) * np.float32(0.5)
        self.largest = np.abs(table).max()

    def places(self, v: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.middles, v, side="left")


def _reciprocal(scale: np.ndarray) -> np.ndarray:
    return ONE / maximum(scale, _LEAST_DIVISOR)


def _sums(levels: Levels, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray) -> np.ndarray:
    """float32 [3, G]: Σ w·e², Σ w·v·t and Σ w·t² for v = x / scale, t its level and e = v − t."""
    reciprocal = _reciprocal(scale)
    found = []
    for at, piece in enumerate(pieces_of(x)):
        v = piece * reciprocal[:, None]
        t = levels.levels[levels.places(v)]
        total = np.zeros((3, len(x)), np.float32)
        for i in range(piece.shape[1]):
            column = at * SUM_PIECE + i
            e = v[:, i] - t[:, i]
            wt = fit.weigh(w, column, t[:, i])
            total += np.stack([fit.weigh(w, column, e) * e, wt * v[:, i], wt * t[:, i]])
        found.append(total)
    return add_pieces(found)


def _search(
    levels: Levels, x: np.ndarray, w: np.ndarray | None, first: np.ndarray, plain: np.ndarray, scale_type: str
) -> np.ndarray:
    unit = inverse(plain)
    best, refit, least = plain, plain, np.full(len(x), np.inf, np.float32)
    searched = plain >= _SMALLEST_SEARCHED
    for k in range(-1, len(_SHARES) + _REFITS):
        scale = plain
        if k >= len(_SHARES):
            scale = round_signed(minimum(maximum(refit, first * _LEAST), first * _MOST), scale_type)
        elif k >= 0:
            scale = round_signed(first * _SHARES[k], scale_type)
        error, vt, tt = _sums(levels, x, w, scale)
        steps = scale * unit
        error = error * (steps * steps)
        better = (error < least) & searched if k >= 0 else np.ones(len(x), bool)
        best, least = np.where(better, scale, best), np.where(better, error, least)
        refit = np.where(better, scale * (vt * inverse(tt)), refit)
    return best


@np.errstate(all="ignore")  # huge values overflow on the way to their clipped codes
def encode_codebook(
    x: np.ndarray,
    table: np.ndarray,
    group: int,
    scale_type: str,
    search: bool,
    importance: np.ndarray | None,
    _threads: int,
) -> tuple[np.ndarray, np.ndarray]:
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    levels, values = Levels(table), x.reshape(-1, group)
    first = np.abs(values).max(axis=1, initial=0) / levels.largest
    scale = round_signed(first, scale_type)
    if search:
        w = None
        if importance is not None:
            w = fit.normalise_weights(np.broadcast_to(importance, x.shape).reshape(-1, group))
        scale = _search(levels, values, w, first, scale, scale_type)
    codes = levels.order[levels.places(values * _reciprocal(scale)[:, None])]
    return codes.reshape(x.shape), scale.reshape(len(x), -1)


@np.errstate(all="ignore")
def decode_codebook(
    codes: np.ndarray, scales: np.ndarray, table: np.ndarray, group: int, factor: float, _threads: int
) -> np.ndarray:
    return table[codes & 15] * np.repeat(scales, group, axis=1) * np.float32(factor)
