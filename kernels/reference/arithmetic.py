"""float32 steps that the compiled kernels take one by one, in numpy. Names as in kernels/cpu/lanes.h."""

from __future__ import annotations

import numpy as np

ONE = np.float32(1.0)
ZERO = np.float32(0.0)
LARGEST = np.float32(3.4028234663852886e38)


def maximum(a: np.ndarray, b: np.ndarray | np.float32) -> np.ndarray:
    """a > b ? a : b; unlike np.maximum, of equal values (±0) the second is taken."""
    return np.where(a > b, a, b)


def minimum(a: np.ndarray, b: np.ndarray | np.float32) -> np.ndarray:
    """a < b ? a : b."""
    return np.where(a < b, a, b)


def clamp(a: np.ndarray, low: float | np.float32, high: float | np.float32) -> np.ndarray:
    return minimum(maximum(a, np.float32(low)), np.float32(high))


def rint(a: np.ndarray) -> np.ndarray:
    """Nearest integer as float32, ties to even."""
    return np.rint(a)


def inverse(a: np.ndarray) -> np.ndarray:
    """1 / a, 0 where a is 0, never infinite."""
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(a == ZERO, ZERO, clamp(ONE / a, -LARGEST, LARGEST))


def f16_bits(a: np.ndarray) -> np.ndarray:
    """float32 → float16 as uint16: nearest, ties to even; overflow becomes Inf, NaN becomes quiet."""
    with np.errstate(over="ignore", invalid="ignore"):
        half = a.astype(np.float16).view(np.uint16)
    word = a.view(np.uint32)
    nan = (np.uint32(0x7E00) | word >> 13 & np.uint32(0x3FF) | word >> 16 & np.uint32(0x8000)).astype(np.uint16)
    return np.where(np.isnan(a), nan, half)


def half_values(half: np.ndarray) -> np.ndarray:
    """float16 as uint16 → float32."""
    return half.view(np.float16).astype(np.float32)


def round_f16(a: np.ndarray) -> np.ndarray:
    """The float32 that a float16 of `a` stands for."""
    return half_values(f16_bits(np.ascontiguousarray(a)))


def bf16_bits(a: np.ndarray) -> np.ndarray:
    """float32 → bfloat16 as uint16: nearest, ties to even; NaN becomes quiet."""
    word = a.view(np.uint32)
    with np.errstate(over="ignore"):
        rounded = (word + np.uint32(0x7FFF) + (word >> 16 & np.uint32(1))) >> 16
    return np.where(np.isnan(a), word >> 16 | np.uint32(0x40), rounded).astype(np.uint16)


def bf16_values(half: np.ndarray) -> np.ndarray:
    return (half.astype(np.uint32) << 16).view(np.float32)


def column_bytes(values: np.ndarray) -> np.ndarray:
    """uint16 or uint32 [B] → its little-endian bytes, uint8 [B, size]."""
    return np.ascontiguousarray(values).reshape(-1, 1).view(np.uint8)
