"""Stored element and block types: how many bytes a row takes, and its values as float32."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from core.errors import UserError
from core.tensor_info import TensorInfo
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
    return dtype in ops.ELEMENT_TYPES or dtype in BLOCK_KINDS or dtype in SOURCE_KINDS


def is_readable(tensor: TensorInfo) -> bool:
    """Whether a tensor's values can be read, packed ones included."""
    return tensor.packed or can_decode(tensor.dtype)


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
    if dtype in ops.ELEMENT_TYPES:
        return ops.to_float32(raw, dtype)
    if dtype in BLOCK_KINDS or dtype in SOURCE_KINDS:
        return ops.decode_blocks(dtype, raw, columns)
    raise UserError(f"Values of type {dtype} can not be decoded.", "Use the checkpoint that it was made from.")
