"""Registers every implementation of the operations of `kernels.families`, and of 8-bit floats for `kernels.ops`."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from kernels import cpu, dispatch
from kernels.layouts import LAYOUTS
from kernels.reference import affine, codebooks, float8, fp4, half_quadratic, packings


class CompiledFamilies:
    """The operations of one instruction set, with the signatures of their references."""

    def __init__(self, extension: ModuleType, isa: str) -> None:
        self._extension = extension
        self._isa = isa

    def encode_codebook(
        self,
        x: np.ndarray,
        table: np.ndarray,
        group: int,
        scale_type: str,
        search: bool,
        importance: np.ndarray | None,
        threads: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        codes, scales = np.empty(x.shape, np.uint8), _groups(x, group)
        self._extension.encode_codebook(
            self._isa, x, table, group, scale_type, search, importance, codes, scales, threads
        )
        return codes, scales

    def decode_codebook(
        self, codes: np.ndarray, scales: np.ndarray, table: np.ndarray, group: int, factor: float, threads: int
    ) -> np.ndarray:
        out = np.empty(codes.shape, np.float32)
        self._extension.decode_codebook(self._isa, codes, scales, table, group, factor, out, threads)
        return out

    def encode_affine(
        self,
        x: np.ndarray,
        bits: int,
        group: int,
        scale_type: str,
        search: bool,
        importance: np.ndarray | None,
        threads: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        out = np.empty(x.shape, np.uint8), _groups(x, group), _groups(x, group)
        self._extension.encode_affine(self._isa, x, bits, group, scale_type, search, importance, *out, threads)
        return out

    def decode_affine(
        self, codes: np.ndarray, scales: np.ndarray, offsets: np.ndarray, group: int, threads: int
    ) -> np.ndarray:
        out = np.empty(codes.shape, np.float32)
        self._extension.decode_affine(self._isa, codes, scales, offsets, group, out, threads)
        return out

    def half_quadratic(
        self,
        x: np.ndarray,
        bits: int,
        group: int,
        round_zero: bool,
        exponent: float,
        inverse_betas: np.ndarray,
        threads: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        out = np.empty(x.shape, np.uint8), _groups(x, group), _groups(x, group)
        self._extension.half_quadratic(self._isa, x, bits, group, round_zero, exponent, inverse_betas, *out, threads)
        return out

    def decode_zeros(
        self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray, group: int, threads: int
    ) -> np.ndarray:
        out = np.empty(codes.shape, np.float32)
        self._extension.decode_zeros(self._isa, codes, scales, zeros, group, out, threads)
        return out

    def to_float8(self, x: np.ndarray, dtype: str, threads: int) -> np.ndarray:
        out = np.empty(x.shape, np.uint8)
        self._extension.to_float8(self._isa, dtype, x, out, threads)
        return out

    def from_float8(self, codes: np.ndarray, dtype: str, threads: int) -> np.ndarray:
        out = np.empty(codes.shape, np.float32)
        self._extension.from_float8(self._isa, dtype, codes, out, threads)
        return out

    def encode_float8(self, x: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, threads: int) -> np.ndarray:
        out = np.empty(x.shape, np.uint8)
        self._extension.encode_float8(self._isa, dtype, x, scales, a, b, out, threads)
        return out

    def decode_float8(
        self, codes: np.ndarray, dtype: str, scales: np.ndarray, a: int, b: int, threads: int
    ) -> np.ndarray:
        out = np.empty(codes.shape, np.float32)
        self._extension.decode_float8(self._isa, dtype, codes, scales, a, b, out, threads)
        return out

    def encode_e2m1(self, x: np.ndarray, scales: np.ndarray, threads: int) -> np.ndarray:
        out = np.empty(x.shape, np.uint8)
        self._extension.encode_e2m1(self._isa, x, scales, out, threads)
        return out

    def round_codes(
        self, x: np.ndarray, factors: np.ndarray, zeros: np.ndarray, low: int, high: int, shift: int, threads: int
    ) -> np.ndarray:
        out = np.empty(x.shape, np.uint8)
        self._extension.round_codes(self._isa, x, factors, zeros, low, high, shift, out, threads)
        return out

    def tile_amax(self, x: np.ndarray, a: int, b: int, threads: int) -> np.ndarray:
        out = np.empty((-(-x.shape[0] // a), -(-x.shape[1] // b)), np.float32)
        self._extension.tile_amax(self._isa, x, a, b, out, threads)
        return out

    def pack_nibbles(self, codes: np.ndarray, low_first: bool, threads: int) -> np.ndarray:
        out = np.empty((codes.shape[0], codes.shape[1] // 2), np.uint8)
        self._extension.pack_nibbles(codes, low_first, out, threads)
        return out

    def unpack_nibbles(self, packed: np.ndarray, low_first: bool, threads: int) -> np.ndarray:
        out = np.empty((packed.shape[0], packed.shape[1] * 2), np.uint8)
        self._extension.unpack_nibbles(packed, low_first, out, threads)
        return out

    def pack_columns(self, codes: np.ndarray, bits: int, threads: int) -> np.ndarray:
        out = np.empty((codes.shape[1] * bits // 32, codes.shape[0]), np.uint32)
        self._extension.pack_columns(codes, bits, out, threads)
        return out

    def unpack_columns(self, packed: np.ndarray, bits: int, start: int, stop: int, threads: int) -> np.ndarray:
        out = np.empty((stop - start, packed.shape[0] * 32 // bits), np.uint8)
        self._extension.unpack_columns(packed, bits, start, stop, out, threads)
        return out

    def pack_awq(self, codes: np.ndarray, threads: int) -> np.ndarray:
        out = np.empty((codes.shape[1], codes.shape[0] // 8), np.uint32)
        self._extension.pack_awq(codes, out, threads)
        return out

    def unpack_awq(self, packed: np.ndarray, start: int, stop: int, threads: int) -> np.ndarray:
        out = np.empty((stop - start, packed.shape[0]), np.uint8)
        self._extension.unpack_awq(packed, start, stop, out, threads)
        return out

    def join_fp4_blocks(self, codes: np.ndarray, scales: np.ndarray, kind: str, threads: int) -> np.ndarray:
        out = np.empty((codes.shape[0], LAYOUTS[kind].row_bytes(codes.shape[1])), np.uint8)
        self._extension.join_fp4_blocks(kind, codes, scales, out, threads)
        return out

    def split_fp4_blocks(self, blocks: np.ndarray, kind: str, threads: int) -> tuple[np.ndarray, np.ndarray]:
        block, header, _ = packings.FP4_BLOCKS[kind]
        count = blocks.shape[1] // LAYOUTS[kind].bytes
        out = np.empty((len(blocks), count * block), np.uint8), np.empty((len(blocks), count * header), np.uint8)
        self._extension.split_fp4_blocks(kind, blocks, *out, threads)
        return out


def _groups(x: np.ndarray, group: int) -> np.ndarray:
    return np.empty((x.shape[0], x.shape[1] // group), np.float32)


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
    "encode_e2m1": fp4.encode_e2m1,
    "round_codes": half_quadratic.round_codes,
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


def _usable(op: str) -> Callable[[str], str]:
    missing = "" if hasattr(cpu.extension, op) else "this build is older than the operation"
    return lambda _variant: missing


if cpu.extension is not None:
    for _rank, _isa in enumerate(reversed(cpu.instruction_sets), start=1):
        _compiled = CompiledFamilies(cpu.extension, _isa)
        for _op in _REFERENCES:
            dispatch.register(_op, f"cpu:{_isa}", getattr(_compiled, _op), _usable(_op), _rank)
