"""Integer codes of 1 … 8 bits with one scale (and zero point) for a group of neighbours along a row.

Without search: compressed-tensors' round-to-nearest (`calculate_qparams`), the scale rounded to its stored type before
codes are chosen. Symmetric scale: largest |x| / ((2^b − 1) / 2). Asymmetric: the range, widened to hold 0, over 2^b − 1
steps. The compiled kernel (kernels/cpu/encode/groups.h) does the same steps with one group a lane.

The sums of a group are made of pieces of SUM_PIECE values: in order and in float32 inside a piece, and the pieces in
order in float64. So the sum over a row of millions does not drown, and a row can be read piece by piece (`fit_groups`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import (
    LARGEST,
    ONE,
    ZERO,
    bf16_bits,
    bf16_values,
    clamp,
    inverse,
    maximum,
    minimum,
    rint,
    round_f16,
)

SUM_PIECE = 1024
_SCALE_STEPS, _RANGE_STEPS, _REFITS = 14, 4, 2


@dataclass(frozen=True)
class _Settings:
    bits: int
    symmetric: bool
    scale_type: str

    @property
    def half(self) -> np.float32:
        return np.float32(1 << (self.bits - 1))

    @property
    def least_share(self) -> np.float32:
        """How much of the range a search must keep, so that no value is clipped further than the formats promise."""
        if self.bits == 8:
            return np.float32(0.99)
        return max(ONE - np.float32(2.2 if self.symmetric else 1.75) / self.half, np.float32(0.25))


@dataclass(frozen=True)
class GroupScale:
    """Of G groups, float32 [G]. zero: the signed code that stands for 0."""

    scale: np.ndarray
    zero: np.ndarray


# What is tried → float64 [tries, G, 3] of each: Σ w·e², Σ w·(x/s)·q and Σ w·q², where q is the code less the zero point
# and e = x/s − q.
Sums = Callable[[Sequence[GroupScale]], np.ndarray]


def round_scale(scale: np.ndarray, largest: np.ndarray, scale_type: str) -> np.ndarray:
    """The scale as it is stored: finite, positive; 1 for a group of zeros."""
    stored, smallest = minimum(scale, LARGEST), np.float32(2.0**-149)
    if scale_type == "F16":
        stored, smallest = minimum(round_f16(scale), np.float32(65504)), np.float32(2.0**-24)
    elif scale_type == "BF16":
        largest_bf16 = np.uint32(0x7F7F0000).view(np.float32)
        stored, smallest = minimum(bf16_values(bf16_bits(scale)), largest_bf16), np.float32(2.0**-133)
    stored = np.where(stored == ZERO, smallest, stored)
    return np.where(largest == ZERO, ONE, stored)


def _plain(settings: _Settings, low: np.ndarray, largest: np.ndarray, scale: np.ndarray) -> GroupScale:
    stored = round_scale(scale, largest, settings.scale_type)
    if settings.symmetric:
        return GroupScale(stored, np.zeros(len(low), np.float32))
    half = settings.half
    return GroupScale(stored, rint(clamp(-half - low / stored, -half, half - ONE)))


class _Search:
    """Keeps the best of what is tried, by squared error in units of the first scale."""

    def __init__(self, sums: Sums, first: GroupScale) -> None:
        self._sums = sums
        self._unit = inverse(first.scale)
        self.best = first
        self.refit, self._error = first.scale, np.full(len(first.scale), np.inf, np.float32)

    def consider(self, tries: Sequence[GroupScale], first: bool = False) -> None:
        sums = self._sums(tries).astype(np.float32)
        for g, (error, xq, qq) in zip(tries, sums.swapaxes(1, 2), strict=True):
            steps = g.scale * self._unit
            error = error * (steps * steps)
            fitted = g.scale * (xq * inverse(qq))
            better = np.full(len(error), True) if first else error < self._error
            self.best = GroupScale(np.where(better, g.scale, self.best.scale), np.where(better, g.zero, self.best.zero))
            self._error = np.where(better, error, self._error)
            self.refit = np.where(better, fitted, self.refit)
            first = False


@np.errstate(all="ignore")  # a sum may overflow; what gives it is then no better than the first
def fit_groups(
    low: np.ndarray, high: np.ndarray, bits: int, symmetric: bool, scale_type: str, sums: Sums | None
) -> GroupScale:
    """The scales of groups from their ranges, widened to hold 0; searched for by `sums` when it is given."""
    settings = _Settings(bits, symmetric, scale_type)
    half, codes = settings.half, np.float32(2 * settings.half - 1)
    low, high = minimum(low, ZERO), maximum(high, ZERO)
    largest = maximum(-low, high)
    first = largest / (np.float32(0.5) * codes) if symmetric else (high - low) / codes
    least = settings.least_share
    plain = _plain(settings, low, largest, first)
    if sums is None:
        return plain
    search = _Search(sums, plain)
    tries = [plain]
    if symmetric:
        most = np.float32(1.25) if bits == 1 else (half - np.float32(0.5)) / (half - ONE)
        step = (most - least) * (ONE / np.float32(_SCALE_STEPS - 1))
        for k in range(_SCALE_STEPS):
            scale = round_scale(first * (most - step * np.float32(k)), largest, scale_type)
            tries.append(GroupScale(scale, np.zeros(len(low), np.float32)))
    else:
        step = (ONE - least) * (ONE / np.float32(_RANGE_STEPS - 1))
        for k in range(1, _RANGE_STEPS * _RANGE_STEPS):
            low_k = low * (ONE - step * np.float32(k // _RANGE_STEPS))
            high_k = high * (ONE - step * np.float32(k % _RANGE_STEPS))
            tries.append(_plain(settings, low_k, largest, (high_k - low_k) / codes))
    search.consider(tries, first=True)
    for _ in range(_REFITS):
        # A zero point stays where it is, so an asymmetric range moves with its scale.
        kept = ONE - (ONE - least) * np.float32(0.125)
        smallest = first * least if symmetric else search.best.scale * kept
        fitted = minimum(maximum(search.refit, smallest), first * np.float32(1.25))
        search.consider([GroupScale(round_scale(fitted, largest, scale_type), search.best.zero)])
    return search.best


@np.errstate(all="ignore")
def group_sums(
    x: np.ndarray,
    weights: np.ndarray | None,
    scales: np.ndarray,
    zeros: np.ndarray,
    bits: int,
    total: np.ndarray,
    _threads: int,
) -> None:
    """Add to total, float64 [T, 3 · G], the sums (see `Sums`) of x, [G, n], for T scales and unsigned zeros, [T, G].

    weights: float32 [G, n] or [n].
    """
    half = np.float32(1 << (bits - 1))
    pieces = -(-x.shape[1] // SUM_PIECE)
    length = x.shape[1] if pieces == 1 else SUM_PIECE
    x = _pieces(x, pieces, length)
    w = None if weights is None else _pieces(np.atleast_2d(weights), pieces, length)
    for scale, zero, out in zip(scales, zeros - half, total, strict=True):
        inverse_scale, bottom, top = (v[:, None] for v in (inverse(scale), -half - zero, half - ONE - zero))
        error, xq, qq = (np.zeros(x.shape[:2], np.float32) for _ in range(3))
        for i in range(length):
            scaled = x[:, :, i] * inverse_scale
            q = rint(minimum(maximum(scaled, bottom), top))
            e = scaled - q
            wq, we = (q, e) if w is None else (w[:, :, i] * q, w[:, :, i] * e)
            error = error + we * e
            xq, qq = xq + wq * scaled, qq + wq * q
        for piece in range(pieces):
            out += np.stack([error[:, piece], xq[:, piece], qq[:, piece]], axis=1).reshape(-1)


def _pieces(x: np.ndarray, pieces: int, length: int) -> np.ndarray:
    """[G, n] → [G, pieces, length]; the end is filled up with zeros, which add nothing to any sum."""
    if x.shape[1] < pieces * length:
        x = np.concatenate([x, np.zeros((len(x), pieces * length - x.shape[1]), np.float32)], axis=1)
    return x.reshape(len(x), pieces, length)


@np.errstate(all="ignore")
def group_codes(x: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int, _threads: int) -> np.ndarray:
    """Codes uint8 of x, [G, n], with one scale and unsigned zero a row."""
    half = np.float32(1 << (bits - 1))
    scaled = x / scales[:, None] + (zeros - half)[:, None]
    return (rint(clamp(scaled, -half, half - ONE)) + half).astype(np.uint8)


@np.errstate(all="ignore")  # huge values overflow on the way to their clipped codes
def encode_groups(
    x: np.ndarray,
    bits: int,
    group: int,
    symmetric: bool,
    scale_type: str,
    search: bool,
    importance: np.ndarray | None,
    _threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rows, columns = x.shape
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    values = x.reshape(-1, group)
    half = np.float32(1 << (bits - 1))
    sums: Sums | None = None
    if search:
        w = None
        if importance is not None:
            w = fit.normalise_weights(np.broadcast_to(importance, x.shape).reshape(-1, group))

        def sums(tries: Sequence[GroupScale]) -> np.ndarray:
            total = np.zeros((len(tries), 3 * len(values)))
            scales, zeros = np.stack([g.scale for g in tries]), np.stack([g.zero + half for g in tries])
            group_sums(values, w, scales, zeros, bits, total, 1)
            return total.reshape(len(tries), -1, 3)

    g = fit_groups(values.min(axis=1), values.max(axis=1), bits, symmetric, scale_type, sums)
    codes = group_codes(values, g.scale, g.zero + half, bits, 1)
    shape = (rows, columns // group)
    return codes.reshape(x.shape), g.scale.reshape(shape), (g.zero + half).astype(np.uint8).reshape(shape)


@np.errstate(over="ignore")
def decode_groups(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, group: int, _threads: int
) -> np.ndarray:
    middle = np.float32(1 << (bits - 1)) if zeros is None else np.repeat(zeros, group, axis=1).astype(np.float32)
    return (codes.astype(np.float32) - middle) * np.repeat(scales, group, axis=1)
