"""The next token from logits: the definition of every setting, in float64."""

from __future__ import annotations

import math

import numpy as np

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15  # 2⁶⁴ / φ, SplitMix64's increment


def _mix(z: int) -> int:
    """The mixing function of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014)."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _WORD
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _WORD
    return z ^ z >> 31


def uniform(seed: int, step: int) -> float:
    """The number in [0, 1) that decides draw `step` of `seed`: the top 53 bits of mix(mix(seed + g) + (step + 1) · g).

    No state is carried along, so any draw can be repeated alone. g is SplitMix64's increment; arithmetic is modulo 2⁶⁴.
    """
    return (_mix(_mix((seed + _GOLDEN) & _WORD) + (step + 1) * _GOLDEN & _WORD) >> 11) * 2.0**-53


def sample(
    logits: np.ndarray,
    previous: np.ndarray,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    repetition: float,
    seed: int,
    step: int,
) -> int:
    """See `kernels.engine.sample`."""
    values = np.where(np.isnan(logits), np.float32(-np.inf), logits.astype(np.float32))
    if repetition != 1.0:
        seen = np.unique(previous)
        seen = seen[(seen >= 0) & (seen < len(values))]
        factor = np.float32(repetition)
        values[seen] = np.where(values[seen] > 0, values[seen] / factor, values[seen] * factor)
    largest = values.max(initial=-np.inf)
    if not math.isfinite(largest):
        raise ValueError("the logits have no finite largest value")
    if temperature <= 0:
        return int(np.argmax(values))
    share = np.exp((values.astype(np.float64) - float(largest)) / temperature)
    order = np.lexsort((np.arange(len(values)), -values))  # most likely first, lower tokens first among equals
    if 0 < top_k < len(order):
        order = order[:top_k]
    if top_p < 1:
        sums = np.cumsum(share[order])
        order = order[: np.searchsorted(sums, top_p * sums[-1]) + 1]
    kept = np.sort(order[share[order] >= min_p])
    sums = np.cumsum(share[kept])
    drawn = int(np.searchsorted(sums, uniform(seed, step) * sums[-1], side="right"))
    return int(kept[min(drawn, len(kept) - 1)])
