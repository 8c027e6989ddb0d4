"""SmoothQuant: outliers of activations are moved into the weights, so that both fit 8 bits.

Xiao et al., "SmoothQuant" (2022): channel j of the input is divided by sⱼ = max|xⱼ|^α / max|wⱼ|^(1−α) and column j of
the weights multiplied with it. α is given, or searched for the least error of the layer's output with both rounded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from core.formats.base import EncodeOptions, Method
from core.formats.float4 import Float4
from core.formats.float8 import Float8
from core.formats.numbers import Integers, Numbers
from core.methods.folding import Fold, input_of, scaled
from core.methods.grid import quantized, valued
from core.methods.looks import ROWS, Look, looks, product_energy
from core.methods.scaling import QUANTIZING, RATE, ScalesFolds, input_columns
from core.methods.transform import SAMPLE_ROWS, BlockWeights, InputStatistics
from core.models.config import DecoderConfig
from core.progress import CancelToken
from core.threads import worker_count

_ALPHAS = tuple(i / 10 for i in range(1, 10))
_PIECE = 4 << 20  # values between two looks at the token


@dataclass(frozen=True)
class SmoothQuant(ScalesFolds):
    """alpha: 0 … 1, how much of the difficulty the weights take; None: searched, each input on its own.

    An input whose output has a smaller error as it is stays as it is.
    """

    alpha: float | None = None
    method: Method = Method.SEARCH
    enough_tokens: ClassVar[int | None] = None  # one of them has the largest value

    def seconds_for(self, config: DecoderConfig, tokens: int) -> float:
        """It does not depend on the text: the error is looked at for a sample of tokens."""
        work = (1 + len(self._alphas)) * input_columns(config) * ROWS * (SAMPLE_ROWS + QUANTIZING)
        return config.layers * work / RATE

    @property
    def _alphas(self) -> tuple[float, ...]:
        return _ALPHAS if self.alpha is None else (self.alpha,)

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
        seen = looks(fold.consumers, weights, statistics, numbers)
        if known is None or not seen or (producer is not None and producer.tile != 1):
            return None
        sizes = [largest_of_columns(weights.matrices[n], token) for n in fold.consumers if n in numbers]
        x = fold.channels(known.max_abs, largest=True)
        w = fold.channels(np.max(sizes, axis=0), largest=True)
        wanted = []
        for look in seen:
            token.check()
            wanted.append(look.sample @ look.weight.T)

        def error(scale: np.ndarray) -> float:
            wide = fold.columns(scale)
            return sum(self._error(*both, wide, token) for both in zip(seen, wanted, strict=True))

        best, least = None, error(np.ones_like(x))
        for alpha in self._alphas:
            scale = smoothing(x, w, alpha)
            lost = error(scale)
            if lost < least:
                best, least = scale, lost
        return best

    def _error(self, look: Look, wanted: np.ndarray, scale: np.ndarray, token: CancelToken) -> float:
        """Σ over tokens and rows of the squared change of the output, float32 [R, N] as `wanted`."""
        token.check()
        weight = scaled(look.weight, scale, token)
        amax = float(largest_of_columns(weight, token).max(initial=0.0))
        options = EncodeOptions(self.method, amax=amax, threads=worker_count())
        weight = valued(look.numbers, quantized(look.numbers, weight, options, token), token)
        largest = float((look.statistics.max_abs / scale).max(initial=0.0))
        given = rounded_inputs(look.sample / scale, look.numbers, largest)
        return look.factor * product_energy(given, weight, token, less=wanted)


def largest_of_columns(weight: np.ndarray, token: CancelToken) -> np.ndarray:
    """Of |w|, float32 [N, K] → [K]."""
    found = np.zeros(weight.shape[1], np.float32)
    step = max(1, _PIECE // weight.shape[1])
    for start in range(0, len(weight), step):
        token.check()
        np.maximum(found, np.abs(weight[start : start + step]).max(axis=0), out=found)
    return found


def smoothing(x_max: np.ndarray, w_max: np.ndarray, alpha: float) -> np.ndarray:
    """float32 [C]: x_max^α / w_max^(1 − α); 1 for channels that are never used, or that no weight reads."""
    dead = (x_max <= 0) | (w_max <= 0)
    x, w = np.where(dead, 1, x_max).astype(np.float64), np.where(dead, 1, w_max).astype(np.float64)
    scale = x**alpha / w ** (1 - alpha)
    return np.where(dead, 1, np.clip(scale, 2.0**-20, 2.0**20)).astype(np.float32)


def rounded_inputs(x: np.ndarray, numbers: Numbers, largest: float) -> np.ndarray:
    """Activations float32 [R, K] as a runtime rounds them that meets weights of these numbers.

    Integers: 8 bits, a scale for each token. 8-bit floats: one scale, of the text's largest |x|, where the weights have
    one; else a scale for each token, or for its groups where the weights have groups. 4-bit floats: in their groups.
    Others are not rounded.
    """
    if isinstance(numbers, Integers):
        step = np.abs(x).max(axis=1, keepdims=True) / np.float32(127)
        return np.rint(x / np.where(step > 0, step, 1)) * step
    if isinstance(numbers, Float8):
        numbers = replace(numbers, height=min(1, numbers.height))
    elif not isinstance(numbers, Float4):
        return x
    return numbers.values(numbers.quantize(x, EncodeOptions(Method.ROUND, amax=largest)))
