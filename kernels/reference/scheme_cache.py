"""A layer's cache whose tokens wait, turn or have given scales, and attention over it, in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from kernels.kv import kinds
from kernels.reference.elementwise import soft_cap, softmax
from kernels.reference.kv import hadamard
from kernels.reference.kv_cache import HeadCache

if TYPE_CHECKING:
    from kernels.program import CacheLayout


class SchemeCache:
    """layout: of this layer alone. One `HeadCache` for each sequence, head and side."""

    def __init__(self, layout: CacheLayout) -> None:
        heads, width = layout.layers[0]
        scales = layout.scales[0] if layout.scales else ((), ())
        turned = layout.rotate_keys, layout.rotate_values

        def cache(side: int, head: int) -> HeadCache:
            given = scales[side]
            scale = given[head if len(given) > 1 else 0] if given else 1.0
            return HeadCache(kinds(layout.dtype)[side], width, layout.window, layout.sinks, turned[side], scale)

        self._heads = [[(cache(0, h), cache(1, h)) for h in range(heads)] for _ in range(layout.sequences)]
        self._turned = tuple(side.turned for side in self._heads[0][0])

    @property
    def nbytes(self) -> int:
        """Of what is kept now."""
        return sum(side.nbytes for heads in self._heads for pair in heads for side in pair)

    def store(self, sequence: int, position: int, k: np.ndarray, v: np.ndarray) -> None:
        """One token's k and v, float32 [heads · width]. What is at that position and after it is forgotten; positions
        that were left out before it are zeros."""
        heads = self._heads[sequence]
        rows = zip(k.reshape(len(heads), 1, -1), v.reshape(len(heads), 1, -1), strict=True)
        for pair, sides in zip(heads, rows, strict=True):
            for kept, x in zip(pair, sides, strict=True):
                if position < len(kept):
                    kept.truncate(position)
                kept.append(np.concatenate([np.zeros((position - len(kept), x.shape[1]), np.float32), x]))

    def attend(
        self,
        q: np.ndarray,
        sequence: int,
        position: int,
        scale: float,
        window: int,
        softcap: float,
        rope: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> np.ndarray:
        """One token's queries [heads, D] → [heads, D], over what its sequence has.

        rope: the rotary step that stored keys [tokens, D] have not been through, by position from 0 on.
        """
        first = max(0, position + 1 - window) if window else 0
        heads = self._heads[sequence]
        share = len(q) // len(heads)  # query heads that share a key head
        if self._turned[0] and rope is None:
            q = hadamard(q)
        out = np.empty(q.shape, np.float32)
        for head, (keys, values) in enumerate(heads):
            k = keys.read()
            if rope is not None:
                k = rope(hadamard(k) if self._turned[0] else k)
            rows = slice(head * share, (head + 1) * share)
            scores = scale * (q[rows].astype(np.float64) @ k[first:].astype(np.float64).T)
            weights = softmax(soft_cap(scores, softcap) if softcap else scores)
            out[rows] = weights @ values.read()[first:].astype(np.float64)
        return hadamard(out) if self._turned[1] else out
