"""Labels of logarithmic axes. pyqtgraph's own mix 0.01 with 10²."""

from __future__ import annotations

from collections.abc import Sequence

_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def powers_of_ten(values: Sequence[float], _scale: float, _spacing: float) -> list[str]:
    """Only whole powers are labelled, as 10²: for axes over many decades."""
    whole = [round(v) if abs(v - round(v)) < 1e-6 else None for v in values]
    return ["" if power is None else "10" + str(power).translate(_SUPERSCRIPT) for power in whole]


def plain_numbers(values: Sequence[float], _scale: float, _spacing: float) -> list[str]:
    """1, 2, 5 and their tens are labelled as they are: for axes over one to three decades."""
    labels = []
    for value in values:
        number = 10.0**value
        first = f"{number:.3e}"[:5]
        labels.append(f"{float(f'{number:.3g}'):g}" if first in ("1.000", "2.000", "5.000") else "")
    return labels
