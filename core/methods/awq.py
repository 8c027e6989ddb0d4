"""Activation-aware weight quantization: channels that carry large inputs are enlarged before the weights are rounded.

Lin et al., "AWQ: Activation-aware Weight Quantization" (2023). The scale of channel j is x̄ⱼ^α · w̄ⱼ^β, x̄ the mean |x|
and w̄ the mean |w| as a share of its group's largest; the paper's two variants are β = 0 and β = α − 1. Here α and β are
searched for the least error of the layer's output.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from core.formats.base import EncodeOptions, Method
from core.formats.numbers import Numbers
from core.methods.folding import Fold, input_of, scaled
from core.methods.grid import quantized, valued
from core.methods.looks import ROWS, Look, looks, product_energy
from core.methods.scaling import QUANTIZING, RATE, ScalesFolds, input_columns
from core.methods.transform import SAMPLE_ROWS, BlockWeights, InputStatistics
from core.models.config import DecoderConfig
from core.progress import CancelToken
from core.threads import worker_count

_STEPS = (0.25, 0.125, 0.0625)  # of α and β, one after the other
_START = (0.5, 0.0)
_TRIED = 12  # scales, about; known ones are not tried again


@dataclass(frozen=True)
class Awq(ScalesFolds):
    """method: that chooses the numbers afterwards, which the search then does too; weighted: that it weighs a column's
    squared error by the mean square of its input."""

    method: Method = Method.SEARCH
    weighted: bool = True
    enough_tokens: ClassVar[int | None] = 4096  # for means

    def seconds_for(self, config: DecoderConfig, tokens: int) -> float:
        """It does not depend on the text: the error is looked at for a sample of tokens."""
        work = _TRIED * input_columns(config) * ROWS * (SAMPLE_ROWS + QUANTIZING)
        return config.layers * work / RATE

    def scale(
        self,
        fold: Fold,
        weights: BlockWeights,
        statistics: Mapping[str, InputStatistics],
        numbers: Mapping[str, Numbers],
        token: CancelToken,
    ) -> np.ndarray | None:
        producer = numbers.get(fold.producer)
        known = input_of(fold, statistics)
        if known is None or (producer is not None and producer.tile != 1):
            return None
        seen = looks(fold.consumers, weights, statistics, numbers)
        if not seen:
            return None
        x = _logarithm(fold.channels(known.mean_abs))
        w = _logarithm(fold.channels(np.mean([_shares(look, token) for look in seen], axis=0)))
        squares = [np.mean(np.square(look.sample), axis=0) for look in seen]
        found: dict[tuple[float, float], float] = {}

        def error(at: tuple[float, float]) -> float:
            if at not in found:
                scale = fold.columns(_scale(x, w, at))
                found[at] = sum(self._error(*both, scale, token) for both in zip(seen, squares, strict=True))
            return found[at]

        best = _descend(error)
        return _scale(x, w, best) if error(best) < error((0.0, 0.0)) else None

    def _error(self, look: Look, square: np.ndarray, scale: np.ndarray, token: CancelToken) -> float:
        """Σ over tokens and rows of the squared change of the output. square: float32 [K], mean over tokens of x²."""
        token.check()
        given = scaled(look.weight, scale, token)
        importance = square / scale**2 if self.weighted and self.method is Method.SEARCH else None
        amax = float(np.abs(given).max(initial=0.0))
        options = EncodeOptions(self.method, importance=importance, amax=amax, threads=worker_count())
        codes = quantized(look.numbers, given, options, token)
        change = valued(look.numbers, codes, token) - given
        return look.factor * product_energy(look.sample, change / scale, token)


def _shares(look: Look, token: CancelToken) -> np.ndarray:
    """float32 [K]: the mean over rows of |w| over its group's largest."""
    token.check()
    weight, group = look.weight, look.numbers.group
    size = group if group and weight.shape[1] % group == 0 else weight.shape[1]
    sizes = np.abs(weight).reshape(len(weight), -1, size)
    largest = sizes.max(axis=2, keepdims=True)
    return np.mean(sizes / np.where(largest > 0, largest, 1), axis=0).reshape(-1)


def _logarithm(x: np.ndarray) -> np.ndarray:
    """Of figures that may be 0: those count as a thousandth of the mean."""
    return np.log(np.maximum(x, max(float(x.mean()) * 1e-3, 1e-30))).astype(np.float32)


def _scale(x: np.ndarray, w: np.ndarray, at: tuple[float, float]) -> np.ndarray:
    logs = at[0] * x + at[1] * w
    return np.exp(logs - (logs.max() + logs.min()) / 2).astype(np.float32)


def _descend(error: Callable[[tuple[float, float]], float]) -> tuple[float, float]:
    """α in 0 … 1 and β in −1 … 0 of a small error: the better of a few, then its neighbours in ever smaller steps."""
    best = min(((0.0, 0.0), _START, (0.5, -0.5)), key=error)
    for step in _STEPS:
        around = [(best[0] + a * step, best[1] + b * step) for a, b in ((-1, 0), (1, 0), (0, -1), (0, 1))]
        best = min([best, *(at for at in around if 0 <= at[0] <= 1 and -1 <= at[1] <= 0)], key=error)
    return best
