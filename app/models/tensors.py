"""Columns of the tensor tables: what is in a checkpoint, what a plan makes of it, what a run has made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from PySide6.QtGui import QIcon

from app.icons import icon
from app.models.table import Column, natural_key
from core import units
from core.progress import TensorResult
from core.tensor_info import TensorInfo

if TYPE_CHECKING:
    from core.plan import TensorPlan


def shape_text(shape: Sequence[int]) -> str:
    """(576, 1536) → '576 × 1 536'; a scalar → '1'."""
    return " × ".join(units.format_count(n) for n in shape) or "1"


def layer_text(layer: int | None) -> str:
    return "–" if layer is None else str(layer)


def megabytes(n: int) -> str:
    """Bytes under a column titled 'MB' (10^6): three decimals in every row."""
    return units.format_decimals(n / 1e6, 3)


def _bytes_tooltip(n: int) -> str:
    return f"{units.format_bytes(n)}, exactly {units.format_count(n)} bytes"


def _layer_key(layer: int | None) -> int:
    return -1 if layer is None else layer


def source_columns() -> tuple[Column, ...]:
    """Rows are `TensorInfo`."""

    def stored(rows: Sequence[TensorInfo]) -> int:
        return sum(t.nbytes for t in rows if not t.tied_to)

    def count(rows: Sequence[TensorInfo]) -> str:
        return f"{units.format_count(len(rows))} tensors"

    def values(rows: Sequence[TensorInfo]) -> str:
        return f"{units.format_count(sum(t.values for t in rows if not t.tied_to))} values"

    return (
        Column(
            "Tensor",
            lambda t: t.name,
            lambda t: natural_key(t.name),
            term="tensor",
            mono=True,
            tooltip=lambda t: t.name + (f"\nshares its storage with {t.tied_to}" if t.tied_to else ""),
            total=count,
        ),
        Column("Role", lambda t: t.role.value, term="role"),
        Column("Layer", lambda t: layer_text(t.layer), lambda t: _layer_key(t.layer), number=True, term="layer"),
        Column("Shape", lambda t: shape_text(t.shape), lambda t: t.values, number=True, term="shape", total=values),
        Column("Type", lambda t: t.dtype, term="dtype"),
        Column(
            "MB",
            lambda t: megabytes(0 if t.tied_to else t.nbytes),
            lambda t: 0 if t.tied_to else t.nbytes,
            number=True,
            term="MB",
            tooltip=lambda t: f"stored with {t.tied_to}" if t.tied_to else _bytes_tooltip(t.nbytes),
            total=lambda rows: megabytes(stored(rows)),
        ),
    )


def plan_columns() -> tuple[Column, ...]:
    """Rows are `TensorPlan`."""
    from core.plan import Action  # loads numpy, which the first picture does not wait for

    def count(rows: Sequence[TensorPlan]) -> str:
        changed = sum(t.action is Action.QUANTIZE for t in rows)
        return f"{units.format_count(changed)} of {units.format_count(len(rows))} quantized"

    return (
        Column("Tensor", lambda t: t.name, lambda t: natural_key(t.name), term="tensor", mono=True, total=count),
        Column("Now", lambda t: t.source_dtype, term="dtype"),
        Column(
            "Becomes",
            lambda t: t.format_name,
            term="format",
            role=lambda t: "warning" if t.fallback else "",
            icon=lambda t: icon("triangle-alert", "warning") if t.fallback else None,
            tooltip=lambda t: (
                f"{t.format_name}: not what the target wanted, because {t.reason}"
                if t.fallback
                else f"{t.format_name}: {t.reason}"
            ),
        ),
        Column(
            "MB",
            lambda t: megabytes(t.bytes.total),
            lambda t: t.bytes.total,
            number=True,
            term="MB",
            tooltip=lambda t: _bytes_tooltip(t.bytes.total),
            total=lambda rows: megabytes(sum(t.bytes.total for t in rows)),
        ),
        Column("From data", lambda t: t.chosen_by or "–", term="from data", tooltip=_chosen_tooltip),
        Column("Why", lambda t: t.reason),
    )


def _chosen_tooltip(t: TensorPlan) -> str:
    if t.chosen_by:
        return f"{t.name}: its numbers are chosen by {t.chosen_by}, from what the calibration text shows"
    return f"{t.name}: no data is looked at for its numbers"


class TensorRun(NamedTuple):
    """One row of a conversion: a tensor and, once it is there, what became of it. state: a word of `STATE_ICONS`.

    A tuple, because thousands may be made anew within a frame.
    """

    name: str
    format: str
    planned_bytes: int
    state: str = "waiting"
    result: TensorResult | None = None


STATE_ICONS = {
    "waiting": ("circle", "muted"),
    "writing": ("circle-dot", "accent"),
    "written": ("check", "text"),
    "verified": ("circle-check", "ok"),
    "not written": ("minus", "muted"),
}


def snr_text(row: TensorRun) -> str:
    error = row.result.error if row.result else None
    return units.format_decibels(error.snr_db).removesuffix(" dB") if error else "–"


def max_error_text(row: TensorRun) -> str:
    error = row.result.error if row.result else None
    return f"{error.max_error:.5f}" if error else "–"


def _error_key(attribute: str) -> Callable[[TensorRun], float]:
    def key(row: TensorRun) -> float:
        error = row.result.error if row.result else None
        return getattr(error, attribute) if error else inf

    return key


def written_format(row: TensorRun) -> str:
    """The format that the tensor has, or will have."""
    return row.result.format if row.result else row.format


def _state_icon(row: TensorRun) -> QIcon:
    return icon(*STATE_ICONS[row.state])


def run_columns() -> tuple[Column, ...]:
    """Rows are `TensorRun`."""

    def count(rows: Sequence[TensorRun]) -> str:
        done = sum(r.result is not None for r in rows)
        return f"{units.format_count(done)} of {units.format_count(len(rows))} tensors"

    def written(row: TensorRun) -> int:
        return row.result.bytes if row.result else 0

    return (
        Column("Tensor", lambda r: r.name, lambda r: natural_key(r.name), term="tensor", mono=True, total=count),
        Column("State", lambda r: r.state, icon=_state_icon),
        Column("Format", written_format, term="format", tooltip=written_format),
        Column("SNR (dB)", snr_text, _error_key("snr_db"), number=True, term="SNR"),
        Column("Max error", max_error_text, _error_key("max_error"), number=True, term="max error"),
        Column(
            "MB",
            lambda r: megabytes(written(r)) if r.result else "–",
            written,
            number=True,
            term="MB",
            tooltip=lambda r: _bytes_tooltip(written(r) if r.result else r.planned_bytes),
            total=lambda rows: megabytes(sum(map(written, rows))),
        ),
    )
