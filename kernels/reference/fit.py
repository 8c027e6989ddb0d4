"""Least-squares fits of a block's scale (and minimum) to codes; the numpy of kernels/cpu/encode/fit.h.

Arrays of values are float32 [B, n] for B blocks; sums run over the values in order. weights: [B, n], or None for 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ONE, ZERO, clamp, f16_bits, inverse, maximum, minimum, rint

# Values already divided by the scale → the nearest codes, as float32.
Codes = Callable[[np.ndarray], np.ndarray]

# Of fits that differ by no more than the rounding of their sums the first is kept.
_MORE_THAN_SUMMATION = np.float32(1 + 2.0**-16)
TRACE = np.float32(2.0**-24)


def within(low: int, high: int) -> Codes:
    return lambda scaled: rint(clamp(scaled, low, high))


def below(high: int) -> Codes:
    return lambda scaled: rint(minimum(scaled, np.float32(high)))


def largest_magnitude(x: np.ndarray) -> np.ndarray:
    """max |x| of each row."""
    largest = np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        largest = maximum(np.abs(x[:, i]), largest)
    return largest


def extreme_value(x: np.ndarray) -> np.ndarray:
    """The value of largest magnitude of each row, with its sign; of equals the first."""
    extreme = np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        extreme = np.where(np.abs(extreme) < np.abs(x[:, i]), x[:, i], extreme)
    return extreme


def exponent_bits(a: np.ndarray) -> np.ndarray:
    """The float32 of the power of two at or below a ≥ 0, as uint32."""
    return a.view(np.uint32) & np.uint32(0x7F800000)


def inverse_power(exponent: np.ndarray) -> np.ndarray:
    """1 / 2^k for the float32 bits of 2^k."""
    return (np.uint32(0x7F000000) - exponent).view(np.float32)


def normalise_weights(weights: np.ndarray) -> np.ndarray:
    """Importance, the largest of each block in [1, 2). Columns of none keep a trace: no sum of weights is zero."""
    scale = inverse_power(exponent_bits(largest_magnitude(weights)))
    return maximum(weights * scale[:, None], TRACE)


def scale_to_f16(scale: np.ndarray) -> np.ndarray:
    """The float16 nearest to `scale`, as uint16: never Inf, and never 0 unless scale is."""
    smallest = np.where(scale == ZERO, np.uint16(0), np.uint16(1))
    sign = (scale.view(np.uint32) >> 16).astype(np.uint16) & np.uint16(0x8000)
    return np.maximum(np.minimum(f16_bits(np.abs(scale)), np.uint16(0x7BFF)), smallest) | sign


def weigh(w: np.ndarray | None, i: int, a: np.ndarray) -> np.ndarray:
    """w·a for value i of each block; w is 1 when there is no importance."""
    return a if w is None else w[:, i] * a


def product_sums(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, inverse_scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·x·q and Σ w·q²."""
    xq, qq = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        q = codes(x[:, i] * inverse_scale)
        wq = weigh(w, i, q)
        xq, qq = xq + wq * x[:, i], qq + wq * q
    return xq, qq


def fit_scale_to_targets(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, extreme: np.ndarray, targets: Sequence[float], refits: int
) -> np.ndarray:
    """The best real scale for x ≈ scale · q.

    Each of `targets` is where the value of largest magnitude, `extreme`, would go. The codes that this gives are
    fitted by least squares, and the fit that explains most is kept: the largest (Σ w·x·q)² / Σ w·q². It is then
    fitted `refits` times to the codes of its own.
    """
    unit = inverse(extreme)
    best_xq, best_qq, best_gain = np.zeros(len(x), np.float32), np.full(len(x), ONE), np.zeros(len(x), np.float32)
    for k in range(len(targets) + refits):
        inverse_scale = unit * np.float32(targets[k]) if k < len(targets) else inverse(best_xq / best_qq)
        xq, qq = product_sums(codes, x, w, inverse_scale)
        gain = (xq * unit) * (xq * unit)
        better = best_gain * qq * _MORE_THAN_SUMMATION < gain * best_qq
        best_gain = np.where(better, gain, best_gain)
        best_xq, best_qq = np.where(better, xq, best_xq), np.where(better, qq, best_qq)
    return best_xq / best_qq


def limit_scale(scale: np.ndarray, largest: np.ndarray, limits: tuple[float, float]) -> np.ndarray:
    """`scale` held to least … most times the largest magnitude, so that no value is clipped or rounded too far."""
    least, most = limits
    size = minimum(maximum(np.abs(scale), largest * np.float32(least)), largest * np.float32(most))
    return np.copysign(size, scale)


@dataclass(frozen=True)
class Line:
    """The best line y ≈ d·q + m for some codes: m, Σ q, Σ y·q, Σ q² of each block."""

    m: np.ndarray
    q: np.ndarray
    yq: np.ndarray
    qq: np.ndarray


def fit_line_to_spreads(highest: int, y: np.ndarray, spreads: Sequence[tuple[float, float]]) -> Line:
    """The best line for y in 0 … 1, 32 a block, and codes 0 … highest: the one that explains most of Σ y².

    First codes are y · (highest + steps) + offset for each of `spreads`.
    """
    count, codes, total = np.float32(y.shape[1]), within(0, highest), np.zeros(len(y), np.float32)
    for i in range(y.shape[1]):
        total = total + y[:, i]
    best, line = np.full(len(y), -ONE), Line(*(np.zeros(len(y), np.float32) for _ in range(4)))
    for steps, offset in spreads:
        sum_q, yq, qq = (np.zeros(len(y), np.float32) for _ in range(3))
        for i in range(y.shape[1]):
            q = codes(y[:, i] * (np.float32(highest) + np.float32(steps)) + np.float32(offset))
            sum_q, yq, qq = sum_q + q, yq + q * y[:, i], qq + q * q
        d = (count * yq - total * sum_q) * inverse(count * qq - sum_q * sum_q)
        m = (total - d * sum_q) * (ONE / count)
        explained = d * yq + m * total
        better = best < explained
        best = np.where(better, explained, best)
        now = (m, sum_q, yq, qq)
        line = Line(*(np.where(better, a, b) for a, b in zip(now, (line.m, line.q, line.yq, line.qq), strict=True)))
    return line
