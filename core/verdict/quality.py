"""The figures of an artifact against its source over one text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from core.metrics.divergence import TokenFigures
from core.metrics.windows import RESAMPLES, Figure, exponential, mean, percentiles, root_mean_square

PERCENTS = (50.0, 90.0, 95.0, 99.0, 99.9)


@dataclass(frozen=True)
class Quality:
    """Over windows × tokens scored tokens. KL(source ‖ artifact) in nats; rates are shares, 0 … 1.

    flips: share of tokens whose likeliest next token is another one; agreement is 1 − flips. delta: of the right
    token's probability, artifact less source, mean and root mean square. ratio: the artifact's perplexity ÷ the
    source's, from the mean difference of the same tokens, so that its error is smaller than that of either.
    """

    windows: int
    tokens: int
    kl_mean: Figure
    kl_median: Figure
    kl_p90: Figure
    kl_p95: Figure
    kl_p99: Figure
    kl_p999: Figure
    kl_max: Figure
    agreement: Figure
    flips: Figure
    delta_mean: Figure
    delta_rms: Figure
    perplexity_source: Figure
    perplexity: Figure
    perplexity_ratio: Figure

    @staticmethod
    def of(windows: list[TokenFigures], resamples: int = RESAMPLES) -> Quality:
        """One TokenFigures a window, all of one length. resamples: 0 leaves percentiles without errors, quickly."""
        kl, source, artifact, same, delta = (
            np.stack([getattr(w, name) for w in windows]) for name in ("kl", "nll_source", "nll", "same_top", "delta")
        )
        median, p90, p95, p99, p999 = percentiles(kl, PERCENTS, resamples)
        agreement = mean(same)
        return Quality(
            windows=len(kl),
            tokens=int(kl.shape[1]),
            kl_mean=mean(kl),
            kl_median=median,
            kl_p90=p90,
            kl_p95=p95,
            kl_p99=p99,
            kl_p999=p999,
            kl_max=Figure(float(kl.max())),
            agreement=agreement,
            flips=Figure(1 - agreement.value, agreement.error),
            delta_mean=mean(delta),
            delta_rms=root_mean_square(delta),
            perplexity_source=exponential(mean(source)),
            perplexity=exponential(mean(artifact)),
            perplexity_ratio=exponential(mean(artifact - source)),
        )

    def to_dict(self) -> dict[str, Any]:
        """{'kl_mean': {'value': …, 'error': …}, …}."""
        found: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            found[f.name] = {"value": value.value, "error": value.error} if isinstance(value, Figure) else value
        return found
