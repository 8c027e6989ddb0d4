"""Registers every implementation of every operation. Imported by `kernels.ops`; nothing else needs it.

The compiled functions fill arrays that are made here; their shapes are checked again on the other side.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from kernels import cpu, dispatch
from kernels.layouts import LAYOUTS, PLAIN_KINDS, SOURCE_KINDS, WRITTEN_KINDS
from kernels.reference import bits as bits_reference
from kernels.reference import blocks, floats, groups, inspect, statistics


class Compiled:
    """The operations of one instruction set, with the signatures of their references."""

    def __init__(self, extension: ModuleType, isa: str) -> None:
        self._extension = extension
        self._isa = isa

    def encode_blocks(
        self,
        kind: str,
        x: np.ndarray,
        importance: np.ndarray | None,
        search: bool,
        tensor_scale: float,
        threads: int,
    ) -> np.ndarray:
        out = np.empty((x.shape[0], LAYOUTS[kind].row_bytes(x.shape[1])), np.uint8)
        self._extension.encode_blocks(self._isa, kind, x, importance, out, search, tensor_scale, threads)
        return out

    def encodes(self, kind: str) -> str:
        return "" if self._extension.encodes(kind) else f"no compiled encoder for {kind}"

    def decode_blocks(self, kind: str, data: np.ndarray, columns: int, tensor_scale: float, threads: int) -> np.ndarray:
        out = np.empty((data.shape[0], columns), np.float32)
        self._extension.decode_blocks(self._isa, kind, data, out, tensor_scale, threads)
        return out

    def decodes(self, kind: str) -> str:
        return "" if self._extension.decodes(kind) else f"no compiled decoder for {kind}"

    def encode_groups(
        self,
        x: np.ndarray,
        bits: int,
        group: int,
        symmetric: bool,
        scale_type: str,
        search: bool,
        importance: np.ndarray | None,
        threads: int,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shape = (x.shape[0], x.shape[1] // group)
        codes, scales, zeros = np.empty(x.shape, np.uint8), np.empty(shape, np.float32), np.empty(shape, np.uint8)
        self._extension.encode_groups(
            self._isa, x, bits, group, symmetric, scale_type, search, importance, codes, scales, zeros, threads
        )
        return codes, scales, zeros

    def decode_groups(
        self, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None, bits: int, group: int, threads: int
    ) -> np.ndarray:
        out = np.empty(codes.shape, np.float32)
        self._extension.decode_groups(self._isa, codes, scales, zeros, 1 << (bits - 1), group, out, threads)
        return out

    def group_sums(
        self,
        x: np.ndarray,
        weights: np.ndarray | None,
        scales: np.ndarray,
        zeros: np.ndarray,
        bits: int,
        total: np.ndarray,
        threads: int,
    ) -> None:
        self._extension.group_sums(self._isa, x, weights, scales, zeros, bits, total, threads)

    def group_codes(self, x: np.ndarray, scales: np.ndarray, zeros: np.ndarray, bits: int, threads: int) -> np.ndarray:
        out = np.empty(x.shape, np.uint8)
        self._extension.group_codes(self._isa, x, scales, zeros, bits, out, threads)
        return out

    def to_half(self, x: np.ndarray, dtype: str, threads: int) -> np.ndarray:
        out = np.empty(x.shape, np.uint16)
        self._extension.to_half(self._isa, dtype, x, out, threads)
        return out

    def from_half(self, halves: np.ndarray, dtype: str, threads: int) -> np.ndarray:
        out = np.empty(halves.shape, np.float32)
        self._extension.from_half(self._isa, dtype, halves, out, threads)
        return out

    def pack_bits(self, codes: np.ndarray, bits: int, threads: int) -> np.ndarray:
        out = np.empty((codes.shape[0], -(-codes.shape[1] * bits // 32) * 4), np.uint8)
        self._extension.pack_bits(codes, bits, out, threads)
        return out

    def unpack_bits(self, packed: np.ndarray, bits: int, columns: int, threads: int) -> np.ndarray:
        out = np.empty((packed.shape[0], columns), np.uint8)
        self._extension.unpack_bits(packed, bits, out, threads)
        return out

    def error_stats(
        self, source: np.ndarray, other: np.ndarray, limit: float, counts: np.ndarray, every: int, threads: int
    ) -> tuple[float, float, float, int]:
        return self._extension.error_stats(self._isa, source, other, limit, counts, every, threads)

    def crc32(self, data: np.ndarray, before: int) -> int:
        return self._extension.crc32(self._isa, data, before)

    def scan(self, x: np.ndarray, extremes: np.ndarray, nonfinite: np.ndarray, threads: int) -> None:
        self._extension.scan(self._isa, x, extremes, nonfinite, threads)

    def max_group_error_ratio(
        self, source: np.ndarray, other: np.ndarray, group: int, floor: float, threads: int
    ) -> float:
        return self._extension.max_group_error_ratio(self._isa, source, other, group, floor, threads)

    def count_patterns(self, x: np.ndarray, counts: np.ndarray, threads: int) -> None:
        self._extension.count_patterns(x, counts, threads)

    def add_powers(self, x: np.ndarray, pivot: float, sums: np.ndarray, threads: int) -> None:
        self._extension.add_powers(self._isa, x, pivot, sums, threads)

    def channel_sums(self, x: np.ndarray, dtype: str, *figures: Any) -> None:
        self._extension.channel_sums(self._isa, dtype, x, *figures)

    def column_medians(self, x: np.ndarray, dtype: str, threads: int) -> np.ndarray:
        out = np.empty(x.shape[1], np.float32)
        self._extension.column_medians(self._isa, dtype, x, out, threads)
        return out

    def pool_max(
        self,
        x: np.ndarray,
        dtype: str,
        row_starts: np.ndarray,
        row_stops: np.ndarray,
        column_starts: np.ndarray,
        column_stops: np.ndarray,
        threads: int,
    ) -> np.ndarray:
        out = np.empty((len(row_starts), len(column_starts)), np.float32)
        edges = (row_starts, row_stops, column_starts, column_stops)
        self._extension.pool_max(self._isa, dtype, x, *edges, out, threads)
        return out


_REFERENCES: dict[str, Callable[..., Any]] = {
    "encode_groups": groups.encode_groups,
    "group_sums": groups.group_sums,
    "group_codes": groups.group_codes,
    "decode_groups": groups.decode_groups,
    "to_half": floats.to_half,
    "from_half": floats.from_half,
    "pack_bits": bits_reference.pack_bits,
    "unpack_bits": bits_reference.unpack_bits,
    "error_stats": statistics.error_stats,
    "scan": statistics.scan,
    "max_group_error_ratio": statistics.max_group_error_ratio,
    "count_patterns": inspect.count_patterns,
    "add_powers": inspect.add_powers,
    "channel_sums": inspect.channel_sums,
    "column_medians": inspect.column_medians,
    "pool_max": inspect.pool_max,
}

_ENCODED = tuple(kind for kind in WRITTEN_KINDS if kind not in PLAIN_KINDS)  # those go by to_half
dispatch.register("crc32", "reference", zlib.crc32)
dispatch.register("encode_blocks", "reference", blocks.encode_blocks, variants=_ENCODED)
dispatch.register("decode_blocks", "reference", blocks.decode_blocks, variants=tuple({*_ENCODED, *SOURCE_KINDS}))
for _op, _function in _REFERENCES.items():
    dispatch.register(_op, "reference", _function)

if cpu.extension is not None:
    for _rank, _isa in enumerate(reversed(cpu.instruction_sets), start=1):
        _compiled = Compiled(cpu.extension, _isa)
        _backend = f"cpu:{_isa}"
        dispatch.register("encode_blocks", _backend, _compiled.encode_blocks, _compiled.encodes, _rank)
        dispatch.register("decode_blocks", _backend, _compiled.decode_blocks, _compiled.decodes, _rank)
        for _op in _REFERENCES:
            dispatch.register(_op, _backend, getattr(_compiled, _op), priority=_rank)
        if cpu.extension.has_crc32(_isa):
            dispatch.register("crc32", _backend, _compiled.crc32, priority=_rank)
