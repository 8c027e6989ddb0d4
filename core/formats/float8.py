"""8-bit floats times scales: FP8 with a scale a tensor, a row, a group or a tile, and MXFP8."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from core.contract import ElementType, NumericContract
from core.formats.base import EncodeOptions
from core.formats.numbers import Codes, Numbers, widens
from kernels import families, ops
from kernels.long_rows import ReadPieces, RowScales, largest_of_rows

# Largest finite value, and its exponent (OCP OFP8).
LARGEST = {ElementType.F8_E4M3: 448.0, ElementType.F8_E5M2: 57344.0}
_EMAX = {ElementType.F8_E4M3: 8, ElementType.F8_E5M2: 15}
_LEAST = np.float32(2.0**-110)  # a scale whose quotients and products stay float32's normal numbers


@dataclass(frozen=True)
class Float8(Numbers):
    """scale · 8-bit float. height, size: rows and columns of the tile sharing a scale, 0: all; the last may be short.

    The scale is amax / largest, rounded to its type, or E8M0 by compressed-tensors' rule. A search has nothing to find:
    a float's relative error is nearly the same under any scale. fnuz: AMD's variant, only read: the exponent's bias is
    one more, so that a byte stands for half the value, and 0x80, no negative zero, is the only NaN.
    """

    element: ElementType = ElementType.F8_E4M3
    height: int = 1
    size: int = 0
    scale: ElementType = ElementType.F32
    fnuz: bool = False

    @property
    def group(self) -> int:
        return self.size

    @property
    def tile(self) -> int:
        return self.height

    @property
    def dtype(self) -> str:
        """What safetensors call the elements."""
        return self.element.label + ("FNUZ" if self.fnuz else "")

    @property
    def label(self) -> str:
        name = self.dtype.removeprefix("F8_").lower()
        if self.scale is ElementType.F8_E8M0 and self.height == 1:
            return f"mxfp8 {name} g{self.size}"
        if self.height == 0:
            return f"fp8 {name} per tensor"
        if self.height > 1:
            return f"fp8 {name} {self.height}×{self.size}"
        return f"fp8 {name} " + (f"g{self.size}" if self.size else "per row")

    @property
    def error_bound(self) -> float:
        """Half a step of the binade where the group's largest lands; 1 where other rows share its scale."""
        if self.height != 1:
            return 1.0
        half = 2.0 ** (-4 if self.element is ElementType.F8_E4M3 else -3)
        if self.scale is ElementType.F8_E8M0:
            return half
        top = LARGEST[self.element]
        return half * 2.0 ** _EMAX[self.element] / top + 2.0**-8  # a rounded scale may cut the end off

    def contract(self, name: str, packing: str) -> NumericContract:
        largest = int(LARGEST[self.element])
        return NumericContract(
            name, self.element, 8, self.granularity, -largest, largest, scale=self.scale, packing=packing
        )

    def misfit(self, columns: int) -> str:
        return super().misfit(columns) if self.height == 1 else ""

    def resized(self, group: int) -> Float8 | None:
        return replace(self, size=group) if self.height == 1 and self.size and group else None

    def holds(self, other: Numbers) -> bool:
        """One scale for the whole matrix may also stand in every place of a finer division."""
        if not isinstance(other, Float8) or (self.element, self.fnuz) != (other.element, other.fnuz):
            return False
        same = (self.height, self.size) == (other.height, other.size)
        return (same or not other.height) and (
            widens(other.scale, self.scale)
            or (other.scale is ElementType.F8_E8M0 and self.scale in (ElementType.BF16, ElementType.F32))
        )

    def input_scale(self, amax: float) -> float:
        return amax / LARGEST[self.element]

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        amax = largest_of_rows(read, options.threads)
        return RowScales(float_scales(self._scales(amax[:, None]))[:, 0], np.zeros_like(amax), amax)

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        if self.fnuz:
            raise NotImplementedError(self.label)
        columns = self.size or rows.shape[1]
        if not self.height:
            scales = self._scales(np.full((1, 1), options.amax, np.float32))
        elif options.rows is not None and not self.size:
            scales = options.rows.scales[:, None]
        else:
            scales = self._scales(families.tile_amax(rows, self.height, columns, options.threads))
        height = self.height or max(1, len(rows))
        codes = families.encode_float8(rows, self.element.label, float_scales(scales), height, columns, options.threads)
        return Codes(codes, scales, tile=self.height)

    def _scales(self, amax: np.ndarray) -> np.ndarray:
        """As `Codes.scales`: float32, or E8M0 bytes. Where all values are 0, the scale is 1."""
        if self.scale is ElementType.F8_E8M0:
            return families.e8m0_from_amax(amax, _EMAX[self.element], "compressed-tensors")
        scales = np.where(amax > 0, np.maximum(amax / np.float32(LARGEST[self.element]), _LEAST), np.float32(1))
        return ops.to_float32(ops.from_float32(scales, self.scale.label), self.scale.label)

    def values(self, codes: Codes) -> np.ndarray:
        rows, columns = codes.codes.shape
        a, b = codes.tile or max(1, rows), self.size or max(1, columns)
        scales = float_scales(codes.scales)
        if not self.fnuz:
            return families.decode_float8(codes.codes, self.element.label, scales, a, b)
        spread = np.repeat(np.repeat(scales, a, axis=0)[:rows], b, axis=1)[:, :columns]
        return _fnuz_table(self.element)[codes.codes] * spread


def float_scales(scales: np.ndarray) -> np.ndarray:
    """`Codes.scales` as float32; bytes are E8M0."""
    return families.e8m0_to_float32(scales) if scales.dtype == np.uint8 else scales


@cache
def _fnuz_table(element: ElementType) -> np.ndarray:
    """float32 [256]: E4M3FNUZ has a bias of 8, E5M2FNUZ one of 16; neither has an infinity."""
    mantissa_bits, bias = (3, 8) if element is ElementType.F8_E4M3 else (2, 16)
    codes = np.arange(128)
    exponent, mantissa = codes >> mantissa_bits, (codes & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    magnitude = np.where(exponent > 0, 1 + mantissa, 2 * mantissa) * 2.0 ** (exponent - bias)
    table = np.concatenate([magnitude, -magnitude]).astype(np.float32)
    table[0x80] = np.nan
    return table
