"""Weights of a byte a value, as `weight` beside `weight_scale`: FP8 and INT8 of four ecosystems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from math import ceil

import numpy as np

from core.contract import ElementType
from core.formats.coded import Coded, as_bytes, read_scales, stored_scales
from core.formats.float8 import Float8, float_scales
from core.formats.numbers import Codes, Integers, Numbers
from core.parts import ONE, Axis, Part

_FLOATS = (ElementType.BF16, ElementType.F16, ElementType.F32)


class Inputs(Enum):
    """What shares a scale of the activations that meet the weight. TENSOR: one scale, measured before and stored."""

    NONE = ""
    TOKEN = "token"
    GROUP = "group"
    TENSOR = "tensor"


class Scaled8(Coded):
    """Weight W [N, K] as `weight`, bytes in row-major order, its scales, and, where activations are static,
    `input_scale`. Integers are signed in the file; asymmetric ones have `weight_zero_point`, signed too.

    suffix: of the scales' name after 'weight'. scale_types: those that loaders take, the usual one first. scalar: one
    scale has no axis. whole: the file has one scale where numbers have one a row. input_type: of `input_scale`.
    """

    numbers: Float8 | Integers

    def __init__(
        self,
        name: str,
        ecosystem: str,
        numbers: Float8 | Integers,
        inputs: Inputs,
        summary: str,
        family: str,
        suffix: str = "_scale",
        scale_types: tuple[ElementType, ...] = _FLOATS,
        scalar: bool = False,
        whole: bool = False,
        input_type: ElementType = ElementType.F32,
    ) -> None:
        super().__init__(name, numbers, "a byte a value, row by row", summary, family)
        self.ecosystem = ecosystem
        self.inputs = inputs
        self.suffix = suffix
        self.scale_types = scale_types
        self.scalar = scalar
        self.whole = whole
        self.input_type = input_type
        self.needs_input = inputs is Inputs.TENSOR
        self.needs_amax = self.fuses = numbers.tile == 0

    def for_numbers(self, numbers: Numbers) -> Scaled8 | None:
        if not isinstance(numbers, Float8 | Integers):
            return None
        scale = numbers.scale if numbers.scale in self.scale_types else self.scale_types[0]
        own = replace(self.numbers, scale=scale)
        if not own.holds(numbers):
            return None
        return Scaled8(
            self.name, self.ecosystem, own, self.inputs, self.summary, self.family, self.suffix, self.scale_types,
            self.scalar, self.whole,
        )  # fmt: skip

    def unit_rows(self, shape: Sequence[int]) -> int:
        return max(1, self.numbers.tile)

    @property
    def _asymmetric(self) -> bool:
        return isinstance(self.numbers, Integers) and not self.numbers.symmetric

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        scale, size = self.numbers.scale, self.numbers.group
        tile = 0 if self.whole else self.numbers.tile
        wide = ceil(k / size) if size else 1
        high = ceil(n / tile) if tile else 1
        single: tuple[int, ...] = () if self.scalar else (1,)
        rows, columns = Axis(1, tile) if tile else ONE, Axis(1, size) if size else ONE
        grid = (high, wide) if tile else single
        dtype = self.numbers.dtype if isinstance(self.numbers, Float8) else "I8"
        as_codes = scale is ElementType.F8_E8M0 and self.ecosystem == "compressed-tensors"
        label = "U8" if as_codes else scale.label
        parts = [
            Part("", dtype, (n, k), n * k),
            Part(self.suffix, label, grid, high * wide * scale.bytes, rows, columns),
        ]
        if self._asymmetric:
            parts.append(Part("_zero_point", "I8", grid, high * wide, rows, columns))
        if self.needs_input:
            parts.append(Part(".input_scale", self.input_type.label, single, self.input_type.bytes, ONE, ONE))
        return tuple(parts)

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        signed = isinstance(self.numbers, Integers)
        scales = self._scales(codes)
        parts = [
            as_bytes(codes.codes ^ np.uint8(0x80) if signed else codes.codes),
            as_bytes(scales) if scales.dtype == np.uint8 else stored_scales(scales, self.numbers.scale),
        ]
        if self._asymmetric:
            zeros = np.full(scales.shape, 128, np.uint8) if codes.zeros is None else codes.zeros
            parts.append(as_bytes(zeros ^ np.uint8(0x80)))
        if self.needs_input:
            parts.append(stored_scales(np.full((1, 1), codes.input_scale, np.float32), self.input_type))
        return tuple(parts)

    def _scales(self, codes: Codes) -> np.ndarray:
        """Scales of the codes in this format's tiles: those of the codes, or one of the whole matrix in every place."""
        tile, size = self.numbers.tile, self.numbers.group
        scales, columns = codes.scales, codes.codes.shape[1]
        if codes.tile != tile:
            scales = codes.rows_of_their_own().scales[:: max(1, tile)]
        wide = ceil(columns / size) if size else 1
        scales = np.broadcast_to(scales, (len(scales), wide)) if scales.shape[1] == 1 else scales
        return scales if self.numbers.scale is ElementType.F8_E8M0 else float_scales(scales)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        codes = parts[0].reshape(rows, columns)
        scales = self.unpack_scales(parts[1], rows)
        zeros = None
        if self._asymmetric:
            zeros = parts[2].reshape(-1, scales.shape[1]) ^ np.uint8(0x80)
            zeros = np.ascontiguousarray(np.broadcast_to(zeros, scales.shape))
        if isinstance(self.numbers, Integers):
            codes = codes ^ np.uint8(0x80)
        given = float(read_scales(parts[-1], self.input_type, 1)[0, 0]) if self.needs_input else 0.0
        return Codes(codes, scales, zeros, tile=self.numbers.tile, input_scale=given)

    def unpack_scales(self, raw: np.ndarray, rows: int) -> np.ndarray:
        """`Codes.scales` of so many rows, from the bytes of their part."""
        tile, scale = self.numbers.tile, self.numbers.scale
        count = 1 if self.whole or not tile else ceil(rows / tile)
        if scale is ElementType.F8_E8M0:
            return raw.reshape(count, -1)
        scales = read_scales(raw, scale, count)
        return np.repeat(scales, rows, axis=0) if self.whole else scales


_ROWS = Float8(scale=ElementType.BF16)
_TENSOR = Float8(height=0, scale=ElementType.BF16)
_TILES = Float8(height=128, size=128, scale=ElementType.BF16)
_MX = Float8(size=32, scale=ElementType.F8_E8M0)

SCALED8: tuple[Scaled8, ...] = (
    Scaled8(
        "w8a8", "compressed-tensors", Integers(8), Inputs.TOKEN,
        "8-bit integers in rows, activations in 8 bits as they come; for vLLM", "w8a8",
    ),
    Scaled8(
        "fp8-dynamic", "compressed-tensors", _ROWS, Inputs.TOKEN,
        "8-bit floats in rows, activations in 8 bits as they come; for vLLM", "fp8",
    ),
    Scaled8(
        "fp8-static", "compressed-tensors", _TENSOR, Inputs.TENSOR,
        "8-bit floats with one scale, activations with one that is measured before; for vLLM", "fp8",
    ),
    Scaled8(
        "fp8-block", "compressed-tensors", _TILES, Inputs.GROUP,
        "8-bit floats in tiles of 128 × 128, activations in groups of 128 as they come; for vLLM", "fp8-block",
    ),
    Scaled8(
        "mxfp8", "compressed-tensors", _MX, Inputs.GROUP,
        "8-bit floats in groups of 32 with a power-of-two scale; for vLLM", "mxfp8",
        scale_types=(ElementType.F8_E8M0,),
    ),
    Scaled8(
        "hf-fp8", "fp8", replace(_TILES, scale=ElementType.F32), Inputs.GROUP,
        "8-bit floats in tiles of 128 × 128, as DeepSeek stores them; for vLLM, SGLang and transformers", "hf-fp8",
        suffix="_scale_inv", scale_types=(ElementType.F32, ElementType.F8_E8M0),
    ),
    Scaled8(
        "modelopt-fp8", "modelopt", replace(_TENSOR, scale=ElementType.F32), Inputs.TENSOR,
        "8-bit floats with one scale, activations too; for TensorRT-LLM, vLLM and SGLang", "modelopt-fp8",
        scale_types=(ElementType.F32,), scalar=True,
    ),
)  # fmt: skip
