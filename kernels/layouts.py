"""Block sizes, bytes and numbers of every GGML type: the one source; the C++ side is compared with it by a test.

Sizes and ids are those of ggml 0.25 (ggml-common.h, ggml.h). All multi-byte fields are little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Layout:
    """One GGML type. block: values stored together along a row; bytes: what such a block takes."""

    name: str
    id: int
    block: int
    bytes: int

    @property
    def bits(self) -> float:
        """Bits a value, block scales included."""
        return self.bytes * 8 / self.block

    def row_bytes(self, columns: int) -> int:
        """Bytes of a row of `columns` values. Raises ValueError when the block does not divide the row."""
        if columns % self.block:
            raise ValueError(f"{self.name} rows are a multiple of {self.block} values, not {columns}")
        return columns // self.block * self.bytes


# Fields in file order; d, m: float16 scale and minimum. Where a 32-value block has nibbles, byte j holds value j (low)
# and value j + 16 (high); NVFP4 does the same within 16 values. Super-blocks have 256 values.
_ALL = (
    Layout("F32", 0, 1, 4),
    Layout("F16", 1, 1, 2),
    Layout("Q4_0", 2, 32, 18),  # d, nibbles[16]: d·(q−8)
    Layout("Q4_1", 3, 32, 20),  # d, m, nibbles[16]: d·q + m
    Layout("Q5_0", 6, 32, 22),  # d, high bits u32, nibbles[16]: d·(q−16)
    Layout("Q5_1", 7, 32, 24),  # d, m, high bits u32, nibbles[16]: d·q + m
    Layout("Q8_0", 8, 32, 34),  # d, int8[32]: d·q
    Layout("Q8_1", 9, 32, 36),  # activations only
    Layout("Q2_K", 10, 256, 84),  # 16 × (4-bit scale, 4-bit minimum), 2-bit codes[64], d, dmin
    Layout("Q3_K", 11, 256, 110),  # high bits[32], 2-bit codes[64], 16 six-bit scales[12], d
    Layout("Q4_K", 12, 256, 144),  # d, dmin, 8 × (6-bit scale, 6-bit minimum)[12], nibbles[128]
    Layout("Q5_K", 13, 256, 176),  # d, dmin, 8 × (6-bit scale, 6-bit minimum)[12], high bits[32], nibbles[128]
    Layout("Q6_K", 14, 256, 210),  # nibbles[128], high 2-bit fields[64], int8 scales[16], d
    Layout("Q8_K", 15, 256, 292),  # activations only
    Layout("IQ2_XXS", 16, 256, 66),  # d, 8 × (4 points, u32 of 4 × 7 signs and a 4-bit scale)
    Layout("IQ2_XS", 17, 256, 74),  # d, 32 × (9-bit point, 7 signs), 4-bit scales[8]
    Layout("IQ3_XXS", 18, 256, 98),  # d, points[64], 8 × u32 of 4 × 7 signs and a 4-bit scale
    Layout("IQ1_S", 19, 256, 50),
    Layout("IQ4_NL", 20, 32, 18),  # d, nibbles[16]: d·IQ4_LEVELS[q]
    Layout("IQ3_S", 21, 256, 110),  # d, points[64], ninth bits[8], signs[32], 4-bit scales[4]
    Layout("IQ2_S", 22, 256, 82),  # d, points[32], signs[32], top bits[8], 4-bit scales[8]
    Layout("IQ4_XS", 23, 256, 136),  # d, high scale bits u16, low scale nibbles[4], nibbles[128]
    Layout("I8", 24, 1, 1),
    Layout("I16", 25, 1, 2),
    Layout("I32", 26, 1, 4),
    Layout("I64", 27, 1, 8),
    Layout("F64", 28, 1, 8),
    Layout("IQ1_M", 29, 256, 56),
    Layout("BF16", 30, 1, 2),
    Layout("TQ1_0", 34, 256, 54),  # five ternary digits a byte [48], four a byte [4], d: d·(t−1)
    Layout("TQ2_0", 35, 256, 66),  # 2-bit codes[64], d: d·(q−1)
    Layout("MXFP4", 39, 32, 17),  # exponent u8, nibbles[16]: E2M1·2^(e−127)
    Layout("NVFP4", 40, 64, 36),  # 4 × unsigned E4M3, nibbles[32]: E2M1·E4M3·tensor scale
    Layout("Q1_0", 41, 128, 18),  # d, bits[16]
)

LAYOUTS: dict[str, Layout] = {layout.name: layout for layout in _ALL}
BY_ID: dict[int, Layout] = {layout.id: layout for layout in _ALL}


@dataclass(frozen=True)
class Grid:
    """A type whose codes are points of a grid: d · L · level · sign, L = 1, 3 … 31.

    values: of a point; sub_block: values that share L. levels: for d as it is stored. even_signs: seven of eight signs
    are stored, the number of negative values being even.
    """

    kind: str
    values: int
    sub_block: int
    levels: tuple[float, ...]
    even_signs: bool


_THREE = (1.0, 3.125, 5.375)
GRIDS = {
    grid.kind: grid
    for grid in (
        Grid("IQ2_XXS", 8, 32, _THREE, True),
        Grid("IQ2_XS", 8, 16, _THREE, True),
        Grid("IQ2_S", 8, 16, _THREE, False),
        Grid("IQ3_XXS", 4, 32, (1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.5), True),
        Grid("IQ3_S", 4, 32, (1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0), False),
    )
}

# What matrix products take as it is; `encode_blocks` writes it and `decode_blocks` reads it.
PLAIN_KINDS = ("F32", "F16", "BF16")
BLOCK_KINDS = (
    *PLAIN_KINDS,
    *("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4"),
)
GRID_KINDS = tuple(GRIDS)
# Everything that `encode_blocks` writes.
WRITTEN_KINDS = (*BLOCK_KINDS, *GRID_KINDS)
# What `decode_blocks` reads besides, for which there are no products; IQ1 through the `gguf` package.
SOURCE_KINDS = ("IQ1_S", "IQ1_M", *GRID_KINDS)

E2M1_LEVELS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # codes 0…7; 8…15 are the same negated (OCP MX v1.0)
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
E2M1_MAX = E2M1_LEVELS[-1]
E4M3_MAX = 448.0
F16_MAX = 65504.0
