"""What every search for a scale shares; the numpy of kernels/cpu/encode/search.h and search_symmetric.h.

Arrays of values are float32 [B, n] for B blocks; sums run over the values in order. weights: [B, n], or None for 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ONE, ZERO, clamp, f16_bits, inverse, maximum, rint

# Values already divided by the scale → the values of the nearest codes.
Codes = Callable[[np.ndarray], np.ndarray]

_TWO_POW_60 = np.float32(2.0**60)
_TRACE = np.float32(2.0**-24)
_TWO_POW_127 = np.uint32(0x7F000000)


def integer_codes(half: int) -> Codes:
    """The integers −half … half − 1."""
    return lambda scaled: rint(clamp(scaled, -half, half - 1))


def largest_magnitude(x: np.ndarray) -> np.ndarray:
    """max |x| of each row."""
    largest = np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        largest = maximum(largest, np.abs(x[:, i]))
    return largest


def _exponent_bits(a: np.ndarray) -> np.ndarray:
    return a.view(np.uint32) & np.uint32(0x7F800000)


@dataclass(frozen=True)
class Normalised:
    """Blocks and importance divided by powers of two that bring the largest of each into [1, 2).

    True values are x · unit; inverse is 1 / unit, exactly.
    """

    x: np.ndarray
    w: np.ndarray | None
    unit: np.ndarray
    inverse: np.ndarray


def normalise(x: np.ndarray, weights: np.ndarray | None) -> Normalised:
    """Outside 2^±60 every type stores nothing but zeros or its largest value, so the unit stops there."""
    exponent = _exponent_bits(clamp(largest_magnitude(x), 1 / _TWO_POW_60, _TWO_POW_60))
    unit, inverse_unit = exponent.view(np.float32), (_TWO_POW_127 - exponent).view(np.float32)
    with np.errstate(over="ignore"):
        x = clamp(x * inverse_unit[:, None], -2.0, 2.0)
    if weights is not None:
        scale = (_TWO_POW_127 - _exponent_bits(largest_magnitude(weights))).view(np.float32)
        # Columns of no importance keep a trace of it, so that no sum of weights is zero.
        weights = maximum(weights * scale[:, None], _TRACE)
    return Normalised(x, weights, unit, inverse_unit)


def store_scale(scale: np.ndarray, block: Normalised) -> tuple[np.ndarray, np.ndarray]:
    """The float16 nearest to `scale` as uint16, never Inf, and never 0 unless scale is; and its normalised value."""
    half = f16_bits(np.abs(scale) * block.unit)
    smallest = np.where(scale == ZERO, np.uint16(0), np.uint16(1))
    sign = (scale.view(np.uint32) >> 16).astype(np.uint16) & np.uint16(0x8000)
    stored = np.maximum(np.minimum(half, np.uint16(0x7BFF)), smallest) | sign
    return stored, stored.view(np.float16).astype(np.float32) * block.inverse


def weigh(w: np.ndarray | None, i: int, a: np.ndarray) -> np.ndarray:
    return a if w is None else w[:, i] * a


def scale_sums(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, inverse_scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·x·q and Σ w·q² for the codes that x · inverse_scale gives."""
    xq, qq = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        q = codes(x[:, i] * inverse_scale)
        wq = weigh(w, i, q)
        xq, qq = xq + wq * x[:, i], qq + wq * q
    return xq, qq


def squared_error(codes: Codes, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray) -> np.ndarray:
    """Σ w·(x − scale·q)² for the nearest codes."""
    inverse_scale, error = inverse(scale), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        e = x[:, i] - scale * codes(x[:, i] * inverse_scale)
        error = error + weigh(w, i, e) * e
    return error


def extreme_value(x: np.ndarray) -> np.ndarray:
    """The value of largest magnitude, with its sign; of equals the first."""
    extreme = x[:, 0]
    for i in range(1, x.shape[1]):
        extreme = np.where(np.abs(extreme) < np.abs(x[:, i]), x[:, i], extreme)
    return extreme


def fit_scale(codes: Codes, x: np.ndarray, w: np.ndarray | None, targets: Sequence[float]) -> np.ndarray:
    """The best real-valued scale.

    Each of `targets` is where the value of largest magnitude would go; its codes are fitted by least squares, and the
    fit that explains most is kept: the largest (Σ w·x·q)² / Σ w·q².
    """
    inverse_extreme = inverse(extreme_value(x))
    best_xq, best_qq = np.zeros(len(x), np.float32), np.full(len(x), ONE)
    for target in targets:
        xq, qq = scale_sums(codes, x, w, inverse_extreme * np.float32(target))
        better = best_xq * best_xq * qq < xq * xq * best_qq
        best_xq, best_qq = np.where(better, xq, best_xq), np.where(better, qq, best_qq)
    return best_xq / best_qq
