"""A group of a weight in a folder's format, down to its bits.

Where a code's bits lie is not written down a second time: the format packs codes in which single bits are set, and the
bytes that differ tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from core.checkpoint.dtypes import ELEMENT_BITS
from core.contract import ElementType
from core.errors import UserError
from core.formats.codebook import Codebook
from core.formats.coded import Coded
from core.formats.numbers import Codes
from core.inspect.bit_layout import Bits
from core.inspect.group_bits import without_original
from core.inspect.group_types import WINDOW, BitField, GroupMap, Metadata, Place, StoredBytes
from core.parts import Run
from kernels import families, ops


@dataclass(frozen=True)
class Window:
    """The rows and columns of a tensor whose stored bytes are known; they hold all that the format packs together.

    raw: their bytes of each part (uint8), empty for constant parts.
    """

    form: Coded
    shape: tuple[int, ...]
    rows: tuple[int, int]
    columns: tuple[int, int]
    raw: Sequence[np.ndarray]

    def runs(self) -> list[Run]:
        return [p.run(self.shape, self.rows, self.columns) for p in self.form.parts(self.shape)]

    def codes(self) -> Codes:
        return self.form.unpack(self.raw, self.rows[1] - self.rows[0], self.columns[1] - self.columns[0])


def read_coded(place: Place, stored: StoredBytes, window: Window) -> GroupMap:
    """The group of a value that lies in the window."""
    form, numbers = window.form, window.form.numbers
    if isinstance(numbers, Codebook) and (numbers.nested or place.columns % numbers.size):
        raise UserError(
            f"The bits of '{place.name}' are not shown: its blocks run on from row to row, or their scales are "
            "quantized themselves.",
            "Look at another tensor, or at another format.",
        )
    size = numbers.group or place.columns
    group = place.column // size
    columns = (group * size, min((group + 1) * size, place.columns))
    if shortened := size > WINDOW:
        left = columns[0] + (place.column - columns[0]) // WINDOW * WINDOW
        columns = (left, min(left + WINDOW, columns[1]))
    row, first = place.row - window.rows[0], window.columns[0]
    here = window.codes()
    own = _one_group(here, row, (columns[0] - first) // size)
    grid = _grid(form, own)
    codes = here.codes[row, columns[0] - first : columns[1] - first].astype(np.int64)
    metadata = _metadata(place, stored, window, own)
    return without_original(
        GroupMap(
            tensor=place.name,
            format=form.name,
            shape=place.shape,
            row=place.row,
            expert=place.expert,
            group=group,
            group_size=size,
            columns=columns,
            window=shortened,
            arrays=stored.arrays,
            source=None,
            formula=_formula(form, own),
            metadata=metadata,
            original=None,
            codes=codes,
            levels=_levels(form, own, codes),
            grid=grid,
            fields=_code_fields(stored, window, row, (columns[0] - first, columns[1] - first)),
            reconstruction=grid[codes],
            half_step=np.zeros(len(codes), np.float32),
        )
    )


def _one_group(codes: Codes, row: int, group: int) -> Codes:
    """The scales of one group of one row, with no codes."""
    line = row // codes.tile if codes.tile else 0
    cut = slice(group, group + 1)
    zeros, offsets = (None if a is None else a[row : row + 1, cut] for a in (codes.zeros, codes.offsets))
    scales = codes.scales[line : line + 1, cut if codes.scales.shape[1] > 1 else slice(0, 1)]
    return replace(codes, codes=np.empty((1, 0), np.uint8), scales=scales, zeros=zeros, offsets=offsets)


def _grid(form: Coded, own: Codes) -> np.ndarray:
    """What each code is read back as."""
    count = 1 << ceil(form.contract.bits)
    size = form.numbers.group or count
    lines = -(-count // size)
    every = np.resize(np.arange(count, dtype=np.uint8), (lines, size))

    def repeated(a: np.ndarray | None) -> np.ndarray | None:
        return None if a is None else np.repeat(a, lines, axis=0)

    scales = own.scales if own.tile != 1 else np.repeat(own.scales, lines, axis=0)
    some = replace(own, codes=every, scales=scales, zeros=repeated(own.zeros), offsets=repeated(own.offsets))
    return form.numbers.values(some).reshape(-1)[:count]


def _levels(form: Coded, own: Codes, codes: np.ndarray) -> np.ndarray:
    """What codes stand for before they are scaled."""
    contract = form.contract
    if contract.levels:
        return np.array(contract.levels, np.float32)[codes]
    if contract.element.label.startswith("F8"):
        return ops.to_float32(codes.astype(np.uint8)[None], contract.element.label)[0]
    return (codes - _zero(form, own)).astype(np.float32)


def _zero(form: Coded, own: Codes) -> int:
    if own.zeros is not None:
        return int(own.zeros[0, 0])
    integer = form.contract.element is ElementType.INT and own.offsets is None
    return 1 << (int(form.contract.bits) - 1) if integer else 0


def _formula(form: Coded, own: Codes) -> str:
    if form.contract.element is ElementType.INT:
        zero = "zero point" if own.zeros is not None else str(_zero(form, own))
        plain = "scale · code + minimum" if own.offsets is not None else f"scale · (code − {zero})"
    else:
        plain = "scale · level(code)"
    return f"x̂ = {plain}" + (" · tensor scale" if form.contract.tensor_scale else "")


def _metadata(place: Place, stored: StoredBytes, window: Window, own: Codes) -> tuple[Metadata, ...]:
    """The scales, minimums and zero points that the value is read with, in the order of the format's parts."""
    found: list[Metadata] = []
    for number, part in enumerate(window.form.parts(window.shape)[1:], 1):
        size = ELEMENT_BITS[part.dtype] // 8
        run = part.run(window.shape, (place.row, place.row + 1), (place.column, place.column + 1))
        if part.constant or run.total != size or part.dtype.startswith(("I32", "I64", "U32")):
            continue
        if "input" in part.suffix:  # of the activations: the weight is read without it
            continue
        field = stored.field(number, run.offset, Bits(0, size, 0, 8 * size))
        whole = not part.rows.per and not part.columns.per
        name = "minimum" if "bias" in part.suffix else "zero point" if "zero" in part.suffix else "scale"
        if whole and found:  # in some files a divisor, of which the codes have the reciprocal
            found.append(Metadata("tensor scale", own.tensor_scale, None, (field,)))
            continue
        found.append(Metadata(name, _value(field, part.dtype), None, (field,)))
    if own.zeros is not None and (fields := _zero_fields(stored, window, place)):
        found.append(Metadata("zero point", float(own.zeros[0, 0]), int(own.zeros[0, 0]), fields))
    return tuple(found)


def _value(field: BitField, dtype: str) -> float:
    raw = np.frombuffer(field.data, np.uint8)
    if dtype == "U8":
        return float(families.e8m0_to_float32(raw)[0])
    return float(ops.to_float32(raw[None], dtype)[0, 0])


def _code_fields(
    stored: StoredBytes, window: Window, row: int, columns: tuple[int, int]
) -> tuple[tuple[BitField, ...], ...]:
    """Of each value in these columns of the window's row, where its code's bits are."""
    codes = window.codes()
    blank = replace(codes, codes=np.zeros_like(codes.codes))
    base = window.form.pack(blank)
    count, width = columns[1] - columns[0], ceil(window.form.contract.bits)
    number = np.arange(1, count + 1)
    places: list[dict[int, tuple[int, int]]] = [{} for _ in range(count)]
    for bit in range(width):
        seen: dict[tuple[int, int], int] = {}  # stored bit → the number of the value whose bit it is
        for digit in range(count.bit_length()):
            probe = np.zeros_like(codes.codes)
            probe[row, columns[0] : columns[1]] = ((number >> digit & 1) << bit).astype(np.uint8)
            for at in _flipped(base, window.form.pack(replace(codes, codes=probe))):
                seen[at] = seen.get(at, 0) | 1 << digit
        for at, value in seen.items():
            places[value - 1][bit] = at
    return tuple(_fields(stored, window, bits) for bits in places)


def _zero_fields(stored: StoredBytes, window: Window, place: Place) -> tuple[BitField, ...]:
    codes = window.codes()
    assert codes.zeros is not None
    row, group = (
        place.row - window.rows[0],
        (place.column - window.columns[0]) // (window.form.numbers.group or place.columns),
    )
    bias = window.form.zero_bias
    plain = np.full_like(codes.zeros, bias)
    base = window.form.pack(replace(codes, zeros=plain))
    bits = {}
    for bit in range(ceil(window.form.contract.zero_bits or window.form.contract.bits)):
        probe = plain.copy()
        probe[row, group] = bias + (1 << bit) if bias + (1 << bit) < 256 else bias
        for at in _flipped(base, window.form.pack(replace(codes, zeros=probe))):
            bits[bit] = at
    return _fields(stored, window, bits)


def _flipped(base: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> list[tuple[int, int]]:
    """(part, bit of its bytes in the window) of every bit that differs."""
    found = []
    for part, (a, b) in enumerate(zip(base, other, strict=True)):
        differs = np.ascontiguousarray(a).reshape(-1).view(np.uint8) ^ np.ascontiguousarray(b).reshape(-1).view(
            np.uint8
        )
        for byte in np.flatnonzero(differs):
            found += [(part, int(byte) * 8 + bit) for bit in range(8) if differs[byte] >> bit & 1]
    return found


def _fields(stored: StoredBytes, window: Window, bits: dict[int, tuple[int, int]]) -> tuple[BitField, ...]:
    """Stored bits of a number, by its own bits, as stretches that lie together."""
    out: list[BitField] = []
    runs = window.runs()
    stretch: list[int] = []

    def close() -> None:
        if stretch:
            part, at = bits[stretch[0]]
            first, width = at // 8, len(stretch)
            size = (at % 8 + width + 7) // 8
            run = runs[part]
            offset = run.offset + first // run.nbytes * run.stride + first % run.nbytes
            out.append(stored.field(part, offset, Bits(0, size, at % 8, width, stretch[0])))

    for bit in sorted(bits):
        part, at = bits[bit]
        if not stretch or bits[stretch[-1]] != (part, at - 1) or bit != stretch[-1] + 1:
            close()
            stretch = []
        stretch.append(bit)
    close()
    return tuple(out)
