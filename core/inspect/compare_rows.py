"""Rows of a comparison, as CSV and as JSON."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from core.progress import ErrorStats


class Match(Enum):
    """What could be compared."""

    COMPARED = "compared"
    SHAPES = "shapes differ"
    ONLY_LEFT = "only in the first"
    ONLY_RIGHT = "only in the second"
    UNREADABLE = "can not be decoded"


@dataclass(frozen=True)
class WorstChannel:
    """axis: 'output' or 'input'. share: of the tensor's squared error. snr_db: of the channel alone."""

    axis: str
    index: int
    max_error: float
    rms_error: float
    share: float
    snr_db: float


@dataclass(frozen=True)
class CompareRow:
    """One tensor. name: as the first calls it ('' when only the second has it), other_name: as the second does.

    error: the second's deviation from the first, None unless compared. nrmse: √(Σ(x−y)² / Σx²), nan unless compared.
    note: what was undone or why it could not be compared. worst: channels with most of the squared error.
    """

    name: str
    other_name: str
    shape: tuple[int, ...]
    other_shape: tuple[int, ...]
    format: str
    other_format: str
    match: Match
    layer: int | None
    role: str
    error: ErrorStats | None
    nrmse: float
    worst: tuple[WorstChannel, ...] = ()
    note: str = ""


_FIGURES = ("snr_db", "nrmse", "rms_error", "max_error", "nonfinite")
_TEXTS = ("name", "other_name", "match", "role", "layer", "format", "other_format", "shape", "other_shape")


def to_csv(rows: Iterable[CompareRow]) -> str:
    """One line a tensor, RFC 4180, with a header; empty cells where there is no figure, 'inf' for an exact copy."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([*_TEXTS, *_FIGURES, "worst_output_channel", "worst_input_channel", "note"])
    for r in rows:
        fields = _fields(r)
        shapes = ("×".join(map(str, r.shape)), "×".join(map(str, r.other_shape)))
        worst = [next((w.index for w in r.worst if w.axis == axis), "") for axis in ("output", "input")]
        texts = [shapes[t == "other_shape"] if t.endswith("shape") else fields[t] for t in _TEXTS]
        figures = ["" if fields[f] is None else fields[f] for f in _FIGURES]
        if r.error is not None and math.isinf(r.error.snr_db):
            figures[0] = str(r.error.snr_db)
        writer.writerow(["" if v is None else _unharmed(v) for v in (*texts, *figures, *worst, r.note)])
    return out.getvalue()


def _unharmed(cell: Any) -> Any:
    """Text that a spreadsheet would take for a formula, marked as text."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@") and cell != "-inf" else cell


def to_json(rows: Iterable[CompareRow]) -> str:
    """One object {"tensors": [...]} of `row_data`."""
    return json.dumps({"tensors": [row_data(r) for r in rows]}, indent=2, ensure_ascii=False, allow_nan=False)


def row_data(r: CompareRow) -> dict[str, Any]:
    """A row as plain data: null where there is no figure and for an infinite SNR, with "exact": true."""
    fields = _fields(r)
    error = {name: fields[name] for name in ("snr_db", "rms_error", "max_error", "nonfinite")}
    return {
        **{name: fields[name] for name in (*_TEXTS, "nrmse", "note")},
        "error": None if r.error is None else error,
        "exact": r.error is not None and r.error.max_error == 0,
        "worst_channels": [{k: _finite(v) for k, v in vars(w).items()} for w in r.worst],
    }


def _fields(r: CompareRow) -> dict[str, Any]:
    e = r.error
    figures = (None,) * 5 if e is None else (e.snr_db, r.nrmse, e.rms_error, e.max_error, e.nonfinite)
    return {
        "name": r.name,
        "other_name": r.other_name,
        "match": r.match.value,
        "role": r.role,
        "layer": r.layer,
        "format": r.format,
        "other_format": r.other_format,
        "shape": list(r.shape),
        "other_shape": list(r.other_shape),
        **{k: _finite(v) for k, v in zip(_FIGURES, figures, strict=True)},
        "note": r.note,
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
