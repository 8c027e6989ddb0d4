"""Figures of several tensors taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable

from core.progress import ErrorStats


class CombinedSnr:
    """10·log10(Σ signal / Σ noise) in dB over the tensors added that were not reproduced exactly; inf when all were.

    Each tensor's noise is n·rms², its signal noise · 10^(snr/10), so nothing has to be read again.
    """

    def __init__(self) -> None:
        self._signal = self._noise = 0.0

    def add(self, stats: ErrorStats) -> None:
        """Take one more tensor in."""
        part = stats.values * stats.rms_error**2
        if part > 0 and math.isfinite(stats.snr_db):
            self._noise += part
            self._signal += part * 10 ** (stats.snr_db / 10)

    @property
    def decibels(self) -> float:
        """Of everything added so far."""
        if self._noise > 0 and self._signal > 0:
            return 10 * math.log10(self._signal / self._noise)
        return math.inf


def combined_snr(stats: Iterable[ErrorStats]) -> float:
    """`CombinedSnr` of all of these."""
    combined = CombinedSnr()
    for s in stats:
        combined.add(s)
    return combined.decibels
