"""What the linear layers of a model are given: per input channel the largest magnitude and the RMS over a text.

The model is never held: `core.inspect.layerwise` runs it one weight at a time. Every activation here is the input x of
a product x · Wᵀ, float32 [tokens, channels]; channel j of x meets column j of W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np

from core.runtime.arithmetic import LLM_INT8_THRESHOLD

BREAK_DB = 20.0  # an error of a hundredth of the signal's energy, a tenth of its amplitude


class Place(Enum):
    """Which input of a decoder layer it is; the values are what a person reads."""

    ATTENTION = "attention input"  # of q, k and v
    ATTENTION_OUT = "attention output"
    FFN = "feed-forward input"  # of gate and up; in a mixture of experts, of one expert's
    FFN_DOWN = "feed-forward down"
    ROUTER = "router"
    HEAD = "output head"


@dataclass(frozen=True, eq=False)
class ActivationLayer:
    """The input of one linear layer, or of several that share it (q, k and v; gate and up).

    name: of the weights by GGUF's names, 'blk.3.attn_q+attn_k+attn_v'. layer: None for the head. expert: its index, or
    None. tensors: the checkpoint's names of the weights. tokens: how many rows it had; an expert's are those that reach
    it, and where that is 0, every figure is 0 and the SNRs are NaN.
    max, rms: float32 [channels], of |x| over the tokens. weight_max: float32 [channels], the largest |w| of each input
    channel over all rows of these weights. token_max: float32 [tokens], the largest |x| of each token.
    tensor_snr_db, token_snr_db: SNR of x in int8, 10·log10(Σx² / Σ(x−x̂)²) of each token, of which the median over the
    tokens. Symmetric, nearest, scale amax / 127 of all these tokens together, or of each token.
    """

    name: str
    layer: int | None
    place: Place
    expert: int | None
    tensors: tuple[str, ...]
    tokens: int
    max: np.ndarray
    rms: np.ndarray
    weight_max: np.ndarray
    token_max: np.ndarray
    tensor_snr_db: float
    token_snr_db: float

    @property
    def channels(self) -> int:
        return len(self.max)

    @property
    def amax(self) -> float:
        return float(self.max.max(initial=0.0))

    @property
    def ratio(self) -> float:
        """Largest channel maximum over the median of all channels' maxima; inf where the median is 0 and it is not."""
        middle = float(np.median(self.max)) if self.channels else 0.0
        if middle > 0:
            return self.amax / middle
        return math.inf if self.amax > 0 else 1.0

    @property
    def breaks(self) -> bool:
        """Whether one int8 scale for the whole input breaks it: its SNR is below BREAK_DB for the median token."""
        return self.tensor_snr_db < BREAK_DB

    def share_above(self, threshold: float = LLM_INT8_THRESHOLD) -> float:
        """Share of channels with a magnitude of at least `threshold` in any token, 0 … 1: LLM.int8() keeps those."""
        return float(np.mean(self.max >= threshold)) if self.channels else 0.0


@dataclass(frozen=True)
class DepthChannel:
    """One channel of the residual stream's width, over all layers.

    max: largest |x| anywhere; layer: where that is; ratio: the largest, over the layers, of its maximum over the median
    of that layer's channel maxima; layers_above: in how many layers it reaches the threshold.
    """

    index: int
    max: float
    layer: int
    ratio: float
    layers_above: int


@dataclass(frozen=True, eq=False)
class DepthMap:
    """The classic picture: the maximum of |x| by layer and channel.

    layers: which layer each row is; values: float32 [layers, channels], NaN where a layer has no such input.
    rms: float64 [layers], of all values of a layer's input, of experts by the tokens that each was given.
    """

    place: Place
    layers: tuple[int, ...]
    values: np.ndarray
    rms: np.ndarray

    @property
    def maxima(self) -> np.ndarray:
        """The largest |x| of each layer's input."""
        return np.nanmax(self.values, axis=1) if self.values.size else np.zeros(0)

    def shares(self, threshold: float) -> np.ndarray:
        """Share of each layer's channels that reach the threshold, 0 … 1."""
        there = np.maximum(np.count_nonzero(~np.isnan(self.values), axis=1), 1)
        return np.count_nonzero(self.values >= threshold, axis=1) / there

    def outliers(self, count: int = 16, threshold: float = LLM_INT8_THRESHOLD) -> tuple[DepthChannel, ...]:
        """The channels of the largest ratio, largest first."""
        if not self.values.size:
            return ()
        middle = np.nanmedian(self.values, axis=1, keepdims=True)
        ratios = self.values / np.where(middle > 0, middle, np.float32(np.inf))
        best = np.nanmax(ratios, axis=0)
        order = np.argsort(-best, kind="stable")[:count]
        return tuple(
            DepthChannel(
                int(c),
                float(np.nanmax(self.values[:, c])),
                self.layers[int(np.nanargmax(self.values[:, c]))],
                float(best[c]),
                int((self.values[:, c] >= threshold).sum()),
            )
            for c in order
        )


@dataclass(frozen=True, eq=False)
class Activations:
    """All inputs of a model over one text, in the order of the computation. tokens: of the text, special ones included.

    cut: whether the text had more tokens than were asked for, or than the model's context.
    cache: of each decoder layer the largest |key|, as it is cached (turned by its position), and the largest |value|.
    """

    layers: tuple[ActivationLayer, ...]
    tokens: tuple[int, ...]
    cut: bool = False
    cache: tuple[tuple[float, float], ...] = ()

    @property
    def places(self) -> tuple[Place, ...]:
        """Those that this model has, in the order of the computation."""
        return tuple(dict.fromkeys(layer.place for layer in self.layers))

    def depth_map(self, place: Place) -> DepthMap:
        """Channel × layer of max |x| at a place; of experts, the largest of all of them."""
        chosen = [a for a in self.layers if a.place is place and a.layer is not None and a.tokens]
        width = max((a.channels for a in chosen), default=0)
        layers = tuple(sorted({a.layer for a in chosen if a.layer is not None}))
        values = np.full((len(layers), width), np.nan, np.float32)
        squares, tokens = np.zeros(len(layers)), np.zeros(len(layers))
        numbers = {layer: number for number, layer in enumerate(layers)}
        for a in chosen:
            number = numbers[a.layer] if a.layer is not None else 0
            row = values[number, : a.channels]
            np.fmax(row, a.max, out=row)
            squares[number] += a.tokens * float(np.mean(a.rms.astype(np.float64) ** 2))
            tokens[number] += a.tokens
        return DepthMap(place, layers, values, np.sqrt(squares / np.maximum(tokens, 1)))

    def breaking(self, minimum_db: float = BREAK_DB) -> tuple[ActivationLayer, ...]:
        """Inputs whose median token has an SNR below `minimum_db` under one int8 scale for all tokens, worst first."""
        found = [a for a in self.layers if a.tokens and a.tensor_snr_db < minimum_db]
        return tuple(sorted(found, key=lambda a: a.tensor_snr_db))

    def share_above(self, threshold: float = LLM_INT8_THRESHOLD) -> float:
        """Share of all inputs' channels with a magnitude of at least `threshold`, 0 … 1."""
        channels = sum(a.channels for a in self.layers if a.tokens)
        above = sum(int((a.max >= threshold).sum()) for a in self.layers if a.tokens)
        return above / channels if channels else 0.0
