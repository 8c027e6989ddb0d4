"""Textbook integer quantization: the plainest definition, in float64, on which known numbers are checked.

A scale is shared by the whole tensor, by a row, or by `group` neighbours along a row. Stored formats differ from this
in how they choose and round scales (see `kernels.reference.blocks` and `groups`); no conversion uses it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Quantized:
    """codes: integers shaped [groups, values of a group]; scales, zeros: float64 [groups, 1]; shape: the tensor's."""

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray
    shape: tuple[int, ...]

    def dequantize(self) -> np.ndarray:
        """scale × (code − zero), float64 in the tensor's shape."""
        return (self.scales * (self.codes - self.zeros)).reshape(self.shape)


def grouped(x: np.ndarray, group: int | None) -> np.ndarray:
    """[groups, values] float64. group None: the whole tensor; 0: rows (the last axis); else that many neighbours.

    Raises ValueError when the group does not divide the rows.
    """
    x = np.asarray(x, np.float64)
    if group is None:
        return x.reshape(1, -1)
    size = group or x.shape[-1]
    if x.shape[-1] % size:
        raise ValueError(f"rows of {x.shape[-1]} values do not divide into groups of {size}")
    return x.reshape(-1, size)


def quantize_symmetric(x: np.ndarray, bits: int, group: int | None = None) -> Quantized:
    """Codes in ±(2^(bits−1) − 1), scale = largest |x| ÷ that; an all-zero group has scale 1 and codes 0.

    The range is centred on 0, so no value is clipped and |x − x̂| ≤ scale ÷ 2. group: see `grouped`.
    """
    limit = 2 ** (bits - 1) - 1
    values = grouped(x, group)
    amax = np.abs(values).max(axis=1, keepdims=True)
    scales = np.where(amax > 0, amax / limit, 1.0)
    codes = np.clip(np.rint(values / scales), -limit, limit).astype(np.int64)
    return Quantized(codes, scales, np.zeros_like(scales), np.shape(x))


def quantize_asymmetric(x: np.ndarray, bits: int, group: int | None = None) -> Quantized:
    """Codes 0…2^bits − 1 over [min, max] widened to hold 0, whole-number zero point; an all-zero group has scale 1.

    The zero point is rounded, so |x − x̂| ≤ scale at the ends of the range and ≤ scale ÷ 2 inside.
    """
    top = 2**bits - 1
    values = grouped(x, group)
    low = np.minimum(values.min(axis=1, keepdims=True), 0.0)
    high = np.maximum(values.max(axis=1, keepdims=True), 0.0)
    scales = np.where(high > low, (high - low) / top, 1.0)
    zeros = np.clip(np.rint(-low / scales), 0, top)
    codes = np.clip(np.rint(values / scales) + zeros, 0, top).astype(np.int64)
    return Quantized(codes, scales, zeros, np.shape(x))


def quantize_levels(x: np.ndarray, levels: np.ndarray, group: int | None = None) -> np.ndarray:
    """x̂, float64: each value of a group becomes the nearest of `levels` × the group's largest |x|.

    levels: ascending, within ±1 (NF4 and the like). An all-zero group stays zero.
    """
    values = grouped(x, group)
    amax = np.abs(values).max(axis=1, keepdims=True)
    scaled = values / np.where(amax > 0, amax, 1.0)
    middles = (levels[1:] + levels[:-1]) / 2
    return (np.asarray(levels, np.float64)[np.searchsorted(middles, scaled)] * amax).reshape(np.shape(x))
