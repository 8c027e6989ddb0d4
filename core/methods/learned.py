"""Learned rounding: codes, scales and gains of a block, so that the block's output stays what it was.

Every code has a latent value that starts where the source weight lies between two codes, and crosses to the other one
when the gradient of the output error pushes it there for long enough (signed gradient descent on latents, which is the
idea of SignRound, https://arxiv.org/abs/2309.05516). The group's scale and the norms' gains follow by Adam: they cost
no bits, and undo drift that rounding can not.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.formats.numbers import Integers, Numbers
from core.methods.block_method import BlockChoice, BlockProblem
from core.progress import CancelToken


@dataclass(frozen=True)
class LearnedSettings:
    """tokens: that each update looks at, whole samples. epochs: passes over the samples. code_rate: how far, in codes,
    a latent moves in the first update; scale_rate and gain_rate: the same for scales and gains, as a share of them. All
    three fall linearly to 0. seed: of the order of the samples."""

    tokens: int = 512
    epochs: float = 1.0
    code_rate: float = 0.02
    scale_rate: float = 2e-3
    gain_rate: float = 2e-3
    seed: int = 0


class LearnedRounding:
    """A `BlockMethod` (core.methods.block_method). A forecast needs no PyTorch."""

    def __init__(self, settings: LearnedSettings | None = None) -> None:
        self._settings = settings or LearnedSettings()

    def why_not(self, numbers: Numbers) -> str:
        return "" if isinstance(numbers, Integers) else f"{numbers.label} has no rounding that can be learned"

    def solve(self, problem: BlockProblem, token: CancelToken) -> BlockChoice:
        """Raises ValueError for numbers that are no integers and for samples of another length than `run` has."""
        from core.methods.learning import Learning

        return Learning(self._settings).solve(problem, token)
