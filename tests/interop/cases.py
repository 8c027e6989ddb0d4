"""What the interop tests ask of every model, and a conversion through the command line."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core import cli

CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
QUESTION = CHAT.format("What is the capital of France?")
PROMPTS = (
    QUESTION,
    CHAT.format("Name three fruits."),
    "The capital of Italy is",
    "Once upon a time, there was a",
    "In 1969, the first human being walked on the",
    "Water boils at 100 degrees",
    "def add(a, b):\n    return a +",
    "To be, or not to be, that is the",
)


def bitsmith(*words: object) -> dict[str, Any]:
    """Run one command in this process with --json; it must succeed. Returns what it printed."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        status = cli.main([*map(str, words), "--json"])
    assert status == 0, out.getvalue()
    return json.loads(out.getvalue())


@dataclass(frozen=True)
class Converted:
    """A finished conversion: where it is, and the JSON of its plan and its run."""

    path: Path
    plan: dict[str, Any]
    run: dict[str, Any]


@dataclass(frozen=True)
class Source:
    """The unconverted model in transformers, in float32: next-token log-probabilities and greedy text by prompt."""

    logprobs: dict[str, list[float]]
    answer: str
