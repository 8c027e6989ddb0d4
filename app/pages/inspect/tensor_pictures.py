"""What the Tensor view's plots show of a reply: pictures, profiles and the distribution."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from app.plots.colors import ERRORS
from app.plots.distribution import Distribution, Levels
from app.plots.heat_map import CellsMatrix, HeatPicture
from app.plots.profiles import Profile
from core.units import format_count, format_percent

if TYPE_CHECKING:
    from app.jobs.inspect import FormatReply, TensorReply
    from core.inspect.error_map import ErrorMap

LEVEL_NAMES = (
    ("levels: largest |w|", "What codes of the group with the largest weight can stand for; grey ones are not used"),
    ("levels: typical group", "What codes of a middling row's group can stand for; grey ones are not used"),
)


def short_name(name: str) -> str:
    """Without what all names have in common: 'layers.3.mlp.down_proj'."""
    return name.removeprefix("model.").removesuffix(".weight")


def weights_picture(name: str, reply: TensorReply) -> HeatPicture:
    lost = reply.statistics.nonfinite
    note = f"{format_count(lost)} values are not finite (NaN or Inf), drawn in red." if lost else ""
    return HeatPicture(f"|w| of {short_name(name)}", reply.pyramid, top=reply.statistics.amax, note=note)


def error_picture(name: str, found: ErrorMap) -> HeatPicture:
    """Of the rows that are quantized so far."""
    matrix = CellsMatrix(found.cells, found.row_edges, found.column_edges)
    seen = "" if found.done >= 1 else f"So far {format_percent(found.done, 0)} of the rows are quantized."
    title = f"|error| of {short_name(name)} in {found.format}"
    return HeatPicture(title, matrix, "|error|", ERRORS, True, found.stats.max_error, seen)


def weights_profile(title: str, axis: str, reply: TensorReply) -> Profile:
    """With the line from which a channel is an outlier."""
    from core.inspect.outliers import THRESHOLD

    stats = reply.statistics.columns if axis == "input" else reply.statistics.rows
    lines = (("max", stats.max), ("RMS", stats.rms), (stats.median_name, stats.median))
    outliers = tuple(c.index for c in reply.outliers if c.axis == axis)
    level = THRESHOLD * (float(np.median(stats.max)) if len(stats.max) else 0.0)
    return Profile(title, axis, "|w|", lines, outliers, level, f"{THRESHOLD:.0f} × the median of max")


def error_profile(title: str, axis: str, found: ErrorMap) -> Profile:
    errors = found.columns if axis == "input" else found.rows
    return Profile(title, axis, "|error|", (("max", errors.max), ("RMS", errors.rms)))


def distribution_of(name: str, reply: TensorReply, made: FormatReply | None) -> Distribution:
    """made: what the format under inspection makes of the tensor, None until it is there."""
    from core.inspect.statistics import magnitude_edges

    s = reply.statistics
    title = f"Distribution of {short_name(name)}"
    if made is None or not made.quantized:
        return Distribution(title, magnitude_edges(), s.histogram[1:-1], s.zeros, s.nonfinite)
    levels = tuple(
        Levels(words, one.levels, one.used, hint)
        for (words, hint), one in zip(LEVEL_NAMES, made.levels, strict=False)
        if len(one.levels)
    )
    after = made.requantized
    return Distribution(
        title, magnitude_edges(), s.histogram[1:-1], s.zeros, s.nonfinite, after.after, made.format, after.zeros_after,
        after.share, levels,
    )  # fmt: skip
