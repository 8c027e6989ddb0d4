"""Columns of the tables that rank channels: by how far they stand out, and by their share of the error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from app.models.table import Column
from core.units import format_count, format_percent

if TYPE_CHECKING:
    from core.inspect.error_map import ChannelError, ErrorMap
    from core.inspect.outliers import OutlierChannel

MOST = 50  # channels of an axis


@dataclass(frozen=True)
class ErrorChannel:
    """axis: 'output' or 'input'. snr-like figures of one channel, weight units; share of the squared error, 0 … 1."""

    axis: str
    index: int
    max: float
    rms: float
    share: float


def ranked_errors(found: ErrorMap) -> tuple[ErrorChannel, ...]:
    """The channels of both axes with the largest error beside a middling one, as a ratio; largest first."""
    rows: list[tuple[float, ErrorChannel]] = []
    for errors in (found.rows, found.columns):
        seen = np.nan_to_num(errors.max, nan=0.0)
        middle = float(np.median(seen[seen > 0])) if (seen > 0).any() else 1.0
        worst = [int(i) for i in np.argsort(-seen, kind="stable")[:MOST] if seen[i] > 0]
        rows += [(float(seen[i]) / middle, _channel(errors, i)) for i in worst]
    rows.sort(key=lambda pair: -pair[0])
    return tuple(channel for _, channel in rows)


def _channel(errors: ChannelError, index: int) -> ErrorChannel:
    return ErrorChannel(
        errors.axis, index, float(errors.max[index]), float(errors.rms[index]), float(errors.share[index])
    )


def _figure(value: float) -> str:
    return f"{value:.5f}" if value >= 1e-3 or value == 0 else f"{value:.2e}"


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
            lambda r: "∞" if math.isinf(r.ratio) else f"{r.ratio:.1f}",
            lambda r: r.ratio,
            number=True,
            term="outlier channel",
            role=lambda r: "warning" if r.ratio >= threshold else "",
            tooltip=lambda r: (
                f"The largest weight here is {r.ratio:.1f} × the median of all {r.axis} channels' largest"
                + (": an outlier" if r.ratio >= threshold else "")
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
