"""The half-quadratic method (Badri & Shaji 2023) for formats that store rounded scales and zero points.

The method itself (`kernels.families.half_quadratic`) knows real scales and zeros; what is stored is rounded, and codes
are chosen anew for what a reader will see.
"""

from __future__ import annotations

import numpy as np

from kernels import families, ops


def stored_as(values: np.ndarray, dtype: str) -> np.ndarray:
    """float32 values as a reader of the float type sees them."""
    return ops.to_float32(ops.from_float32(np.ascontiguousarray(values), dtype), dtype)


def codes_for(x: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int) -> np.ndarray:
    """The nearest codes uint8 [R, K] of x ≈ scale · (code − zero); 0 where the scale is 0."""
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales != 0)
    return families.round_codes(x, inverse, zeros, 0, (1 << bits) - 1)


def with_offsets(
    x: np.ndarray, bits: int, group: int, dtype: str, threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and offsets of x ≈ scale · code + offset, both exact in dtype."""
    _, scales, zeros = families.half_quadratic(x, bits, group, threads)
    scales, offsets = stored_as(scales, dtype), stored_as(-zeros * scales, dtype)
    seen = np.divide(-offsets, scales, out=np.zeros_like(scales), where=scales != 0)
    return codes_for(x, scales, seen, bits), scales, offsets


def with_integer_zeros(
    x: np.ndarray, bits: int, group: int, dtype: str, threads: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points uint8 of x ≈ scale · (code − zero). A range is widened to hold 0."""
    top = (1 << bits) - 1
    _, scales, zeros = families.half_quadratic(x, bits, group, threads)
    groups = x.reshape(len(x), -1, group)
    least, largest = groups.min(axis=2), groups.max(axis=2)
    flat = least == largest  # where the method's scale means nothing
    low = np.minimum(np.where(flat, least, -zeros * scales), 0)
    high = np.maximum(np.where(flat, largest, (top - zeros) * scales), 0)
    step = (high - low) / np.float32(top)
    zeros = np.clip(np.rint(np.divide(-low, step, out=np.zeros_like(step), where=step != 0)), 0, top)
    scales = stored_as(step, dtype)
    return codes_for(x, scales, zeros, bits), scales, zeros.astype(np.uint8)
