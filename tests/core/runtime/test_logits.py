"""Logits of two models on the same tokens."""

from __future__ import annotations

import numpy as np
import pytest
from fake_model import FakeModel

from core.errors import Cancelled, UserError
from core.progress import CancelToken
from core.runtime.logits import PIECE, compare_logits

TEXT = b"the quick brown fox jumps over the lazy dog and more"


def models() -> tuple[FakeModel, FakeModel]:
    made = FakeModel(TEXT), FakeModel(TEXT)
    for model in made:
        model.program.__dict__["widths"] = (262, 262)  # frozen; of FakeEngine's logits
    return made


def test_the_same_model_twice() -> None:
    first, second = models()
    found = compare_logits(first, second, list(TEXT))
    assert (found.tokens, found.largest, found.mean, found.agreement) == (len(TEXT), 0.0, 0.0, 1.0)
    assert first.engine.batches == second.engine.batches == [PIECE, len(TEXT) - PIECE]


def test_differences_are_relative_to_the_first() -> None:
    first, second = models()
    real = second.engine.run

    def other(*arguments: np.ndarray) -> np.ndarray:
        logits = real(*arguments)
        logits[0] = 0
        logits[0, 3] = 5.5
        return logits

    second.engine.run = other  # type: ignore[method-assign]
    found = compare_logits(first, second, list(TEXT[:4]))
    assert found.largest == pytest.approx(5.5 / 5)
    assert found.mean == pytest.approx(10.5 / 20)
    assert found.agreement == 0.75


def test_no_more_than_a_cache_holds() -> None:
    first, second = models()
    second.capacity = 5
    assert compare_logits(first, second, list(TEXT)).tokens == 5


def test_other_vocabularies_and_cancel() -> None:
    first, second = models()
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        compare_logits(first, second, list(TEXT), token)
    second.program.__dict__["widths"] = (262, 99)
    with pytest.raises(UserError, match="One model knows 262 tokens and the other 99"):
        compare_logits(first, second, list(TEXT))
