"""One group in words and numbers: what the table, the picture and the bytes of the Quantization map show alike."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from app.models.table import Column
from core.units import format_count, format_decimals, format_number

if TYPE_CHECKING:
    from core.inspect.granularity import OpenedVariant
    from core.inspect.group_types import BitField, GroupMap

ALL = "all bits"


@dataclass(frozen=True)
class ValueRow:
    """One value of the group. ratio: |error| over the largest that rounding alone makes (s/2). NaN: not known."""

    place: int
    column: int
    weight: float
    code: int
    level: float
    stored: float
    error: float
    ratio: float
    fields: tuple[BitField, ...] = ()

    @property
    def hex(self) -> str:
        return " ".join(f.hex for f in self.fields)

    @property
    def bits(self) -> str:
        """Which bits of these bytes hold the code."""
        return " + ".join(_bits(f) for f in self.fields)

    @property
    def code_text(self) -> str:
        """The bits as a number and, where that is another, what they stand for before scaling."""
        if sum(f.width for f in self.fields) >= 16:  # a number of its own
            return f"0x{self.code:x}"
        return str(self.code) if self.level == self.code else f"{self.code} ({format_number(self.level)})"

    @property
    def offset(self) -> int:
        return self.fields[0].offset if self.fields else -1

    @property
    def words(self) -> str:
        """For the read-out, what matters most first: there may be little room."""
        weight = "" if math.isnan(self.weight) else f"{format_number(self.weight)} → "
        parts = [f"Column {format_count(self.column)}: {weight}code {self.code_text} → {format_number(self.stored)}"]
        if not math.isnan(self.error):
            parts.append(f"error {format_number(self.error)}, {format_decimals(self.ratio, 2)} of s/2")
        if self.fields:
            parts.append(f"{self.hex} at {place_in_file(self.offset)}, {self.bits}")
        return " · ".join(parts)


@dataclass(frozen=True)
class Fact:
    """A number that all values of the group share. where: its bytes and their place in the file."""

    name: str
    value: str
    where: str = ""


@dataclass(frozen=True)
class ShownGroup:
    """A group, from a file or from a granularity. levels: what can be stored, weight units. bytes: of a file only."""

    title: str
    rows: tuple[ValueRow, ...]
    levels: np.ndarray
    facts: tuple[Fact, ...]
    formula: str
    group: int
    group_size: int
    window: bool
    source: GroupMap | None = None

    @property
    def step(self) -> int:
        """Columns from one group that can be looked at to the next."""
        return max(1, len(self.rows) if self.window else self.group_size)

    @property
    def weights(self) -> np.ndarray:
        """Of a file whose source is not known, what is stored."""
        return np.array([r.stored if math.isnan(r.weight) and self.from_file else r.weight for r in self.rows])

    @property
    def from_file(self) -> bool:
        return self.source is not None and self.source.original is None

    @property
    def stored(self) -> np.ndarray:
        return np.array([r.stored for r in self.rows])

    def csv(self) -> str:
        """One line a value, full precision, with a header."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(("column", "weight", "code", "bytes", "bits", "offset", "stored", "error", "error over s/2"))
        for r in self.rows:
            offset = r.offset if r.fields else ""
            writer.writerow(
                (
                    r.column,
                    _full(r.weight),
                    r.code,
                    r.hex,
                    r.bits,
                    offset,
                    _full(r.stored),
                    _full(r.error),
                    _full(r.ratio),
                )
            )
        return out.getvalue()


def from_map(group: GroupMap, levels: np.ndarray | None, row: int) -> ShownGroup:
    """A group as it stands, or will stand, in a file. row: its number in the source."""
    error = group.error
    rows = []
    for i in range(len(group.codes)):
        e = float(error[i]) if error is not None else math.nan
        half = float(group.half_step[i])
        weight = float(group.original[i]) if group.original is not None else math.nan
        rows.append(
            ValueRow(
                i, group.columns[0] + i, weight, int(group.codes[i]), float(group.levels[i]),
                float(group.reconstruction[i]), e,
                _share(e, half), group.fields[i],
            )
        )  # fmt: skip
    facts = [Fact(m.meaning, _value(m.value, m.code), _where(m.fields)) for m in group.metadata]
    what = "window" if group.window else "group"
    title = f"{group.tensor}: {group.format}, row {format_count(row)}, {what} {format_count(group.group)}"
    return ShownGroup(
        title, tuple(rows), np.zeros(0) if levels is None else levels, tuple(facts), group.formula, group.group,
        group.group_size, group.window, group,
    )  # fmt: skip


def from_variant(opened: OpenedVariant, row: int) -> ShownGroup:
    """A group under one granularity, rounded to nearest; it is in no file."""
    v = opened.variant
    levels = (np.arange(1 << v.bits) - v.zero) * float(v.scale)
    rows = []
    for i, (weight, code, stored) in enumerate(zip(opened.weights, v.codes, v.reconstruction, strict=True)):
        error = float(stored) - float(weight)
        rows.append(
            ValueRow(
                i,
                opened.first + i,
                float(weight),
                int(code),
                float(code) - v.zero,
                float(stored),
                error,
                _share(error, float(v.scale) / 2),
            )
        )
    facts = [Fact("scale", format_number(v.scale)), Fact("zero point", str(v.zero))]
    formula = "x̂ = scale · (code − zero point)"
    size = v.group if v.group > 0 else len(rows)
    last = opened.first + len(rows) - 1
    title = f"{v.bits} bits {v.name}, row {format_count(row)}, columns {opened.first}…{last}"
    return ShownGroup(title, tuple(rows), levels, tuple(facts), formula, opened.first // size, size, v.group <= 0)


def group_columns() -> tuple[Column, ...]:
    """Columns of the table, one row a ValueRow."""
    return (
        Column("Column", lambda r: format_count(r.column), lambda r: r.column, number=True),
        Column("Weight", lambda r: format_number(r.weight), lambda r: r.weight, number=True),
        Column("Code", lambda r: r.code_text, lambda r: r.code, number=True, term="code"),
        Column("Stored", lambda r: format_number(r.stored), lambda r: r.stored, number=True, term="reconstruction"),
        Column("Error", lambda r: format_number(r.error), lambda r: abs(r.error), number=True),
        Column("of s/2", lambda r: _ratio(r.ratio), lambda r: r.ratio, number=True, term="half step"),
        Column("Bytes", lambda r: r.hex, lambda r: r.offset, mono=True, term="packed bytes"),
        Column("Bits", lambda r: r.bits, lambda r: r.bits, term="bits of the bytes"),
        Column("Offset", lambda r: place_in_file(r.offset), lambda r: r.offset, number=True, term="file offset"),
    )


WIDTHS = ("9 999", "−0.0008736", "221 (−35)", "−0.0008736", "−0.0008736", "0.00", "00 00", "bits 4–7", "0x00000000")


def place_in_file(offset: int) -> str:
    return f"0x{offset:x}" if offset >= 0 else "–"


def _ratio(value: float) -> str:
    return format_decimals(value, 2)


def _share(error: float, half: float) -> float:
    if math.isnan(error) or not half > 0:
        return math.nan if error else 0.0
    return abs(error) / half


def _bits(field: BitField) -> str:
    if field.digit >= 0:
        return f"digit {field.digit}"
    if field.width == 8 * len(field.data) and not field.bit:
        return ALL
    last = field.bit + field.width - 1
    return f"bit {field.bit}" if field.width == 1 else f"bits {field.bit}–{last}"


def _value(value: float, code: int | None) -> str:
    return format_number(value) if code is None or code == value else f"{format_number(value)} (code {code})"


def _where(fields: Sequence[BitField]) -> str:
    """'0b 19 at 0x1f4a8a0', with the bits where it is not all of them."""
    parts = [f"{f.hex} at {place_in_file(f.offset)}" for f in fields]
    return " + ".join(p if _bits(f) == ALL else f"{p}, {_bits(f)}" for p, f in zip(parts, fields, strict=True))


def _full(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
