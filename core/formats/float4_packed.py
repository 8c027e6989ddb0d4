"""4-bit floats in folders: two codes a byte, the first in the low bits, and scales beside them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.contract import ElementType
from core.formats.coded import Coded, as_bytes
from core.formats.float4 import MXFP4, NVFP4, RECIPROCAL, Float4, TensorScale
from core.formats.numbers import Codes, Numbers
from core.parts import ONE, Axis, Part
from kernels import families

PACKING = "two codes a byte, the first in the low bits"


class PackedFloat4(Coded):
    """Weight W [N, K] as codes U8 [N, K/2], scales [N, K/16] or [N, K/32], and, NVFP4, one F32 for the matrix.

    inputs: activations are NVFP4 too, and the file has the one scale of their tensor, measured before. suffixes: of
    these four. divides: the last two are divisors (compressed-tensors) and no factors. One tensor scale serves all
    matrices that runtimes fuse.
    """

    numbers: Float4
    suffixes: tuple[str, str, str, str] = ("_packed", "_scale", "_global_scale", ".input_global_scale")
    divides: bool = True
    single: tuple[int, ...] = (1,)  # shape of a scale that is alone

    def __init__(self, name: str, numbers: Float4, summary: str, family: str, inputs: bool = False) -> None:
        super().__init__(name, numbers, PACKING, summary, family)
        self.needs_amax = self.fuses = numbers.tensor is not TensorScale.NONE
        self.needs_input = inputs

    def like_this(self, numbers: Float4) -> PackedFloat4:
        """The same format with these numbers."""
        if numbers == self.numbers:
            return self
        return type(self)(self.name, numbers, self.summary, self.family, self.needs_input)

    def for_numbers(self, numbers: Numbers) -> PackedFloat4 | None:
        if not isinstance(numbers, Float4) or numbers.scale is not self.numbers.scale:
            return None
        if self.numbers.holds(numbers):
            return self
        if self.numbers.tensor is TensorScale.NONE:
            return None
        return self.like_this(numbers.with_tensor(TensorScale.DIVISOR if self.divides else TensorScale.FACTOR))

    def rounding(self, numbers: Numbers) -> float:
        return 0.0 if self.numbers.holds(numbers) else RECIPROCAL

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        codes, scales, one, given = self.suffixes
        group = self.numbers.group
        dtype = "U8" if self.numbers.scale is ElementType.F8_E8M0 else self.numbers.scale.label
        parts: tuple[Part, ...] = (
            Part(codes, "U8", (n, k // 2), n * k // 2, columns=Axis(1, 2)),
            Part(scales, dtype, (n, k // group), n * k // group, columns=Axis(1, group)),
        )
        if self.numbers.tensor is TensorScale.NONE:
            return parts
        parts = (*parts, Part(one, "F32", self.single, 4, rows=ONE, columns=ONE))
        return (*parts, Part(given, "F32", self.single, 4, rows=ONE, columns=ONE)) if self.needs_input else parts

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        parts = (as_bytes(families.pack_nibbles(codes.codes)), as_bytes(codes.scales))
        if self.numbers.tensor is TensorScale.NONE:
            return parts
        alone = (codes.tensor_scale, codes.input_scale) if self.needs_input else (codes.tensor_scale,)
        return (*parts, *(as_bytes(np.array([1 / a if self.divides and a else a], np.float32)) for a in alone))

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        codes = families.unpack_nibbles(parts[0].reshape(rows, columns // 2))
        scales = parts[1].reshape(rows, columns // self.numbers.group)
        if self.numbers.tensor is TensorScale.NONE:
            return Codes(codes, scales)
        alone = [float(part.view(np.float32)[0]) for part in parts[2:]]
        factors = [1 / a if self.divides and a else a for a in alone]
        return Codes(codes, scales, tensor_scale=factors[0], input_scale=factors[1] if self.needs_input else 0.0)


class CompressedFloat4(PackedFloat4):
    """compressed-tensors 'nvfp4-pack-quantized' and 'mxfp4-pack-quantized'."""

    ecosystem = "compressed-tensors"


# Where nothing is searched, the scale of a group is the one that the library compressed-tensors takes.
NVFP4A16 = CompressedFloat4("nvfp4a16", NVFP4, "4-bit floats in groups of 16, 16-bit activations; for vLLM", "nvfp4a16")
NVFP4A4 = CompressedFloat4(
    "nvfp4a4",
    NVFP4,
    "4-bit floats in groups of 16, activations too; for vLLM on Blackwell",
    "nvfp4a4",
    inputs=True,
)
MXFP4A16 = CompressedFloat4(
    "mxfp4a16",
    Float4(MXFP4.scale, rule="compressed-tensors"),
    "4-bit floats with a power-of-two scale, groups of 32, 16-bit activations; for vLLM",
    "mxfp4a16",
)
COMPRESSED_FLOAT4: tuple[CompressedFloat4, ...] = (NVFP4A16, NVFP4A4, MXFP4A16)


class ModelOptNvfp4(PackedFloat4):
    """ModelOpt's NVFP4: `weight`, `weight_scale` and `weight_scale_2`, a factor and a scalar."""

    ecosystem = "modelopt"
    suffixes = ("", "_scale", "_scale_2", ".input_scale")
    divides = False
    single = ()


MODELOPT_NVFP4 = ModelOptNvfp4(
    "modelopt-nvfp4",
    NVFP4,
    "4-bit floats in groups of 16, activations too; for TensorRT-LLM, vLLM and SGLang",
    "modelopt-nvfp4",
    inputs=True,
)
MODELOPT_NVFP4A16 = ModelOptNvfp4(  # read, and not written
    "modelopt-nvfp4a16", NVFP4, "4-bit floats in groups of 16, 16-bit activations", "modelopt-nvfp4"
)
