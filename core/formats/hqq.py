"""HQQ's weights: codes of a group with a scale and a real zero; codes of distant groups lie in one byte or word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from core.contract import ByteCount, ElementType
from core.formats.affine import RealZeros
from core.formats.coded import Coded, as_bytes, read_scales, stored_scales
from core.formats.numbers import Codes, Numbers
from core.parts import Lanes, Part
from core.units import format_count
from kernels import families

SLICES = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}  # how many groups lie together
PACKINGS = {8: "8bit_u8", 4: "4bit_u8", 3: "3bit_32", 2: "2bit_u8", 1: "1bit_u8"}  # hqq's names


class HqqFormat(Coded):
    """Weight W [N, K], seen as R = N·K/g groups, as `W_q` [⌈R / slices⌉, g], `scale` and `zero` [R, 1] (axis 1).

    The groups are cut into equal slices, and the first groups of all slices lie together, and so on. With 3 bits ten
    codes take 32 bits.
    """

    ecosystem = "hqq"
    numbers: RealZeros

    def __init__(self, bits: int, group: int, scale: ElementType = ElementType.F16) -> None:
        self.bits = bits
        self.slices = SLICES[bits]
        super().__init__(
            f"hqq-{bits}bit-g{group}",
            RealZeros(bits, group, scale),
            "codes of groups that are far from each other in one byte or word, the first in the highest bits",
            summary=f"{bits}-bit integers with real zero points in groups of {group}; for the library hqq",
            family="hqq",
        )
        if bits == 3:
            self.contract = replace(self.contract, bits=3.2)

    def for_numbers(self, numbers: Numbers) -> HqqFormat | None:
        if not isinstance(numbers, RealZeros):
            return None
        own = HqqFormat(self.bits, self.numbers.size, numbers.scale)
        return own if own.numbers.holds(numbers) else None

    def accepts(self, shape: Sequence[int]) -> str:
        if problem := super().accepts(shape):
            return problem
        runs = shape[0] * shape[1] // self.numbers.size
        if self.bits != 3 and runs % self.slices:
            return f"{format_count(runs)} groups of {self.numbers.size} do not divide into {self.slices} slices"
        return ""

    def lanes(self, shape: Sequence[int]) -> Lanes:
        size = self.numbers.size
        runs = shape[0] * shape[1] // size
        return Lanes(size, -(-runs // self.slices), runs, self.slices)

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        lanes, scale = self.lanes(shape), self.numbers.scale
        item = 4 if self.bits == 3 else 1
        codes = (lanes.count, lanes.length)
        each, nbytes = (lanes.runs, 1), lanes.runs * scale.bytes
        return (
            Part(".W_q", "I32" if self.bits == 3 else "U8", codes, lanes.count * lanes.length * item),
            Part(".scale", scale.label, each, nbytes),
            Part(".zero", scale.label, each, nbytes),
        )

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        codes, scale, zero = self.parts(shape)
        values = shape[0] * shape[1]
        payload = -(-values * 4 // 10) if self.bits == 3 else -(-values * self.bits // 8)
        return ByteCount(payload, scale.nbytes, zero.nbytes, codes.nbytes - payload)

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        assert codes.zeros is not None
        groups = codes.codes.reshape(-1, self.numbers.size)
        if spare := -len(groups) % self.slices:
            groups = np.concatenate([groups, np.zeros((spare, groups.shape[1]), np.uint8)])
        scale = self.numbers.scale
        packed = as_bytes(families.pack_halves(groups, self.bits))
        return packed, stored_scales(codes.scales, scale), stored_scales(codes.zeros, scale)

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        size = self.numbers.size
        groups = self.unpack_lanes(parts[0], size).reshape(-1, size)[: rows * columns // size]
        scales, zeros = (read_scales(part, self.numbers.scale, rows) for part in parts[1:])
        return Codes(groups.reshape(rows, columns), scales, zeros)

    def unpack_lanes(self, raw: np.ndarray, width: int) -> np.ndarray:
        """Bytes of `W_q`, in rows of that many bytes or words → their codes, uint8 [slices · rows, width]."""
        packed = raw.view(np.int32 if self.bits == 3 else np.uint8).reshape(-1, width)
        return families.unpack_halves(packed, self.bits, self.slices * len(packed))


class HqqColumns(HqqFormat):
    """Parts of axis 0, which is only read: a matrix [g, N·K/g] whose columns are groups."""

    def __init__(self, form: HqqFormat) -> None:
        super().__init__(form.bits, form.numbers.size, form.numbers.scale)

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        size, groups = shape
        item, scale = (4 if self.bits == 3 else 1), self.numbers.scale
        packed = -(-size // self.slices)
        return (
            Part(".W_q", "I32" if self.bits == 3 else "U8", (packed, groups), packed * groups * item),
            Part(".scale", scale.label, (1, groups), groups * scale.bytes),
            Part(".zero", scale.label, (1, groups), groups * scale.bytes),
        )


HQQ: tuple[HqqFormat, ...] = tuple(HqqFormat(bits, group) for bits in (8, 4, 3, 2) for group in (128, 64, 32))
