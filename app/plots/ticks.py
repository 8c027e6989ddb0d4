"""Labels of logarithmic axes. pyqtgraph's own mix 0.01 with 10²."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyqtgraph

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def powers_of_ten(values: Sequence[float], _scale: float, _spacing: float) -> list[str]:
    """Only whole powers are labelled, as 10²: for axes over many decades."""
    whole = [round(v) if abs(v - round(v)) < 1e-6 else None for v in values]
    return ["" if power is None else "10" + str(power).translate(_SUPERSCRIPT) for power in whole]


def set_plain_ticks(axis: pyqtgraph.AxisItem, low: float, high: float) -> None:
    """Label an axis in logarithms over one to three decades: 1, 2, 5 and their tens, as they are. low, high: values."""
    first, last = math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1
    steps = (1, 2, 5) if last - first < 6 else (1,)
    numbers = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    axis.setTicks([[(math.log10(number), f"{number:g}") for number in numbers]])
