"""The artifact's side of a number format: what the file says, from which its bytes follow exactly.

A contract knows no method (how the numbers were chosen), no kernel and no runtime.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class ElementType(Enum):
    """A stored element and its width in bits. Names are the field's own (safetensors spelling where it has one)."""

    F64 = ("F64", 64)
    F32 = ("F32", 32)
    F16 = ("F16", 16)
    BF16 = ("BF16", 16)
    F8_E4M3 = ("F8_E4M3", 8)
    F8_E5M2 = ("F8_E5M2", 8)
    F8_E8M0 = ("F8_E8M0", 8)
    F4_E2M1 = ("F4_E2M1", 4)
    I64 = ("I64", 64)
    I32 = ("I32", 32)
    I16 = ("I16", 16)
    I8 = ("I8", 8)
    U64 = ("U64", 64)
    U32 = ("U32", 32)
    U16 = ("U16", 16)
    U8 = ("U8", 8)
    BOOL = ("BOOL", 8)
    INT = ("INT", 0)  # a code of `NumericContract.bits` bits
    CODEBOOK = ("CODEBOOK", 0)  # an index of `NumericContract.bits` bits into `levels`
    TERNARY = ("TERNARY", 0)  # −1, 0, +1

    def __init__(self, label: str, bits: int) -> None:
        self.label = label
        self.bits = bits

    @property
    def bytes(self) -> int:
        """Bytes of one element; 0 for types that are only stored packed."""
        return self.bits // 8


@dataclass(frozen=True)
class PerTensor:
    """One scale for the whole tensor."""


@dataclass(frozen=True)
class PerChannel:
    """One scale for each output row: W [N, K] has N scales."""


@dataclass(frozen=True)
class PerGroup:
    """One scale for each `size` neighbours along a row: W [N, K] has N × K/size scales."""

    size: int


@dataclass(frozen=True)
class PerBlock:
    """One scale for each rows × cols tile."""

    rows: int
    cols: int


@dataclass(frozen=True)
class SuperBlock:
    """`size` neighbours share one 16-bit scale (and minimum); each `sub` of them has a small integer multiple of it."""

    size: int
    sub: int
    scale_bits: int
    zero_bits: int = 0


Granularity = PerTensor | PerChannel | PerGroup | PerBlock | SuperBlock


@dataclass(frozen=True)
class ByteCount:
    """Where the bytes of a tensor (or, added up, of a file) go."""

    payload: int = 0
    scales: int = 0
    zeros: int = 0
    padding: int = 0
    header: int = 0

    @property
    def total(self) -> int:
        return self.payload + self.scales + self.zeros + self.padding + self.header

    def __add__(self, other: ByteCount) -> ByteCount:
        return ByteCount(
            self.payload + other.payload,
            self.scales + other.scales,
            self.zeros + other.zeros,
            self.padding + other.padding,
            self.header + other.header,
        )

    @staticmethod
    def sum(counts: Iterable[ByteCount]) -> ByteCount:
        """Of many: quicker than adding one after another."""
        counts = tuple(counts)
        return ByteCount(
            sum(c.payload for c in counts),
            sum(c.scales for c in counts),
            sum(c.zeros for c in counts),
            sum(c.padding for c in counts),
            sum(c.header for c in counts),
        )


@dataclass(frozen=True)
class NumericContract:
    """Everything a file says about the numbers of one tensor.

    bits: payload bits a value (1.625 for TQ1_0, whose five ternary digits share a byte).
    block: values along a row that are stored together; a row must be a multiple of it (1: any row).
    levels: the values a code stands for, before scaling, where they are not evenly spaced.
    tensor_scale: one more scale for the whole tensor, kept beside it (NVFP4).
    outer_scale, outer_group: scales that are quantized themselves (double quantization) share one `outer_scale` for
    every `outer_group` of them (NF4: 8-bit absmax values, one F32 for 256).
    """

    name: str
    element: ElementType
    bits: float
    granularity: Granularity
    code_min: int = 0
    code_max: int = 0
    scale: ElementType | None = None
    zero: ElementType | None = None
    zero_bits: int = 0
    symmetric: bool = True
    block: int = 1
    packing: str = ""
    levels: tuple[float, ...] = ()
    tensor_scale: ElementType | None = None
    outer_scale: ElementType | None = None
    outer_group: int = 0

    @property
    def effective_bits(self) -> float:
        """Bits a value, scales and zero points included, where the row divides and the row's length does not matter."""
        g = self.granularity
        scale_bits = self.scale.bits if self.scale else 0
        zero_bits = self.zero_bits or (self.zero.bits if self.zero else 0)
        if isinstance(g, SuperBlock):
            subs = g.size // g.sub
            return self.bits + (scale_bits + zero_bits + subs * (g.scale_bits + g.zero_bits)) / g.size
        if isinstance(g, PerGroup):
            outer_bits = self.outer_scale.bits / self.outer_group if self.outer_scale else 0
            return self.bits + (scale_bits + zero_bits + outer_bits) / g.size
        if isinstance(g, PerBlock):
            return self.bits + (scale_bits + zero_bits) / (g.rows * g.cols)
        return self.bits

    @property
    def bits_a_row(self) -> int:
        """Bits that each row adds to `effective_bits` a value: scale and zero point of a whole row, else 0."""
        if not isinstance(self.granularity, PerChannel):
            return 0
        return (self.scale.bits if self.scale else 0) + (self.zero_bits or (self.zero.bits if self.zero else 0))
