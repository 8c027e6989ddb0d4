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

    suffixes: of these three. divides: the last is a divisor (compressed-tensors) and no factor. scale: the type under
    which E8M0 is stored. One tensor scale serves all matrices that runtimes fuse.
    """

    numbers: Float4
    suffixes: tuple[str, str, str] = ("_packed", "_scale", "_global_scale")
    divides: bool = True
    global_shape: tuple[int, ...] = (1,)

    def __init__(self, name: str, numbers: Float4, summary: str, family: str) -> None:
        super().__init__(name, numbers, PACKING, summary, family)
        self.needs_amax = self.fuses = numbers.tensor is not TensorScale.NONE

    def like_this(self, numbers: Float4) -> PackedFloat4:
        """The same format with these numbers."""
        return self if numbers == self.numbers else type(self)(self.name, numbers, self.summary, self.family)

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
        codes, scales, one = self.suffixes
        group = self.numbers.group
        dtype = "U8" if self.numbers.scale is ElementType.F8_E8M0 else self.numbers.scale.label
        parts = (
            Part(codes, "U8", (n, k // 2), n * k // 2, columns=Axis(1, 2)),
            Part(scales, dtype, (n, k // group), n * k // group, columns=Axis(1, group)),
        )
        if self.numbers.tensor is TensorScale.NONE:
            return parts
        return (*parts, Part(one, "F32", self.global_shape, 4, rows=ONE, columns=ONE))

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        parts = (as_bytes(families.pack_nibbles(codes.codes)), as_bytes(codes.scales))
        if self.numbers.tensor is TensorScale.NONE:
            return parts
        stored = 1 / codes.tensor_scale if self.divides else codes.tensor_scale
        return (*parts, as_bytes(np.array([stored], np.float32)))

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        codes = families.unpack_nibbles(parts[0].reshape(rows, columns // 2))
        scales = parts[1].reshape(rows, columns // self.numbers.group)
        if self.numbers.tensor is TensorScale.NONE:
            return Codes(codes, scales)
        stored = float(parts[2].view(np.float32)[0])
        return Codes(codes, scales, tensor_scale=1 / stored if self.divides else stored)


class CompressedFloat4(PackedFloat4):
    """compressed-tensors 'nvfp4-pack-quantized' and 'mxfp4-pack-quantized'."""

    ecosystem = "compressed-tensors"


# Where nothing is searched, the scale of a group is the one that the library compressed-tensors takes.
NVFP4A16 = CompressedFloat4("nvfp4a16", NVFP4, "4-bit floats in groups of 16, 16-bit activations; for vLLM", "nvfp4a16")
MXFP4A16 = CompressedFloat4(
    "mxfp4a16",
    Float4(MXFP4.scale, rule="compressed-tensors"),
    "4-bit floats with a power-of-two scale, groups of 32, 16-bit activations; for vLLM",
    "mxfp4a16",
)
COMPRESSED_FLOAT4: tuple[CompressedFloat4, ...] = (NVFP4A16, MXFP4A16)


class ModelOptNvfp4(PackedFloat4):
    """ModelOpt's NVFP4: `weight`, `weight_scale` and `weight_scale_2`, a factor and a scalar."""

    ecosystem = "modelopt"
    suffixes = ("", "_scale", "_scale_2")
    divides = False
    global_shape = ()


MODELOPT_NVFP4 = ModelOptNvfp4(
    "modelopt-nvfp4", NVFP4, "4-bit floats in groups of 16; for TensorRT-LLM, vLLM and SGLang", "modelopt-nvfp4"
)
