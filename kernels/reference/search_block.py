"""Search for blocks whose float16 scale (and minimum) stands on its own; numpy of kernels/cpu/encode/search_block.h.

Every candidate is judged with its scale rounded to float16, as a reader will see it. Arrays of values are float32
[B, n] for B blocks, w is None without importance; sums run over the values in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ONE, ZERO, clamp, f16_bits, half_values, inverse, maximum, minimum, rint
from kernels.reference.fit import weigh
from kernels.reference.search import LARGEST_SUM, Normalised, StoredScale, store_scale

# Of Σ w·e², what is left after a fit when nothing is.
_SUM_ROUNDING = np.float32(2.0**-20)
# Of the weighted squares of the range.
_NEARLY_EXACT = np.float32(2.0**-20)
# Below this share of the product of its diagonal, a determinant is nothing but rounding.
_SINGULAR = np.float32(1e-5)


@dataclass(frozen=True)
class CodeSet:
    """nearest: values divided by the scale → the values of the nearest codes, float32."""

    nearest: Callable[[np.ndarray], np.ndarray]
    low_end: float  # how far codes go below 0
    high_end: float  # and above
    half_gap: float  # how far a value inside can be from its code's


def code_range(low: int, high: int) -> CodeSet:
    """The integers low … high."""
    return CodeSet(lambda scaled: rint(clamp(scaled, low, high)), float(-low), float(high), 0.5)


@dataclass(frozen=True)
class ScaleSearch:
    """reaches: scaled values that the value of largest magnitude is tried at; the first is the plain encoder's."""

    reaches: tuple[float, ...]
    refits: int  # of the best scale to its codes
    error_bound: float  # of any value, as a share of the largest magnitude


@dataclass(frozen=True)
class StepFit:
    """The fit of a scale to the codes that `scale` gave. Errors are in steps of `scale`."""

    scale: np.ndarray
    inverse_scale: np.ndarray
    change: np.ndarray  # the best scale for the codes is scale · (1 + change)
    left: np.ndarray  # Σ w·e² with the best scale
    qq: np.ndarray  # Σ w·q²

    def fitted(self) -> np.ndarray:
        return self.scale + self.scale * self.change

    def error_when_stored(self, stored: np.ndarray) -> np.ndarray:
        """Σ w·(x − stored·q)²."""
        missed = stored * self.inverse_scale - ONE - self.change
        return (self.left + self.qq * missed * missed) * (self.scale * self.scale)


def fit_step(
    codes: CodeSet, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray, inverse_scale: np.ndarray
) -> StepFit:
    ee, eq, qq = (np.zeros(len(x), np.float32) for _ in range(3))
    for i in range(x.shape[1]):
        scaled = x[:, i] * inverse_scale
        q = codes.nearest(scaled)
        e = scaled - q
        we = weigh(w, i, e)
        ee, eq, qq = ee + we * e, eq + we * q, qq + weigh(w, i, q) * q
    change = eq * inverse(qq)
    left = ee - change * eq
    return StepFit(scale, inverse_scale, change, np.where(left < ee * _SUM_ROUNDING, ZERO, left), qq)


def within_bound(
    codes: CodeSet, scale: np.ndarray, low: np.ndarray, high: np.ndarray, allowed: np.ndarray
) -> np.ndarray:
    """The scale held to where no value is cut off or rounded by more than `allowed`; low, high: of the block and 0."""
    turned = scale < ZERO
    up, down = np.where(turned, -low, high), np.where(turned, high, -low)
    per_high, per_low = ONE / np.float32(codes.high_end), ONE / np.float32(codes.low_end)
    least = maximum((up - allowed) * per_high, (down - allowed) * per_low)
    size = minimum(maximum(np.abs(scale), least), allowed * (ONE / np.float32(codes.half_gap)))
    return np.copysign(size, scale)


def search_scale(codes: CodeSet, block: Normalised, search: ScaleSearch) -> StoredScale:
    """x ≈ scale · q."""
    x, low, high = block.x, np.zeros(len(block.x), np.float32), np.zeros(len(block.x), np.float32)
    for i in range(x.shape[1]):
        low, high = minimum(low, x[:, i]), maximum(high, x[:, i])
    inverse_widest = inverse(np.where(high < -low, low, high))
    allowed = block.largest * np.float32(search.error_bound)
    best = StoredScale(np.zeros(len(x), np.uint16), np.zeros(len(x), np.float32))
    least = np.full(len(x), LARGEST_SUM)
    for k in range(len(search.reaches) + search.refits):
        if k < len(search.reaches):
            inverse_scale = inverse_widest * np.float32(search.reaches[k])
        else:
            inverse_scale = inverse(best.value)
        fit = fit_step(codes, x, block.w, inverse(inverse_scale), inverse_scale)
        for wanted in (fit.scale, fit.fitted()) if k == 0 else (fit.fitted(),):
            now = store_scale(within_bound(codes, wanted, low, high, allowed), block)
            error = fit.error_when_stored(now.value)
            better = error < least
            least, best = np.where(better, error, least), best.where(better, now)
    return best


@dataclass(frozen=True)
class LineSearch:
    """starts: the codes of the lowest value, and of the highest less `highest`, as numbers before rounding.

    The first start is the plain encoder's: a minimum at or below the lowest value, the scale to reach the highest.
    """

    highest: int  # code
    starts: tuple[tuple[float, float], ...]
    refits: int  # of the best line to its codes
    error_bound: float  # of any value, as a share of the block's largest magnitude
    lowest_top: int  # of the pairs of codes that are tried for the ends of blocks that come out nearly exact


def _store_minimum(low: np.ndarray, block: Normalised) -> StoredScale:
    half = f16_bits(clamp(low * block.unit, -65504.0, 65504.0))
    return StoredScale(half, half_values(half) * block.inverse)


def _store_minimum_below(low: np.ndarray, block: Normalised) -> StoredScale:
    """The float16 at or below `low`."""
    nearest = _store_minimum(low, block)
    magnitude = nearest.bits & np.uint16(0x7FFF)
    below = np.where(nearest.bits & np.uint16(0x8000), nearest.bits + np.uint16(1), nearest.bits - np.uint16(1))
    below = np.where(magnitude == 0, np.uint16(0x8001), below)
    below = np.where((low < nearest.value) & (magnitude < 0x7BFF), below, nearest.bits)
    return StoredScale(below, half_values(below) * block.inverse)


def search_line(block: Normalised, search: LineSearch) -> tuple[StoredScale, StoredScale]:
    """x ≈ scale · q + minimum for q in 0 … highest: scale and minimum. The block has importance.

    A line is fitted to each start's codes, then, once its minimum is rounded, the scale to the codes that go with it.
    """
    x, w = block.x, block.w
    assert w is not None
    codes, step = code_range(0, search.highest), ONE / np.float32(search.highest)
    low, high = x[:, 0], x[:, 0]
    for i in range(1, x.shape[1]):
        low, high = minimum(low, x[:, i]), maximum(high, x[:, i])
    y = x - low[:, None]
    sum_w, sum_y = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        sum_w, sum_y = sum_w + w[:, i], sum_y + w[:, i] * y[:, i]
    span = high - low
    inverse_span, inverse_w = inverse(span), inverse(sum_w)
    mean_y = sum_y * inverse_w
    allowed = block.largest * np.float32(search.error_bound)
    most = allowed + allowed
    finest = block.largest * _SUM_ROUNDING
    none = StoredScale(np.zeros(len(x), np.uint16), np.zeros(len(x), np.float32))
    best, best_minimum, least = none, none, np.full(len(x), LARGEST_SUM)
    tried = np.ones(len(x), bool)
    pairs = [(bottom, top) for top in range(search.lowest_top, search.highest + 1) for bottom in range(top)]
    fitted = len(search.starts) + search.refits
    for k in range(fitted + len(pairs)):
        if k == fitted:
            tried = least < sum_w * (span * span) * _NEARLY_EXACT
        if k >= fitted:
            steps = np.float32(pairs[k - fitted][1] - pairs[k - fitted][0])
            scale, inverse_scale = span * (ONE / steps), inverse_span * steps
            offset = np.full(len(x), np.float32(pairs[k - fitted][0]))
        elif k < len(search.starts):
            first, last = (np.float32(end) for end in search.starts[k])
            steps = np.float32(search.highest) + last - first
            scale, inverse_scale, offset = span * (ONE / steps), inverse_span * steps, np.full(len(x), first)
        else:
            scale, inverse_scale = best.value, inverse(best.value)
            offset = (low - best_minimum.value) * inverse_scale
        sum_q, yq, qq = (np.zeros(len(x), np.float32) for _ in range(3))
        for i in range(x.shape[1]):
            q = codes.nearest(y[:, i] * inverse_scale + offset)
            wq = w[:, i] * q
            sum_q, yq, qq = sum_q + wq, yq + wq * y[:, i], qq + wq * q
        mean_q = sum_q * inverse_w
        variance = qq - mean_q * sum_q
        scale = np.where(_SINGULAR * qq < variance, (yq - mean_q * sum_y) * inverse(variance), scale)
        now_minimum = _store_minimum(minimum(low + (mean_y - scale * mean_q), low + allowed), block)
        if k == 0:
            now_minimum = _store_minimum_below(low, block)
            scale = (high - now_minimum.value) * step
        shortest = maximum((high - allowed - now_minimum.value) * step, ZERO)
        scale = minimum(maximum(scale, maximum(shortest, finest)), most)
        fit = fit_step(codes, x - now_minimum.value[:, None], w, scale, inverse(scale))
        for wanted in scale, minimum(maximum(fit.fitted(), shortest), most):
            now = store_scale(wanted, block)
            error = fit.error_when_stored(now.value)
            better = tried & (error < least)
            least = np.where(better, error, least)
            best, best_minimum = best.where(better, now), best_minimum.where(better, now_minimum)
    return best, best_minimum
