"""Integer codes of 1 … 8 bits with one scale (and zero point) for a group of neighbours along a row.

Without search: compressed-tensors' round-to-nearest (`calculate_qparams`), the scale rounded to its stored type before
codes are chosen. Symmetric scale: largest |x| / ((2^b − 1) / 2). Asymmetric: the range, widened to hold 0, over 2^b − 1
steps. The compiled kernel (kernels/cpu/encode/groups.h) does the same steps with one group a lane.
"""

from __future__ import annotations

from dataclasses import dataclass, field

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
class _Scale:
    """zero: the signed code that stands for 0."""

    scale: np.ndarray
    zero: np.ndarray


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


def _plain(settings: _Settings, low: np.ndarray, largest: np.ndarray, scale: np.ndarray) -> _Scale:
    stored = round_scale(scale, largest, settings.scale_type)
    if settings.symmetric:
        return _Scale(stored, np.zeros(len(low), np.float32))
    half = settings.half
    return _Scale(stored, rint(clamp(-half - low / stored, -half, half - ONE)))


@dataclass
class _Search:
    """Keeps the best of what is tried, by squared error in units of the first scale."""

    x: np.ndarray
    w: np.ndarray | None
    low: np.float32
    high: np.float32
    unit: np.ndarray
    best: _Scale
    error: np.ndarray | None = None
    refit: np.ndarray = field(default_factory=lambda: np.zeros(0, np.float32))

    def consider(self, g: _Scale) -> None:
        inverse_scale, bottom, top = inverse(g.scale), self.low - g.zero, self.high - g.zero
        error, xq, qq = (np.zeros(len(self.x), np.float32) for _ in range(3))
        for i in range(self.x.shape[1]):
            scaled = self.x[:, i] * inverse_scale
            q = rint(minimum(maximum(scaled, bottom), top))
            e, wq = scaled - q, fit.weigh(self.w, i, q)
            error = error + fit.weigh(self.w, i, e) * e
            xq, qq = xq + wq * scaled, qq + wq * q
        steps = g.scale * self.unit
        error = error * (steps * steps)
        fitted = g.scale * (xq * inverse(qq))
        if self.error is None:
            self.best, self.error, self.refit = g, error, fitted
            return
        better = error < self.error
        self.best = _Scale(np.where(better, g.scale, self.best.scale), np.where(better, g.zero, self.best.zero))
        self.error = np.where(better, error, self.error)
        self.refit = np.where(better, fitted, self.refit)


def _search(
    settings: _Settings, x: np.ndarray, w: np.ndarray | None, low: np.ndarray, high: np.ndarray, first: np.ndarray
) -> _Scale:
    half, codes = settings.half, np.float32(2 * settings.half - 1)
    largest = maximum(-low, high)
    least = settings.least_share
    plain = _plain(settings, low, largest, first)
    search = _Search(x, w, -half, half - ONE, inverse(plain.scale), plain)
    search.consider(plain)
    if settings.symmetric:
        most = np.float32(1.25) if settings.bits == 1 else (half - np.float32(0.5)) / (half - ONE)
        step = (most - least) * (ONE / np.float32(_SCALE_STEPS - 1))
        for k in range(_SCALE_STEPS):
            scale = round_scale(first * (most - step * np.float32(k)), largest, settings.scale_type)
            search.consider(_Scale(scale, np.zeros(len(x), np.float32)))
    else:
        step = (ONE - least) * (ONE / np.float32(_RANGE_STEPS - 1))
        for k in range(1, _RANGE_STEPS * _RANGE_STEPS):
            low_k = low * (ONE - step * np.float32(k // _RANGE_STEPS))
            high_k = high * (ONE - step * np.float32(k % _RANGE_STEPS))
            search.consider(_plain(settings, low_k, largest, (high_k - low_k) / codes))
    for _ in range(_REFITS):
        # A zero point stays where it is, so an asymmetric range moves with its scale.
        kept = ONE - (ONE - least) * np.float32(0.125)
        smallest = first * least if settings.symmetric else search.best.scale * kept
        fitted = minimum(maximum(search.refit, smallest), first * np.float32(1.25))
        search.consider(_Scale(round_scale(fitted, largest, settings.scale_type), search.best.zero))
    return search.best


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
    settings = _Settings(bits, symmetric, scale_type)
    half, codes = settings.half, np.float32(2 * settings.half - 1)
    values = x.reshape(-1, group)
    low, high = np.zeros(len(values), np.float32), np.zeros(len(values), np.float32)
    for i in range(group):
        low, high = minimum(values[:, i], low), maximum(values[:, i], high)
    largest = maximum(-low, high)
    first = largest / (np.float32(0.5) * codes) if symmetric else (high - low) / codes
    if search:
        w = None
        if importance is not None:
            w = fit.normalise_weights(np.broadcast_to(importance, x.shape).reshape(-1, group))
        g = _search(settings, values, w, low, high, first)
    else:
        g = _plain(settings, low, largest, first)
    scaled = values / g.scale[:, None] + g.zero[:, None]
    q = rint(clamp(scaled, -half, half - ONE)) + half
    shape = (rows, columns // group)
    return q.astype(np.uint8).reshape(x.shape), g.scale.reshape(shape), (g.zero + half).astype(np.uint8).reshape(shape)


@np.errstate(over="ignore")
def decode_groups(
    codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, group: int, _threads: int
) -> np.ndarray:
    middle = np.float32(1 << (bits - 1)) if zeros is None else np.repeat(zeros, group, axis=1).astype(np.float32)
    return (codes.astype(np.float32) - middle) * np.repeat(scales, group, axis=1)
