"""GGML block formats: every GGUF tensor type that Bitsmith writes.

Each is a contract and the name of a block kind; the arithmetic is in `kernels` under the same kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from core.contract import (
    ByteCount,
    ElementType,
    NumericContract,
    PerGroup,
    PerTensor,
    SuperBlock,
)
from core.formats.base import EncodeOptions, Format, Method
from core.formats.float4 import LEVELS as E2M1
from core.formats.float4 import RECIPROCAL, Float4, TensorScale, power_scale, smallest_amax
from core.formats.ggml_integers import INTEGER_BLOCKS, integer_blocks
from core.formats.numbers import Codes, Numbers
from core.parts import ONE, Axis, Part
from core.units import format_count
from kernels import families, layouts, ops

IQ4_LEVELS = tuple(float(v) for v in layouts.IQ4_LEVELS)

HALVES = "byte j of a 32-value block holds value j (low) and j+16 (high)"


def _float(name: str, element: ElementType) -> NumericContract:
    return NumericContract(name, element, element.bits, PerTensor(), packing="little-endian")


def _block32(name: str, bits: int, low: int, high: int, minimum: bool) -> NumericContract:
    packing = (
        HALVES + ("; bit 4 of each value in a 32-bit mask" if bits == 5 else "") if bits < 8 else "one byte a value"
    )
    return NumericContract(
        name,
        ElementType.INT,
        bits,
        PerGroup(32),
        low,
        high,
        scale=ElementType.F16,
        zero=ElementType.F16 if minimum else None,
        symmetric=not minimum,
        block=32,
        packing=packing,
    )


def _super(
    name: str, bits: int, low: int, high: int, sub: int, scale_bits: int, zero_bits: int, packing: str
) -> NumericContract:
    return NumericContract(
        name,
        ElementType.INT,
        bits,
        SuperBlock(256, sub, scale_bits, zero_bits),
        low,
        high,
        scale=ElementType.F16,
        zero=ElementType.F16 if zero_bits else None,
        symmetric=not zero_bits,
        block=256,
        packing=packing,
    )


def _codebook(
    name: str, granularity: PerGroup | SuperBlock, scale: ElementType, levels: tuple[float, ...], packing: str
) -> NumericContract:
    block = granularity.size if isinstance(granularity, SuperBlock) or name != "NVFP4" else 64
    return NumericContract(
        name,
        ElementType.CODEBOOK,
        4,
        granularity,
        0,
        15,
        scale=scale,
        block=block,
        packing=packing,
        levels=levels,
        tensor_scale=ElementType.F32 if name == "NVFP4" else None,
    )


_LEVEL_BITS = {"IQ2_XXS": 1.875, "IQ2_XS": 2.0, "IQ2_S": 2.25, "IQ3_XXS": 2.875, "IQ3_S": 3.25}
# Unimportant values may get wrong signs, and levels that suit their neighbours: no value decodes to more than 2.5 times
# the block's largest.
_GRID_BOUND = 3.5


def _grid(grid: layouts.Grid) -> NumericContract:
    signs = "seven" if grid.even_signs else "eight"
    return NumericContract(
        grid.kind,
        ElementType.CODEBOOK,
        _LEVEL_BITS[grid.kind],
        SuperBlock(256, grid.sub_block, 4),
        scale=ElementType.F16,
        block=256,
        packing=f"a point of a grid for {grid.values} values, and {signs} signs for eight",
        levels=(*(-v for v in reversed(grid.levels)), *grid.levels),
    )


CONTRACTS: tuple[tuple[NumericContract, float], ...] = (
    # contract, and the largest |x−x̂| as a share of the group's largest |x| (search may clip, hence the room)
    (_float("F32", ElementType.F32), 0.0),
    (_float("F16", ElementType.F16), 2.0**-11),
    (_float("BF16", ElementType.BF16), 2.0**-8),
    (_block32("Q8_0", 8, -127, 127, False), 0.006),
    (_block32("Q4_0", 4, -8, 7, False), 0.35),
    (_block32("Q4_1", 4, 0, 15, True), 0.35),
    (_block32("Q5_0", 5, -16, 15, False), 0.2),
    (_block32("Q5_1", 5, 0, 31, True), 0.2),
    (_super("Q2_K", 2, 0, 3, 16, 4, 4, "four values a byte, 32 apart"), 1.0),
    (_super("Q3_K", 3, -4, 3, 16, 6, 0, "two low bits four a byte, high bit in a mask"), 0.8),
    (_super("Q4_K", 4, 0, 15, 32, 6, 6, "two values a byte, 32 apart"), 0.5),
    (_super("Q5_K", 5, 0, 31, 32, 6, 6, "low four bits two a byte, fifth bit in a mask"), 0.3),
    (_super("Q6_K", 6, -32, 31, 16, 8, 0, "low four bits two a byte, two high bits four a byte"), 0.15),
    (_codebook("IQ4_NL", PerGroup(32), ElementType.F16, IQ4_LEVELS, HALVES), 0.35),
    (_codebook("IQ4_XS", SuperBlock(256, 32, 6), ElementType.F16, IQ4_LEVELS, HALVES), 0.5),
    (
        NumericContract(
            "TQ1_0", ElementType.TERNARY, 1.625, PerGroup(256), -1, 1, ElementType.F16, block=256,
            packing="five ternary digits a byte",
        ),
        1.0,
    ),
    (
        NumericContract(
            "TQ2_0", ElementType.TERNARY, 2, PerGroup(256), -1, 1, ElementType.F16, block=256,
            packing="four values a byte, 32 apart",
        ),
        1.0,
    ),
    (_codebook("MXFP4", PerGroup(32), ElementType.F8_E8M0, E2M1, HALVES), 0.35),
    (_codebook("NVFP4", PerGroup(16), ElementType.F8_E4M3, E2M1, "byte j of 16 values holds value j and j+8"), 0.35),
    *((_grid(grid), _GRID_BOUND) for grid in layouts.GRIDS.values()),
)  # fmt: skip


# Types whose blocks hold the codes of other packings as they are.
_NUMBERS: dict[str, Numbers] = {
    **INTEGER_BLOCKS,
    "MXFP4": Float4(ElementType.F8_E8M0),
    "NVFP4": Float4(ElementType.F8_E4M3, TensorScale.FACTOR),
}


class GgmlBlock(Format):
    """A GGUF tensor type. Rows are independent, so a tensor can be written in row blocks of any height.

    numbers: what its codes stand for, where those of another packing can be taken over as they are.
    needs_importance: of the types for which llama-quantize demands a matrix, too.
    """

    container = "gguf"

    def __init__(self, contract: NumericContract, error_bound: float) -> None:
        self.name = contract.name
        self.contract = contract
        self.error_bound = error_bound
        self.needs_amax = contract.tensor_scale is not None
        self.numbers = _NUMBERS.get(contract.name)
        self.weighs_columns = contract.scale is not None and contract.element is not ElementType.TERNARY
        self.needs_importance = contract.name in layouts.GRIDS and contract.name != "IQ3_S"

    def row_bytes(self, columns: int) -> int:
        """Bytes of one row of `columns` values."""
        return layouts.LAYOUTS[self.name].row_bytes(columns)

    def accepts(self, shape: Sequence[int]) -> str:
        if not shape or prod(shape) == 0:
            return "it has no values"
        if shape[-1] % self.contract.block:
            return f"rows of {format_count(shape[-1])} values do not divide into blocks of {self.contract.block}"
        if self.contract.tensor_scale and len(shape) > 3:
            return "its scales are one a matrix, or one an expert of a stack"
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        layout = layouts.LAYOUTS[self.name]
        nbytes = prod(shape[:-1]) * self.row_bytes(shape[-1])
        main = Part("", self.name, tuple(shape), nbytes, columns=Axis(layout.bytes, layout.block))
        if self.contract.tensor_scale is None:
            return (main,)
        matrices = prod(shape[:-2])
        return (main, Part(".scale", "F32", (matrices,), 4 * matrices, rows=Axis(1, shape[-2]), columns=ONE))

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        c = self.contract
        values = prod(shape)
        total = sum(p.nbytes for p in self.parts(shape))
        if c.scale is None:
            return ByteCount(payload=total)
        payload = int(values * c.bits) // 8
        g = c.granularity
        zeros = 0
        if c.zero is not None:
            if isinstance(g, SuperBlock):
                zeros = values // g.size * (c.zero.bits + g.size // g.sub * g.zero_bits) // 8
            elif isinstance(g, PerGroup):
                zeros = values // g.size * c.zero.bytes
        return ByteCount(payload=payload, scales=total - payload - zeros, zeros=zeros)

    def bound_floor(self, options: EncodeOptions) -> float:
        c = self.contract
        if c.tensor_scale is not None:
            return smallest_amax(power_scale(options.amax), self.error_bound)
        if c.scale is not ElementType.F16:
            return super().bound_floor(options)
        # F16 ends at 2^-24; a super-block's scale is divided by its largest sub-scale before it is stored.
        g = c.granularity
        steps = max(abs(c.code_min), c.code_max, *(abs(v) for v in c.levels), 1.0)
        if isinstance(g, SuperBlock):
            steps *= 2 ** max(g.scale_bits, g.zero_bits)
        return steps * 2.0**-24 / self.error_bound

    def for_numbers(self, numbers: Numbers) -> Format | None:
        own = self.numbers
        if own is None:
            return None
        if isinstance(own, Float4) and own.tensor is not TensorScale.NONE and isinstance(numbers, Float4):
            return self if numbers.scale is own.scale else None
        return self if own.holds(numbers) else None

    def rounding(self, numbers: Numbers) -> float:
        own = self.numbers
        return RECIPROCAL if isinstance(own, Float4) and not own.holds(numbers) else 0.0

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        """Raises ValueError for scales that these blocks have not: negative ones and NaN in NVFP4."""
        if self.name in INTEGER_BLOCKS:
            return (integer_blocks(self.name, codes),)
        blocks = families.blocks_from_fp4(codes.codes, codes.scales, self.name)
        if self.contract.tensor_scale is None:
            return (blocks,)
        return (blocks, _float32(codes.tensor_scale))

    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        search = options.method is Method.SEARCH
        if self.contract.tensor_scale is None:
            return (ops.encode_blocks(self.name, rows, options.importance, search, options.threads),)
        scale = power_scale(options.amax)
        blocks = ops.encode_blocks(self.name, rows, options.importance, search, options.threads, tensor_scale=scale)
        return (blocks, _float32(scale))

    def decode(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> np.ndarray:
        values = ops.decode_blocks(self.name, parts[0].reshape(rows, -1), columns)
        if self.contract.tensor_scale is not None:
            values *= parts[1].view(np.float32)[0]
        return values


def _float32(value: float) -> np.ndarray:
    return np.frombuffer(np.float32(value).tobytes(), np.uint8)


GGML_FORMATS: tuple[Format, ...] = tuple(GgmlBlock(contract, bound) for contract, bound in CONTRACTS)
