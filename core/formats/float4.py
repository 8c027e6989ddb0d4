"""4-bit floats (E2M1) in small groups: NVFP4 (16 values, an E4M3 scale) and MXFP4 (32 values, a power of two)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from math import ceil, frexp, log2

import numpy as np

from core.contract import ElementType, NumericContract, PerGroup
from core.formats.base import EncodeOptions, Method
from core.formats.numbers import Codes, Numbers
from kernels import families, layouts, ops

LEVELS = (*layouts.E2M1_LEVELS, *(-v for v in layouts.E2M1_LEVELS))
GROUPS = {ElementType.F8_E4M3: 16, ElementType.F8_E8M0: 32}
RECIPROCAL = 2.0**-22  # a value changes by no more of itself when its tensor scale is stored as 1 / it: three roundings


class TensorScale(Enum):
    """The one more scale of a whole NVFP4 matrix, float32. Only a power of two is as exact as its reciprocal.

    NONE: 1. POWER: a power of two, stored as a factor or as a divisor. FACTOR: any factor (GGUF, ModelOpt). DIVISOR:
    any divisor (compressed-tensors); `Codes.tensor_scale` is then 1 / it, in double precision.
    """

    NONE = "none"
    POWER = "power of two"
    FACTOR = "factor"
    DIVISOR = "divisor"


# What a file that stores one kind can hold of another, value for value.
_HOLDS = {
    TensorScale.NONE: (TensorScale.NONE,),
    TensorScale.POWER: (TensorScale.NONE, TensorScale.POWER),
    TensorScale.FACTOR: (TensorScale.NONE, TensorScale.POWER, TensorScale.FACTOR),
    TensorScale.DIVISOR: (TensorScale.NONE, TensorScale.POWER, TensorScale.DIVISOR),
}


def power_scale(amax: float) -> float:
    """The tensor scale of a matrix with that largest |value|: a power of two, 1 for zeros.

    So factor and divisor are both exact, and the scales that groups can have are those of a scale of 1. The largest
    |x| / 6 is put at 112 … 224 of E4M3's 448: groups may map their largest value to 4 instead of 6.
    """
    if not amax:
        return 1.0
    return 2.0 ** max(ceil(log2(amax / (layouts.E2M1_MAX * layouts.E4M3_MAX / 2))), -126)


def smallest_amax(tensor_scale: float, share: float) -> float:
    """Largest |x| of a group below which an error bound of that share of it can not hold: E4M3 ends at 2^-9."""
    return max(layouts.E2M1_MAX * tensor_scale * 2.0**-9 / share, 2.0**-100)


def is_power_of_two(value: float) -> bool:
    return value > 0 and frexp(value)[0] == 0.5


@dataclass(frozen=True)
class Float4(Numbers):
    """E2M1 · scale · tensor scale. scale: F8_E4M3 for 16 neighbours or F8_E8M0 for 32; `Codes.scales` are its bytes.

    rule: how a group's E8M0 scale comes from its largest value where nothing is searched (`kernels.families`); values
    do not depend on it.
    """

    scale: ElementType
    tensor: TensorScale = TensorScale.NONE
    rule: str = field(default="floor", compare=False)

    @property
    def group(self) -> int:
        return GROUPS[self.scale]

    @property
    def label(self) -> str:
        return f"{'NVFP4' if self.scale is ElementType.F8_E4M3 else 'MXFP4'} g{self.group}"

    @property
    def error_bound(self) -> float:
        return 0.35  # the widest step is a third of the largest level, and a scale may be rounded, or clip, a quarter

    def contract(self, name: str, packing: str) -> NumericContract:
        return NumericContract(
            name,
            ElementType.CODEBOOK,
            4,
            PerGroup(self.group),
            0,
            15,
            scale=self.scale,
            packing=packing,
            levels=LEVELS,
            tensor_scale=None if self.tensor is TensorScale.NONE else ElementType.F32,
        )

    def floor(self, options: EncodeOptions) -> float:
        if self.scale is ElementType.F8_E8M0:
            return super().floor(options)
        return smallest_amax(self._factor(options.amax), self.error_bound)

    def _factor(self, amax: float) -> float:
        return 1.0 if self.tensor is TensorScale.NONE else power_scale(amax)

    @property
    def weighs_columns(self) -> bool:
        return True

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        factor = self._factor(options.amax)
        codes, scales = families.encode_fp4(
            rows,
            self.group,
            self.scale.label.removeprefix("F8_"),
            factor,
            options.method is Method.SEARCH,
            options.importance,
            options.threads,
            self.rule,
        )
        return Codes(codes, scales, tensor_scale=factor)

    def input_scale(self, amax: float) -> float:
        """Of NVFP4 activations: it puts the largest scale of their groups, amax / 6, at E4M3's largest."""
        return amax / (layouts.E2M1_MAX * layouts.E4M3_MAX)

    def values(self, codes: Codes) -> np.ndarray:
        if self.tensor is TensorScale.DIVISOR:  # as compressed-tensors does it: scale / divisor, then the product
            divided = ops.to_float32(codes.scales, self.scale.label) / np.float32(1 / codes.tensor_scale)
            return families.decode_codebook(codes.codes, divided, families.E2M1_TABLE, self.group)
        return families.decode_fp4(codes.codes, codes.scales, self.scale.label.removeprefix("F8_"), codes.tensor_scale)

    def holds(self, other: Numbers) -> bool:
        return isinstance(other, Float4) and self.scale is other.scale and other.tensor in _HOLDS[self.tensor]

    def with_tensor(self, tensor: TensorScale) -> Float4:
        return replace(self, tensor=tensor)


NVFP4 = Float4(ElementType.F8_E4M3, TensorScale.POWER)
MXFP4 = Float4(ElementType.F8_E8M0)
