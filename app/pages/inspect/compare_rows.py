"""Columns and sentences of a comparison of two files, one row a CompareRow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.icons import icon
from app.models.table import Column, natural_key
from app.pages.inspect.tensor_pictures import short_name
from core.units import format_count, format_decibels, format_number, format_percent

if TYPE_CHECKING:
    from core.inspect.compare_rows import CompareRow, WorstChannel


def compare_columns() -> tuple[Column, ...]:
    """Tensor, formats, SNR, max error, nRMSE, worst channel, and in words what could not be compared."""
    from core.inspect.compare_rows import Match

    def count(rows: Sequence[CompareRow]) -> str:
        done = sum(r.match is Match.COMPARED for r in rows)
        return f"{format_count(done)} of {format_count(len(rows))} compared"

    def lowest(rows: Sequence[CompareRow]) -> str:
        figures = [r.error.snr_db for r in rows if r.error is not None and r.match is Match.COMPARED]
        return f"least {format_decibels(min(figures))}" if figures else ""

    def largest(rows: Sequence[CompareRow]) -> str:
        figures = [r.error.max_error for r in rows if r.error is not None]
        return f"{format_number(max(figures))}" if figures else ""

    def missed(row: CompareRow) -> bool:
        return row.match is not Match.COMPARED

    return (
        Column(
            "Tensor", _short, lambda r: natural_key(name_of(r)), term="tensor", mono=True, total=count,
            tooltip=lambda r: "\n".join(dict.fromkeys(n for n in (r.name, r.other_name) if n)),
        ),
        Column("Formats", formats, term="format"),
        Column("SNR", lambda r: _snr(r), lambda r: _figure(r, "snr_db"), number=True, term="SNR", total=lowest),
        Column(
            "Max error", lambda r: f"{format_number(r.error.max_error)}" if r.error else "–",
            lambda r: _figure(r, "max_error"), number=True, term="max error", total=largest,
        ),
        Column(
            "nRMSE", lambda r: format_percent(r.nrmse, 2) if r.error else "–",
            lambda r: r.nrmse if r.error else math.inf, number=True, term="nRMSE",
        ),
        Column("Worst channel", lambda r: _worst(r), lambda r: -max((w.share for w in r.worst), default=0.0)),
        Column(
            "Result", result, lambda r: (not missed(r), result(r)), role=lambda r: "warning" if missed(r) else "",
            icon=lambda r: icon("triangle-alert", "warning") if missed(r) else None,
            tooltip=lambda r: r.note or result(r),
        ),
    )  # fmt: skip


SNR_COLUMN = 2
WIDTHS = (
    "layers.23.self_attn.v_proj mm",
    "BF16 → Q4_K",
    "least 99.99 dB",
    "0.00000",
    "99.99 %",
    "output 999 (99 %)",
    "compared",
)


def name_of(row: CompareRow) -> str:
    return row.name or row.other_name


def _short(row: CompareRow) -> str:
    """What tells tensors apart; the whole name is the tooltip."""
    return short_name(name_of(row))


def formats(row: CompareRow) -> str:
    return " → ".join(f or "–" for f in (row.format, row.other_format))


def result(row: CompareRow) -> str:
    """In words: what was compared, or why it could not be."""
    from core.inspect.compare_rows import Match

    if row.match is Match.SHAPES:
        return f"shapes differ: {_shape(row.shape)} and {_shape(row.other_shape)}"
    if row.match is Match.COMPARED:
        return "same values" if row.error is not None and math.isinf(row.error.snr_db) else "compared"
    return row.match.value


def in_words(rows: Sequence[CompareRow]) -> str:
    """The whole comparison in two sentences."""
    from core.inspect.compare_rows import Match

    compared = [r for r in rows if r.match is Match.COMPARED and r.error is not None]
    exact = sum(math.isinf(r.error.snr_db) for r in compared if r.error is not None)
    words = f"{format_count(len(compared))} tensors compared, {format_count(exact)} of them exact."
    lossy = [r for r in compared if r.error is not None and math.isfinite(r.error.snr_db)]
    if lossy:
        worst = min(lossy, key=lambda r: r.error.snr_db if r.error else 0.0)
        assert worst.error is not None
        words += f" Lowest SNR: {name_of(worst)} with {format_decibels(worst.error.snr_db)}."
    others = [r for r in rows if r.match is not Match.COMPARED]
    if others:
        kinds: dict[str, int] = {}
        for row in others:
            kinds[row.match.value] = kinds.get(row.match.value, 0) + 1
        words += " Not compared: " + ", ".join(f"{n} {words_}" for words_, n in kinds.items()) + "."
    return words


def details(row: CompareRow) -> str:
    """The worst channels of one tensor in words, and what was undone to compare it."""
    parts = [
        f"{w.axis} channel {format_count(w.index)}: {format_percent(w.share)} of the squared error, SNR "
        f"{format_decibels(w.snr_db)}"
        for w in worst_first(row)[:2]
    ]
    words = (
        f"Worst channels of {name_of(row)}: " + "; ".join(parts) + "." if parts else f"{name_of(row)}: {result(row)}."
    )
    return f"{words} {row.note}".strip()


def worst_first(row: CompareRow) -> list[WorstChannel]:
    """Channels of both axes by their share of the squared error."""
    return sorted(row.worst, key=lambda w: -w.share)


def _worst(row: CompareRow) -> str:
    if not row.worst:
        return "–"
    first = worst_first(row)[0]
    share = format_percent(first.share, 0 if first.share >= 0.01 else 1)
    return f"{first.axis} {format_count(first.index)} ({share})"


def _snr(row: CompareRow) -> str:
    return format_decibels(row.error.snr_db) if row.error is not None else "–"


def _figure(row: CompareRow, name: str) -> float:
    value = getattr(row.error, name) if row.error is not None else math.inf
    return float(value) if not math.isnan(value) else math.inf


def _shape(shape: Sequence[int]) -> str:
    return " × ".join(format_count(n) for n in shape) or "–"
