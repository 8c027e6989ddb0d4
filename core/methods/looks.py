"""A look at what quantizing does to the output of weights that share an input: some rows of each, some tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from core.formats.numbers import Numbers
from core.methods.transform import BlockWeights, InputStatistics
from core.progress import CancelToken

ROWS = 1024  # of all weights that share an input, evenly spread
_FEWEST = 16  # of each of them
_PIECE = 1 << 30  # multiply-adds between two looks at the token


@dataclass(frozen=True)
class Look:
    """weight: float32 [N, K], rows of one weight. statistics: of its input. factor: what a sum of squares over these
    rows and the sample's tokens is multiplied with, so that weights of one input add up as they do in the whole."""

    weight: np.ndarray
    statistics: InputStatistics
    numbers: Numbers
    factor: float

    @property
    def sample(self) -> np.ndarray:
        return self.statistics.sample


def looks(
    names: Iterable[str],
    weights: BlockWeights,
    statistics: Mapping[str, InputStatistics],
    numbers: Mapping[str, Numbers],
) -> list[Look]:
    """At those of the weights that will be quantized and that tokens met."""
    known = [n for n in names if n in numbers and n in statistics and statistics[n].tokens]
    most = max((statistics[n].tokens for n in known), default=1)
    rows = max(_FEWEST, ROWS // max(1, len(known)))
    found = []
    for name in known:
        weight, own = weights.matrices[name], statistics[name]
        some = weight[np.unique(np.linspace(0, len(weight) - 1, rows).astype(np.int64))]
        factor = own.tokens / most * len(weight) / len(some) / len(own.sample)
        found.append(Look(some, own, numbers[name], factor))
    return found


def product_energy(x: np.ndarray, weight: np.ndarray, token: CancelToken, less: np.ndarray | None = None) -> float:
    """Σ (x Wᵀ − less)², x float32 [R, K], weight [N, K], less [R, N] or None for 0. Raises Cancelled."""
    total, step = 0.0, max(1, _PIECE // max(1, x.size))
    for start in range(0, len(weight), step):
        token.check()
        y = x @ weight[start : start + step].T
        if less is not None:
            y -= less[:, start : start + step]
        total += float(np.vdot(y, y))
    return total
