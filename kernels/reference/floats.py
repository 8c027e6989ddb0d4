"""Stored elements of every safetensors type from and to float32.

8-bit floats are tables: OCP E4M3 has no infinity and one NaN a sign, E5M2 is as IEEE 754 has it, E8M0 is 2^(code−127)
with NaN at 255 (OCP MX v1.0).
"""

from __future__ import annotations

from functools import cache

import numpy as np

from kernels.reference.arithmetic import bf16_bits, bf16_values, f16_bits, half_values

# safetensors name → numpy type, for those that numpy has
NUMPY_TYPES = dict(
    zip(
        ("F64", "F32", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL"),
        ("<f8", "<f4", "<i8", "<i4", "<i2", "i1", "<u8", "<u4", "<u2", "u1", "?"),
        strict=True,
    )
)
HALVES = ("F16", "BF16")
FLOAT8 = ("F8_E4M3", "F8_E5M2", "F8_E8M0")
WRITABLE = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2")


@cache
def table(dtype: str) -> np.ndarray:
    """float32 [256]: what each code of an 8-bit float stands for."""
    code = np.arange(256)
    if dtype == "F8_E8M0":
        return np.where(code == 255, np.nan, np.ldexp(1.0, code - 127)).astype(np.float32)
    mantissa_bits, bias = (3, 7) if dtype == "F8_E4M3" else (2, 15)
    exponent, mantissa = (code & 127) >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
    normal = np.ldexp(1 + mantissa / (1 << mantissa_bits), exponent - bias)
    value = np.where(exponent > 0, normal, np.ldexp(mantissa / (1 << mantissa_bits), 1 - bias))
    if dtype == "F8_E4M3":
        value = np.where(code & 127 == 127, np.nan, value)
    else:
        value = np.where(exponent == 31, np.where(mantissa > 0, np.nan, np.inf), value)
    return np.where(code > 127, -value, value).astype(np.float32)


def to_half(x: np.ndarray, dtype: str, _threads: int) -> np.ndarray:
    """float32 → uint16 of 'F16' or 'BF16'."""
    return f16_bits(x) if dtype == "F16" else bf16_bits(x)


def from_half(halves: np.ndarray, dtype: str, _threads: int) -> np.ndarray:
    if dtype == "BF16":
        return bf16_values(halves)
    values = half_values(halves)
    quiet = np.where(np.isnan(values), np.uint32(0x00400000), np.uint32(0))
    return (values.view(np.uint32) | quiet).view(np.float32)


def to_float8(x: np.ndarray, dtype: str) -> np.ndarray:
    """float32 → codes: nearest, ties to the even code. Past the largest, E4M3 stays at 448 and E5M2 becomes Inf."""
    last = 0x7E if dtype == "F8_E4M3" else 0x7B
    levels = table(dtype)[: last + 1].astype(np.float64)
    # One more level where the largest binade would go on: halfway to it is where overflow begins.
    levels = np.append(levels, 2 * levels[-1] - levels[-2])
    middles = (levels[1:] + levels[:-1]) / 2
    size = np.abs(x).astype(np.float64)
    code = np.searchsorted(middles, size, side="left")
    tie = middles[np.minimum(code, last)] == size
    code = np.where(tie & (code % 2 == 1), code + 1, code)
    too_large = last if dtype == "F8_E4M3" else last + 1
    code = np.where(np.isnan(x), 0x7F, np.where(code > last, too_large, code))
    return (code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)
