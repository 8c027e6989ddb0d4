"""compressed-tensors 'pack-quantized': integer codes packed into 32-bit words, 16-bit scales a group or a row."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np

from core.contract import ByteCount, ElementType, NumericContract, PerChannel, PerGroup
from core.formats.base import EncodeOptions, Format, Method, Part
from kernels import long_rows, ops
from kernels.long_rows import ReadPieces, RowScales

SCALE = ElementType.BF16


class PackQuantized(Format):
    """Weight W [N, K] as `weight_packed` I32 [N, ⌈K·b/32⌉], `weight_scale` [N, G], `weight_shape` and, asymmetric,
    `weight_zero_point` I32 [⌈N·b/32⌉, G] packed along N. Codes are stored unsigned, 2^(b−1) added.

    group: values along a row that share a scale; 0: the whole row.
    """

    container = "safetensors"

    def __init__(self, bits: int, group: int, symmetric: bool) -> None:
        self.bits = bits
        self.group = group
        self.symmetric = symmetric
        self.row_multiple = 1 if symmetric else 32 // bits  # rows whose zero points fill a word
        self.name = f"w{bits}a16-" + (f"g{group}" if group else "channel") + ("" if symmetric else "-asym")
        half = 1 << (bits - 1)
        self.contract = NumericContract(
            self.name,
            ElementType.INT,
            bits,
            PerGroup(group) if group else PerChannel(),
            -half,
            half - 1,
            scale=SCALE,
            zero=None if symmetric else ElementType.INT,
            zero_bits=0 if symmetric else bits,
            symmetric=symmetric,
            packing=f"{32 // bits} codes a 32-bit word, first in the lowest bits",
        )
        # A search may clip the ends of a long row away where that lowers the squared error.
        self.error_bound = {4: 1.0, 8: 0.5}[bits]

    def bound(self, method: Method) -> float:
        """Rounding is off by half a step, one step where the positive end has no code; and a little for BF16 scales."""
        steps = (1 << self.bits) - 1
        return self.error_bound if method is Method.SEARCH else 2.2 / steps + 2**-8

    def accepts(self, shape: Sequence[int]) -> str:
        if len(shape) != 2 or 0 in shape:
            return "only two-dimensional weights can be stored this way"
        if self.group and shape[1] % self.group:
            return f"rows of {shape[1]:,} values do not divide into groups of {self.group}"
        if shape[1] * self.bits % 32:
            return f"rows of {shape[1]:,} {self.bits}-bit codes do not fill whole 32-bit words"
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        groups = k // self.group if self.group else 1
        words = ceil(k * self.bits / 32)
        parts = [
            Part("_packed", "I32", (n, words), n * words * 4),
            Part("_scale", SCALE.label, (n, groups), n * groups * SCALE.bytes),
            Part("_shape", "I64", (2,), 16),
        ]
        if not self.symmetric:
            rows = ceil(n * self.bits / 32)
            parts.append(Part("_zero_point", "I32", (rows, groups), rows * groups * 4))
        return tuple(parts)

    def bytes_for(self, shape: Sequence[int]) -> ByteCount:
        packed, scale, dims, *zero = (p.nbytes for p in self.parts(shape))
        payload = ceil(shape[0] * shape[1] * self.bits / 8)
        return ByteCount(payload=payload, scales=scale, zeros=sum(zero), padding=packed - payload, header=dims)

    def part_columns(self, part: int, columns: tuple[int, int]) -> tuple[int, int]:
        """Which columns of a stored part belong to these of the tensor."""
        left, right = columns
        if part == 0:
            return left * self.bits // 32, ceil(right * self.bits / 32)
        return (left // self.group, right // self.group) if self.group else (0, 1)

    def part_offset(self, part: int, shape: Sequence[int], row: int, column: int = 0) -> int:
        before = super().part_offset(part, shape, row)
        stored = self.parts(shape)[part]
        return before + self.part_columns(part, (column, column))[0] * (stored.nbytes // prod(stored.shape))

    def has_rows(self, part: int) -> bool:
        return part in (0, 1)

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        search = options.method is Method.SEARCH
        return long_rows.fit_rows(
            read, self.bits, self.symmetric, SCALE.label, search, options.importance, options.threads
        )

    def encode(self, rows: np.ndarray, options: EncodeOptions) -> tuple[np.ndarray, ...]:
        """As `Format.encode`; the `_shape` part is left empty here and written by `constant_parts`."""
        zeros: np.ndarray | None
        if options.rows is not None and not self.group:
            codes = long_rows.encode_piece(rows, options.rows, self.bits, options.threads)
            scales = options.rows.scales[:, None]
            zeros = None if self.symmetric else options.rows.zeros.astype(np.uint8)[:, None]
        else:
            search = options.method is Method.SEARCH
            group = self.group or rows.shape[1]
            codes, scales, zeros = ops.encode_groups(
                rows, self.bits, group, self.symmetric, SCALE.label, search, options.importance, options.threads
            )
        packed = ops.pack_bits(codes, self.bits)
        out = [_bytes(packed), _bytes(ops.from_float32(scales, SCALE.label)), np.empty(0, np.uint8)]
        if zeros is not None:
            out.append(_bytes(ops.pack_bits(np.ascontiguousarray(zeros.T), self.bits).T))
        return tuple(out)

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        return {2: np.array(shape, np.int64).tobytes()}

    def decode(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> np.ndarray:
        words = parts[0].view(np.int32).reshape(rows, -1)
        codes = ops.unpack_bits(words, self.bits, columns)
        groups = columns // self.group if self.group else 1
        scales = ops.to_float32(parts[1].reshape(rows, -1), SCALE.label)
        zeros = None
        if not self.symmetric:
            packed = np.ascontiguousarray(parts[3].view(np.int32).reshape(-1, groups).T)
            zeros = np.ascontiguousarray(ops.unpack_bits(packed, self.bits, rows).T)
        return ops.decode_groups(codes, scales, zeros, self.bits, self.group or columns)


def _bytes(a: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(a).view(np.uint8).reshape(-1)


PACK_QUANTIZED: tuple[PackQuantized, ...] = tuple(
    PackQuantized(bits, group, symmetric)
    for bits in (4, 8)
    for group in (32, 64, 128, 0)
    for symmetric in (True, False)
)
