"""compressed-tensors 'pack-quantized': integer codes packed into 32-bit words, 16-bit scales a group or a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, gcd

import numpy as np

from core.contract import ElementType
from core.formats.coded import Coded, as_bytes, read_scales, stored_scales
from core.formats.numbers import Codes, Integers, Numbers
from core.parts import ONE, Axis, Part
from core.units import format_count
from kernels import ops


class PackQuantized(Coded):
    """Weight W [N, K] as `weight_packed` I32 [N, ⌈K·b/32⌉], `weight_scale` [N, G], `weight_shape` and, asymmetric,
    `weight_zero_point` I32 [⌈N·b/32⌉, G] packed along N. Codes are stored unsigned, 2^(b−1) added.

    group: values along a row that share a scale; 0: the whole row. Of files that are read: order: int64 [K], the
    columns sorted by their group, None where they are; zero_bytes: zero points are I8 [N, G], less 2^(b−1), as
    releases before 0.10 have them.
    """

    ecosystem = "compressed-tensors"
    numbers: Integers

    def __init__(
        self,
        bits: int,
        group: int,
        symmetric: bool,
        scale: ElementType = ElementType.BF16,
        *,
        order: np.ndarray | None = None,
        zero_bytes: bool = False,
    ) -> None:
        self.bits = bits
        self.group = group
        self.symmetric = symmetric
        self.order = order
        self.zero_bytes = zero_bytes
        name = f"w{bits}a16-" + (f"g{group}" if group else "channel") + ("" if symmetric else "-asym")
        words = "a dense stream of codes in 32-bit words" if 32 % bits else f"{32 // bits} codes a 32-bit word"
        kind = "symmetric" if symmetric else "asymmetric"
        super().__init__(
            name,
            Integers(bits, group, symmetric, scale),
            f"{words}, first in the lowest bits",
            summary=f"{bits}-bit integers, {kind}, in {f'groups of {group}' if group else 'rows'}; for vLLM",
            family=f"w{bits}a16" + ("" if symmetric else "-asym"),
        )

    def for_numbers(self, numbers: Numbers) -> PackQuantized | None:
        if not isinstance(numbers, Integers):
            return None
        own = PackQuantized(self.bits, self.group, self.symmetric, numbers.scale)
        return own if own.numbers.holds(numbers) else None

    def unit_rows(self, shape: Sequence[int]) -> int:
        return 1 if self.symmetric or self.zero_bytes else 32 // gcd(32, self.bits)  # rows whose zero points fill words

    def accepts(self, shape: Sequence[int]) -> str:
        if problem := super().accepts(shape):
            return problem
        if shape[1] * self.bits % 32:
            return f"rows of {format_count(shape[1])} {self.bits}-bit codes do not fill whole 32-bit words"
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        groups = k // self.group if self.group else 1
        words = ceil(k * self.bits / 32)
        scale = self.numbers.scale
        each = Axis(1, self.group) if self.group else ONE
        stream = Axis(self.bits, 32)
        parts = [
            Part("_packed", "I32", (n, words), n * words * 4, columns=stream),
            Part("_scale", scale.label, (n, groups), n * groups * scale.bytes, columns=each),
            Part("_shape", "I64", (2,), 16, rows=ONE, columns=ONE, constant=True),
        ]
        if self.zero_bytes:
            parts.append(Part("_zero_point", "I8", (n, groups), n * groups, columns=each))
        elif not self.symmetric:
            rows = ceil(n * self.bits / 32)
            parts.append(Part("_zero_point", "I32", (rows, groups), rows * groups * 4, rows=stream, columns=each))
        return tuple(parts)

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        return {2: np.array(shape, np.int64).tobytes()}

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        out = [
            as_bytes(ops.pack_bits(codes.codes, self.bits)),
            stored_scales(codes.scales, self.numbers.scale),
            np.empty(0, np.uint8),
        ]
        if not self.symmetric:
            zeros = codes.zeros
            if zeros is None:  # symmetric numbers in an asymmetric file
                zeros = np.full(codes.scales.shape, 1 << (self.bits - 1), np.uint8)
            out.append(as_bytes(ops.pack_bits(np.ascontiguousarray(zeros.T), self.bits).T))
        return tuple(out)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        words = parts[0].view(np.int32).reshape(rows, -1)
        scales = read_scales(parts[1], self.numbers.scale, rows)
        zeros = None
        if self.zero_bytes:
            zeros = parts[3].view(np.uint8).reshape(rows, -1) + np.uint8(1 << (self.bits - 1))  # wraps, as I8 does
            if (zeros >> self.bits).any():
                raise ValueError(f"zero points that {self.bits} bits do not hold")
        elif not self.symmetric:
            packed = np.ascontiguousarray(parts[3].view(np.int32).reshape(-1, scales.shape[1]).T)
            zeros = np.ascontiguousarray(ops.unpack_bits(packed, self.bits, rows).T)
        codes = ops.unpack_bits(words, self.bits, columns)
        if self.order is not None:
            codes = np.ascontiguousarray(codes[:, self.order])
        return Codes(codes, scales, zeros)


PACK_QUANTIZED: tuple[PackQuantized, ...] = tuple(
    PackQuantized(bits, group, symmetric)
    for bits in (2, 3, 4, 5, 6, 7, 8)
    for group in (128, 64, 32, 0)
    for symmetric in (True, False)
)
