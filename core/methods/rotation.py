"""Rotations that spread outliers over all channels, done once in the weights, so that any program runs the file.

Ashkboos et al., "QuaRot" (2024), and Liu et al., "SpinQuant" (2024). The residual stream h becomes h R: a norm without
gains commutes with an orthogonal R, so each gain goes into the weights that follow it first. Each head's values become
v V, and the columns of the output projection take V back. What comes into the down projection follows a gate, which no
rotation commutes with: online, the projection is stored as W H, and whoever runs the model multiplies its input by H.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import ClassVar

import numpy as np

from core.formats.numbers import Numbers
from core.methods.folding import feed_forward_parts, folds
from core.methods.hadamard import Orthogonal, random_hadamard
from core.methods.transform import BlockWeights, InputStatistics
from core.models.config import DecoderConfig
from core.progress import CancelToken
from core.units import format_count
from kernels.rotation import Rotation as RunRotation

_GEMMA = ("gemma2", "gemma3")
_HEAD = 1  # added to the seed for the rotation of the heads
SHORTEST_RUN, LONGEST_RUN = 16, 1024  # values that an online rotation mixes: 1024 take 2 MB in a file
_RATE = 6e9  # multiply-adds a second of one core, with the copies around them


@dataclass(frozen=True)
class Rotation:
    """seed: of the random signs. online: the input of each down projection, too, while the model runs."""

    seed: int = 0
    online: bool = False
    needs_statistics = False
    enough_tokens: ClassVar[int | None] = 0

    def why_not(self, config: DecoderConfig) -> str:
        return why_not_online(config) if self.online else ""

    def note(self, config: DecoderConfig) -> str:
        if turns_residual(config):
            return ""
        return (
            "Norms behind each half of a layer keep the residual stream as it is; only each head's values are rotated."
        )

    def unties(self, config: DecoderConfig) -> bool:
        """The head takes the last norm's gain, which the embedding does not."""
        return turns_residual(config)

    def rotated(self, config: DecoderConfig, names: Iterable[str]) -> Mapping[str, RunRotation]:
        rotation = RunRotation.plain(run_of(config)) if self.online else None
        downs = (name for name in names if ".ffn_down." in name and name.endswith(".weight"))
        return {name: rotation for name in downs if rotation is not None}

    def seconds_for(self, config: DecoderConfig, tokens: int) -> float:
        hidden, head = self._hidden(config), self._head(config)
        queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
        width = config.expert_intermediate * config.experts if config.experts else config.intermediate
        done = config.layers * config.hidden * (queries + keys) * head.products
        if turns_residual(config):
            values = config.layers * (2 * queries + 2 * keys + 3 * width) + 2 * config.vocab
            done += values * config.hidden * hidden.products
        if self.online:
            factors = RunRotation.plain(run_of(config)).factors()
            done += config.layers * config.hidden * width * sum(len(f) for f in factors)
        return done / _RATE

    def outer(self, config: DecoderConfig, weights: BlockWeights, token: CancelToken) -> None:
        if not turns_residual(config):
            return
        turn = self._hidden(config)
        gain = weights.vectors["output_norm.weight"]
        weights.matrices["token_embd.weight"] = turn.right(weights.matrices["token_embd.weight"], token)
        weights.matrices["output.weight"] = turn.right(weights.matrices["output.weight"], token, gain)
        weights.vectors["output_norm.weight"] = np.ones_like(gain)

    def block(
        self,
        config: DecoderConfig,
        layer: int,
        weights: BlockWeights,
        statistics: Mapping[str, InputStatistics],
        numbers: Mapping[str, Numbers],
        token: CancelToken,
    ) -> Mapping[str, InputStatistics]:
        at = f"blk.{layer}."
        if turns_residual(config):
            turn = self._hidden(config)
            for fold in folds(config, layer, weights):
                if not fold.is_gain:
                    continue
                gain = weights.vectors[fold.producer]
                weights.vectors[fold.producer] = np.ones_like(gain)
                for name in fold.consumers:
                    weights.matrices[name] = turn.right(weights.matrices[name], token, gain)
            parts = feed_forward_parts(layer, weights)
            for name in (f"{at}attn_output.weight", *(down for _, _, down in parts)):
                weights.matrices[name] = turn.left(weights.matrices[name], token)
                bias = name.removesuffix(".weight") + ".bias"
                if bias in weights.vectors:
                    weights.vectors[bias] = turn.right(weights.vectors[bias])
        self._turn_heads(config, at, weights, token)
        if self.online:
            weights.rotated |= self.rotated(config, weights.matrices)
            for name, rotation in weights.rotated.items():
                weights.matrices[name] = rotation.apply(weights.matrices[name], token.check)
        return {}

    def _turn_heads(self, config: DecoderConfig, at: str, weights: BlockWeights, token: CancelToken) -> None:
        turn, name, bias = self._head(config), f"{at}attn_v.weight", f"{at}attn_v.bias"
        values = weights.matrices[name].reshape(config.kv_heads, config.head_dim, -1)
        turned = [turn.left(head, token) for head in values]  # Rᵀ V: the head's values v become v R
        weights.matrices[name] = np.concatenate(turned)
        if bias in weights.vectors:
            weights.vectors[bias] = turn.right(weights.vectors[bias].reshape(-1, config.head_dim)).reshape(-1)
        out = f"{at}attn_output.weight"
        columns = weights.matrices[out]
        weights.matrices[out] = turn.right(columns.reshape(-1, config.head_dim), token).reshape(columns.shape)

    def _hidden(self, config: DecoderConfig) -> Orthogonal:
        return random_hadamard(config.hidden, self.seed)

    def _head(self, config: DecoderConfig) -> Orthogonal:
        return random_hadamard(config.head_dim, self.seed + _HEAD)


def run_of(config: DecoderConfig) -> int:
    """Values that an online rotation mixes: the largest power of two that divides a down projection's inputs, at most
    LONGEST_RUN."""
    width = _inner(config)
    return min(width & -width, LONGEST_RUN)


def why_not_online(config: DecoderConfig) -> str:
    """'' where the down projections' inputs can be rotated while the model runs, else one clause that says why not."""
    run = run_of(config)
    if run >= SHORTEST_RUN:
        return ""
    return (
        f"the {format_count(_inner(config))} inputs of its down projections divide into runs of {run}, and a rotation "
        f"spreads outliers over runs of a power of two, from {SHORTEST_RUN} on"
    )


def _inner(config: DecoderConfig) -> int:
    """Inputs of a down projection; where layers differ, what divides both widths."""
    widths = [config.expert_intermediate] if config.experts else []
    widths += [config.intermediate] if not config.experts or config.dense_layers else []
    return gcd(*widths)


def turns_residual(config: DecoderConfig) -> bool:
    """Gemma 2 and 3 multiply what enters the stream with gains of a norm, channel by channel."""
    return config.architecture not in _GEMMA
