"""Which bits of a stored block hold the code of each value and each scale, for every GGML type that is written here.

The places are those of ggml's structures (the comments in kernels/layouts.py name the fields in file order).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from core.formats import find_format
from kernels.layouts import E2M1_LEVELS, IQ4_LEVELS
from kernels.reference import floats

E2M1 = (*E2M1_LEVELS, *(-v for v in E2M1_LEVELS))


@dataclass(frozen=True)
class Bits:
    """`width` bits from bit `bit` of the `size` bytes at `byte` of a block (little-endian), `shift` bits up in the
    number. digit ≥ 0: that ternary digit of the byte instead, the most significant being 0."""

    byte: int
    size: int
    bit: int
    width: int
    shift: int = 0
    digit: int = -1


@dataclass(frozen=True)
class Number:
    """A scale or minimum of a block. kind: 'F16', 'E8M0', 'UE4M3', 'INT'; an INT stands for its bits less `offset`, or
    for a signed byte where offset is 256."""

    meaning: str
    kind: str
    bits: tuple[Bits, ...]
    offset: int = 0


@dataclass(frozen=True)
class BlockType:
    """group: neighbours that share their innermost scale. code(i): the bits of value i of a block. numbers(i): what
    scales value i, outermost first. zero: what a stored code of 0 stands for is −zero (Q8_0: signed bytes, 256).
    levels: a codebook, indexed by the code, () for integers. formula: how x̂ follows."""

    group: int
    code_bits: int
    code: Callable[[int], tuple[Bits, ...]]
    numbers: Callable[[int], tuple[Number, ...]]
    formula: str
    zero: int = 0
    levels: tuple[float, ...] = ()


def _f16(meaning: str, byte: int) -> Number:
    return Number(meaning, "F16", (Bits(byte, 2, 0, 16),))


def _halves(start: int, block: int = 32) -> Callable[[int], tuple[Bits, ...]]:
    """Byte j of `block` values holds value j low and value j + block/2 high."""
    half = block // 2
    return lambda i: (Bits(start + i // block * half + i % half, 1, 4 * (i % block // half), 4),)


def _fifth(code: Callable[[int], tuple[Bits, ...]], start: int) -> Callable[[int], tuple[Bits, ...]]:
    """One more bit above four: bit i of a mask."""
    return lambda i: (*code(i), Bits(start + i // 8, 1, i % 8, 1, 4))


def _fields(start: int, count: int, width: int, shift: int = 0) -> Callable[[int], Bits]:
    """32 bytes for 32 · count values: byte m holds values m, 32 + m …, the first in the lowest bits."""
    span = 32 * count
    return lambda i: Bits(start + i // span * 32 + i % 32, 1, width * (i % span // 32), width, shift)


def _q2_k(i: int) -> tuple[Number, ...]:
    sub = i // 16
    return (
        _f16("super-scale", 80),
        _f16("super-minimum", 82),
        Number("sub-scale", "INT", (Bits(sub, 1, 0, 4),)),
        Number("sub-minimum", "INT", (Bits(sub, 1, 4, 4),)),
    )


def _q3_k(i: int) -> tuple[Number, ...]:
    sub = i // 16
    bits = (Bits(96 + sub % 8, 1, 4 * (sub // 8), 4), Bits(104 + sub % 4, 1, 2 * (sub // 4), 2, 4))
    return _f16("super-scale", 108), Number("sub-scale", "INT", bits, 32)


def _q45_k(i: int) -> tuple[Number, ...]:
    """Eight pairs of six bits in twelve bytes: the first four plain, the others split."""
    j = i // 32
    if j < 4:
        scale: tuple[Bits, ...] = (Bits(4 + j, 1, 0, 6),)
        low: tuple[Bits, ...] = (Bits(8 + j, 1, 0, 6),)
    else:
        scale = (Bits(8 + j, 1, 0, 4), Bits(j, 1, 6, 2, 4))
        low = (Bits(8 + j, 1, 4, 4), Bits(4 + j, 1, 6, 2, 4))
    return (
        _f16("super-scale", 0),
        _f16("super-minimum", 2),
        Number("sub-scale", "INT", scale),
        Number("sub-minimum", "INT", low),
    )


def _q6_k(i: int) -> tuple[Number, ...]:
    return _f16("super-scale", 208), Number("sub-scale", "INT", (Bits(192 + i // 16, 1, 0, 8),), 256)


def _iq4_xs(i: int) -> tuple[Number, ...]:
    j = i // 32
    bits = (Bits(4 + j // 2, 1, 4 * (j % 2), 4), Bits(2 + j // 4, 1, 2 * (j % 4), 2, 4))
    return _f16("super-scale", 0), Number("sub-scale", "INT", bits, 32)


def _q6_code(i: int) -> tuple[Bits, ...]:
    low = Bits(64 * (i // 128) + i % 64, 1, 4 * (i % 128 // 64), 4)
    return low, _fields(128, 4, 2, 4)(i)


def _tq1_code(i: int) -> tuple[Bits, ...]:
    """Five digits a byte: 160 values in 32 bytes, 80 in 16; the last 16 values four a byte."""
    for first, start, width in ((0, 0, 32), (160, 32, 16), (240, 48, 4)):
        if i < first + width * (5 if width > 4 else 4):
            return (Bits(start + (i - first) % width, 1, 0, 8, 0, (i - first) // width),)
    raise IndexError(i)


_SCALE = "x̂ = scale · (code − {})"
_SUB = "x̂ = super-scale · sub-scale · (code − {})"
_MINIMUM = "x̂ = super-scale · sub-scale · code − super-minimum · sub-minimum"
_LEVEL = "x̂ = scale · level[code]"

BLOCK_TYPES: dict[str, BlockType] = {
    "Q4_0": BlockType(32, 4, _halves(2), lambda _: (_f16("scale", 0),), _SCALE.format(8), 8),
    "Q4_1": BlockType(
        32, 4, _halves(4), lambda _: (_f16("scale", 0), _f16("minimum", 2)), "x̂ = scale · code + minimum"
    ),
    "Q5_0": BlockType(32, 5, _fifth(_halves(6), 2), lambda _: (_f16("scale", 0),), _SCALE.format(16), 16),
    "Q5_1": BlockType(
        32, 5, _fifth(_halves(8), 4), lambda _: (_f16("scale", 0), _f16("minimum", 2)), "x̂ = scale · code + minimum"
    ),
    "Q8_0": BlockType(
        32, 8, lambda i: (Bits(2 + i, 1, 0, 8),), lambda _: (_f16("scale", 0),), "x̂ = scale · code, a signed byte", 256
    ),
    "Q2_K": BlockType(16, 2, lambda i: (_fields(16, 4, 2)(i),), _q2_k, _MINIMUM),
    "Q3_K": BlockType(16, 3, lambda i: (_fields(32, 4, 2)(i), _fields(0, 8, 1, 2)(i)), _q3_k, _SUB.format(4), 4),
    "Q4_K": BlockType(32, 4, lambda i: (_fields(16, 2, 4)(i),), _q45_k, _MINIMUM),
    "Q5_K": BlockType(32, 5, lambda i: (_fields(48, 2, 4)(i), _fields(16, 8, 1, 4)(i)), _q45_k, _MINIMUM),
    "Q6_K": BlockType(16, 6, _q6_code, _q6_k, _SUB.format(32), 32),
    "IQ4_NL": BlockType(
        32, 4, _halves(2), lambda _: (_f16("scale", 0),), _LEVEL, levels=tuple(float(v) for v in IQ4_LEVELS)
    ),
    "IQ4_XS": BlockType(
        *(32, 4, _halves(8), _iq4_xs, "x̂ = super-scale · sub-scale · level[code]"),
        levels=tuple(float(v) for v in IQ4_LEVELS),
    ),
    "TQ1_0": BlockType(256, 2, _tq1_code, lambda _: (_f16("scale", 52),), _SCALE.format(1), 1),
    "TQ2_0": BlockType(
        256, 2, lambda i: (_fields(0, 4, 2)(i),), lambda _: (_f16("scale", 64),), _SCALE.format(1), 1
    ),
    "MXFP4": BlockType(
        32, 4, _halves(1), lambda _: (Number("scale", "E8M0", (Bits(0, 1, 0, 8),)),), _LEVEL, levels=E2M1
    ),
    "NVFP4": BlockType(
        16,
        4,
        _halves(4, 16),
        lambda i: (Number("scale", "UE4M3", (Bits(i // 16, 1, 0, 8),)),),
        "x̂ = tensor scale · scale · level[code]",
        levels=E2M1,
    ),
}  # fmt: skip


def read_bits(block: np.ndarray, bits: tuple[Bits, ...]) -> int:
    """The number that these bits of a block (uint8) make."""
    number = 0
    for b in bits:
        word = int.from_bytes(block[b.byte : b.byte + b.size].tobytes(), "little")
        if b.digit >= 0:
            word = ((word * 3**b.digit) & 255) * 3 >> 8
        else:
            word = word >> b.bit & (1 << b.width) - 1
        number |= word << b.shift
    return number


def number_value(number: Number, stored: int) -> float:
    """What the stored bits of a scale stand for."""
    if number.kind == "F16":
        return float(np.uint16(stored).view(np.float16))
    if number.kind == "E8M0":
        return float(np.ldexp(1.0, stored - 127))
    if number.kind == "UE4M3":
        magnitude = stored & 127
        return 0.0 if magnitude == 127 else float(floats.table("F8_E4M3")[magnitude])
    if number.offset == 256:
        return float(stored - 256 if stored > 127 else stored)
    return float(stored - number.offset)


@lru_cache(maxsize=64)
def level_table(kind: str) -> np.ndarray:
    """What each stored code of a block type stands for before scaling, float32 [codes]."""
    t = BLOCK_TYPES[kind]
    if t.levels:
        return np.array(t.levels, np.float32)
    count = 3 if find_format(kind, "gguf").contract.code_max == 1 else 1 << t.code_bits
    codes = np.arange(count)
    if t.zero == 256:
        return np.where(codes > 127, codes - 256, codes).astype(np.float32)
    return (codes - t.zero).astype(np.float32)


def scaled_levels(kind: str, numbers: dict[str, float], tensor_scale: float = 1.0) -> np.ndarray:
    """What each stored code is read back as, float32 [codes], in the order of operations of ggml's decoders."""
    f = np.float32
    levels = level_table(kind)
    if kind == "NVFP4":
        return f(numbers["scale"]) * levels * f(tensor_scale)
    step = f(numbers["super-scale"]) * f(numbers["sub-scale"]) if "sub-scale" in numbers else f(numbers["scale"])
    scaled = step * levels
    if "super-minimum" in numbers:
        return scaled - f(numbers["super-minimum"]) * f(numbers["sub-minimum"])
    return scaled + f(numbers["minimum"]) if "minimum" in numbers else scaled
