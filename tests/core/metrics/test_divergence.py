"""Distributions compared token by token, against float64."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.errors import Cancelled
from core.metrics import divergence
from core.metrics.divergence import NonFinite, TokenFigures, compact, compare
from core.progress import CancelToken


def log_softmax(logits: np.ndarray) -> np.ndarray:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=1, keepdims=True))


def example(rows: int = 40, width: int = 3000, apart: float = 0.3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    a = (rng.standard_normal((rows, width)) * 4 + 20).astype(np.float32)
    b = a + (rng.standard_normal(a.shape) * apart).astype(np.float32)
    return a, b, rng.integers(0, width, rows)


def test_figures_against_float64() -> None:
    a, b, right = example()
    p, q = log_softmax(a), log_softmax(b)
    want = (np.exp(p) * (p - q)).sum(axis=1)
    at = np.arange(len(right)), right
    found = compare(compact(a, right), b.copy(), right)
    np.testing.assert_allclose(found.kl, want, rtol=5e-3, atol=1e-6)
    assert found.kl.mean() == pytest.approx(want.mean(), rel=5e-4)
    np.testing.assert_allclose(found.nll_source, -p[at], atol=3e-6)
    np.testing.assert_allclose(found.nll, -q[at], atol=3e-6)
    np.testing.assert_array_equal(found.same_top, p.argmax(axis=1) == q.argmax(axis=1))
    np.testing.assert_allclose(found.delta, np.exp(q[at]) - np.exp(p[at]), atol=1e-6)


def test_known_by_hand() -> None:
    """P = (1/2, 1/4, 1/4), Q = (1/4, 1/2, 1/4): KL = ½·ln 2 − ¼·ln 2."""
    a = np.log(np.array([[2, 1, 1]], np.float32))
    b = np.log(np.array([[1, 2, 1]], np.float32)) + np.float32(7)
    found = compare(compact(a, np.array([0])), b, np.array([0]))
    assert found.kl[0] == pytest.approx(0.25 * math.log(2), rel=1e-3)
    assert found.nll_source[0] == pytest.approx(math.log(2), abs=1e-6)
    assert found.nll[0] == pytest.approx(math.log(4), abs=1e-6)
    assert found.delta[0] == pytest.approx(-0.25, abs=1e-6)
    assert not found.same_top[0]


def test_a_model_with_itself() -> None:
    a, _, right = example()
    found = compare(compact(a, right), a.copy(), right)
    assert found.kl.max() < 2e-6
    assert found.same_top.all()
    assert np.abs(found.delta).max() < 1e-6


def test_a_certain_source_and_impossible_tokens() -> None:
    a = np.full((2, 5), -1e5, np.float32)
    a[:, 3] = 50
    b = a.copy()
    b[1, 2] = 50
    found = compare(compact(a, np.array([3, 3])), b, np.array([3, 2]))
    np.testing.assert_allclose(found.kl, [0, math.log(2)], atol=1e-6)


def test_chunks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, right = example(17)
    whole = compare(compact(a, right), b.copy(), right)
    monkeypatch.setattr(divergence, "CHUNK", 6001)  # 2 rows
    parts = compare(compact(a, right), b.copy(), right)
    for name in ("kl", "nll", "nll_source", "same_top"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_told_with_its_row(value: float) -> None:
    a, b, right = example(6, 50)
    b[4, 7] = value
    with pytest.raises(NonFinite) as caught:
        compare(compact(a, right), b.copy(), right)
    assert caught.value.row == 4
    with pytest.raises(NonFinite) as caught:
        compact(b, right)
    assert caught.value.row == 4


def test_cancelled() -> None:
    a, _, right = example(6, 50)
    token = CancelToken()
    token.cancel()
    with pytest.raises(Cancelled):
        compact(a, right, token)


def test_parts_are_joined_in_order() -> None:
    a, b, right = example(9)
    whole = compare(compact(a, right), b.copy(), right)
    parts = [compare(compact(a[s], right[s]), b[s].copy(), right[s]) for s in (slice(0, 4), slice(4, 9))]
    np.testing.assert_array_equal(TokenFigures.joined(parts).kl, whole.kl)
