"""Half-quadratic quantization (Badri & Shaji 2023): x ≈ scale · (code − zero) with a real zero point.

The scale spans the group's range. The zero point makes Σ |x − x̂|^p small, p < 1: in turns the codes, the part W_e of
the error that is taken for outliers, shrink(x − x̂) = sign·max(|e| − |e|^(p−1) / β, 0), and the zero point that is best
for both, mean(code − (x − W_e) / scale). β grows. The compiled kernel, kernels/cpu/encode/half_quadratic.h, leaves a
group when nothing can change any more.
"""

from __future__ import annotations

import numpy as np

from kernels.reference.arithmetic import LARGEST, ONE, ZERO, clamp, maximum, minimum, rint

_SMALLEST, _LARGEST_FACTOR = np.float32(2.0**-126), np.float32(2.0**126)  # the reciprocals are normal numbers
_SQRT_2 = np.float32(1.4142135)
# log2 m = t · (2 / ln 2) · (1 + t²/3 + t⁴/5 + t⁶/7), t = (m − 1) / (m + 1)
_LOG = tuple(np.float32(2 / np.log(2) / k) for k in (1, 3, 5, 7))
_EXP = tuple(np.float32(1 / k) for k in (720, 120, 24, 6, 2, 1, 1))
_LN_2 = np.float32(np.log(2))


def power(a: np.ndarray, exponent: np.float32) -> np.ndarray:
    """a ^ exponent for normal a > 0, to about 2^-21; the same bits everywhere, as a library's pow would not give."""
    word = a.view(np.uint32)
    m = (word & np.uint32(0x007FFFFF) | np.uint32(0x3F800000)).view(np.float32)
    high = m > _SQRT_2
    m = np.where(high, m * np.float32(0.5), m)
    e = (word >> 23).astype(np.int32) - np.where(high, 126, 127)
    t = (m - ONE) / (m + ONE)
    t2 = t * t
    log = t * (_LOG[0] + t2 * (_LOG[1] + t2 * (_LOG[2] + t2 * _LOG[3])))
    y = clamp(exponent * (e.astype(np.float32) + log), -126, 126)
    whole = rint(y)
    z = (y - whole) * _LN_2
    value = np.full_like(z, _EXP[0])
    for factor in _EXP[1:]:
        value = value * z + factor
    return value * ((whole.astype(np.int32) + 127).astype(np.uint32) << 23).view(np.float32)


@np.errstate(all="ignore")  # huge values overflow
def half_quadratic(
    x: np.ndarray,
    bits: int,
    group: int,
    round_zero: bool,
    exponent: float,
    inverse_betas: np.ndarray,
    _threads: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """inverse_betas: float32 [iterations], 1 / β of each."""
    if not np.isfinite(x).all():
        raise ValueError("NaN or Inf can not be encoded")
    values, top = x.reshape(-1, group), np.float32((1 << bits) - 1)
    low, high = values.min(axis=1), values.max(axis=1)
    span = minimum(high - low, LARGEST)
    factor = np.where(span == ZERO, ONE, clamp(top * (ONE / span), _SMALLEST, _LARGEST_FACTOR))
    zero = (ZERO - low) * factor
    if round_zero:
        zero = rint(zero)
    scale, share, less_one = ONE / factor, ONE / np.float32(group), np.float32(exponent) - ONE
    for inverse_beta in inverse_betas:
        total = np.zeros(len(values), np.float32)
        for i in range(group):
            column = values[:, i]
            q = rint(clamp(column * factor + zero, 0, top))
            e = column - (q - zero) * scale
            size = np.abs(e)
            outlier = size - power(maximum(size, _SMALLEST), less_one) * inverse_beta
            outlier = np.copysign(np.where(outlier > ZERO, outlier, ZERO), e)
            total = total + (q - (column - outlier) * factor)
        new = total * share
        zero = np.where(np.abs(new) <= LARGEST, new, zero)
    codes = rint(clamp(values * factor[:, None] + zero[:, None], 0, top)).astype(np.uint8)
    shape = (len(x), x.shape[1] // group)
    return codes.reshape(x.shape), scale.reshape(shape), zero.reshape(shape)


@np.errstate(over="ignore", invalid="ignore")
def round_codes(
    x: np.ndarray, factors: np.ndarray, zeros: np.ndarray, low: int, high: int, shift: int, _threads: int
) -> np.ndarray:
    grouped = x.reshape(-1, x.shape[1] // factors.shape[1])
    codes = rint(clamp(grouped * factors.reshape(-1, 1) + zeros.reshape(-1, 1), low, high))
    return (codes.astype(np.int32) + shift).astype(np.uint8).reshape(x.shape)


@np.errstate(over="ignore")
def decode_zeros(codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group: int, _threads: int) -> np.ndarray:
    return (codes.astype(np.float32) - np.repeat(zeros, group, axis=1)) * np.repeat(scales, group, axis=1)
