"""Rotary positions, the cache of keys and values, and attention over it, in float64."""

from __future__ import annotations

import numpy as np

from kernels.kv import kinds
from kernels.reference.elementwise import soft_cap, softmax
from kernels.reference.kv import decode_rows, encode_rows


def rotate(x: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, scale: float, pairs: bool) -> np.ndarray:
    """Heads [M, heads, D] with the first 2·len(frequencies) values turned by position · frequency, times `scale`.

    pairs: values 2i and 2i+1 turn together, otherwise i and i + len(frequencies).
    """
    count = len(frequencies)
    angle = positions[:, None].astype(np.float64) * frequencies.astype(np.float64)
    cos, sin = (scale * f(angle)[:, None, :] for f in (np.cos, np.sin))
    first = np.s_[..., 0 : 2 * count : 2] if pairs else np.s_[..., :count]
    second = np.s_[..., 1 : 2 * count : 2] if pairs else np.s_[..., count : 2 * count]
    out = x.astype(np.float64)
    a, b = out[first].copy(), out[second].copy()
    out[first] = a * cos - b * sin
    out[second] = b * cos + a * sin
    return out.astype(np.float32)


class LayerCache:
    """Keys and values of one layer, as its dtype ('F16', 'Q8_0/Q4_0') keeps them: rows are quantized when they come."""

    def __init__(self, sequences: int, capacity: int, heads: int, width: int, dtype: str) -> None:
        self.keys = np.zeros((sequences, capacity, heads, width), np.float32)
        self.values = np.zeros_like(self.keys)
        self._kinds = kinds(dtype)

    def store(self, sequences: np.ndarray, positions: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
        """k and v: float32 [M, heads · width], one row a token."""
        shape = (len(positions), *self.keys.shape[2:])
        for kept, x, name in zip((self.keys, self.values), (k, v), self._kinds, strict=True):
            rows = x.reshape(-1, shape[-1])
            kept[sequences, positions] = decode_rows(name, encode_rows(name, rows), shape[-1]).reshape(shape)

    def attend(
        self, q: np.ndarray, sequence: int, position: int, scale: float, window: int, softcap: float
    ) -> np.ndarray:
        """One token's queries [heads, D] → [heads, D], over what its sequence has up to that position."""
        first = max(0, position + 1 - window) if window else 0
        share = len(q) // self.keys.shape[2]  # query heads that share a key head
        keys, values = (
            np.repeat(kept[sequence, first : position + 1].astype(np.float64), share, axis=1)
            for kept in (self.keys, self.values)
        )
        scores = scale * np.einsum("hd,thd->ht", q.astype(np.float64), keys)
        weights = softmax(soft_cap(scores, softcap) if softcap else scores)
        return np.einsum("ht,thd->hd", weights, values).astype(np.float32)
