"""Typed values of GGUF's key-value section and their bytes.

Layout of a record (GGUF version 3, little-endian): key as u64 length and UTF-8, u32 type, value. Numbers of the types
and of the tensor types are those of the GGUF specification.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from core.errors import UserError


class GGUFType(IntEnum):
    """The type number in front of each value."""

    U8 = 0
    I8 = 1
    U16 = 2
    I16 = 3
    U32 = 4
    I32 = 5
    F32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    U64 = 10
    I64 = 11
    F64 = 12


# Of struct and numpy; an array is u32 element type, u64 count, items, a string u64 length and UTF-8.
CODES = {
    GGUFType.U8: "B",
    GGUFType.I8: "b",
    GGUFType.U16: "H",
    GGUFType.I16: "h",
    GGUFType.U32: "I",
    GGUFType.I32: "i",
    GGUFType.F32: "f",
    GGUFType.BOOL: "?",
    GGUFType.U64: "Q",
    GGUFType.I64: "q",
    GGUFType.F64: "d",
}

# llama_ftype: general.file_type of a file that is mostly of that mix or type.
FILE_TYPES = {
    "F32": 0,
    "F16": 1,
    "Q4_0": 2,
    "Q4_1": 3,
    "Q8_0": 7,
    "Q5_0": 8,
    "Q5_1": 9,
    "Q2_K": 10,
    "Q3_K_S": 11,
    "Q3_K_M": 12,
    "Q3_K_L": 13,
    "Q4_K_S": 14,
    "Q4_K_M": 15,
    "Q5_K_S": 16,
    "Q5_K_M": 17,
    "Q6_K": 18,
    "IQ2_XXS": 19,
    "IQ2_XS": 20,
    "Q2_K_S": 21,
    "IQ3_XS": 22,
    "IQ3_XXS": 23,
    "IQ1_S": 24,
    "IQ4_NL": 25,
    "IQ3_S": 26,
    "IQ3_M": 27,
    "IQ2_S": 28,
    "IQ2_M": 29,
    "IQ4_XS": 30,
    "IQ1_M": 31,
    "BF16": 32,
    "TQ1_0": 36,
    "TQ2_0": 37,
    "MXFP4": 38,
    "NVFP4": 39,
}
# A bare K type where the list above only has mixes of it.
FILE_TYPES |= {"Q3_K": 12, "Q4_K": 15, "Q5_K": 17}

QUANTIZATION_VERSION = 2
MAX_NAME = 63  # bytes of a tensor's name; llama.cpp's buffer is 64 with its final zero


@dataclass(frozen=True)
class GGUFValue:
    """One value. element: type of an array's items, None for scalars."""

    type: GGUFType
    value: Any
    element: GGUFType | None = None

    def encode(self) -> bytes:
        """u32 type and value, as they stand after the key. Raises UserError when a number does not fit its type."""
        head = struct.pack("<I", self.type)
        if self.type is not GGUFType.ARRAY:
            return head + _encode_items(self.type, [self.value])
        assert self.element is not None
        return head + struct.pack("<IQ", self.element, len(self.value)) + _encode_items(self.element, self.value)


def _encode_items(kind: GGUFType, items: Sequence[Any]) -> bytes:
    if kind is GGUFType.STRING:
        out = bytearray()
        for item in items:
            text = item if isinstance(item, bytes) else item.encode("utf-8", "surrogatepass")
            out += struct.pack("<Q", len(text)) + text
        return bytes(out)
    if isinstance(items, np.ndarray):
        return items.astype(f"<{CODES[kind]}").tobytes()
    try:
        return struct.pack(f"<{len(items)}{CODES[kind]}", *items)
    except (struct.error, OverflowError) as error:
        raise UserError(
            f"A number of the model's configuration does not fit GGUF's type {kind.name}.",
            "Check config.json for negative or very large numbers.",
        ) from error


def encode_record(key: str, value: GGUFValue) -> bytes:
    """The whole record: key, type, value."""
    name = key.encode("utf-8")
    return struct.pack("<Q", len(name)) + name + value.encode()


def u32(value: int) -> GGUFValue:
    return GGUFValue(GGUFType.U32, int(value))


def f32(value: float) -> GGUFValue:
    return GGUFValue(GGUFType.F32, float(value))


def boolean(value: bool) -> GGUFValue:
    return GGUFValue(GGUFType.BOOL, bool(value))


def string(value: str) -> GGUFValue:
    return GGUFValue(GGUFType.STRING, value)


def array(element: GGUFType, values: Sequence[Any]) -> GGUFValue:
    return GGUFValue(GGUFType.ARRAY, values, element)
