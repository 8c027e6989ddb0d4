"""What stored codes stand for, whatever packs them. Formats with the same numbers hold the same values, bit for bit.

`Codes` are rows of a weight between values and bytes: a kind of numbers chooses them and gives their values, a format
(`core.formats.coded`) packs and unpacks them.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np

from core.contract import ElementType, Granularity, NumericContract, PerBlock, PerChannel, PerGroup, PerTensor
from core.formats import half_quadratic
from core.formats.base import METHODS, EncodeOptions, Method
from core.units import format_count
from kernels import long_rows, ops
from kernels.layouts import F16_MAX
from kernels.long_rows import ReadPieces, RowScales


@dataclass(frozen=True)
class Codes:
    """Rows of a weight. codes: uint8 [R, K], unsigned, or the bytes of 8-bit floats.

    scales: [S, G], float32, or uint8 where they are 8-bit floats; each of its rows serves `tile` rows, 0: all of them.
    zeros: uint8 [R, G], or float32 where they are real, subtracted from codes. offsets: float32 [R, G], added to what
    is scaled. tensor_scale: one more factor for all. input_scale: of static activations, what their codes are
    multiplied with; 0: there is none.
    """

    codes: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None = None
    offsets: np.ndarray | None = None
    tensor_scale: float = 1.0
    tile: int = 1
    input_scale: float = 0.0

    def rows(self, start: int, stop: int) -> Codes:
        """Rows start…stop of these."""
        scales, tile = self.scales, self.tile
        if tile == 1:
            scales = scales[start:stop]
        elif tile and not start % tile:
            scales = scales[start // tile : -(-stop // tile)]
        elif tile:
            scales, tile = np.repeat(scales, tile, axis=0)[start:stop], 1
        zeros, offsets = (None if a is None else a[start:stop] for a in (self.zeros, self.offsets))
        return replace(self, codes=self.codes[start:stop], scales=scales, zeros=zeros, offsets=offsets, tile=tile)

    def take(self, order: np.ndarray) -> Codes:
        """Rows in another order, int64 [R]."""
        if self.tile == 0:
            return replace(self, codes=self.codes[order])
        if self.tile > 1:
            return self.rows_of_their_own().take(order)
        zeros, offsets = (None if a is None else a[order] for a in (self.zeros, self.offsets))
        return replace(self, codes=self.codes[order], scales=self.scales[order], zeros=zeros, offsets=offsets)

    def rows_of_their_own(self) -> Codes:
        """The same with a row of scales for each row."""
        count = len(self.codes)
        if self.tile == 1:
            return self
        scales = np.repeat(self.scales, self.tile or count, axis=0)[:count]
        return replace(self, scales=scales, tile=1)


def joined(pieces: list[Codes]) -> Codes:
    """Rows of several, one after the other; they have the same numbers and the same tensor scale."""
    if len(pieces) == 1:
        return pieces[0]
    own = [p.rows_of_their_own() for p in pieces]
    zeros = [p.zeros for p in own if p.zeros is not None]
    offsets = [p.offsets for p in own if p.offsets is not None]
    return replace(
        own[0],
        codes=np.concatenate([p.codes for p in own]),
        scales=np.concatenate([p.scales for p in own]),
        zeros=np.concatenate(zeros) if zeros else None,
        offsets=np.concatenate(offsets) if offsets else None,
    )


@dataclass(frozen=True)
class Numbers(ABC):
    """A kind of numbers, complete: equal ones give the same values for the same codes."""

    @abstractmethod
    def contract(self, name: str, packing: str) -> NumericContract:
        """The contract of a format that stores these."""

    @abstractmethod
    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        """float32 [R, K] → codes. Raises ValueError for NaN and Inf."""

    @abstractmethod
    def values(self, codes: Codes) -> np.ndarray:
        """float32 [R, K]."""

    @property
    @abstractmethod
    def label(self) -> str:
        """'int4 g128 asymmetric': what a tensor stored so is called."""

    @property
    def error_bound(self) -> float:
        """Largest |x−x̂| as a share of the largest |x| of its scale's group, when a search may clip."""
        return 1.0

    def rounding_bound(self) -> float:
        """The same where values are rounded to the nearest and nothing is clipped."""
        return self.error_bound

    @property
    def group(self) -> int:
        """Neighbours along a row that share a scale; 0: the whole row."""
        return 0

    @property
    def tile(self) -> int:
        """Rows that share their scales; 0: all."""
        return 1

    @property
    def weighs_columns(self) -> bool:
        """Whether a search for them takes `EncodeOptions.importance`."""
        return False

    def floor(self, options: EncodeOptions) -> float:
        """As `Format.bound_floor`: no type of scales here ends before 2^-100, unless it says so."""
        return 2.0**-100

    @property
    def largest(self) -> float:
        """The largest |x| that their scales reach, where that is a bound which weights may meet."""
        return math.inf

    def misfit(self, columns: int) -> str:
        """'' when rows of this length can be stored, else one clause that says why not."""
        if self.group and columns % self.group:
            return f"rows of {format_count(columns)} values do not divide into groups of {self.group}"
        return ""

    @property
    def methods(self) -> frozenset[Method]:
        """How these can be chosen."""
        return METHODS

    @property
    def granularity(self) -> Granularity:
        if self.tile == 0:
            return PerTensor()
        if self.tile > 1:
            return PerBlock(self.tile, self.group)
        return PerGroup(self.group) if self.group else PerChannel()

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        """As `Format.fit_rows`."""
        raise NotImplementedError(self.label)

    def input_scale(self, amax: float) -> float:
        """`Codes.input_scale` of activations of which the largest |x| is `amax`, where these are static."""
        raise NotImplementedError(self.label)

    def resized(self, group: int) -> Numbers | None:
        """The same with groups of another size, where there are such."""
        return None

    def holds(self, other: Numbers) -> bool:
        """Whether codes of the other kind are codes of this one, value for value, as they are."""
        return self == other


@dataclass(frozen=True)
class Integers(Numbers):
    """scale · (code − zero), codes of 1 to 8 bits; zero is 2^(bits−1) where symmetric. size: of a group, 0: the row."""

    bits: int
    size: int = 0
    symmetric: bool = True
    scale: ElementType = ElementType.BF16

    @property
    def group(self) -> int:
        return self.size

    @property
    def label(self) -> str:
        groups = f"g{self.size}" if self.size else "per row"
        return f"int{self.bits} {groups}" + ("" if self.symmetric else " asymmetric")

    @property
    def error_bound(self) -> float:
        return 0.5 if self.bits == 8 else 1.0  # a search may clip the ends of a long row away

    def rounding_bound(self) -> float:
        """Half a step, one step where the positive end has no code; and a little for the scale's own rounding."""
        return 2.2 / ((1 << self.bits) - 1) + 2**-8

    def floor(self, options: EncodeOptions) -> float:
        """Scales in float16 are never below 2^-24, so that is how fine the codes of a small group can be."""
        if self.scale is not ElementType.F16:
            return super().floor(options)
        bound = self.error_bound if options.method is Method.SEARCH else self.rounding_bound()
        return (1 << self.bits) * 2.0**-24 / bound

    @property
    def largest(self) -> float:
        """Scales in float16 end at 65504."""
        steps = 1 << (self.bits - self.symmetric)
        return steps * F16_MAX if self.scale is ElementType.F16 else super().largest

    def contract(self, name: str, packing: str) -> NumericContract:
        half = 1 << (self.bits - 1)
        return NumericContract(
            name,
            ElementType.INT,
            self.bits,
            self.granularity,
            -half,
            half - 1,
            scale=self.scale,
            zero=None if self.symmetric else ElementType.INT,
            zero_bits=0 if self.symmetric else self.bits,
            symmetric=self.symmetric,
            packing=packing,
        )

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        search = options.method is Method.SEARCH
        return long_rows.fit_rows(
            read, self.bits, self.symmetric, self.scale.label, search, options.importance, options.threads
        )

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        if options.rows is not None and not self.size:
            codes = long_rows.encode_piece(rows, options.rows, self.bits, options.threads)
            zeros = None if self.symmetric else options.rows.zeros.astype(np.uint8)[:, None]
            return Codes(codes, options.rows.scales[:, None], zeros)
        if options.method is Method.HALF_QUADRATIC:
            return Codes(
                *half_quadratic.with_integer_zeros(rows, self.bits, self.size, self.scale.label, options.threads)
            )
        search = options.method is Method.SEARCH
        size = self.size or rows.shape[1]
        return Codes(
            *ops.encode_groups(
                rows, self.bits, size, self.symmetric, self.scale.label, search, options.importance, options.threads
            )
        )

    @property
    def methods(self) -> frozenset[Method]:
        return METHODS if self.symmetric or not self.size else METHODS | {Method.HALF_QUADRATIC}

    @property
    def weighs_columns(self) -> bool:
        return True

    def resized(self, group: int) -> Integers:
        return replace(self, size=group)

    def values(self, codes: Codes) -> np.ndarray:
        return ops.decode_groups(codes.codes, codes.scales, codes.zeros, self.bits, self.size or codes.codes.shape[1])

    def holds(self, other: Numbers) -> bool:
        return (
            isinstance(other, Integers)
            and (self.bits, self.size) == (other.bits, other.size)
            and (other.symmetric or not self.symmetric)
            and widens(other.scale, self.scale)
        )


def widens(narrow: ElementType, wide: ElementType) -> bool:
    """Whether every value of one float type is a value of the other."""
    wider = {ElementType.BF16: (ElementType.F32,), ElementType.F16: (ElementType.F32,)}
    return narrow is wide or wide in wider.get(narrow, ())
