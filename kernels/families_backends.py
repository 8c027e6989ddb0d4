"""Registers every implementation of the operations of `kernels.families`, and of 8-bit floats for `kernels.ops`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernels import dispatch
from kernels.reference import affine, codebooks, float8, half_quadratic, packings

_REFERENCES: dict[str, Callable[..., Any]] = {
    "encode_codebook": codebooks.encode_codebook,
    "decode_codebook": codebooks.decode_codebook,
    "encode_affine": affine.encode_affine,
    "decode_affine": affine.decode_affine,
    "half_quadratic": half_quadratic.half_quadratic,
    "decode_zeros": half_quadratic.decode_zeros,
    "to_float8": float8.to_float8,
    "from_float8": float8.from_float8,
    "encode_float8": float8.encode_float8,
    "decode_float8": float8.decode_float8,
    "tile_amax": float8.tile_amax,
    "pack_nibbles": packings.pack_nibbles,
    "unpack_nibbles": packings.unpack_nibbles,
    "pack_columns": packings.pack_columns,
    "unpack_columns": packings.unpack_columns,
    "pack_awq": packings.pack_awq,
    "unpack_awq": packings.unpack_awq,
    "join_fp4_blocks": packings.join_fp4_blocks,
    "split_fp4_blocks": packings.split_fp4_blocks,
}

for _op, _function in _REFERENCES.items():
    dispatch.register(_op, "reference", _function)
