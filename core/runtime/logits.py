"""How far two models' logits are from each other on the same tokens: one file on two devices, for example."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.errors import UserError
from core.progress import CancelToken
from core.runtime.model import Model
from core.runtime.steps import Watch, step
from core.units import format_count

PIECE = 32  # tokens whose logits are held at once, of both


@dataclass(frozen=True)
class LogitDifference:
    """Over all tokens and the whole vocabulary.

    largest: |Δ| over the largest |logit| of the first model; mean: mean |Δ| over its mean |logit|. agreement: share of
    tokens after which both hold the same one for the likeliest.
    """

    tokens: int
    largest: float
    mean: float
    agreement: float


def compare_logits(
    first: Model, second: Model, tokens: Sequence[int], cancel: CancelToken | None = None
) -> LogitDifference:
    """Both read the tokens, in their first sequence, which then holds them. As many as both caches hold count.

    Raises UserError for models with different vocabularies; Cancelled.
    """
    cancel = cancel or CancelToken()
    models = first, second
    widths = [model.program.widths[model.program.logits] for model in models]
    if widths[0] != widths[1]:
        raise UserError(
            f"One model knows {format_count(widths[0])} tokens and the other {format_count(widths[1])}, so that their "
            "logits can not be compared.",
            "Choose the same file on both sides.",
        )
    ids = np.array(tokens[: min(model.capacity for model in models)], np.int32)
    largest = size = moved = total = 0.0
    same = 0
    with Watch(models, cancel):
        for start in range(0, len(ids), PIECE):
            cancel.check()
            part = ids[start : start + PIECE]
            positions = np.arange(start, start + len(part), dtype=np.int32)
            rows, zeros = np.arange(len(part), dtype=np.int32), np.zeros(len(part), np.int32)
            a, b = (step(model, part, zeros, positions, rows, cancel).astype(np.float64) for model in models)
            difference = np.abs(a - b)
            largest, size = max(largest, float(difference.max())), max(size, float(np.abs(a).max()))
            moved, total = moved + float(difference.sum()), total + float(np.abs(a).sum())
            same += int((a.argmax(axis=1) == b.argmax(axis=1)).sum())
    return LogitDifference(len(ids), largest / (size or 1.0), moved / (total or 1.0), same / max(len(ids), 1))
