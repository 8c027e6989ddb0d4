"""What a method sees of one weight: its values, what its input looks like, and the numbers that it may take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from core.formats.numbers import Codes, Numbers
from core.progress import CancelToken


@dataclass(frozen=True)
class Problem:
    """Find codes for W whose product with the input differs least: minimize Σ over tokens ‖(W − Q) x‖².

    name: of the weight, by GGUF's names. weight: float32 [N, K]. gram: float32 [K, K], the mean of x xᵀ over the tokens
    of the partly quantized model, before damping; all zero where no token met the weight. drift: float32 [K, K], the
    mean of (x_full − x) xᵀ, x_full the input in the unchanged model, or None where that was not followed: the target is
    then W x_full. tokens: how many. numbers: what may be stored. amax: the largest |value| of all matrices that share a
    scale with this one, 0: of this one. missing: float32 [N, K], the mean of (r_full − r) xᵀ, r the residual stream
    that the output is added to, or None: the target is then W x_full + r_full − r. aim: how much of the way to that
    target is gone, 0 … 1.
    """

    name: str
    weight: np.ndarray
    gram: np.ndarray
    drift: np.ndarray | None
    tokens: int
    numbers: Numbers
    amax: float = 0.0
    missing: np.ndarray | None = None
    aim: float = 1.0


class Solver(Protocol):
    """A method that chooses all codes of a weight at once.

    follows_full: whether it wants `drift`, which costs a second pass.
    """

    @property
    def follows_full(self) -> bool: ...

    def why_not(self, numbers: Numbers) -> str:
        """'' where it can choose these numbers, else one clause that says why not."""
        ...

    def seconds_for(self, rows: int, columns: int) -> float:
        """CPU seconds of one core for one weight, about, however many tokens there are."""
        ...

    def solve(self, problem: Problem, token: CancelToken) -> Codes:
        """Codes of all rows. Raises Cancelled; dead channels and a gram without full rank are no reason to fail."""
        ...


def output_error(weight: np.ndarray, values: np.ndarray, gram: np.ndarray) -> float:
    """Mean over tokens of ‖(W − Q) x‖² as a share of that of ‖W x‖²; 0 where nothing comes in."""
    change = weight - values
    lost = float(np.einsum("nk,nk->", change @ gram, change, dtype=np.float64))
    whole = float(np.einsum("nk,nk->", weight @ gram, weight, dtype=np.float64))
    return lost / whole if whole > 0 else 0.0
