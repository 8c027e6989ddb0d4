"""Figures of many tokens with a standard error each, from windows of text.

Tokens of one window depend on each other, windows hardly: so the error of a mean is that of the mean of the windows'
means, s / √W with s² = Σ(mᵢ − m)² / (W − 1). Every window has as many scored tokens, so that mean is the tokens' own.
Percentiles have no such formula: theirs is the standard deviation over `RESAMPLES` draws of W windows with
replacement (bootstrap), of a fixed seed. One window alone has no standard error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RESAMPLES = 200
SEED = 1


@dataclass(frozen=True)
class Figure:
    """error: one standard error; None where there is none (one window, a maximum)."""

    value: float
    error: float | None = None

    def scaled(self, factor: float) -> Figure:
        return Figure(self.value * factor, None if self.error is None else self.error * abs(factor))


def mean(values: np.ndarray) -> Figure:
    """values: [windows, tokens]."""
    means = values.mean(axis=1, dtype=np.float64)
    count = len(means)
    return Figure(float(means.mean()), float(means.std(ddof=1)) / math.sqrt(count) if count > 1 else None)


def through(figure: Figure, function: Callable[[float], float], slope: float) -> Figure:
    """function of a figure whose derivative there is `slope` (delta method)."""
    return Figure(function(figure.value), None if figure.error is None else figure.error * abs(slope))


def exponential(figure: Figure) -> Figure:
    """exp(figure): a perplexity from a mean −log P, a ratio of two from the mean of their difference."""
    value = math.exp(min(figure.value, 700.0))  # float64 ends at e^709
    return through(figure, lambda _: value, value)


def root_mean_square(values: np.ndarray) -> Figure:
    """√ of the mean of squares; values: [windows, tokens]."""
    squares = mean(np.square(values, dtype=np.float64))
    root = math.sqrt(squares.value)
    return through(squares, lambda _: root, 0.5 / root if root else 0.0)


def percentiles(values: np.ndarray, percents: tuple[float, ...], resamples: int = RESAMPLES) -> tuple[Figure, ...]:
    """Of all tokens, linear between neighbours; values: [windows, tokens], percents: 0 … 100."""
    found = np.percentile(values, percents)
    if len(values) < 2 or resamples < 2:
        return tuple(Figure(float(v)) for v in found)
    draws = np.random.default_rng(SEED).integers(0, len(values), (resamples, len(values)))
    errors = np.std([np.percentile(values[draw], percents) for draw in draws], axis=0, ddof=1)
    return tuple(Figure(float(v), float(e)) for v, e in zip(found, errors, strict=True))
