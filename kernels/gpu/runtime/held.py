"""What the host knows of sequences whose tokens wait: how many are there, and up to where each side is codes.

All layers that are not kept in 16 bits are alike, so it is known once for all of them. The device is told with each
step; nothing is read from it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.kv import CACHE_FORMATS, kinds, quantized
from kernels.program import CacheLayout


@dataclass(frozen=True)
class Begun:
    """A step on its way. done: of keys and of values, int32 [runs], up to where each run's sequence is codes before it.
    cuts: side (0: keys), and slot, begin and end of tokens that are codes and have to wait again.
    """

    sequences: np.ndarray
    counts: np.ndarray
    done: tuple[np.ndarray, np.ndarray]
    cuts: tuple[tuple[int, tuple[int, int, int]], ...]


class Held:
    """count: tokens of each sequence; ends: up to where keys and values are codes, [2, sequences]."""

    def __init__(self, layout: CacheLayout) -> None:
        self._waits = tuple(CACHE_FORMATS[name].waits for name in kinds(layout.dtype))
        self._window, self._sinks = layout.window, layout.sinks
        self.count = np.zeros(layout.sequences, np.int32)
        self.ends = np.zeros((2, layout.sequences), np.int32)

    def begin(self, sequences: np.ndarray, positions: np.ndarray, tokens: np.ndarray) -> Begun:
        """Runs of so many tokens, each of a sequence of its own from a position on. What is there and after it is
        forgotten. Raises ValueError where it leaves a gap.
        """
        gaps = positions > self.count[sequences]
        if gaps.any():
            at = int(np.flatnonzero(gaps)[0])
            raise ValueError(
                f"position {positions[at]} of a sequence with {self.count[sequences[at]]} tokens leaves a gap, which a "
                "cache whose tokens wait has no place for"
            )
        cuts: list[tuple[int, tuple[int, int, int]]] = []
        for side, waits in enumerate(self._waits):
            first = quantized(0, waits, self._window, self._sinks)[0]
            before = self.ends[side, sequences]
            kept = np.minimum(before, positions // waits * waits)
            again = (kept < np.minimum(before, positions)) & (positions > first)
            cuts += [
                (side, (int(sequences[i]), max(int(kept[i]), first), int(positions[i]))) for i in np.flatnonzero(again)
            ]
            self.ends[side, sequences] = kept
        self.count[sequences] = positions
        done = self.ends[0, sequences].astype(np.int32), self.ends[1, sequences].astype(np.int32)
        return Begun(sequences, (positions + tokens).astype(np.int32), done, tuple(cuts))

    def end(self, step: Begun) -> None:
        """The step's tokens are there."""
        self.count[step.sequences] = step.counts
        for side, waits in enumerate(self._waits):
            last = np.maximum(step.counts - self._window, 0) // waits * waits
            self.ends[side, step.sequences] = np.maximum(self.ends[side, step.sequences], last)

    def lose(self, sequences: np.ndarray) -> None:
        """A step on them ended somewhere: they begin anew."""
        self.count[sequences] = 0
        self.ends[:, sequences] = 0
