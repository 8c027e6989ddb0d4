"""4-bit codes of a table of levels (NF4, FP4) with one scale for a block, and 8-bit codes of those scales."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import gcd

import numpy as np

from core.contract import ElementType, NumericContract, PerGroup
from core.formats.base import EncodeOptions, Method
from core.formats.numbers import Codes, Numbers
from kernels import families

TABLES = {"NF4": families.NF4_LEVELS, "FP4": families.FP4_LEVELS}
NESTED = 256  # scales that share one scale, where they are quantized themselves


@dataclass(frozen=True)
class Codebook(Numbers):
    """table[code] · scale, scales float32. Blocks of `size` values run on from one row of the matrix to the next.

    `Codes` of it have one scale for each run of gcd(K, size) values, none of which lies in two blocks. table: of
    `TABLES`. nested: scales that were quantized in groups of so many; 0: they were not.
    """

    table: str
    size: int = 64
    nested: int = 0

    @property
    def group(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        return f"{self.table} g{self.size}" + (" double" if self.nested else "")

    @property
    def levels(self) -> np.ndarray:
        """float32 [16], by code."""
        return TABLES[self.table]

    @property
    def error_bound(self) -> float:
        """A search takes 0.8 to 1.25 times the largest magnitude. Quantized scales: see `floor_share`."""
        return 0.4 if self.nested else max(0.2, 1.25 * self._half_gap()) + 2**-16

    def rounding_bound(self) -> float:
        return self.error_bound if self.nested else self._half_gap() + 2**-16

    @property
    def floor_share(self) -> float:
        """The share of the matrix's largest magnitude below which a block may lose all its digits.

        The widest gap of the 8-bit map moves a scale by 0.00704 of what is left of the largest one in its group.
        """
        return 0.05 if self.nested else 0.0

    def _half_gap(self) -> float:
        return float(np.diff(np.sort(self.levels)).max()) / 2

    def misfit(self, columns: int) -> str:
        return ""  # blocks run on

    def run(self, columns: int) -> int:
        """Neighbours of a row of so many that certainly lie in one block."""
        return gcd(columns, self.size)

    def contract(self, name: str, packing: str) -> NumericContract:
        return NumericContract(
            name,
            ElementType.CODEBOOK,
            4,
            PerGroup(self.size),
            0,
            15,
            scale=ElementType.U8 if self.nested else ElementType.F32,
            packing=packing,
            levels=tuple(float(v) for v in self.levels),
            outer_scale=ElementType.F32 if self.nested else None,
            outer_group=self.nested,
        )

    @property
    def weighs_columns(self) -> bool:
        return True

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        """Rows up to a multiple of `size / gcd(K, size)`, or to the end of the matrix."""
        height, columns = rows.shape
        unit = self.size // self.run(columns)
        importance = options.importance
        if unit > 1:
            rows = self.blocks(rows).reshape(-1, unit * columns)
            importance = None if importance is None else np.tile(importance, unit)
        codes, scales = families.encode_codebook(
            rows, self.levels, self.size, "F32", options.method is Method.SEARCH, importance, options.threads
        )
        if unit > 1:
            codes = codes.reshape(-1, columns)[:height]
            scales = np.repeat(scales.reshape(-1), unit).reshape(-1, columns // self.run(columns))[:height]
        return Codes(codes, scales)

    def blocks(self, rows: np.ndarray) -> np.ndarray:
        """Rows [R, K] as whole units of rows that blocks fill [·, size], zeros after the last."""
        height, columns = rows.shape
        unit = self.size // self.run(columns)
        if height % unit:
            rows = np.concatenate([rows, np.zeros((-height % unit, columns), rows.dtype)])
        return np.ascontiguousarray(rows).reshape(-1, self.size)

    def nearest(self, values: np.ndarray, scales: np.ndarray) -> np.ndarray:
        """Codes uint8 [B, size] of blocks whose scales are given, of either sign."""
        size = np.abs(scales)[:, None]
        held = np.clip(np.where(scales[:, None] < 0, -values, values), -size, size)
        # One more value of that magnitude makes it the scale that is found.
        codes, _ = families.encode_codebook(np.hstack([held, size]), self.levels, held.shape[1] + 1)
        return codes[:, :-1]

    def values(self, codes: Codes) -> np.ndarray:
        run = codes.codes.shape[1] // codes.scales.shape[1]
        return families.decode_codebook(codes.codes, codes.scales, self.levels, run)

    def holds(self, other: Numbers) -> bool:
        return (
            isinstance(other, Codebook)
            and not self.nested
            and self.table == other.table
            and other.size % self.size == 0  # a scale may be written more than once
        )


@cache
def dynamic_map() -> np.ndarray:
    """bitsandbytes' signed 8-bit 'dynamic' map (Dettmers et al. 2022), float32 [256], ascending.

    For each power of ten down to 10^−6, the middles of 2^i equal parts of 0.1 … 1 of it, of both signs; 0 and 1.
    """
    found = []
    for i in range(7):
        edges = _edges(2**i)
        middles = (edges[:-1] + edges[1:]) / np.float32(2)
        found += [np.float32(10.0 ** (i - 6)) * middles, np.float32(-(10.0 ** (i - 6))) * middles]
    levels = np.sort(np.concatenate([*found, np.array([0, 1], np.float32)]))
    levels.flags.writeable = False
    return levels


def _edges(parts: int) -> np.ndarray:
    """0.1 … 1 in equal parts with a step in float32, from both ends to the middle as PyTorch's linspace, whose tables
    files have."""
    step = np.float64((np.float32(1) - np.float32(0.1)) / np.float32(parts))
    at = np.arange(parts + 1)
    return np.where(at < (parts + 1) // 2, np.float64(np.float32(0.1)) + step * at, 1 - step * (parts - at)).astype(
        np.float32
    )


def nest(scales: np.ndarray, offset: float, group: int = NESTED) -> tuple[np.ndarray, np.ndarray]:
    """Scales float32 [n] → codes uint8 [n] of the dynamic map, and one float32 for each `group` of them.

    As bitsandbytes' blockwise quantizer has it; a value in the middle goes to the lower level.
    """
    away = scales - np.float32(offset)
    padded = np.zeros((-(-len(away) // group), group), np.float32)
    padded.reshape(-1)[: len(away)] = away
    largest = np.abs(padded).max(axis=1)
    share = padded * (np.float32(1) / np.maximum(largest, np.float32(1e-38)))[:, None]
    levels = dynamic_map()
    codes = np.searchsorted((levels[:-1] + levels[1:]) / np.float32(2), share.reshape(-1)[: len(away)], side="left")
    return codes.astype(np.uint8), largest


def unnest(
    codes: np.ndarray, largest: np.ndarray, offset: float, levels: np.ndarray | None = None, group: int = NESTED
) -> np.ndarray:
    """The scales that a reader finds, float32 [n]."""
    table = dynamic_map() if levels is None else levels
    return table[codes] * np.repeat(largest, group)[: len(codes)] + np.float32(offset)
