"""One tensor in a page: heat map, profiles, distribution with the format's levels, error."""

from __future__ import annotations

from html import escape

import numpy as np

from core.inspect.figures import Curve, Mark, distribution, heat_map, number, profile
from core.inspect.html_parts import figure, heat_figure, table
from core.inspect.outliers import OutlierChannel
from core.inspect.report import TensorReport
from core.inspect.statistics import ChannelStats, magnitude_edges
from core.units import format_bytes, format_count, format_decibels, format_percent

MARKS = 12  # outlier channels that are marked in a profile
_DARKEST = 0.01  # share of a heat map's cells that may all have the darkest colour


def tensor_section(t: TensorReport) -> str:
    """Headed by the tensor's name."""
    s, name = t.statistics, t.tensor.name
    shape = " × ".join(f"{format_count(n)}" for n in t.tensor.shape)
    which = f", expert {t.expert}" if t.expert is not None else ""
    facts = [
        f"{shape} of {t.tensor.dtype}{which}",
        f"range {number(s.amax)}",
        f"99.9th percentile {number(s.p999)}",
        f"outlier ratio {number(s.outlier_ratio)}",
        f"standard deviation {number(s.std)}",
        f"kurtosis {number(s.kurtosis)}",
        f"{format_count(s.zeros)} zeros",
    ]
    if s.nonfinite:
        facts.append(f'<span class="bad">{format_count(s.nonfinite)} NaN or infinite</span>')
    parts = [f"<h3>{escape(name)}</h3><p>{'; '.join(facts)}.</p>", _quantized(t)]
    if t.cells.size:
        parts.append(
            heat_figure(
                heat_map(t.cells, _DARKEST),
                f"Heat map of the magnitudes of {name}",
                f"Each of {format_count(t.cells.shape[0])} × {format_count(t.cells.shape[1])} cells is the "
                f"largest |w| in it; rows are output "
                "channels, columns are input channels.",
                "weight units",
            )
        )
    for stats, what in ((s.columns, "Input channels (columns)"), (s.rows, "Output channels (rows)")):
        if len(stats.max) > 1:
            parts.append(_profile(name, stats, what, t.outliers))
    parts += [_outliers(t), _distribution(t), _error(t)]
    return "".join(parts)


def _quantized(t: TensorReport) -> str:
    if t.plan is None:
        return ""
    text = f"In the plan: {t.plan.format_name}, {format_bytes(t.plan.bytes.total)} ({t.plan.reason})."
    if t.error is not None:
        text += f" Error: SNR {format_decibels(t.error.stats.snr_db)}, at most {number(t.error.stats.max_error)}."
    elif t.problem:
        text += f" {t.problem}"
    return f"<p>{escape(text)}</p>"


def _profile(name: str, stats: ChannelStats, what: str, outliers: tuple[OutlierChannel, ...]) -> str:
    curves = [Curve("largest", stats.max, 1), Curve("RMS", stats.rms, 0), Curve(stats.median_name, stats.median, 2)]
    marks = [
        Mark(
            c.index, c.max, f"channel {format_count(c.index)}: {number(c.max)}, {number(c.ratio)} × the median channel"
        )
        for c in outliers
        if c.axis == stats.axis
    ][:MARKS]
    picture = profile(f"{what} of {name}: largest, RMS and median of |w|", curves, marks)
    return figure(picture, f"{what}: |w| in weight units, logarithmic. Circles mark outlier channels.")


def _outliers(t: TensorReport) -> str:
    title, chosen = t.channels(16)
    rows = [(c.axis, format_count(c.index), number(c.max), number(c.rms), f"{number(c.ratio)} ×") for c in chosen]
    return table(("Axis", "Channel", "Largest |w|", "RMS", "Times the median channel"), rows, title, (1, 2, 3, 4))


def _distribution(t: TensorReport) -> str:
    levels, used, text = np.zeros(0), np.zeros(0, bool), "Magnitudes of the values, by eighths of an octave."
    if t.grid is not None:
        sizes = np.abs(t.grid.levels)
        order = np.flatnonzero(sizes > 0)
        levels, used = sizes[order], np.asarray(t.grid.counts)[order] > 0
        text += (
            f" Below: the {format_count(len(t.grid.levels))} levels of {t.grid.format} in one group "
            f"({t.group}), of which "
            f"{format_percent(t.grid.used, 0)} are used there."
        )
    inner = t.statistics.histogram[1:-1]
    picture = distribution(f"Distribution of |w| of {t.tensor.name}", magnitude_edges(), inner, levels, used)
    return figure(picture, text)


def _error(t: TensorReport) -> str:
    if t.error is None or not np.nanmax(t.error.cells, initial=0.0) > 0:
        return ""
    name = t.tensor.name
    parts = [
        heat_figure(
            heat_map(t.error.cells, _DARKEST),
            f"Heat map of the error of {name} in {t.error.format}",
            "Largest |w − ŵ| in each cell, ŵ being what is read back.",
            "weight units",
        )
    ]
    for channels, what in ((t.error.columns, "Input channels"), (t.error.rows, "Output channels")):
        if len(channels.rms) > 1:
            curves = [Curve("largest error", channels.max, 1), Curve("RMS error", channels.rms, 0)]
            parts.append(figure(profile(f"{what} of {name}: error", curves), f"{what}: |w − ŵ| in weight units."))
    return "".join(parts)
