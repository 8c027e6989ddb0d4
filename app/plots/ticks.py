"""Numbers on axes, written as everywhere else: pyqtgraph's own mix 0.01 with 10² and 1e+03."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from core.units import format_decimals, format_number

if TYPE_CHECKING:
    import pyqtgraph


def write_numbers(axis: pyqtgraph.AxisItem) -> None:
    """Let an axis write its numbers in the program's style, whichever scale it has."""

    def labels(values: Sequence[float], scale: float, spacing: float) -> list[str]:
        if axis.logMode:
            return powers_of_ten(values, scale, spacing)
        return linear_labels([v * scale for v in values], spacing * scale)

    axis.tickStrings = labels


def linear_labels(values: Sequence[float], spacing: float) -> list[str]:
    """Numbers that far apart, all with as many decimals as their distance needs."""
    decimals = max(0, -math.floor(math.log10(spacing) + 1e-9)) if spacing > 0 else 0
    if decimals > 5:
        return [format_number(v) for v in values]
    return [format_decimals(v, decimals) for v in values]


def powers_of_ten(values: Sequence[float], _scale: float, _spacing: float) -> list[str]:
    """Only whole powers are labelled: for axes over many decades. values: logarithms."""
    whole = [round(v) if abs(v - round(v)) < 1e-6 else None for v in values]
    return ["" if power is None else format_number(10.0**power) for power in whole]


def set_plain_ticks(axis: pyqtgraph.AxisItem, low: float, high: float) -> None:
    """Label an axis in logarithms over one to three decades: 1, 2, 5 and their tens. low, high: values."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    steps = (1, 2, 5) if last - first < 6 else (1,)
    numbers = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    axis.setTicks([[(math.log10(number), format_number(number)) for number in numbers]])
