"""The scale of a layer's keys, or of its values, in a key-value cache of 8-bit floats: amax / 448, one number.

It belongs to no weight: what is stored comes from activations that were measured, not from the tensor that stands for
it in a plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.contract import ByteCount, ElementType, NumericContract, PerTensor
from core.formats.base import EncodeOptions, Format
from core.parts import Part
from kernels import ops
from kernels.layouts import E4M3_MAX


class CacheScale(Format):
    """One float of that type, stored as an array of that shape, of the largest |key| or |value|, `input_amax`."""

    name = "FP8 cache scale"
    container = "safetensors"
    needs_input = True
    derived = True

    def __init__(self, element: ElementType, shape: tuple[int, ...]) -> None:
        self.element = element
        self.shape = shape
        self.contract = NumericContract(self.name, element, element.bits, PerTensor(), packing="little-endian")

    def accepts(self, shape: Sequence[int]) -> str:
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        return (Part("", self.element.label, self.shape, self.element.bytes),)

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        return ByteCount(scales=self.element.bytes)

    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        # Without a range, as in a preview, any is as good as another.
        scale = options.input_amax / E4M3_MAX if options.input_amax else 1.0
        stored = ops.from_float32(np.full(rows.shape, scale, np.float32), self.element.label)
        return (np.ascontiguousarray(stored).view(np.uint8),)

    def decode(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> np.ndarray:
        return ops.to_float32(parts[0].reshape(rows, -1), self.element.label)
