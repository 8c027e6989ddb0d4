"""Whether a model still finds a number that stands somewhere in a long text.

The number is asked for at the end and scored against others of the same length, so base models can be asked, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.runtime.tokenizer import Text
from core.verdict.choices import Item, make_item

LENGTHS = (256, 1024, 4096)  # tokens
DEPTHS = (0.1, 0.5, 0.9)  # of the text, from its start
CHOICES = 4
SEED = 11
_SENTENCE = "The secret number of the old lighthouse is"
_ROOM = 64  # tokens for the sentence, twice, and the number


@dataclass(frozen=True)
class Place:
    """One number in one text. margin: log P of the right number less that of the likeliest wrong one, in nats."""

    length: int
    depth: float
    margin_source: float
    margin: float

    @property
    def found_source(self) -> bool:
        return self.margin_source > 0

    @property
    def found(self) -> bool:
        return self.margin > 0


@dataclass(frozen=True)
class NeedleResult:
    """places: by length, then depth."""

    places: tuple[Place, ...]

    @property
    def lost(self) -> int:
        """Places at which the source finds the number and the artifact does not."""
        return sum(p.found_source and not p.found for p in self.places)

    def to_dict(self) -> dict[str, Any]:
        return {
            "lost": self.lost,
            "found_source": sum(p.found_source for p in self.places),
            "found": sum(p.found for p in self.places),
            "places": [
                {"length": p.length, "depth": p.depth, "margin_source": p.margin_source, "margin": p.margin}
                for p in self.places
            ],
        }


def needle_lengths(wanted: Sequence[int], context: int) -> tuple[int, ...]:
    """Those that a context holds; the context itself where it holds none."""
    return tuple(n for n in wanted if n <= context) or (context,)


def needle_items(text: Text, filler: str, lengths: Sequence[int]) -> tuple[tuple[int, float, Item], ...]:
    """(length, depth, item) for each. filler: prose, repeated where it is too short."""
    rng = np.random.default_rng(SEED)
    words = text.encode(filler[: 16 * max(lengths)], add_special=False)
    words = words * -(-max(lengths) // max(len(words), 1)) if words else []
    found = []
    for length in lengths:
        prose = text.decode(words[: max(length - _ROOM, 1)])
        for depth in DEPTHS:
            numbers = [str(n) for n in rng.choice(np.arange(10_000, 100_000), CHOICES, replace=False)]
            answer = int(rng.integers(CHOICES))
            at = prose.find(" ", int(depth * len(prose)))
            at = len(prose) if at < 0 else at
            prompt = f"{prose[:at]} {_SENTENCE} {numbers[answer]}.{prose[at:]}\n\n{_SENTENCE}"
            found.append((length, depth, make_item(text, prompt, [f" {n}" for n in numbers], answer)))
    return tuple(found)


def needle_result(
    items: Sequence[tuple[int, float, Item]], source: Sequence[np.ndarray], artifact: Sequence[np.ndarray]
) -> NeedleResult:
    """Both models' likelihoods, put together."""
    return NeedleResult(
        tuple(
            Place(length, depth, _margin(a, item.answer), _margin(b, item.answer))
            for (length, depth, item), a, b in zip(items, source, artifact, strict=True)
        )
    )


def _margin(scores: np.ndarray, answer: int) -> float:
    return float(scores[answer] - np.delete(scores, answer).max())
