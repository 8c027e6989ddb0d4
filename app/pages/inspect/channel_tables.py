"""Columns of the tables that rank channels: by how far they stand out, and by their error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.models.table import Column
from core.units import format_count, format_decimals, format_number, format_percent

if TYPE_CHECKING:
    from core.inspect.error_map import ErrorChannel
    from core.inspect.outliers import OutlierChannel


def _figure(value: float) -> str:
    return format_decimals(value, 5) if value >= 1e-3 or value == 0 else format_number(value, 3)


def _channel_text(row: OutlierChannel | ErrorChannel) -> str:
    return f"{'row' if row.axis == 'output' else 'column'} {format_count(row.index)}"


def _axis_key(row: OutlierChannel | ErrorChannel) -> tuple[str, int]:
    return row.axis, row.index


def _share(row: ErrorChannel) -> str:
    return format_percent(row.share, 2)


def weight_columns(threshold: float) -> tuple[Column, ...]:
    """Rows are OutlierChannel. threshold: the ratio from which a channel is marked."""
    return (
        Column("Channel", _channel_text, _axis_key, term="channel"),
        Column(
            "× median",
            lambda r: format_decimals(r.ratio, 1),
            lambda r: r.ratio,
            number=True,
            term="outlier channel",
            role=lambda r: "warning" if r.ratio >= threshold else "",
            tooltip=lambda r: (
                f"The largest weight here is {format_decimals(r.ratio, 1)} × the median of all {r.axis} "
                f"channels' largest" + (": an outlier" if r.ratio >= threshold else "")
            ),
        ),
        Column("Max |w|", lambda r: _figure(r.max), lambda r: r.max, number=True, term="range"),
        Column("RMS", lambda r: _figure(r.rms), lambda r: r.rms, number=True, term="RMS"),
    )


def error_columns() -> tuple[Column, ...]:
    """Rows are ErrorChannel."""
    return (
        Column("Channel", _channel_text, _axis_key, term="channel"),
        Column("Share", _share, lambda r: r.share, number=True, term="share of the error"),
        Column("Max error", lambda r: _figure(r.max), lambda r: r.max, number=True, term="max error"),
        Column("RMS error", lambda r: _figure(r.rms), lambda r: r.rms, number=True, term="RMS error"),
    )
