"""Plain elements in safetensors: what kept tensors are stored as."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from core.contract import ByteCount, ElementType, NumericContract, PerTensor
from core.formats.base import EncodeOptions, Format
from core.parts import Part
from kernels import ops


class Plain(Format):
    """One element a value, no scale."""

    container = "safetensors"

    def __init__(self, element: ElementType, error_bound: float) -> None:
        self.element = element
        self.name = element.label
        self.contract = NumericContract(self.name, element, element.bits, PerTensor(), packing="little-endian")
        self.error_bound = error_bound

    def accepts(self, shape: Sequence[int]) -> str:
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        return (Part("", self.name, tuple(shape), prod(shape) * self.element.bytes),)

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        return ByteCount(payload=prod(shape) * self.element.bytes)

    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        return (np.ascontiguousarray(ops.from_float32(rows, self.name)).view(np.uint8),)

    def decode(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> np.ndarray:
        return ops.to_float32(parts[0].reshape(rows, -1), self.name)


PLAIN: tuple[Format, ...] = (
    Plain(ElementType.F32, 0.0),
    Plain(ElementType.F16, 2.0**-11),
    Plain(ElementType.BF16, 2.0**-8),
)
