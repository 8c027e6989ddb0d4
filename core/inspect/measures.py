"""The measures that a model's map is coloured by: what each is called, in which unit, and on what scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from core.units import format_decibels, format_number, format_percent


class Measure(Enum):
    """What the map shows; `SurveyRow.measure` gives the number."""

    RANGE = "range"  # amax, weight units
    OUTLIER_RATIO = "outlier ratio"  # amax / p999
    KURTOSIS = "kurtosis"  # 3 for a normal distribution
    PREDICTED_SNR = "predicted SNR"  # dB, in the plan's format; larger is better
    PREDICTED_ERROR = "predicted error"  # nRMSE, ‖W−Ŵ‖/‖W‖, 0 … 1
    FINER_GAIN = "gain by finer scales"  # dB of SNR


_SHARES = (Measure.PREDICTED_ERROR,)
_DECIBELS = (Measure.PREDICTED_SNR, Measure.FINER_GAIN)


@dataclass(frozen=True)
class MapMeasure:
    """title: heading, chooser, glossary. axis: on the colour bar, with its unit. unit: behind a number, '' for none.

    log: colours in even steps of the logarithm. falling: small numbers are the worrying, bright ones. definition: one
    sentence. of_format: belongs to a format, not to the weights alone.
    """

    measure: Measure
    title: str
    axis: str
    unit: str
    definition: str
    log: bool = True
    falling: bool = False

    @property
    def of_format(self) -> bool:
        return self.measure in (*_SHARES, *_DECIBELS)

    def text(self, value: float) -> str:
        """A number of it, with its unit."""
        if self.measure in _SHARES:
            return format_percent(value, 2 if value < 0.1 else 1)
        if self.measure in _DECIBELS:
            return "exact" if math.isinf(value) and value > 0 else format_decibels(value)
        return format_number(value, 3)


MEASURES = (
    MapMeasure(
        Measure.OUTLIER_RATIO, "Outlier ratio", "outlier ratio", "×",
        "The largest |w| over the 99.9th percentile of |w|.",
    ),
    MapMeasure(Measure.RANGE, "Range", "largest |w|", "weight units", "The largest |w| of the tensor."),
    MapMeasure(
        Measure.KURTOSIS, "Kurtosis", "kurtosis", "",
        "Fourth central moment over the squared variance; 3 for a normal distribution.",
    ),
    MapMeasure(
        Measure.PREDICTED_SNR, "Predicted SNR", "SNR, dB", "dB", "10·log10(Σw² / Σ(w−ŵ)²) in the planned format.",
        log=False, falling=True,
    ),
    MapMeasure(
        Measure.PREDICTED_ERROR, "Predicted error", "error, % of |w|", "of ‖w‖",
        "√(Σ(w−ŵ)² / Σw²) in the planned format.",
    ),
    MapMeasure(
        Measure.FINER_GAIN, "Gain by finer scales", "gain, dB", "dB",
        "SNR gained by groups of 32, or half as long where they are that short.", log=False,
    ),
)  # fmt: skip
