"""Means, percentiles and their standard errors over windows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.metrics.windows import Figure, exponential, mean, percentiles, root_mean_square


def test_mean_and_error_by_hand() -> None:
    """Window means 1, 3, 5: s = 2, error 2/√3."""
    values = np.array([[0.0, 2.0], [3.0, 3.0], [4.0, 6.0]])
    assert mean(values).value == 3
    assert mean(values).error == pytest.approx(2 / math.sqrt(3))


def test_one_window_has_no_error() -> None:
    values = np.arange(5.0)[None]
    assert mean(values) == Figure(2.0, None)
    assert percentiles(values, (50.0,)) == (Figure(2.0, None),)
    assert exponential(mean(values)) == Figure(math.exp(2), None)


def test_perplexity_has_the_error_of_the_delta_method() -> None:
    found = exponential(Figure(2.0, 0.1))
    assert found.value == pytest.approx(math.exp(2))
    assert found.error == pytest.approx(0.1 * math.exp(2))
    assert exponential(Figure(5000.0, None)).value < math.inf


def test_root_mean_square() -> None:
    found = root_mean_square(np.array([[3.0, 3.0], [4.0, 4.0]]))
    assert found.value == pytest.approx(math.sqrt(12.5))
    assert found.error == pytest.approx(3.5 / (2 * math.sqrt(12.5)))  # squares 9 and 16: error of their mean 3.5
    assert root_mean_square(np.zeros((2, 3))) == Figure(0.0, 0.0)


def test_errors_are_those_of_repeated_draws() -> None:
    """Over many sets of windows, the spread of the figure is what one set says it is."""
    rng = np.random.default_rng(3)
    sets = rng.exponential(size=(120, 16, 1)) + 0.3 * rng.exponential(size=(120, 16, 40))
    for figure in (mean, lambda v: percentiles(v, (90.0,))[0]):
        found = [figure(values) for values in sets]
        spread = np.std([f.value for f in found])
        told = np.sqrt(np.mean([f.error**2 for f in found]))
        assert told == pytest.approx(spread, rel=0.25)


def test_percentiles_are_repeatable() -> None:
    values = np.random.default_rng(1).random((6, 30))
    assert percentiles(values, (50.0, 99.0)) == percentiles(values, (50.0, 99.0))
    np.testing.assert_allclose([f.value for f in percentiles(values, (50.0, 99.0))], np.percentile(values, (50, 99)))
