"""What the searches of all super-block types share; the numpy of kernels/cpu/encode/search.h.

The searches minimise Σ w·(x − decoded)², w the importance or 1, in the values a reader will decode: scales are taken
as stored. Arrays of values are float32 [B, n] for B blocks; sums run over the values in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ZERO, clamp, f16_bits, minimum
from kernels.reference.fit import exponent_bits, inverse_power, largest_magnitude, normalise_weights

LARGEST_SUM = np.float32(3.0e38)
# Of equally good scales the first is kept, so that sub-blocks agree and share a grid: a gain below this share of
# Σ w·x² does not count.
GAIN = 2.0**-20

# Scales may be fitted to a few columns of great importance, but no value may end further from its source than
# the formats promise (core/formats/ggml.py), a share of the largest magnitude. Fits keep to this part of it, so that
# the rounding of scales has room.
FIT_SHARE = np.float32(0.97)
# Added to the error of what breaks that promise.
BROKEN = np.float32(1.0e30)

_TWO_POW_60 = np.float32(2.0**60)


@dataclass(frozen=True)
class Normalised:
    """Blocks and importance divided by powers of two that bring the largest of each into [1, 2).

    x, w: [B, n] (w None without importance). True values are x · unit; inverse is 1 / unit, exactly; largest: max |x|.
    """

    x: np.ndarray
    w: np.ndarray | None
    unit: np.ndarray
    inverse: np.ndarray
    largest: np.ndarray


def normalise(x: np.ndarray, weights: np.ndarray | None) -> Normalised:
    """Outside 2^±60 every type stores nothing but zeros or its largest value, so the unit stops there."""
    largest = largest_magnitude(x)
    exponent = exponent_bits(clamp(largest, 1 / _TWO_POW_60, _TWO_POW_60))
    unit, inverse_unit = exponent.view(np.float32), inverse_power(exponent)
    x = clamp(x * inverse_unit[:, None], -2.0, 2.0)
    w = None if weights is None else normalise_weights(weights)
    return Normalised(x, w, unit, inverse_unit, minimum(largest * inverse_unit, np.float32(2)))


@dataclass(frozen=True)
class StoredScale:
    """bits: float16 as uint16 [B]; value: the same, normalised, float32 [B]."""

    bits: np.ndarray
    value: np.ndarray

    def where(self, take: np.ndarray, other: StoredScale) -> StoredScale:
        """`other` in the blocks where `take` is true."""
        return StoredScale(np.where(take, other.bits, self.bits), np.where(take, other.value, self.value))


def store_scale(scale: np.ndarray, block: Normalised) -> StoredScale:
    """The float16 nearest to scale: never Inf, and never 0 unless scale is."""
    half = f16_bits(np.abs(scale) * block.unit)
    smallest = np.where(scale == ZERO, np.uint16(0), np.uint16(1))
    sign = (scale.view(np.uint32) >> 16).astype(np.uint16) & np.uint16(0x8000)
    stored = np.maximum(np.minimum(half, np.uint16(0x7BFF)), smallest) | sign
    return StoredScale(stored, stored.view(np.float16).astype(np.float32) * block.inverse)


def largest_sub(limit: float, k: int) -> np.float32:
    """What candidate k of a super-block's scale stores the largest sub-scale as.

    Half integers from the limit towards zero; the 16th is two thirds of it, for float16 so small that the nearest to
    all others would be cut off.
    """
    if k == 15:
        return np.float32(limit) * (np.float32(2) / np.float32(3))
    return np.float32(limit + 0.5 * k if limit < 0 else limit - 0.5 * k)


def split(values: np.ndarray, sub_blocks: int) -> np.ndarray:
    """[B, n] → [B · sub_blocks, n / sub_blocks]."""
    return values.reshape(len(values) * sub_blocks, -1)


def total(parts: np.ndarray) -> np.ndarray:
    """Σ over the columns of [B, n], one after another: float32 sums depend on the order."""
    result = np.zeros(len(parts), np.float32)
    for j in range(parts.shape[1]):
        result = result + parts[:, j]
    return result
