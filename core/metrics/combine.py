"""Figures of several tensors taken together."""

from __future__ import annotations

import math
from collections.abc import Iterable

from core.progress import ErrorStats


def combined_snr(stats: Iterable[ErrorStats]) -> float:
    """10·log10(Σ signal / Σ noise) in dB over all tensors that were not reproduced exactly; inf when all were.

    Each tensor's noise is n·rms², its signal noise · 10^(snr/10), so nothing has to be read again.
    """
    signal = noise = 0.0
    for s in stats:
        part = s.values * s.rms_error**2
        if part > 0 and math.isfinite(s.snr_db):
            noise += part
            signal += part * 10 ** (s.snr_db / 10)
    return 10 * math.log10(signal / noise) if noise > 0 and signal > 0 else math.inf
