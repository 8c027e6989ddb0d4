"""Formats that store codes and scales: a kind of numbers, and where their bits lie."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from math import ceil, prod

import numpy as np

from core.contract import ByteCount, ElementType
from core.formats.base import EncodeOptions, Format, Method
from core.formats.numbers import Codes, Numbers
from kernels import ops
from kernels.long_rows import ReadPieces, RowScales


class Coded(Format):
    """Weights W [N, K] of one ecosystem's folders. A format of this kind says how codes are packed, and nothing more.

    The same instance writes a file and reads it: `core.packed` finds the parts in a checkpoint and unpacks them.
    summary: one line for the window, what it is and who reads it. family: what the support matrix calls it.
    """

    container = "safetensors"
    numbers: Numbers
    zero_bias = 0  # what a stored zero point of 0 stands for

    def __init__(self, name: str, numbers: Numbers, packing: str, summary: str, family: str) -> None:
        self.name = name
        self.summary = summary
        self.family = family
        self.numbers = numbers
        self.contract = numbers.contract(name, packing)
        self.error_bound = numbers.error_bound
        self.methods = numbers.methods
        self.weighs_columns = numbers.weighs_columns

    @abstractmethod
    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]: ...

    @abstractmethod
    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        """The bytes (uint8) that `Part.run` gives for some rows of each part → their codes."""

    def with_input(self, codes: Codes, options: EncodeOptions) -> Codes:
        if not self.needs_input or codes.input_scale:
            return codes
        # Without a range, as in a preview that encodes weights only, it is as good as any.
        scale = self.numbers.input_scale(options.input_amax) if options.input_amax else 1.0
        return replace(codes, input_scale=scale)

    def like(self, other: Coded) -> bool:
        """Whether it is the same format but for the size of its groups."""
        return self.numbers.resized(other.numbers.group) == other.numbers

    def accepts(self, shape: Sequence[int]) -> str:
        if len(shape) != 2 or 0 in shape:
            return "only two-dimensional weights can be stored this way"
        return self.numbers.misfit(shape[1])

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        """The first part is the payload; others hold scales, or zero points where their name says so, or the shape."""
        main, *beside = self.parts(shape)
        payload = ceil(prod(shape) * self.contract.bits / 8)
        zeros = sum(p.nbytes for p in beside if "zero" in p.suffix or "bias" in p.suffix)
        header = sum(p.nbytes for p in beside if p.constant)
        scales = sum(p.nbytes for p in beside) - zeros - header
        return ByteCount(payload=payload, scales=scales, zeros=zeros, padding=main.nbytes - payload, header=header)

    def bound(self, method: Method) -> float:
        return self.numbers.rounding_bound() if method is Method.ROUND else self.error_bound

    def bound_group(self, columns: int) -> int:
        return self.numbers.group or columns

    def bound_floor(self, options: EncodeOptions) -> float:
        return self.numbers.floor(options)

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        return self.numbers.fit_rows(read, options)

    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        return self.pack(self.with_input(self.numbers.quantize(rows, options), options))

    def decode(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> np.ndarray:
        return self.numbers.values(self.unpack(parts, rows, columns))

    def for_numbers(self, numbers: Numbers) -> Format | None:
        return self if self.numbers.holds(numbers) else None


def as_bytes(a: np.ndarray) -> np.ndarray:
    """The bytes of an array in row-major order, uint8 [n]."""
    return np.ascontiguousarray(a).view(np.uint8).reshape(-1)


def stored_scales(scales: np.ndarray, dtype: ElementType) -> np.ndarray:
    """float32 [S, G] → bytes in a float type."""
    return as_bytes(ops.from_float32(scales, dtype.label))


def read_scales(raw: np.ndarray, dtype: ElementType, rows: int) -> np.ndarray:
    """The inverse: float32 [rows, G]."""
    return ops.to_float32(raw.reshape(rows, -1), dtype.label)
