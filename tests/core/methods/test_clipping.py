"""Clipping by the output's error: never worse than rounding, and the very codes of one of the ways for each group."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from core.contract import ElementType
from core.errors import Cancelled
from core.formats.affine import Affine, RealZeros
from core.formats.base import EncodeOptions, Method
from core.formats.codebook import Codebook
from core.formats.float8 import Float8
from core.formats.numbers import Integers, Numbers
from core.methods import clipping
from core.methods.clipping import ClipSearch
from core.methods.problem import Problem, output_error
from core.progress import CancelToken

NUMBERS: list[Numbers] = [
    Integers(4, 32, False),
    Integers(4, 32),
    Integers(3, 64, False, ElementType.F16),
    Integers(4),
    Affine(4, 32),
    RealZeros(4, 32),
    Codebook("NF4", 32),
]


def problem(numbers: Numbers, rows: int = 40, columns: int = 128, tokens: int = 500) -> Problem:
    """Inputs that lean on a few directions, as those of models do."""
    rng = np.random.default_rng(4)
    x = rng.standard_normal((tokens, columns)) + rng.standard_normal((tokens, 6)) @ rng.standard_normal((6, columns))
    x *= np.exp(rng.standard_normal(columns))
    weight = rng.standard_t(4, (rows, columns)).astype(np.float32)
    gram = (x.T @ x / max(tokens, 1)).astype(np.float32)
    return Problem("w", weight, gram, None, tokens, numbers)


def error(given: Problem, values: np.ndarray) -> float:
    change = given.weight.astype(np.float64) - values
    return float(np.einsum("nk,kl,nl->", change, given.gram.astype(np.float64), change))


@pytest.mark.parametrize("numbers", NUMBERS, ids=lambda n: n.label)
def test_never_above_rounding_or_the_weighted_search(numbers: Numbers) -> None:
    given = problem(numbers)
    found = error(given, numbers.values(ClipSearch().solve(given, CancelToken())))
    importance = np.ascontiguousarray(np.diagonal(given.gram))
    ways = [EncodeOptions(Method.ROUND), EncodeOptions(Method.SEARCH, importance=importance)]
    others = [error(given, numbers.values(numbers.quantize(given.weight, options))) for options in ways]
    print(f"{numbers.label}: {found / others[0]:.3f} of rounding's, {found / others[1]:.3f} of the search's")
    assert found <= others[0] * (1 + 1e-6)
    assert found < others[1]


def test_two_groups_by_brute_force() -> None:
    """Where groups do not touch each other's error, it is the best of all combinations."""
    numbers = Integers(2, 32, False)
    given = problem(numbers, rows=6, columns=64)
    gram = given.gram.copy()
    gram[:32, 32:] = gram[32:, :32] = 0
    given = Problem("w", given.weight, gram, None, 500, numbers)
    found = ClipSearch().solve(given, CancelToken())
    options = EncodeOptions(importance=np.ascontiguousarray(np.diagonal(gram)))
    ways = clipping._ways(given.weight, numbers, options, 32, CancelToken())
    values = [numbers.values(w) for w in ways]
    for row in range(6):
        one = Problem("w", given.weight[row : row + 1], gram, None, 500, numbers)
        best = min(error(one, np.concatenate([a[row, :32], b[row, 32:]])[None]) for a, b in product(values, values))
        assert error(one, numbers.values(found)[row : row + 1]) == pytest.approx(best, rel=1e-5)


def test_pieces_of_rows_are_as_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(Integers(4, 32, False))
    whole = ClipSearch().solve(given, CancelToken())
    monkeypatch.setattr(clipping, "_VALUES", 128 * 7)
    pieces = ClipSearch().solve(given, CancelToken())
    assert (whole.codes != pieces.codes).mean() < 1e-3  # sums of products may differ in their last bit
    assert pieces.scales.shape == whole.scales.shape


@pytest.mark.parametrize("tokens", [0, 1, 3])
def test_few_tokens_and_dead_channels(tokens: int) -> None:
    given = problem(Integers(4, 32, False), tokens=tokens)
    gram = given.gram.copy()
    gram[:, 5] = gram[5] = 0
    given = Problem("w", given.weight, gram, None, tokens, given.numbers)
    values = given.numbers.values(ClipSearch().solve(given, CancelToken()))
    assert np.isfinite(values).all()
    plain = given.numbers.values(given.numbers.quantize(given.weight, EncodeOptions(Method.ROUND)))
    assert output_error(given.weight, values, gram) <= output_error(given.weight, plain, gram) * (1 + 1e-6)


def test_it_says_what_it_can_not_do_and_can_be_stopped() -> None:
    assert ClipSearch().why_not(Integers(4, 32)) == ""
    assert ClipSearch().why_not(Float8(height=0)) == "rows share a scale"
    assert ClipSearch().why_not(Codebook("NF4", 64, 256)) == "its scales are quantized together"
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        ClipSearch().solve(problem(Integers(4, 32)), token)
