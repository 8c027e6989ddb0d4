"""Stored element and block types: how many bytes a row takes, and its values as float32."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from core.errors import UserError
from kernels import ops
from kernels.layouts import BLOCK_KINDS, LAYOUTS, SOURCE_KINDS

# Bits of one element, by the names of the safetensors format.
ELEMENT_BITS = {
    "F64": 64, "F32": 32, "F16": 16, "BF16": 16,
    "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "F6_E2M3": 6, "F6_E3M2": 6, "F4": 4,
    "I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8,
    "BOOL": 8, "C64": 64,
}  # fmt: skip

# GGML types that store values in blocks; its plain types have the names above.
BLOCK_TYPES = {name: layout for name, layout in LAYOUTS.items() if name not in ELEMENT_BITS}

_NUMPY = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1",
    "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "u1", "BOOL": "u1",
}  # fmt: skip


def is_plausible(shape: Sequence[int]) -> bool:
    """Whether a shape could be a tensor's: under 2^40 values, also when one axis is 0 and the others are vast."""
    return prod(max(1, count) for count in shape) < 1 << 40


def is_block_type(dtype: str) -> bool:
    """Whether values of this type are stored in blocks with scales of their own (GGML's quantized types)."""
    return dtype in BLOCK_TYPES


def is_float(dtype: str) -> bool:
    """Whether values are numbers to be quantized, and no packed codes, indices or flags."""
    return dtype in BLOCK_TYPES or dtype.startswith(("F", "BF"))


def can_decode(dtype: str) -> bool:
    """Whether `decode` knows the type."""
    return dtype in _NUMPY or dtype == "BF16" or dtype in _FLOAT8 or dtype in BLOCK_KINDS or dtype in SOURCE_KINDS


def row_bytes(dtype: str, columns: int) -> int:
    """Bytes of a row of `columns` values. Raises ValueError when a row would not be whole bytes or whole blocks."""
    if dtype in BLOCK_TYPES:
        return BLOCK_TYPES[dtype].row_bytes(columns)
    bits = columns * ELEMENT_BITS[dtype]
    if bits % 8:
        raise ValueError(f"{columns} columns of {dtype} are not a whole number of bytes")
    return bits // 8


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a row-major tensor of that shape, without padding. Raises ValueError like `row_bytes`."""
    columns = shape[-1] if len(shape) else 1
    return prod(shape[:-1]) * row_bytes(dtype, columns)


def decode(raw: np.ndarray, dtype: str, columns: int) -> np.ndarray:
    """Stored rows, uint8 [R, bytes of a row] → float32 [R, columns]. Raises UserError for a type without a decoder."""
    rows = raw.shape[0]
    raw = np.ascontiguousarray(raw)
    if dtype in _NUMPY:
        return raw.reshape(-1).view(_NUMPY[dtype]).astype(np.float32).reshape(rows, columns)
    if dtype == "BF16":
        return (raw.reshape(-1).view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(rows, columns)
    if dtype in _FLOAT8:
        return _FLOAT8[dtype][raw].reshape(rows, columns)
    if dtype in BLOCK_KINDS or dtype in SOURCE_KINDS:
        return ops.decode_blocks(dtype, raw, columns)
    raise UserError(f"Values of type {dtype} can not be decoded.", "Use the checkpoint that it was made from.")


def _float8_table(exponent_bits: int, bias: int, infinities: bool) -> np.ndarray:
    """All 256 values of an 8-bit float. OCP E4M3 has no infinities and one NaN a sign; E5M2 is as IEEE 754 would be."""
    mantissa_bits = 7 - exponent_bits
    codes = np.arange(256)
    mantissa = (codes & ((1 << mantissa_bits) - 1)).astype(np.float64)
    exponent = (codes & 0x7F) >> mantissa_bits
    fraction = mantissa / (1 << mantissa_bits)
    value = np.where(exponent > 0, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    top = (1 << exponent_bits) - 1
    if infinities:
        value = np.where(exponent == top, np.where(mantissa > 0, np.nan, np.inf), value)
    else:
        value = np.where((codes & 0x7F) == 0x7F, np.nan, value)
    return np.where(codes & 0x80, -value, value).astype(np.float32)


_FLOAT8 = {
    "F8_E4M3": _float8_table(4, 7, infinities=False),
    "F8_E5M2": _float8_table(5, 15, infinities=True),
    "F8_E8M0": np.append(2.0 ** (np.arange(255.0) - 127), np.nan).astype(np.float32),
}
