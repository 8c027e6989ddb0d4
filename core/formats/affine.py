"""Numbers with a real offset or a real zero point for each group: MLX's and HQQ's."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from core.contract import ElementType, NumericContract
from core.formats import half_quadratic
from core.formats.base import EncodeOptions, Method
from core.formats.half_quadratic import stored_as
from core.formats.numbers import Codes, Integers, Numbers, widens
from kernels import families

_METHODS = frozenset({Method.SEARCH, Method.ROUND, Method.HALF_QUADRATIC})
_SHORT = (ElementType.BF16, ElementType.F16)  # times a code they are exact in float32
_F16_ZERO = np.float32(32768)  # float16 ends at 65,504


@dataclass(frozen=True)
class _Real(Numbers):
    """Unsigned codes of 1 to 8 bits in groups along a row; scale and offset, or zero, are of one float type."""

    bits: int
    size: int
    scale: ElementType = ElementType.BF16

    @property
    def group(self) -> int:
        return self.size

    @property
    def methods(self) -> frozenset[Method]:
        return _METHODS

    def contract(self, name: str, packing: str) -> NumericContract:
        return NumericContract(
            name,
            ElementType.INT,
            self.bits,
            self.granularity,
            0,
            (1 << self.bits) - 1,
            scale=self.scale,
            zero=self.scale,
            zero_bits=self.scale.bits,
            symmetric=False,
            packing=packing,
        )


@dataclass(frozen=True)
class Affine(_Real):
    """scale · code + offset, each operation rounded in float32; both may have either sign."""

    @property
    def label(self) -> str:
        return f"int{self.bits} g{self.size} with offsets"

    def rounding_bound(self) -> float:
        """MLX moves the scale so that 0 is a code, which clips up to a range / 2^bits; half a step; their rounding."""
        return 2.4 / ((1 << self.bits) - 1) + 2**-7

    def floor(self, options: EncodeOptions) -> float:
        """MLX's scales are at least 1e-7: smaller ranges get fewer codes."""
        return 1e-7 * ((1 << self.bits) - 1)

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        dtype = self.scale.label
        if options.method is Method.HALF_QUADRATIC:
            codes, scales, offsets = half_quadratic.with_offsets(rows, self.bits, self.size, dtype, options.threads)
        else:
            search = options.method is Method.SEARCH
            codes, scales, offsets = families.encode_affine(
                rows, self.bits, self.size, dtype, search, options.importance, options.threads
            )
        return Codes(codes, scales, offsets=offsets)

    def values(self, codes: Codes) -> np.ndarray:
        return families.decode_affine(codes.codes, codes.scales, self.offsets(codes), self.size)

    def offsets(self, codes: Codes) -> np.ndarray:
        """float32 [R, G]; of symmetric integers, which have none, the scale times a power of two."""
        return codes.scales * np.float32(-(1 << (self.bits - 1))) if codes.offsets is None else codes.offsets

    @property
    def weighs_columns(self) -> bool:
        return True

    def resized(self, group: int) -> Affine:
        return replace(self, size=group)

    def holds(self, other: Numbers) -> bool:
        """Symmetric integers too: −2^(bits−1) · scale is exact. A zero point times a scale is not, in general."""
        if not isinstance(other, Affine | Integers) or (self.bits, self.size) != (other.bits, other.group):
            return False
        if isinstance(other, Integers) and not (other.symmetric and other.scale in _SHORT):
            return False
        return widens(other.scale, self.scale)


@dataclass(frozen=True)
class RealZeros(_Real):
    """(code − zero) · scale, each operation rounded in float32; the zero is real."""

    scale: ElementType = ElementType.F16

    @property
    def label(self) -> str:
        return f"int{self.bits} g{self.size} with real zeros"

    def rounding_bound(self) -> float:
        """Half a step of a range of at most twice the largest value, and the rounding of scale and zero."""
        return 1.2 / ((1 << self.bits) - 1) + 2**-8

    def floor(self, options: EncodeOptions) -> float:
        """Steps are multiples of 2^-24, where float16 ends, so that a small group's range is met only roughly."""
        return (1 << self.bits) * 2.0**-24 / self.rounding_bound()

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        if options.method is Method.HALF_QUADRATIC:
            _, scales, zeros = families.half_quadratic(rows, self.bits, self.size, options.threads)
            offsets = -zeros * scales
        else:
            search = options.method is Method.SEARCH
            if search:
                _, scales, offsets = families.encode_affine(
                    rows, self.bits, self.size, "F32", search, None, options.threads
                )
            else:
                scales, offsets = _plain(rows, self.bits, self.size)
        # A zero of float16 ends at 65,504: where all values of a group are nearly the same, the step is wider.
        least = np.abs(offsets) / _F16_ZERO
        signed = np.copysign(np.maximum(np.abs(scales), np.maximum(least, np.float32(2.0**-24))), scales)
        scales = stored_as(signed, self.scale.label)
        zeros = stored_as(-offsets / scales, self.scale.label)
        return Codes(half_quadratic.codes_for(rows, scales, zeros, self.bits), scales, zeros)

    def values(self, codes: Codes) -> np.ndarray:
        assert codes.zeros is not None
        return families.decode_zeros(codes.codes, codes.scales, codes.zeros, self.size)

    def resized(self, group: int) -> RealZeros:
        return replace(self, size=group)

    def holds(self, other: Numbers) -> bool:
        return (
            isinstance(other, RealZeros)
            and (self.bits, self.size) == (other.bits, other.size)
            and widens(other.scale, self.scale)
        )


def _plain(rows: np.ndarray, bits: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Scales and offsets float32 [R, G] that span each group's range. Raises ValueError for NaN and Inf."""
    groups = rows.reshape(len(rows), -1, size)
    low, high = groups.min(axis=2), groups.max(axis=2)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("NaN or Inf can not be encoded")
    with np.errstate(over="ignore"):
        span = np.minimum(high - low, np.finfo(np.float32).max)
    return span / np.float32((1 << bits) - 1), low
