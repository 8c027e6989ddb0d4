"""Q4_0, Q5_0, Q8_0 (d·q) and Q4_1, Q5_1 (d·q + m): 32 values with a float16 scale (and minimum).

Every encoder: x float32 [B, 32], weights float32 [B, 32] or None → uint8 [B, bytes of a block]. With search=False the
bytes are those of ggml's plain encoders. The lists are explained, and their lengths chosen, in
kernels/cpu/encode/legacy.h.
"""

from __future__ import annotations

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import (
    ZERO,
    clamp,
    column_bytes,
    f16_bits,
    half_values,
    inverse,
    maximum,
    minimum,
    rint,
)

_QUICK_TARGETS = {4: (-8.0, 7.4), 5: (-16.0, -15.4, 15.0), 8: (127.0, 126.5, 126.0, 125.5)}
_TARGETS = {
    4: (-8.0, -9.6, -9.2, -8.8, -8.4, -7.6, -7.2, -6.8, -6.4, -6.0, -5.6, 7.8, 7.4, 7.0),
    5: (-16.0, -17.6, -17.0, -16.5, -15.5, -15.0, -14.5, -14.0, -13.5, -12.5, 15.5, 15.0, 14.5, 14.0),
    8: (127.0, 126.6, 126.2, 125.8, 125.4, 125.0, 124.6, 124.2, 123.8, 123.4),
}
_QUICK_SPREADS = {4: ((0.3, -0.15),), 5: ((0.0, 0.0), (1.0, -0.5))}
_SPREADS = (
    *((-0.8, 0.1), (-0.8, 0.4), (-0.8, 0.7), (0.0, -0.3), (0.0, 0.0), (0.0, 0.3)),
    *((0.7, -0.65), (0.7, -0.35), (0.7, -0.05), (1.4, -1.0), (1.4, -0.7), (1.4, -0.4)),
    *((2.1, -1.4), (2.1, -1.05), (2.1, -0.7)),
)
_REFITS = 2
_LIMITS = {4: (0.0953, 0.6), 5: (0.0541, 0.38), 8: (0.00785, 0.011)}
_SLACK = {4: 0.15, 5: 0.085}


def pack_nibbles(codes: np.ndarray) -> np.ndarray:
    """Codes 0…15 [B, 2n] → bytes [B, n]: byte j has code j (low) and code j + n (high)."""
    half = codes.shape[1] // 2
    return codes[:, :half] & 15 | codes[:, half:] << 4


def _pack(bits: int, codes: np.ndarray) -> np.ndarray:
    """Codes uint8 [B, 32] of 4 or 5 bits: the fifth bits first, code j's at bit j, then the nibbles."""
    nibbles = pack_nibbles(codes & 15)
    return np.hstack([np.packbits(codes >> 4, axis=1, bitorder="little"), nibbles]) if bits == 5 else nibbles


def _to_bytes(codes: np.ndarray) -> np.ndarray:
    return codes.astype(np.int32).astype(np.uint8)


def _encode_centred(bits: int, x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    half = 1 << (bits - 1)
    extreme = fit.extreme_value(x)
    if search:
        if weights is None:
            scale = fit.fit_scale_to_targets(fit.below(half - 1), x, None, extreme, _QUICK_TARGETS[bits], 0)
        else:
            w = fit.normalise_weights(weights)
            codes = fit.within(-half, half - 1)
            scale = fit.fit_scale_to_targets(codes, x, w, extreme, _TARGETS[bits], _REFITS)
        stored = fit.scale_to_f16(fit.limit_scale(scale, np.abs(extreme), _LIMITS[bits]))
        inverse_scale = inverse(half_values(stored))[:, None]
        q = fit.within(-half, half - 1)(x * inverse_scale) + np.float32(half)
    else:
        scale = extreme / np.float32(-half)
        stored = f16_bits(scale)
        q = np.minimum(np.trunc(x * inverse(scale)[:, None] + np.float32(half + 0.5)), np.float32(2 * half - 1))
    return np.hstack([column_bytes(stored), _pack(bits, _to_bytes(q))])


def encode_q4_0(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    return _encode_centred(4, x, weights, search)


def encode_q5_0(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    return _encode_centred(5, x, weights, search)


def round_half_up(a: np.ndarray) -> np.ndarray:
    """Nearest integer, ties away from zero, for a ≥ 0."""
    r = rint(a)
    return np.where(a - r == np.float32(0.5), r + np.float32(1), r)


def encode_q8_0(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    largest = fit.largest_magnitude(x)
    if search:
        w = None if weights is None else fit.normalise_weights(weights)
        targets = (_QUICK_TARGETS if weights is None else _TARGETS)[8]
        scale = fit.fit_scale_to_targets(fit.unlimited, x, w, largest, targets, 0)
        stored = fit.scale_to_f16(fit.limit_scale(scale, largest, _LIMITS[8]))
        q = rint(clamp(x * inverse(half_values(stored))[:, None], -127, 127))
    else:
        scale = largest / np.float32(127)
        stored = f16_bits(scale)
        scaled = x * inverse(scale)[:, None]
        magnitude = round_half_up(np.abs(scaled))
        q = np.where(scaled < ZERO, -magnitude, magnitude)
    return np.hstack([column_bytes(stored), _to_bytes(q)])


def _encode_affine(bits: int, x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    highest = (1 << bits) - 1
    low, high = x[:, 0], x[:, 0]
    for i in range(1, x.shape[1]):
        low, high = minimum(low, x[:, i]), maximum(high, x[:, i])
    width = high - low
    if search:
        span = minimum(width, np.float32(1e30))
        y = (x - low[:, None]) * inverse(span)[:, None]
        w = None if weights is None else fit.normalise_weights(weights)
        spreads, refits = (_QUICK_SPREADS[bits], 0) if weights is None else (_SPREADS, _REFITS)
        d, m = fit.fit_line_to_spreads(highest, y, w, spreads, refits, _SLACK[bits])
        stored = fit.scale_to_f16(d * span)
        stored_minimum = f16_bits(clamp(m * span + low, -65504.0, 65504.0))
        scaled = (x - half_values(stored_minimum)[:, None]) * inverse(half_values(stored))[:, None]
        q = rint(clamp(scaled, 0, highest))
    else:
        scale = width / np.float32(highest)
        stored, stored_minimum = f16_bits(scale), f16_bits(low)
        scaled = (x - low[:, None]) * inverse(scale)[:, None]
        q = np.minimum(np.trunc(scaled + np.float32(0.5)), np.float32(highest))
    return np.hstack([column_bytes(stored), column_bytes(stored_minimum), _pack(bits, _to_bytes(q))])


def encode_q4_1(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    return _encode_affine(4, x, weights, search)


def encode_q5_1(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    return _encode_affine(5, x, weights, search)
