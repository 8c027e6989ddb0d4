"""Greedy continuations of both models side by side, and where they part."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

from core.progress import CancelToken
from core.runtime.generate import GenerateRequest, GenerationResult, generate
from core.runtime.model import Model

PROMPTS = (
    "The capital of France is",
    "Water boils at a lower temperature on a mountain because",
    "def is_prime(n):\n",
)


@dataclass(frozen=True)
class TextPair:
    """difference: the first token (0: the first new one) that is another one; None where one continues as the other.

    letter: how many letters both texts begin with alike.
    """

    prompt: str
    source: str
    artifact: str
    difference: int | None
    letter: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "source": self.source,
            "artifact": self.artifact,
            "first_different_token": self.difference,
            "same_letters": self.letter,
        }


def continuations(
    model: Model, prompts: Sequence[str], new_tokens: int, token: CancelToken
) -> Generator[float, None, tuple[GenerationResult, ...]]:
    """The likeliest token each time. Yields the share that is done; raises Cancelled."""
    found = []
    for done, prompt in enumerate(prompts):
        steps = generate(model, GenerateRequest(prompt=prompt, max_tokens=new_tokens), token)
        while True:
            try:
                event = next(steps)
            except StopIteration as end:
                found.append(end.value)
                break
            yield (done + (event.index + 1) / new_tokens) / len(prompts)
        token.check()
    return tuple(found)


def text_pairs(
    prompts: Sequence[str], source: Sequence[GenerationResult], artifact: Sequence[GenerationResult]
) -> tuple[TextPair, ...]:
    """Both models' continuations, put together."""
    return tuple(_pair(*both) for both in zip(prompts, source, artifact, strict=True))


def _pair(prompt: str, a: GenerationResult, b: GenerationResult) -> TextPair:
    different = next((i for i, (x, y) in enumerate(zip(a.tokens, b.tokens, strict=False)) if x != y), None)
    if different is None and len(a.tokens) != len(b.tokens):
        different = min(len(a.tokens), len(b.tokens))
    letters = next((i for i, (x, y) in enumerate(zip(a.text, b.text, strict=False)) if x != y), None)
    same = min(len(a.text), len(b.text)) if letters is None else letters
    return TextPair(prompt, a.text, b.text, different, same)
