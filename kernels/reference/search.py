"""What the searches of all super-block types share; the numpy of kernels/cpu/encode/search.h.

The searches minimise Σ w·(x − decoded)², w the importance or 1, in the values a reader will decode: scales are taken
as stored. Arrays of values are float32 [B, n] for B blocks; sums run over the values in order.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ONE, ZERO, clamp, f16_bits, inverse, maximum, minimum, rint
from kernels.reference.fit import TRACE, exponent_bits, inverse_power, largest_magnitude, normalise_weights

LARGEST_SUM = np.float32(3.0e38)
# Of equally good scales the first is kept, so that sub-blocks agree and share a grid: a gain below this share of
# Σ w·x² does not count.
GAIN = 2.0**-20

# Scales may be fitted to a few columns of great importance, but no value may end further from its source than
# the formats promise (core/formats/ggml.py), a share of the largest magnitude. Fits keep to this part of it, so that
# the rounding of scales has room.
FIT_SHARE = np.float32(0.97)
# So long a step that all codes are 0: stands for a scale of 0, which nothing can be divided by. A power of two.
NO_STEP = np.float32(2.0**20)
# So many candidates of a super-block's scale, where its rounding is all that is left of the error. Where a few columns
# count and the others do not, it is their number that finds a good one.
MANY_STEPS = 272
# Added to the error of what breaks that promise.
BROKEN = np.float32(1.0e30)

# In some super-blocks nearly all importance is in at most two columns of each sub-block. What the fits compare is then
# nothing but rounding; instead every L (and M) is tried on these columns alone. All others together have less than this
# share of the importance.
_REST = np.float32(2.0**-12)

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


def neighbour(scale: StoredScale, k: int, block: Normalised) -> StoredScale:
    """The float16 that is k steps further from zero."""
    size = np.clip((scale.bits & np.uint16(0x7FFF)).astype(np.int32) + k, 1, 0x7BFF).astype(np.uint16)
    stored = size | (scale.bits & np.uint16(0x8000))
    return StoredScale(stored, stored.view(np.float16).astype(np.float32) * block.inverse)


def largest_sub(limit: float, k: int) -> np.float32:
    """What candidate k of a super-block's scale stores the largest sub-scale as.

    Half integers from the limit towards zero; the 16th is two thirds of it, for float16 so small that the nearest to
    all others would be cut off.
    """
    if k > 15:
        return np.float32(limit * (1 - (k - 15) / 512))  # see MANY_STEPS
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


def few_count(w: np.ndarray, sub_blocks: int) -> np.ndarray:
    """Of importance [B, n]: whether the two greatest of each sub-block are nearly all, see _REST. bool [B]."""
    parts = split(w, sub_blocks)
    first = second = sums = np.zeros(len(parts), np.float32)
    for i in range(parts.shape[1]):
        second = maximum(second, minimum(first, parts[:, i]))
        first = maximum(first, parts[:, i])
        sums = sums + parts[:, i]
    rest = total((sums - first - second).reshape(-1, sub_blocks))
    return rest < total(sums.reshape(-1, sub_blocks)) * _REST


def few_values(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two values of greatest importance of each row, the first of equals, and their importance: [rows, 2] each."""
    at = np.argsort(-w, axis=1, kind="stable")[:, :2]
    return np.take_along_axis(x, at, axis=1), np.take_along_axis(w, at, axis=1)


def without_trace(w: np.ndarray) -> np.ndarray:
    """Normalised importance as ggml weighs it."""
    return np.where(w > TRACE, w, ZERO)


def mean_square(x: np.ndarray) -> np.ndarray:
    """Of each row."""
    return total(x * x) * (ONE / np.float32(x.shape[1]))


def top_step(target: np.ndarray, highest: int) -> tuple[np.ndarray, np.ndarray]:
    """How ggml rounds the scales of sub-blocks, `target` ≥ 0 [B, s], without importance: the largest becomes `highest`.

    The step [B], and the integers.
    """
    widest = np.zeros(len(target), np.float32)
    for j in range(target.shape[1]):
        widest = maximum(widest, target[:, j])
    inverse_step = np.float32(highest) * inverse(widest)
    return widest * (ONE / np.float32(highest)), rint(target * inverse_step[:, None])


def ggml_step(target: np.ndarray, weight: np.ndarray, highest: int) -> tuple[np.ndarray, np.ndarray]:
    """And with: the best of nine steps, then fitted while single codes move."""
    count, widest = target.shape[1], np.zeros(len(target), np.float32)
    for j in range(count):
        widest = maximum(widest, target[:, j])
    inverse_widest, most = inverse(widest), np.float32(highest)
    inverse_step, least = np.zeros(len(target), np.float32), np.full(len(target), LARGEST_SUM)
    for k in range(9):
        top = most + (ZERO if k == 0 else np.float32(0.1) * np.float32(k - 5 if k < 5 else k - 4))
        now, step = inverse_widest * top, widest * (ONE / top)
        e = target - step[:, None] * minimum(rint(target * now[:, None]), most)
        error = total(weight * e * e)
        better = error < least
        least, inverse_step = np.where(better, error, least), np.where(better, now, inverse_step)
    sub = minimum(rint(target * inverse_step[:, None]), most)
    xq, qq = total(weight * target * sub), total(weight * sub * sub)
    for _ in range(5):
        for j in range(count):
            t, w, old = target[:, j], weight[:, j], sub[:, j]
            other_xq, other_qq = xq - w * t * old, qq - w * old * old
            code = rint(minimum(t * other_qq * inverse(other_xq), most))
            new_xq, new_qq = other_xq + w * t * code, other_qq + w * code * code
            better = (other_xq > ZERO) & (other_qq > ZERO) & (xq * xq * new_qq < new_xq * new_xq * qq)
            sub[:, j] = np.where(better, code, old)
            xq, qq = np.where(better, new_xq, xq), np.where(better, new_qq, qq)
    return xq * inverse(qq), sub
