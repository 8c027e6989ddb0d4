"""Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: 32 values with a float16 scale (and minimum).

Every encoder: x float32 [B, 32], weights float32 [B, 32] or None → uint8 [B, bytes of a block]. With search=False the
bytes are those of ggml's reference encoder.
"""

from __future__ import annotations

import numpy as np

from kernels.reference.arithmetic import ZERO, clamp, column_bytes, f16_bits, inverse, maximum, minimum, rint, round_f16


def largest_magnitude(x: np.ndarray) -> np.ndarray:
    """max |x| of each row."""
    largest = np.abs(x[:, 0])
    for i in range(1, x.shape[1]):
        largest = maximum(largest, np.abs(x[:, i]))
    return largest


def round_half_up(a: np.ndarray) -> np.ndarray:
    """Nearest integer, ties away from zero, for a ≥ 0."""
    r = rint(a)
    return np.where(a - r == np.float32(0.5), r + np.float32(1), r)


def encode_q8_0(x: np.ndarray, weights: np.ndarray | None, search: bool, tensor_scale: float) -> np.ndarray:
    scale = largest_magnitude(x) / np.float32(127)
    inverse_scale = inverse(round_f16(scale) if search else scale)[:, None]
    scaled = x * inverse_scale
    if search:
        codes = rint(clamp(scaled, -127, 127))
    else:
        magnitude = round_half_up(minimum(np.abs(scaled), np.float32(127)))
        codes = np.where(scaled < ZERO, -magnitude, magnitude)
    return np.concatenate([column_bytes(f16_bits(scale)), codes.astype(np.int8).view(np.uint8)], axis=1)
