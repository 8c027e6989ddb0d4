"""TQ1_0 and TQ2_0: 256 codes of −1, 0, +1 and a float16 scale. Without search, ggml's bytes."""

from __future__ import annotations

import numpy as np

from kernels.reference import fit
from kernels.reference.arithmetic import column_bytes, f16_bits, half_values, inverse

_TARGETS = (1.0, 1.6, 2.1, 2.7, 3.5)
_REFITS = 2
# (first value, bytes, digits a byte); byte i has digits from values first + i, first + bytes + i …
_TQ1_PARTS = ((0, 32, 5), (160, 16, 5), (240, 4, 4))


def _codes(x: np.ndarray, weights: np.ndarray | None, search: bool) -> tuple[np.ndarray, np.ndarray]:
    """Codes 0, 1, 2 as uint8 [B, 256], and the scales' float16 bits."""
    largest = fit.largest_magnitude(x)
    if search:
        w = None if weights is None else fit.normalise_weights(weights)
        nearest = fit.within(-1, 1)
        stored = fit.scale_to_f16(fit.fit_scale_to_targets(nearest, x, w, largest, _TARGETS, _REFITS))
        codes = nearest(x * inverse(half_values(stored))[:, None])
    else:
        stored = f16_bits(largest)
        scaled = x * inverse(largest)[:, None]  # ties go away from zero
        codes = np.where(scaled < np.float32(0.5), 0, 1) - np.where(scaled > np.float32(-0.5), 0, 1)
    return (codes + 1).astype(np.uint8), stored


def encode_tq2_0(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    codes, stored = _codes(x, weights, search)
    quarters = codes.reshape(-1, 2, 4, 32) << np.array([0, 2, 4, 6], np.uint8)[:, None]
    return np.hstack([np.bitwise_or.reduce(quarters, axis=2).reshape(-1, 64), column_bytes(stored)])


def encode_tq1_0(x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    codes, stored = _codes(x, weights, search)
    packed = []
    for first, size, digits in _TQ1_PARTS:
        number = np.zeros((len(x), size), np.int32)
        for k in range(5):
            number = number * 3
            if k < digits:
                number = number + codes[:, first + k * size : first + (k + 1) * size]
        packed.append(((number * 256 + 242) // 243).astype(np.uint8))
    return np.hstack([*packed, column_bytes(stored)])
