"""What is measured for a verdict, and on which text."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from core.errors import UserError
from core.kv.layout import cache_layout
from core.kv.scheme import CacheScheme
from core.runtime.arithmetic import ARITHMETICS
from core.units import format_count

MAX_WINDOWS = 100_000
MAX_LENGTH = 1 << 20
MIN_NEEDLE = 128  # tokens: half of them are the sentence and the question


class Score(Enum):
    """Which tokens of a window count: every one that has another before it, or only those of the second half, which
    have at least half a window before them (as llama.cpp's perplexity does)."""

    ALL = "all"
    SECOND_HALF = "second-half"


@dataclass(frozen=True)
class EvalText:
    """path: a UTF-8 file; '' takes the bundled evaluation text, which no calibration sees.

    windows of `length` tokens each, spread evenly over the text, or one after the other from its start. Each window
    starts with the model's start token where it has one, in place of the token that is there.
    """

    path: str = ""
    windows: int = 16
    length: int = 512
    score: Score = Score.ALL
    spread: bool = True

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("windows", self.windows, 1, MAX_WINDOWS),
            ("length", self.length, 8, MAX_LENGTH),
        ):
            if not low <= value <= high:
                raise UserError(
                    f"The text's {name} is {format_count(value)}.",
                    f"Choose a number from {low} to {format_count(high)}.",
                )

    @property
    def first(self) -> int:
        """The first row of a window whose next token is scored."""
        return self.length // 2 if self.score is Score.SECOND_HALF else 0

    @property
    def scored(self) -> int:
        """Scored tokens of a window: the last row has no next token."""
        return self.length - 1 - self.first

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": Path(self.path).name,
            "windows": self.windows,
            "length": self.length,
            "score": self.score.value,
            "spread": self.spread,
        }


@dataclass(frozen=True)
class EvalSettings:
    """arithmetic: a name of `core.runtime.arithmetic.ARITHMETICS`, of both models; 'exact' judges the file alone,
    'fast' the file as the bundled engine runs it.

    layers: tokens of the first window whose hidden states are compared layer by layer; 0: none. tasks: a JSONL file,
    '' for none. needle: lengths of texts, in tokens, in which a
    hidden number is asked for. prompts: whose greedy continuations of
    `new_tokens` are compared. speed: measure both in alternation. use_cache: keep and use the source's logits.
    method, calibration: how the artifact was made, for the report, where that is known. device: 'cpu', 'gpu' or 'gpu:1'
    …; fallback: on the processor where it can not run there. Errors layer by layer are always the processor's.
    cache: what the artifact's keys and values are kept in, as the text of a `core.kv.scheme.CacheScheme` that the
    engine runs; the source's are in F16.
    """

    text: EvalText = field(default_factory=EvalText)
    arithmetic: str = "exact"
    layers: int = 128
    tasks: str = ""
    needle: tuple[int, ...] = ()
    prompts: tuple[str, ...] = ()
    new_tokens: int = 48
    speed: bool = False
    use_cache: bool = True
    threads: int | None = None
    method: str = ""
    calibration: str = ""
    device: str = "cpu"
    fallback: bool = False
    cache: str = "F16"

    def __post_init__(self) -> None:
        cache_layout((), 1, 1, CacheScheme.parse(self.cache))  # refuses what the engine does not keep
        if self.arithmetic not in ARITHMETICS:
            raise UserError(f"There is no arithmetic '{self.arithmetic}'.", f"Choose one of {', '.join(ARITHMETICS)}.")
        if any(n < MIN_NEEDLE for n in self.needle):
            raise UserError(f"A text of {min(self.needle)} tokens hides nothing.", f"Choose at least {MIN_NEEDLE}.")
        if self.layers < 0 or self.new_tokens < 1:
            raise UserError("A comparison takes 0 or more tokens for layers and 1 or more new ones.", "Give more.")
