"""What one group of a quantized row is made of, down to its bits."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from core.inspect.bit_layout import Bits

WINDOW = 128  # values shown at once where one scale holds for a whole row or tensor, or there is none


@dataclass(frozen=True)
class BitField:
    """Some bits of a stored number, and the bytes that hold them.

    array: index into GroupMap.arrays. offset: first byte, absolute in that array's file. data: the bytes, as they
    stand there. bit, width: which bits of these bytes, read as one little-endian number. shift: where they go in the
    number. digit: for base-3 packing (TQ1_0) which of a byte's ternary digits, the most significant being 0, else −1;
    bit and width are then those of the whole byte.
    """

    array: int
    offset: int
    data: bytes
    bit: int
    width: int
    shift: int = 0
    digit: int = -1

    @property
    def hex(self) -> str:
        """The bytes in file order, '3f a0'."""
        return self.data.hex(" ")


@dataclass(frozen=True)
class Metadata:
    """A scale, minimum or zero point. meaning: 'scale', 'minimum', 'zero point', 'super-scale', 'super-minimum',
    'sub-scale', 'sub-minimum', 'tensor scale'. value: the number as arithmetic uses it, weight units for scales
    and minima, codes for zero points, a multiplier for sub-scales. code: the stored integer; None for floats.
    """

    meaning: str
    value: float
    code: int | None
    fields: tuple[BitField, ...]


@dataclass(frozen=True)
class StoredArray:
    """One array of the file. file: name inside the output folder; '' for a single file. name: of the tensor as stored.
    offset, nbytes: its place in the file."""

    file: str
    name: str
    dtype: str
    offset: int
    nbytes: int


@dataclass(frozen=True)
class SourceRow:
    """Where the row's original values come from: row `row` of tensor `tensor`; add: what conversion adds to each.

    columns: of a vector whose values are interleaved, the place of each shown value; () where they keep their order.
    """

    tensor: str
    row: int
    add: float = 0.0
    columns: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupMap:
    """One group. All arrays have one entry a value; `columns` are theirs.

    row counts the tensor's rows (all axes but the last multiplied); expert: of a stack, else None. window: the group is
    longer than what is shown. formula: how a value is read back, in the names of `metadata`.
    original: float32 values of the source, None when a stored file is looked at. codes: stored numbers, unsigned as
    they stand in the bits. levels: what each code stands for before scaling (code − zero, a codebook's entry; the value
    itself for plain types). grid: what each possible code is read back as, by code, empty for plain types.
    reconstruction: float32. half_step: half the distance to the neighbouring level on the original's side (the wider
    neighbour without an original), the largest error that rounding alone makes (s/2 for evenly spaced levels), weight
    units. error: reconstruction − original, None without an original.
    """

    tensor: str
    format: str
    shape: tuple[int, ...]
    row: int
    expert: int | None
    group: int
    group_size: int
    columns: tuple[int, int]
    window: bool
    arrays: tuple[StoredArray, ...]
    source: SourceRow | None
    formula: str
    metadata: tuple[Metadata, ...]
    original: np.ndarray | None
    codes: np.ndarray
    levels: np.ndarray
    grid: np.ndarray
    fields: tuple[tuple[BitField, ...], ...]
    reconstruction: np.ndarray
    half_step: np.ndarray

    @property
    def error(self) -> np.ndarray | None:
        """x̂ − x, float32; NaN where both are infinite."""
        if self.original is None:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            return self.reconstruction - self.original


@dataclass(frozen=True)
class Place:
    """The value that is asked for."""

    name: str
    shape: tuple[int, ...]
    row: int
    column: int

    @property
    def columns(self) -> int:
        return self.shape[-1]

    @property
    def expert(self) -> int | None:
        return self.row // self.shape[-2] if len(self.shape) == 3 else None


class StoredBytes:
    """Stored bytes by their place in a part, as (part, offset in the part, bytes) of what lies together."""

    def __init__(self, arrays: tuple[StoredArray, ...], runs: list[tuple[int, int, np.ndarray]]) -> None:
        self.arrays = arrays
        self._runs: dict[int, list[tuple[int, np.ndarray]]] = {}
        for part, offset, data in runs:
            self._runs.setdefault(part, []).append((offset, data))
        for of_part in self._runs.values():
            of_part.sort(key=lambda r: r[0])
        self._starts = {part: [offset for offset, _ in of] for part, of in self._runs.items()}

    def read(self, part: int, offset: int, count: int) -> np.ndarray:
        start, data = self._runs[part][bisect_right(self._starts[part], offset) - 1]
        return data[offset - start : offset - start + count]

    def field(self, part: int, base: int, bits: Bits) -> BitField:
        """Bits that are counted from `base` of a part."""
        at = base + bits.byte
        data = self.read(part, at, bits.size).tobytes()
        return BitField(part, self.arrays[part].offset + at, data, bits.bit, bits.width, bits.shift, bits.digit)
