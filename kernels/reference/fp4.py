"""MXFP4 (32 values, a power-of-two scale) and NVFP4 (16 values, an E4M3 scale, one more scale for the whole tensor).

Elements are E2M1: 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives. Without search MXFP4 has ggml's bytes, and NVFP4 those
of rounding each group's largest value / 6 to E4M3.
"""

from __future__ import annotations

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import ONE, ZERO, clamp, inverse, maximum, minimum, rint
from kernels.reference.legacy import pack_nibbles

_MIDPOINTS = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
_CHUNK = 1 << 14  # values whose intermediate results stay in the cache
_HALF_ROUND_MAGIC = np.float32(6291456.0)  # 1.5·2²² : its last mantissa bit is worth ½


def e2m1_level(a: np.ndarray) -> np.ndarray:
    """The nearest level of a ≥ 0, ties to the even code: steps of ½ below 2, of 1 below 4, of 2 above."""
    power = fit.exponent_bits(maximum(a, ONE)).view(np.float32)
    magic = power * _HALF_ROUND_MAGIC
    return minimum((a + magic) - magic, np.float32(6))


def _signed(code: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The code with the sign of x at bit 3; there is no −0."""
    return np.where((code > 0) & np.signbit(x), code | 8, code).astype(np.uint8)


def e2m1_code(level: np.ndarray, x: np.ndarray) -> np.ndarray:
    large = (level.view(np.uint32) >> 22).astype(np.int32) - 252
    return _signed(np.where(level < ONE, (level + level).astype(np.int32), large), x)


def _e2m1_code_half_down(x: np.ndarray) -> np.ndarray:
    """The nearest level's code, ties to the lower one, as ggml breaks them."""
    return _signed(sum((np.abs(x) > np.float32(m)).astype(np.int32) for m in _MIDPOINTS), x)


def _e2m1_error(x: np.ndarray, w: np.ndarray | None, scale: np.ndarray) -> np.ndarray:
    """Σ w·(x − scale·level)²."""
    inverse_scale, error = inverse(scale), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        a = np.abs(x[:, i])
        e = a - scale * e2m1_level(a * inverse_scale)
        error = error + fit.weigh(w, i, e) * e
    return error


def encode_mxfp4(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    largest = fit.largest_magnitude(x)
    exponent = fit.exponent_bits(clamp(largest, 2.0**-124, 2.0**126))
    huge = largest >= np.float32(2.0**127)
    x = x * fit.inverse_power(exponent)[:, None] * np.where(huge, np.float32(0.5), ONE)[:, None]
    e = (exponent >> 23).astype(np.int32) - np.where(huge, 1, 2)
    if search:
        w = None if weights is None else fit.normalise_weights(weights)
        half, quarter = (_e2m1_error(x, w, np.full(len(x), np.float32(scale))) for scale in (0.5, 0.25))
        next_is_better = half < quarter
        e = e + next_is_better
        factor = np.where(next_is_better, np.float32(2), np.float32(4))[:, None]
        codes = e2m1_code(e2m1_level(np.abs(x) * factor), x)
    else:
        codes = _e2m1_code_half_down(x * np.float32(4))
    e = np.where(largest == ZERO, 0, e).astype(np.uint8)
    return np.hstack([e[:, None], pack_nibbles(codes)])


def encode_e2m1(x: np.ndarray, scales: np.ndarray, _threads: int) -> np.ndarray:
    """Values [R, K] and E8M0 codes of their groups [R, G], below 255 → E2M1 codes uint8 [R, K], ties to even."""
    groups = x.reshape(-1, x.shape[1] // scales.shape[1])
    factors = np.ldexp(ONE, 127 - scales.astype(np.int32)).reshape(-1, 1)  # powers of two: products are exact
    codes = np.empty(groups.shape, np.uint8)
    step = max(1, _CHUNK // groups.shape[1])
    for start in range(0, len(groups), step):
        part = groups[start : start + step]
        a = np.abs(part) * factors[start : start + step]
        # Steps of ½ below 2, of 1 below 4, of 2 above: the least of three lines, each rounded.
        code = np.minimum(np.rint(a + a), np.rint(a) + np.float32(2))
        np.minimum(code, np.rint(a * np.float32(0.5)) + np.float32(4), out=code)
        code = np.minimum(code, np.float32(7), out=code).astype(np.uint8)
        sign = (np.signbit(part) & (code > 0)).view(np.uint8) << 3  # there is no −0
        np.bitwise_or(code, sign, out=codes[start : start + step])
    return codes.reshape(x.shape)


def to_unsigned_e4m3(a: np.ndarray) -> np.ndarray:
    """float32 ≥ 0 → E4M3 codes as int32: nearest, ties to even, at most 448 (0x7E)."""
    limited = minimum(a, np.float32(448))
    word = limited.view(np.uint32)
    normal = ((word + np.uint32(0x7FFFF) + (word >> 20 & np.uint32(1))) >> 20).astype(np.int32) - (120 << 3)
    return np.where(limited < np.float32(2.0**-6), rint(limited * np.float32(512)).astype(np.int32), normal)


def from_unsigned_e4m3(code: np.ndarray) -> np.ndarray:
    normal = ((code.astype(np.uint32) << 20) + np.uint32(120 << 23)).view(np.float32)
    return np.where(code < 8, code.astype(np.float32) * np.float32(1 / 512), normal)


def encode_nvfp4(x: np.ndarray, weights: np.ndarray | None, search: bool, tensor_scale: float) -> np.ndarray:
    w = None if weights is None or not search else fit.normalise_weights(weights)
    scales, packed = [], []
    for first in range(0, 64, 16):
        group_w = None if w is None else w[:, first : first + 16]
        y = clamp(x[:, first : first + 16] / np.float32(tensor_scale), -1e6, 1e6)
        start = to_unsigned_e4m3(fit.largest_magnitude(y) / np.float32(6))
        best, best_error = start, None
        if search:
            for step in (0, -2, -1, 1, 2, 3, 4, 5, 6):
                code = np.clip(start + step, 0, 0x7E)
                error = _e2m1_error(y, group_w, from_unsigned_e4m3(code))
                better = np.ones(len(x), bool) if best_error is None else error < best_error
                best = np.where(better, code, best)
                best_error = error if best_error is None else np.where(better, error, best_error)
        scales.append(best.astype(np.uint8)[:, None])
        level = e2m1_level(np.abs(y) * inverse(from_unsigned_e4m3(best))[:, None])
        packed.append(pack_nibbles(e2m1_code(level, y)))
    return np.hstack([*scales, *packed])
