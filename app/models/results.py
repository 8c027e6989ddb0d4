"""Rows of what was measured: one measure a row, a value for each file, and their ratio."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from app.jobs.testing import Measured
from app.models.table import Column
from core import units
from core.runtime.results import StoredResult, compare, number_text

NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Measure:
    """value: of one result, None when not known. text: how it is written. better: −1 less, +1 more, 0 neither."""

    name: str
    term: str
    value: Callable[[Measured], float | None]
    text: Callable[[float], str]
    better: int = -1


MEASURES = (
    Measure("Time to first token", "time to first token", lambda m: m.first_token, units.format_duration),
    Measure("Time per token, median", "time per token", lambda m: m.token_p50, units.format_duration),
    Measure("Time per token, 95th percentile", "95th percentile", lambda m: m.token_p95, units.format_duration),
    Measure("Prompt", "prompt processing", lambda m: m.prompt_rate, units.format_tokens_per_second, 1),
    Measure("Generation", "decode", lambda m: m.decode_rate, units.format_tokens_per_second, 1),
    Measure("Peak memory", "peak memory", lambda m: m.peak_memory, units.format_bytes),
    Measure(
        "GPU memory in use",
        "GPU memory",
        lambda m: m.device_memory.used if m.device_memory else None,
        units.format_bytes,
    ),
    Measure("Weights", "weights", lambda m: m.weight_bytes, units.format_bytes),
    Measure("KV cache, planned", "KV cache", lambda m: m.cache_planned, units.format_bytes),
    Measure("KV cache and buffers, allocated", "KV cache", lambda m: m.cache_allocated, units.format_bytes),
    Measure("Bytes read per token", "bytes read per token", lambda m: m.bytes_per_token, units.format_bytes),
    Measure("Share of the bandwidth bound", "bandwidth bound", lambda m: m.bound_fraction, units.format_percent, 1),
    Measure("Energy per token", "energy per token", lambda m: m.energy, lambda joules: f"{joules:.3f} J"),
    Measure("Answer length", "token", lambda m: m.tokens, lambda n: f"{units.format_count(int(n))} tokens", 0),
)


@dataclass(frozen=True)
class NumberRow:
    """One line of the table. notes: tooltips of both values, such as why something was not measured."""

    name: str
    term: str
    texts: tuple[str, str]
    ratio: str
    notes: tuple[str, str] = ("", "")


def number_rows(a: Measured | None, b: Measured | None) -> list[NumberRow]:
    """A row for each of MEASURES, of a GPU's memory only where one was used; '–' for a side that has not answered."""
    rows = []
    for measure in MEASURES:
        values = [measure.value(m) if m is not None else None for m in (a, b)]
        gpu = measure.term == "GPU memory"
        if gpu and values == [None, None]:
            continue
        sides = [None if gpu and value is None else m for m, value in zip((a, b), values, strict=True)]
        texts = [_text(m, measure, value) for m, value in zip(sides, values, strict=True)]
        notes = [_note(m, measure) if m is not None else "" for m in (a, b)]
        ratio = ratio_text(*values) if measure.better else "–"
        rows.append(NumberRow(measure.name, measure.term, (texts[0], texts[1]), ratio, (notes[0], notes[1])))
    return rows


def _note(measured: Measured, measure: Measure) -> str:
    if measure.name.startswith("Energy"):
        return measured.energy_reason
    return f"Keys and values in {measured.cache}" if measure.term == "KV cache" else ""


def _text(measured: Measured | None, measure: Measure, value: float | None) -> str:
    if measured is None:
        return "–"
    return NOT_MEASURED if value is None else measure.text(value)


def ratio_text(a: float | None, b: float | None) -> str:
    """Quantized ÷ source as '0.52 ×'; '–' without both."""
    if not a or b is None or not math.isfinite(a) or not math.isfinite(b):
        return "–"
    return f"{b / a:.2f} ×"


def number_columns(names: tuple[str, str], explain: Callable[[str], str]) -> tuple[Column, ...]:
    """Measure, both files, and the ratio."""
    return (
        Column("Measure", lambda r: r.name, tooltip=lambda r: explain(r.term) or r.name),
        Column(names[0], lambda r: r.texts[0], number=True, tooltip=lambda r: r.notes[0] or r.texts[0]),
        Column(names[1], lambda r: r.texts[1], number=True, tooltip=lambda r: r.notes[1] or r.texts[1]),
        Column("Ratio", lambda r: r.ratio, number=True, tooltip=lambda r: f"{names[1]} ÷ {names[0]}: {r.ratio}"),
    )


# ---- history ---------------------------------------------------------------------------------------------------------


def history_columns() -> tuple[Column, ...]:
    """A stored result in a line. Rows are `StoredResult`."""
    return (
        Column("What", lambda r: r.title),
        Column("When", lambda r: r.when.replace("T", " ")[:16], lambda r: r.when),
        Column("Contract", lambda r: r.contract, term="contract"),
        Column("Machine", lambda r: r.machine),
        Column("Versions", lambda r: r.versions),
    )


@dataclass(frozen=True)
class StoredRow:
    """One fact or number of one or two stored results."""

    name: str
    texts: tuple[str, str]
    ratio: str


def stored_rows(results: Sequence[StoredResult]) -> list[StoredRow]:
    """Facts and numbers of one result, or of two beside each other with B ÷ A."""
    if not results:
        return []
    first, second = results[0], results[1] if len(results) > 1 else None
    rows = []
    for name in ("contract", "machine", "versions"):
        other = getattr(second, name) if second is not None else "–"
        rows.append(StoredRow(name.capitalize(), (getattr(first, name), other), "–"))
    for number in compare(first, second or first):
        values = number.first, number.second if second is not None else None
        texts = number_text(values[0], number.unit), number_text(values[1], number.unit) if second else "–"
        rows.append(StoredRow(number.name, texts, ratio_text(*values)))
    return rows


def stored_columns() -> tuple[Column, ...]:
    """Number, first and second result, ratio."""
    return (
        Column("Number", lambda r: r.name),
        Column("A", lambda r: r.texts[0], number=True),
        Column("B", lambda r: r.texts[1], number=True),
        Column("Ratio", lambda r: r.ratio, number=True, tooltip=lambda r: f"B ÷ A: {r.ratio}"),
    )
