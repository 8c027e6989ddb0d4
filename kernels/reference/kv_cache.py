"""One head's keys, or its values, as a cache keeps them: which tokens are quantized when. The definition.

A token is quantized when it is written. With a window or sinks, or where a format stores tokens together, it waits in
float16 first, and is quantized from that: once `window` newer tokens are there, and for groups of tokens, which lie at
multiples of their size, once that holds for all of them. The first `sinks` tokens, and groups that reach into them,
stay in float16.
"""

from __future__ import annotations

import numpy as np

from kernels.kv import CACHE_FORMATS, quantized
from kernels.reference.arithmetic import round_f16
from kernels.reference.kv import decode_group, decode_rows, encode_group, encode_rows, hadamard


class HeadCache:
    """Rows of `dim` values. rotate: they are turned by `hadamard` before, and must meet queries that are, too."""

    def __init__(
        self, name: str, dim: int, window: int = 0, sinks: int = 0, rotate: bool = False, scale: float = 1.0
    ) -> None:
        self._form = CACHE_FORMATS[name]
        self._dim, self._window, self._sinks = dim, window, sinks
        if self._form.is_float:  # which is kept as it is from the start
            self._window = self._sinks = 0
        self._rotate, self._scale = rotate and not self._form.is_float, scale
        self._rows = np.zeros((0, dim), np.float32)
        self._coded = np.zeros(0, bool)
        waiting = bool(window or sinks) or self._form.channels
        self._waiting = waiting and not self._form.is_float

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def turned(self) -> bool:
        return self._rotate

    @property
    def nbytes(self) -> int:
        """Of what is kept now."""
        done = int(self._coded.sum())
        coded = done * self._form.unit_bytes(self._dim) // self._form.waits
        return coded + (len(self) - done) * 2 * self._dim

    def append(self, x: np.ndarray) -> None:
        """float32 [T, dim]: tokens that follow what is there."""
        x = np.ascontiguousarray(x, np.float32).reshape(-1, self._dim)
        x = hadamard(x) if self._rotate else x
        self._rows = np.concatenate([self._rows, round_f16(x) if self._waiting else x])
        self._coded = np.concatenate([self._coded, np.zeros(len(x), bool)])
        first, last = quantized(len(self), self._form.waits, self._window, self._sinks)
        waits = self._form.waits
        undone = np.flatnonzero(~self._coded[first:last]) + first
        for start in np.unique(undone // waits * waits):
            self._rows[start : start + waits] = self._kept(self._rows[start : start + waits])
            self._coded[start : start + waits] = True

    def truncate(self, count: int) -> None:
        """Forget all but the first `count` tokens. What is quantized stays so, but for a group that is cut: what is
        left of it waits again, as float16 of what it had become."""
        cut = count // self._form.waits * self._form.waits
        if cut < count <= len(self) and count < len(self):
            self._rows[cut:count] = round_f16(self._rows[cut:count])
            self._coded[cut:count] = False
        self._rows, self._coded = self._rows[:count].copy(), self._coded[:count].copy()

    def read(self) -> np.ndarray:
        """float32 [tokens, dim], as attention sees them."""
        return self._rows.copy()

    def _kept(self, x: np.ndarray) -> np.ndarray:
        name = self._form.name
        if self._form.channels:
            return decode_group(name, encode_group(name, x), self._dim)
        return decode_rows(name, encode_rows(name, x, self._scale), self._dim, self._scale)
