"""Questions with given answers, judged by how likely a model finds each: works with base models, too."""

from __future__ import annotations

import json
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import UserError
from core.metrics.windows import Figure, mean
from core.progress import CancelToken
from core.runtime.generate import PROMPT_BATCH
from core.runtime.model import Model
from core.runtime.steps import Running, Watch, step
from core.runtime.tokenizer import Text
from core.units import format_count

MAX_BYTES, MAX_ITEMS = 64 << 20, 100_000


@dataclass(frozen=True)
class Item:
    """ids: of what all choices share. rest: the tokens that follow, a tuple a choice. letters: of each choice."""

    ids: tuple[int, ...]
    rest: tuple[tuple[int, ...], ...]
    letters: tuple[int, ...]
    answer: int

    @property
    def length(self) -> int:
        """Places in the cache."""
        return len(self.ids) + max(map(len, self.rest))


@dataclass(frozen=True)
class TaskResult:
    """Shares of right answers, 0 … 1. By the sum of log-probabilities, and by that sum a letter of the answer.

    change: artifact less source, from the same items, so its error is smaller than that of either. differ: items of
    which the two models choose different answers (by the sum).
    """

    items: int
    source: Figure
    artifact: Figure
    change: Figure
    source_normalized: Figure
    artifact_normalized: Figure
    differ: int

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = {"items": self.items, "differ": self.differ}
        for name in ("source", "artifact", "change", "source_normalized", "artifact_normalized"):
            figure = getattr(self, name)
            found[name] = {"value": figure.value, "error": figure.error}
        return found


def make_item(text: Text, prompt: str, choices: Sequence[str], answer: int) -> Item:
    """Tokens of a prompt followed by each choice. Where a choice changes how the prompt's end is cut into tokens, what
    they do not share counts to the choices. Raises UserError for a prompt without tokens."""
    start = len(text.ids.after)
    whole = [text.encode(prompt + choice) for choice in choices]
    whole = [ids[: len(ids) - start] for ids in whole]
    ids = text.encode(prompt)
    ids = ids[: len(ids) - start]
    shared = len(ids)
    for other in whole:
        same = next((i for i, (a, b) in enumerate(zip(ids, other, strict=False)) if a != b), min(len(ids), len(other)))
        shared = min(shared, same, len(other) - 1)
    if shared < 1:
        raise UserError("A task has a prompt without tokens.", "Give every line a prompt.")
    rest = tuple(tuple(other[shared:]) for other in whole)
    return Item(tuple(ids[:shared]), rest, tuple(max(len(choice), 1) for choice in choices), answer)


def read_tasks(path: Path, text: Text) -> tuple[Item, ...]:
    """Items of a JSONL file: {"prompt": "…", "choices": [" yes", " no"], "answer": 0}, one a line.

    Choices are appended to the prompt as they stand. Raises UserError with the line that is wrong.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        lines = data.decode("utf-8-sig").split("\n")  # other separators may stand in a text
    except OSError as e:
        raise UserError(f"{path.name} can not be read ({e.strerror or e}).", "Check the name of the file.") from e
    except UnicodeDecodeError as e:
        raise UserError(f"{path.name} is no text in UTF-8.", "Save it as UTF-8.") from e
    if len(data) > MAX_BYTES or len(lines) > MAX_ITEMS:
        raise UserError(f"{path.name} has more than {format_count(MAX_ITEMS)} tasks.", "Give a part of it.")
    items = [_item(path, number, line, text) for number, line in enumerate(lines, 1) if line.strip()]
    if not items:
        raise UserError(f"{path.name} has no task.", _HINT)
    return tuple(items)


_HINT = 'Each line is {"prompt": "…", "choices": ["…", "…"], "answer": 0}.'


def _item(path: Path, number: int, line: str, text: Text) -> Item:
    try:
        data = json.loads(line)
        prompt, choices, answer = data["prompt"], data["choices"], data["answer"]
        fits = isinstance(prompt, str) and isinstance(choices, list) and len(choices) > 1
        fits = fits and all(isinstance(c, str) and c for c in choices)
        fits = fits and isinstance(answer, int) and not isinstance(answer, bool) and 0 <= answer < len(choices)
        if not fits:
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UserError(f"Line {number} of {path.name} is no task.", _HINT) from None
    return make_item(text, prompt, choices, answer)


def likelihoods(model: Running, item: Item, token: CancelToken) -> np.ndarray:
    """log P of every choice after what they share, summed over its tokens: float64 [choices]. Raises Cancelled.

    A sum that is not finite is −∞.
    """
    shared = np.array(item.ids, np.int32)
    count = len(shared)
    first = np.empty((0, 0), np.float32)
    with Watch((model,), token):
        for start in range(0, count, PROMPT_BATCH):
            token.check()
            part = shared[start : start + PROMPT_BATCH]
            last = [len(part) - 1] if start + len(part) == count else []
            first = _run(model, part, start, np.array(last, np.int32), token)
        found = []
        for rest in item.rest:
            token.check()
            total = _log_probability(first[0], rest[0])
            if len(rest) > 1:
                follows = np.array(rest[:-1], np.int32)
                logits = _run(model, follows, count, np.arange(len(follows), dtype=np.int32), token)
                total += sum(_log_probability(row, right) for row, right in zip(logits, rest[1:], strict=True))
            found.append(total if math.isfinite(total) else -math.inf)
    return np.array(found)


def _run(model: Running, tokens: np.ndarray, start: int, wanted: np.ndarray, token: CancelToken) -> np.ndarray:
    positions = np.arange(start, start + len(tokens), dtype=np.int32)
    return step(model, tokens, np.zeros(len(tokens), np.int32), positions, wanted, token)


def _log_probability(logits: np.ndarray, token: int) -> float:
    values = logits.astype(np.float64)
    values -= values.max()
    return float(values[token] - np.log(np.exp(values).sum()))


def score(model: Model, items: Sequence[Item], token: CancelToken) -> Generator[float, None, tuple[np.ndarray, ...]]:
    """`likelihoods` of every item; yields the share that is done."""
    found = []
    for done, item in enumerate(items, 1):
        found.append(likelihoods(model, item, token))
        yield done / len(items)
    return tuple(found)


def task_result(items: Sequence[Item], source: Sequence[np.ndarray], artifact: Sequence[np.ndarray]) -> TaskResult:
    """Both models' likelihoods, put together."""
    sums = [_chosen(items, scores, normalized=False) for scores in (source, artifact)]
    shares = [_chosen(items, scores, normalized=True) for scores in (source, artifact)]
    answers = np.array([item.answer for item in items])
    right = [(chosen == answers).astype(np.float64)[:, None] for chosen in (*sums, *shares)]
    return TaskResult(
        len(items),
        mean(right[0]),
        mean(right[1]),
        mean(right[1] - right[0]),
        mean(right[2]),
        mean(right[3]),
        int((sums[0] != sums[1]).sum()),
    )


def _chosen(items: Sequence[Item], scores: Sequence[np.ndarray], normalized: bool) -> np.ndarray:
    return np.array(
        [
            int(np.argmax(values / np.array(item.letters) if normalized else values))
            for item, values in zip(items, scores, strict=True)
        ]
    )
