"""GPTQ: integer codes in 32-bit words down the columns, 16-bit scales, and zero points in either of two layouts.

Layout 1 ('gptq') stores a zero point less one, layout 2 ('gptq_v2') as it is. Loaders disagree about a zero point of 0
in layout 1, which underflows: some add within the field, some across it, some get 2^bits. Such a file is never written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from core.contract import ElementType
from core.formats.base import EncodeOptions, Method
from core.formats.coded import Coded, as_bytes, read_scales, stored_scales
from core.formats.numbers import Codes, Integers, Numbers
from core.parts import ONE, Axis, Part
from core.units import format_count
from kernels import families, ops
from kernels.long_rows import ReadPieces, RowScales

UNIT = 32  # rows and columns come in these: words are whole then, with any number of bits
BITS = (2, 3, 4, 8)
_SHRINKS = tuple(np.float32(1 - 0.05 * i) for i in range(6))  # of a scale, tried by a search
_ONES = {bits: np.uint32(sum(1 << at for at in range(0, 32, bits))) for bits in (2, 4, 8)}


@dataclass(frozen=True)
class PositiveZeros(Integers):
    """Asymmetric integers whose zero points are at least 1."""

    def quantize(self, rows: np.ndarray, options: EncodeOptions) -> Codes:
        found = super().quantize(rows, options)
        zeros = found.zeros
        assert zeros is not None
        low = np.argwhere(zeros == 0)
        if not len(low):
            return found
        assert options.rows is None  # `fit_rows` leaves none
        size = self.size or rows.shape[1]
        importance = None if options.importance is None else options.importance.reshape(-1, size)[low[:, 1]]
        x = rows.reshape(len(rows), -1, size)[low[:, 0], low[:, 1]]
        shrinks = _SHRINKS if options.method is Method.SEARCH else _SHRINKS[:1]
        codes, scales = self._above_one(x, shrinks, importance)
        found.codes.reshape(len(rows), -1, size)[low[:, 0], low[:, 1]] = codes
        found.scales[low[:, 0], low[:, 1]] = scales
        zeros[low[:, 0], low[:, 1]] = 1
        return found

    def fit_rows(self, read: ReadPieces, options: EncodeOptions) -> RowScales:
        found = super().fit_rows(read, options)
        low = found.zeros == 0
        scales = np.where(low, self._stored(found.amax), found.scales)
        return replace(found, scales=scales, zeros=np.maximum(found.zeros, 1))

    def holds(self, other: Numbers) -> bool:
        """Zero points of 0 are not known from the kind of numbers: those that may have them are not held."""
        fits = isinstance(other, PositiveZeros) or (isinstance(other, Integers) and other.symmetric)
        return fits and super().holds(other)

    def _stored(self, largest: np.ndarray) -> np.ndarray:
        """Scales of groups whose codes are −1 … 2^bits − 2 above zero, as they are stored, float32."""
        wanted = np.where(largest > 0, largest / np.float32((1 << self.bits) - 2), np.float32(1))
        label = self.scale.label
        smallest = np.float32(2.0**-24 if self.scale is ElementType.F16 else 2.0**-126)
        stored = ops.to_float32(ops.from_float32(np.maximum(wanted, smallest)[None], label), label)[0]
        return np.where(np.isfinite(stored), stored, np.float32(65504))

    def _above_one(
        self, x: np.ndarray, shrinks: Sequence[np.float32], importance: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes [G, n] and scales [G] of groups that are nowhere far below 0, for a zero point of 1."""
        weights = np.float64(1) if importance is None else importance.astype(np.float64)
        best = np.full(len(x), np.inf)
        codes, scales = np.zeros(x.shape, np.uint8), np.zeros(len(x), np.float32)
        for shrink in shrinks:
            tried = self._stored(np.abs(x).max(axis=1) * shrink)
            q = np.clip(np.rint(x / tried[:, None]) + 1, 0, (1 << self.bits) - 1)
            error = (weights * (x - (q - 1) * tried[:, None]).astype(np.float64) ** 2).sum(axis=1)
            better = error < best
            best = np.where(better, error, best)
            codes[better], scales[better] = q[better].astype(np.uint8), tried[better]
        return codes, scales


@dataclass(frozen=True)
class StoredGroups:
    """How the columns of a file belong to its groups. Those that are read have one size, a share of each of the file's.

    count: groups in the file. source: the file's group of each that is read. order: int64 [K], the columns sorted by
    their group, None where they are.
    """

    count: int
    source: np.ndarray
    order: np.ndarray | None = None


class Gptq(Coded):
    """Weight W [N, K] as `qweight` I32 [K·b/32, N], `scales` [G, N], `qzeros` I32 [G, N·b/32] and `g_idx` I32 [K].

    version: of the layout, 1 or 2. groups, scale: of a file that is read; `g_idx` is no part of it then.
    """

    ecosystem = "GPTQ"
    numbers: Integers

    def __init__(
        self,
        bits: int,
        group: int,
        symmetric: bool,
        version: int = 1,
        *,
        groups: StoredGroups | None = None,
        scale: ElementType = ElementType.F16,
    ) -> None:
        self.bits = bits
        self.group = group
        self.symmetric = symmetric
        self.version = version
        self.zero_bias = 2 - version
        self.groups = groups
        name = f"gptq-{bits}bit-" + (f"g{group}" if group else "channel")
        name += ("" if symmetric else "-asym") + ("-v2" if version == 2 else "")
        kind = Integers if symmetric or version == 2 or groups else PositiveZeros
        symmetry = "symmetric" if symmetric else "asymmetric"
        readers = (
            "transformers and relatives; -v2 for GPTQModel itself"
            if not symmetric and version == 1
            else "GPTQModel, transformers"
        )
        readers += ", vLLM" if symmetric and bits in (4, 8) else ""
        super().__init__(
            name,
            kind(bits, group, symmetric, scale),
            "32-bit words down the columns, first code in the lowest bits"
            + ("; zero points are stored less one" if version == 1 else ""),
            summary=f"{bits}-bit integers, {symmetry}, in {f'groups of {group}' if group else 'rows'}, GPTQ's layout; "
            f"for {readers}",
            family=f"gptq-{bits}bit" + ("" if symmetric else "-asym"),
        )
        self.contract = replace(self.contract, zero=ElementType.INT, zero_bits=bits)

    def unit_rows(self, shape: Sequence[int]) -> int:
        return UNIT

    def accepts(self, shape: Sequence[int]) -> str:
        if problem := super().accepts(shape):
            return problem
        if shape[0] % UNIT or shape[1] % UNIT:
            return (
                f"its {format_count(shape[0])} rows of {format_count(shape[1])} values are not both multiples of {UNIT}"
            )
        return ""

    def parts(self, shape: Sequence[int]) -> tuple[Part, ...]:
        n, k = shape
        g = self._groups(k)
        words, zero_words = -(-k * self.bits // 32), -(-n * self.bits // 32)
        scale = self.numbers.scale
        each = Axis(g, 0) if self.groups else Axis(1, self.group) if self.group else ONE
        stream = Axis(self.bits, 32)
        parts = (
            Part(".qweight", "I32", (words, n), words * n * 4, columns=stream, across=True),
            Part(".scales", scale.label, (g, n), g * n * scale.bytes, columns=each, across=True),
            Part(".qzeros", "I32", (g, zero_words), g * zero_words * 4, rows=stream, columns=each, across=True),
            Part(".g_idx", "I32", (k,), k * 4, rows=ONE, columns=ONE, constant=True),
        )
        return parts[:3] if self.groups else parts

    def _groups(self, columns: int) -> int:
        if self.groups:
            return self.groups.count
        return columns // self.group if self.group else 1

    def constant_parts(self, shape: Sequence[int]) -> dict[int, bytes]:
        return {3: (np.arange(shape[1], dtype="<i4") // np.int32(self.group or shape[1])).tobytes()}

    def pack(self, codes: Codes) -> tuple[np.ndarray, ...]:
        zeros = codes.zeros
        if zeros is None:
            zeros = np.full(codes.scales.shape, 1 << (self.bits - 1), np.uint8)
        if self.version == 1:
            zeros = (zeros - np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        return (
            as_bytes(families.pack_columns(_whole_words(codes.codes, self.bits), self.bits)),
            stored_scales(np.ascontiguousarray(codes.scales.T), self.numbers.scale),
            as_bytes(ops.pack_bits(np.ascontiguousarray(zeros.T), self.bits)),
            np.empty(0, np.uint8),
        )

    def unpack(self, parts: Sequence[np.ndarray], rows: int, columns: int) -> Codes:
        g = self._groups(columns)
        codes = families.unpack_columns(parts[0].view(np.int32).reshape(-1, rows), self.bits)[:, :columns]
        scales = np.ascontiguousarray(read_scales(parts[1], self.numbers.scale, g).T)
        words = parts[2].view(np.uint32).reshape(g, -1)
        whole = self.version == 1 and self.bits in _ONES
        if whole:  # fields carry into each other, as they borrowed when they were written
            words = words + _ONES[self.bits]
        zeros = ops.unpack_bits(words.view(np.int32), self.bits, rows).T
        if self.version == 1 and not whole:
            zeros = (zeros + np.uint8(1)) & np.uint8((1 << self.bits) - 1)
        if self.symmetric and (zeros != 1 << (self.bits - 1)).any():
            raise ValueError(f"config.json calls it symmetric, and its zero points are not all {1 << (self.bits - 1)}")
        if self.groups:
            scales, zeros = scales[:, self.groups.source], zeros[:, self.groups.source]
            codes = codes if self.groups.order is None else codes[:, self.groups.order]
        codes, scales, zeros = (np.ascontiguousarray(a) for a in (codes, scales, zeros))
        return Codes(codes, scales, None if self.symmetric else zeros)


def _whole_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes with zeros behind each row, so that its last word is full."""
    spare = next(n for n in range(32) if (codes.shape[1] + n) * bits % 32 == 0)
    return np.pad(codes, ((0, 0), (0, spare))) if spare else codes


def _variants(bits: int, group: int) -> tuple[Gptq, ...]:
    return Gptq(bits, group, True), Gptq(bits, group, False), Gptq(bits, group, False, 2)


GPTQ: tuple[Gptq, ...] = tuple(f for bits in (4, 8, 3, 2) for group in (128, 64, 32, 0) for f in _variants(bits, group))
