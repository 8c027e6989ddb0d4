"""Q4_0, Q5_0, Q8_0 (d·q) and Q4_1, Q5_1 (d·q + m): 32 values with a float16 scale (and minimum).

Every encoder: x float32 [B, 32], weights float32 [B, 32] or None → uint8 [B, bytes of a block]. With search=False the
bytes are those of ggml's plain encoders. The lists are explained, and their lengths chosen, in
kernels/cpu/encode/legacy.h.
"""

from __future__ import annotations

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import (
    ONE,
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
from kernels.reference.search import normalise
from kernels.reference.search_block import LineSearch, ScaleSearch, code_range, search_line, search_scale

_QUICK_TARGETS = {4: (-8.0, 7.4), 5: (-16.0, -15.4, 15.0), 8: (127.0, 126.5, 126.0, 125.5)}
_REACHES = {
    4: (
        *(-8.0, -9.0, -8.9, -8.8, -8.7, -8.6, -8.5, -8.4, -8.3, -8.2, -8.1, -7.9, -7.8, -7.7, -7.6, -7.5),
        *(-7.4, -7.3, -7.2, -7.1, -11.2, -10.4, -9.8, -9.4, -6.8, -6.4, -6.0, -5.6, 9.2, 8.5, 7.9, 7.6),
        *(7.3, 7.0, 6.7, 6.4),
    ),
    5: (
        *(-16.0, -17.2, -17.1, -17.0, -16.9, -16.8, -16.7, -16.6, -16.5, -16.4, -16.3, -16.2, -16.1, -15.9),
        *(-15.8, -15.7, -15.6, -15.5, -15.4, -15.3, -15.2, -15.1, -15.0, -14.9, -14.8, -19.4, -18.5, -17.7),
        *(-14.5, -14.2, -13.8, -13.4, -12.8, 17.0, 16.2, 15.6, 15.3, 15.0, 14.7, 14.4, 14.0, 13.4),
    ),
    8: (127.0, 126.3, 125.6, 124.9, 124.2),
}
_QUICK_SPREADS = {4: ((0.3, -0.15),), 5: ((0.0, 0.0), (1.0, -0.5))}
_STARTS = (
    *((0.0, 0.0), (0.0, -3.0), (3.0, 0.0), (0.0, -2.0), (1.0, -1.0), (2.0, 0.0), (0.0, -1.0), (1.0, 0.0)),
    *((0.25, -0.25), (-0.3, -0.3), (0.0, 0.0), (0.3, 0.3), (-0.65, 0.05), (-0.35, 0.35), (-0.05, 0.65)),
    *((-1.0, 0.4), (-0.7, 0.7), (-0.4, 1.0), (-1.4, 0.7), (-1.05, 1.05), (-0.7, 1.4), (0.0, 0.7)),
    *((-0.7, 0.0), (0.3, 3.5), (0.3, 6.0), (-3.5, -0.3), (-6.0, -0.3), (-0.15, 0.15)),
)
_REFITS = 2
_LOWEST_TOP = {4: 1, 5: 30}
_BOUND = {4: 0.349, 5: 0.199, 8: 0.0055}
_LIMITS = {4: (0.0953, 0.6), 5: (0.0541, 0.38)}
_SLACK = {4: 0.15, 5: 0.085}
# Blocks with so many neighbours alike have few values.
_ALIKE = 2


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


def _either_extreme(x: np.ndarray) -> np.ndarray:
    """The value of largest magnitude of each row; of x and −x, x."""
    low, high = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        low, high = minimum(low, x[:, i]), maximum(high, x[:, i])
    return np.where(high < -low, low, high)


def _encode_centred(bits: int, x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    half = 1 << (bits - 1)
    if search:
        if weights is None:
            extreme = _either_extreme(x)
            scale = fit.fit_scale_to_targets(fit.below(half - 1), x, None, extreme, _QUICK_TARGETS[bits], 0)
            stored = fit.scale_to_f16(fit.limit_scale(scale, np.abs(extreme), _LIMITS[bits]))
        else:
            how = ScaleSearch(_REACHES[bits], _REFITS, _BOUND[bits])
            stored = search_scale(code_range(-half, half - 1), normalise(x, weights), how).bits
        inverse_scale = inverse(half_values(stored))[:, None]
        q = fit.within(-half, half - 1)(x * inverse_scale) + np.float32(half)
    else:
        scale = fit.extreme_value(x) / np.float32(-half)
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
    if search:
        reaches = (_QUICK_TARGETS if weights is None else _REACHES)[8]
        block = normalise(x, weights)
        best = search_scale(code_range(-127, 127), block, ScaleSearch(reaches, 0, _BOUND[8]))
        stored, q = best.bits, rint(clamp(block.x * inverse(best.value)[:, None], -127, 127))
    else:
        scale = fit.largest_magnitude(x) / np.float32(127)
        stored = f16_bits(scale)
        scaled = x * inverse(scale)[:, None]
        magnitude = round_half_up(np.abs(scaled))
        q = np.where(scaled < ZERO, -magnitude, magnitude)
    return np.hstack([column_bytes(stored), _to_bytes(q)])


def _stored_line_error(highest: int, x: np.ndarray, d: np.ndarray, m: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Σ (x − d·q − m)² · unit² with the nearest codes."""
    inverse_d, codes, error = inverse(d), fit.within(0, highest), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        scaled = (x[:, i] - m) * inverse_d
        e = scaled - codes(scaled)
        error = error + e * e
    return error * ((d * unit) * (d * unit))


def _quick_line(bits: int, x: np.ndarray, low: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Scale and minimum as float16 bits. Neither end is clipped by more than _SLACK, no step longer than twice that."""
    span = minimum(width, np.float32(1e30))
    highest, slack, unit = (1 << bits) - 1, np.float32(_SLACK[bits]), inverse(span)
    line = fit.fit_line_to_spreads(highest, (x - low[:, None]) * unit[:, None], _QUICK_SPREADS[bits])
    stored_minimum = f16_bits(clamp(minimum(line.m, slack) * span + low, -65504.0, 65504.0))
    # What the minimum's rounding moves, the scale makes good.
    moved = (half_values(stored_minimum) - low) * unit
    d = (line.yq - moved * line.q) * inverse(line.qq)
    shortest = ((ONE - slack) - moved) * (ONE / np.float32(highest))
    stored = fit.scale_to_f16(clamp(maximum(d, shortest), 0.0, np.float32(2) * slack) * span)
    # With few values ggml's line, from the lowest to the highest, may be better.
    few = (x[:, 1:] == x[:, :-1]).sum(axis=1) >= _ALIKE
    plain, plain_minimum = fit.scale_to_f16(width * (ONE / np.float32(highest))), f16_bits(low)
    own, theirs = (
        _stored_line_error(highest, x, half_values(scale), half_values(lowest), unit)
        for scale, lowest in ((stored, stored_minimum), (plain, plain_minimum))
    )
    better = few & (theirs < own)
    return np.where(better, plain, stored), np.where(better, plain_minimum, stored_minimum)


def _encode_affine(bits: int, x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    highest = (1 << bits) - 1
    low, high = x[:, 0], x[:, 0]
    for i in range(1, x.shape[1]):
        low, high = minimum(low, x[:, i]), maximum(high, x[:, i])
    width = high - low
    if search:
        if weights is None:
            stored, stored_minimum = _quick_line(bits, x, low, width)
        else:
            how = LineSearch(highest, _STARTS, _REFITS, _BOUND[bits], _LOWEST_TOP[bits])
            scale, lowest = search_line(normalise(x, weights), how)
            stored, stored_minimum = scale.bits, lowest.bits
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
