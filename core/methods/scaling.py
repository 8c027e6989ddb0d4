"""Transforms that scale the channels of inputs, one input after the other, wherever a scale can be folded."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

import numpy as np

from core.formats.numbers import Numbers
from core.methods.folding import Fold, folds
from core.methods.transform import BlockWeights, InputStatistics
from core.models.config import DecoderConfig
from core.progress import CancelToken
from kernels.rotation import Rotation

QUANTIZING = 128  # multiply-adds that take as long as the choice of one code, about
RATE = 3e10  # multiply-adds a second of one core with AVX2, about


class ScalesFolds(ABC):
    """What is alike in them: nothing but gains and matrices of blocks changes, in models of every kind."""

    needs_statistics = True

    def why_not(self, config: DecoderConfig) -> str:
        return ""

    def note(self, config: DecoderConfig) -> str:
        return ""

    def unties(self, config: DecoderConfig) -> bool:
        return False

    def rotated(self, config: DecoderConfig, names: Iterable[str]) -> Mapping[str, Rotation]:
        return {}

    def outer(  # noqa: B027 - some have nothing to do there
        self, config: DecoderConfig, weights: BlockWeights, token: CancelToken
    ) -> None:
        """Nothing: the head's input is not scaled."""

    def block(
        self,
        config: DecoderConfig,
        layer: int,
        weights: BlockWeights,
        statistics: Mapping[str, InputStatistics],
        numbers: Mapping[str, Numbers],
        token: CancelToken,
    ) -> Mapping[str, InputStatistics]:
        after = dict(statistics)
        for fold in folds(config, layer, weights):
            scale = self.scale(fold, weights, after, numbers, token)
            if scale is None:
                continue
            wide = fold.apply(weights, scale, token)
            after |= {name: after[name].divided(wide) for name in fold.consumers if name in after}
        return after

    @abstractmethod
    def scale(
        self,
        fold: Fold,
        weights: BlockWeights,
        statistics: Mapping[str, InputStatistics],
        numbers: Mapping[str, Numbers],
        token: CancelToken,
    ) -> np.ndarray | None:
        """float32 [C]; None where none is better than 1 everywhere, no token came, nothing is quantized, or the
        producer would suffer, because its rows share a scale."""


def input_columns(config: DecoderConfig) -> int:
    """Of all inputs of a block that are scaled."""
    width = config.expert_intermediate if config.experts else config.intermediate
    return 2 * config.hidden + config.heads * config.head_dim + max(1, config.experts) * width
