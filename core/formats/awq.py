"""AWQ's GEMM layout: 4-bit codes of eight neighbouring outputs in a 32-bit word, zero points packed the same way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.contract import ElementType
from core.formats.coded import Coded, as_bytes, read_scales, stored_scales
from core.formats.numbers import Codes, Integers
from core.parts import ONE, Axis, Part
from core.units import format_count
from kernels import families

UNIT = 8  # rows in a word


class Awq(Coded):
    """Weight W [N, K] as `qweight` I32 [K, N/8], `scales` [G, N] and `qzeros` I32 [G, N/8].

    Only the file format: AWQ's method, which scales activations, is not part of it.
    """

    ecosystem = "AWQ"
    bits = 4
    numbers: Integers

    def __init__(self, group: int, scale: ElementType = ElementType.F16) -> None:
        """group: 0 for the whole row."""
        self.group = group
        super().__init__(
            f"awq-g{group}" if group else "awq-channel",
            Integers(4, group, False, scale),
            "a 32-bit word holds outputs 0 2 4 6 1 3 5 7 of eight, first in the lowest bits",
            summary=f"4-bit integers with zero points in groups of {group}, AWQ's GEMM layout; for vLLM, transformers",
            family="awq",
        )

    def unit_rows(self, shape: Sequence[int]) -> int:
        return UNIT

    def accepts(self, shape: Sequence[int]) -> str:
        if problem := super().accepts(shape):
            return problem
        return f"its {format_count(shape[0])} rows are not a multiple of {UNIT}" if shape[0] % UNIT else ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        g, words = k // self.group if self.group else 1, -(-n // UNIT)
        scale, each, eighth = self.numbers.scale, Axis(1, self.group) if self.group else ONE, Axis(1, UNIT)
        return (
            Part(".qweight", "I32", (k, words), k * words * 4, rows=eighth, across=True),
            Part(".scales", scale.label, (g, n), g * n * scale.bytes, columns=each, across=True),
            Part(".qzeros", "I32", (g, words), g * words * 4, rows=eighth, columns=each, across=True),
        )

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        zeros = codes.zeros
        if zeros is None:
            zeros = np.full(codes.scales.shape, 8, np.uint8)
        return (
            as_bytes(families.pack_awq(_whole_words(codes.codes))),
            stored_scales(np.ascontiguousarray(codes.scales.T), self.numbers.scale),
            as_bytes(families.pack_awq(_whole_words(zeros))),
        )

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        g = columns // self.group if self.group else 1
        codes = families.unpack_awq(parts[0].view(np.int32).reshape(columns, -1), (0, rows))
        scales = np.ascontiguousarray(read_scales(parts[1], self.numbers.scale, g).T)
        zeros = families.unpack_awq(parts[2].view(np.int32).reshape(g, -1), (0, rows))
        return Codes(codes, scales, zeros)


def _whole_words(codes: np.ndarray) -> np.ndarray:
    """Codes with rows of zeros below, so that the last word is full."""
    spare = -len(codes) % UNIT
    return np.pad(codes, ((0, spare), (0, 0))) if spare else codes


AWQ: tuple[Awq, ...] = tuple(Awq(group) for group in (128, 64, 32))
