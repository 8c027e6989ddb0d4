"""MLX's quantized weights: unsigned codes in 32-bit words, a scale and an offset ('bias') for each group."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from core.contract import ElementType
from core.formats.affine import Affine
from core.formats.coded import Coded, as_bytes, read_scales, stored_scales
from core.formats.float4 import Float4
from core.formats.float8 import Float8
from core.formats.numbers import Codes, Numbers
from core.parts import Axis, Part
from kernels import families, ops

MLX_BITS = (2, 3, 4, 5, 6, 8)
MLX_GROUPS = (128, 64, 32)


class MLXWeights(Coded):
    """A weight [N, K], or a stack of experts [E, N, K], as `weight` U32 [N, K·b/32] and `scales` beside it.

    mode: MLX's word for the kind of numbers.
    """

    ecosystem = "mlx"
    mode: str
    bits: int

    def accepts(self, shape: Sequence[int]) -> str:
        if len(shape) not in (2, 3) or 0 in shape:
            return "only two-dimensional weights, and stacks of them, can be stored this way"
        return self.numbers.misfit(shape[-1])


class MLXAffine(MLXWeights):
    """mode 'affine': scale · code + offset; `scales` and `biases` [N, K/g] have the float type of the model."""

    mode = "affine"
    numbers: Affine

    def __init__(self, bits: int, group: int, scale: ElementType = ElementType.BF16) -> None:
        self.bits = bits
        super().__init__(
            f"mlx-{bits}bit-g{group}",
            Affine(bits, group, scale),
            "a dense stream of codes in 32-bit words, first in the lowest bits",
            summary=f"{bits}-bit integers with scale and offset in groups of {group}; for MLX on a Mac",
            family="mlx",
        )

    def for_numbers(self, numbers: Numbers) -> MLXAffine | None:
        scale = getattr(numbers, "scale", None)
        if scale not in (ElementType.BF16, ElementType.F16, ElementType.F32):
            return None
        own = MLXAffine(self.bits, self.numbers.size, scale)
        return own if own.numbers.holds(numbers) else None

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        *outer, k = shape
        rows, groups, scale = prod(outer), k // self.numbers.size, self.numbers.scale
        each, nbytes = Axis(1, self.numbers.size), rows * groups * scale.bytes
        words = k * self.bits // 32
        return (
            Part("", "U32", (*outer, words), rows * words * 4, columns=Axis(self.bits, 32)),
            Part(".scales", scale.label, (*outer, groups), nbytes, columns=each),
            Part(".biases", scale.label, (*outer, groups), nbytes, columns=each),
        )

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        scale = self.numbers.scale
        return (
            as_bytes(ops.pack_bits(codes.codes, self.bits)),
            stored_scales(codes.scales, scale),
            stored_scales(self.numbers.offsets(codes), scale),
        )

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        words = parts[0].view(np.int32).reshape(rows, -1)
        scales, offsets = (read_scales(part, self.numbers.scale, rows) for part in parts[1:])
        return Codes(ops.unpack_bits(words, self.bits, columns), scales, offsets=offsets)


class MLXFloat4(MLXWeights):
    """modes 'mxfp4' and 'nvfp4': 4-bit floats, `scales` U8; NVFP4 without a scale of the whole matrix."""

    bits = 4
    numbers: Float4

    def __init__(self, mode: str, numbers: Float4, summary: str) -> None:
        self.mode = mode
        packing = "eight codes a 32-bit word, first in the lowest bits"
        super().__init__(f"mlx-{mode}", numbers, packing, summary, family=f"mlx-{mode}")

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        *outer, k = shape
        rows, group = prod(outer), self.numbers.group
        return (
            Part("", "U32", (*outer, k // 8), rows * k // 2, columns=Axis(1, 2)),
            Part(".scales", "U8", (*outer, k // group), rows * k // group, columns=Axis(1, group)),
        )

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        return as_bytes(families.pack_nibbles(codes.codes)), as_bytes(codes.scales)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        codes = families.unpack_nibbles(parts[0].reshape(rows, columns // 2))
        return Codes(codes, parts[1].reshape(rows, columns // self.numbers.group))


MLX_FLOAT4: tuple[MLXFloat4, ...] = (
    MLXFloat4(
        "mxfp4",
        Float4(ElementType.F8_E8M0, rule="mlx"),
        "4-bit floats, a power of two as scale, groups of 32; for MLX",
    ),
    MLXFloat4("nvfp4", Float4(ElementType.F8_E4M3), "4-bit floats with an 8-bit float scale, groups of 16; for MLX"),
)


class MLXFloat8(MLXWeights):
    """mode 'mxfp8': E4M3 bytes, four a word, and a power of two for each 32 of them, `scales` U8."""

    mode = "mxfp8"
    bits = 8
    numbers: Float8

    def __init__(self) -> None:
        numbers = Float8(size=32, scale=ElementType.F8_E8M0)
        summary = "8-bit floats, a power of two as scale, groups of 32; for MLX"
        super().__init__("mlx-mxfp8", numbers, "four bytes a 32-bit word", summary, family="mlx-mxfp8")

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        *outer, k = shape
        rows = prod(outer)
        return (
            Part("", "U32", (*outer, k // 4), rows * k),
            Part(".scales", "U8", (*outer, k // 32), rows * k // 32, columns=Axis(1, 32)),
        )

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        return as_bytes(codes.codes), as_bytes(codes.scales)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        return Codes(parts[0].reshape(rows, columns), parts[1].reshape(rows, columns // 32))


MLX_FLOATS: tuple[MLXFloat4 | MLXFloat8, ...] = (*MLX_FLOAT4, MLXFloat8())
MLX: tuple[MLXWeights, ...] = (
    *(MLXAffine(bits, group) for bits in MLX_BITS for group in MLX_GROUPS),
    *MLX_FLOATS,
)
