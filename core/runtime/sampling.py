"""How the next token is taken from the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import UserError
from core.units import format_count

REPETITION_WINDOW = 64  # tokens back that a repetition penalty looks at, as llama.cpp does


@dataclass(frozen=True)
class Sampling:
    """temperature 0: always the likeliest. top_k 0, top_p 1, min_p 0, repetition 1: off. seed: same seed, same text."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    seed: int = 0

    def check(self) -> None:
        """Raises UserError for a value outside its range."""
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, 100.0),
            ("top-k", self.top_k, 0, 1 << 24),
            ("top-p", self.top_p, 0.0, 1.0),
            ("min-p", self.min_p, 0.0, 1.0),
            ("repetition penalty", self.repetition, 0.01, 100.0),
            ("seed", self.seed, 0, 2**64 - 1),
        ):
            if not low <= value <= high:
                most = format_count(high) if isinstance(high, int) else f"{high:g}"
                raise UserError(f"The {name} can not be {value}.", f"Give a number from {low:g} to {most}.")


class Sampler:
    """Draws the tokens of one generation."""

    def __init__(self, sampling: Sampling) -> None:
        sampling.check()
        self._sampling = sampling

    def choose(self, logits: np.ndarray, prompt: Sequence[int], tokens: Sequence[int]) -> int:
        """The next token. logits: float32 [vocabulary]. prompt, tokens: what came before it."""
        s = self._sampling
        if s.temperature == 0 and s.repetition == 1:
            best = int(np.argmax(logits))  # a NaN, if there is one
            if not np.isfinite(logits[best]):
                raise _not_finite()
            return best
        from kernels.engine import sample

        recent = [*prompt[-REPETITION_WINDOW:], *tokens][-REPETITION_WINDOW:] if s.repetition != 1 else []
        previous = np.array(recent, np.int32)
        settings = (s.temperature, s.top_k, s.top_p, s.min_p, s.repetition)
        try:
            return sample(logits, previous, *settings, seed=s.seed, step=len(tokens))
        except ValueError as e:
            raise _not_finite() from e


def _not_finite() -> UserError:
    return UserError(
        "The model's output is not finite, so there is no next token.",
        "Look for NaN in the file: bitsmith info --scan names the tensors.",
    )
