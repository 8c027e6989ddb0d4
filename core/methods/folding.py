"""Where a scale of an input's channels goes, so that the model computes the same and its file stays plain.

A linear layer's columns are multiplied by s; what computes its input is divided by s: a norm's gain, or the rows of the
product before it. Nothing else may read that input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from core.methods.transform import BlockWeights, InputStatistics
from core.models.config import DecoderConfig
from core.progress import CancelToken
from kernels import ops

_GEMMA = ("gemma2", "gemma3")  # their gains are stored less one
_PIECE = 4 << 20  # values between two looks at the token
_SMALLEST, _LARGEST = 2.0**-14, 2.0**15  # between these, a bfloat16 number is a float16 number


@dataclass(frozen=True)
class Fold:
    """One input whose channels can be scaled.

    consumers: the matrices that meet it, [·, K]. producer: the gain [C] or the matrix [C, ·] that makes it. less_one:
    the gain is stored less one. share: so many query heads read one head of the producer, each of `head` channels;
    the scale of C channels then serves C · share columns. share is 1 where each channel is a column.
    """

    consumers: tuple[str, ...]
    producer: str
    is_gain: bool
    less_one: bool = False
    share: int = 1
    head: int = 0

    def columns(self, scale: np.ndarray) -> np.ndarray:
        """A scale of the producer's channels [C] as one of the consumers' columns [K]."""
        if self.share == 1:
            return scale
        return np.repeat(scale.reshape(-1, self.head), self.share, axis=0).reshape(-1)

    def channels(self, values: np.ndarray, largest: bool = False) -> np.ndarray:
        """Figures of the columns [K] as those of the producer's channels [C]: the mean, or the largest, of those that
        share one."""
        if self.share == 1:
            return values
        grouped = values.reshape(-1, self.share, self.head)
        return (grouped.max(axis=1) if largest else grouped.mean(axis=1)).reshape(-1)

    def apply(self, weights: BlockWeights, scale: np.ndarray, token: CancelToken) -> np.ndarray:
        """Fold a scale, float32 [C], positive, into the weights; returns that of the columns [K], as it was done.

        A gain is rounded so that bfloat16 and float16 both hold it, and the columns take what it then is: the model
        computes the same also when it is stored in 16 bits.
        """
        scale = np.ascontiguousarray(scale, np.float32)
        if self.is_gain:
            gain = weights.vectors[self.producer]
            new = _storable(gain, scale, self.less_one)
            live = new != gain
            scale = np.where(live, gain / np.where(live, new, 1), 1).astype(np.float32)
            weights.vectors[self.producer] = new
        else:
            weights.matrices[self.producer] = scaled(weights.matrices[self.producer], 1 / scale[:, None], token)
            bias = self.producer.removesuffix(".weight") + ".bias"
            if bias in weights.vectors:
                weights.vectors[bias] = weights.vectors[bias] / scale
        wide = self.columns(scale)
        for name in self.consumers:
            weights.matrices[name] = scaled(weights.matrices[name], wide, token)
        return wide


def scaled(matrix: np.ndarray, scale: np.ndarray, token: CancelToken) -> np.ndarray:
    """matrix · scale, float32 [N, K]; scale: [K], or [N, 1]."""
    out = np.empty(matrix.shape, np.float32)
    step = max(1, _PIECE // max(1, matrix.shape[1]))
    for start in range(0, len(matrix), step):
        token.check()
        rows = slice(start, start + step)
        np.multiply(matrix[rows], scale[rows] if scale.ndim == 2 else scale, out=out[rows])
    return out


def folds(config: DecoderConfig, layer: int, weights: BlockWeights) -> tuple[Fold, ...]:
    """Every input of a block whose channels can be scaled, in the order of the computation.

    Those are all inputs: of q, k and v (and of gate, up, router and experts) by the norm before them, of o by the rows
    of v, and of down by the rows of up, which the activation does not pass through. Not of a down that is rotated:
    its columns are no channels of up any more.
    """
    at = f"blk.{layer}."
    less_one = config.architecture in _GEMMA
    first = Fold(tuple(f"{at}attn_{p}.weight" for p in ("q", "k", "v")), f"{at}attn_norm.weight", True, less_one)
    share = config.heads // config.kv_heads
    values = Fold((f"{at}attn_output.weight",), f"{at}attn_v.weight", False, share=share, head=config.head_dim)
    parts = feed_forward_parts(layer, weights)
    into = tuple(name for gate, up, _ in parts for name in (gate, up))
    router = f"{at}ffn_gate_inp.weight"
    if router in weights.matrices:
        into = (router, *into)
    second = Fold(into, f"{at}ffn_norm.weight", True, less_one)
    return first, values, second, *(Fold((down,), up, False) for _, up, down in parts if down not in weights.rotated)


def feed_forward_parts(layer: int, weights: BlockWeights) -> tuple[tuple[str, str, str], ...]:
    """Names of gate, up and down, of each expert where there are experts."""
    at = f"blk.{layer}."
    if f"{at}ffn_gate.weight" in weights.matrices:
        return ((f"{at}ffn_gate.weight", f"{at}ffn_up.weight", f"{at}ffn_down.weight"),)
    parts, expert = [], 0
    while f"{at}ffn_gate.{expert}.weight" in weights.matrices:
        parts.append(tuple(f"{at}ffn_{part}.{expert}.weight" for part in ("gate", "up", "down")))
        expert += 1
    return tuple((gate, up, down) for gate, up, down in parts)


def input_of(fold: Fold, statistics: Mapping[str, InputStatistics]) -> InputStatistics | None:
    """Statistics of the input of a fold: those of the consumer that met most tokens, for experts see only their own;
    None where no token did."""
    known = [statistics[name] for name in fold.consumers if name in statistics]
    best = max(known, key=lambda s: s.tokens, default=None)
    return best if best is not None and best.tokens else None


def _storable(gain: np.ndarray, scale: np.ndarray, less_one: bool) -> np.ndarray:
    """gain / scale, rounded so that it is stored exactly in either type of 16 bits; the old gain where that can not
    be."""
    wanted = gain / scale
    new = bfloat16(wanted - 1) + np.float32(1) if less_one else bfloat16(wanted)
    fine = np.isfinite(new) & (np.abs(new) >= _SMALLEST) & (np.abs(new) <= _LARGEST) & (np.sign(new) == np.sign(gain))
    fine &= np.abs(new - wanted) <= 0.25 * np.abs(wanted)  # Gemma's gains near 0 are stored as about −1, coarsely
    return np.where(fine, new, gain).astype(np.float32)


def bfloat16(x: np.ndarray) -> np.ndarray:
    """float32 [K] rounded to the nearest bfloat16, as float32."""
    return ops.to_float32(ops.from_float32(x[None], "BF16"), "BF16")[0]
