"""Error sums: what blocks give together is what the whole gives."""

from __future__ import annotations

import math

import numpy as np
import pytest

from core.metrics.combine import combined_snr
from core.metrics.error import BINS, ErrorSum, measure


def errors(largest_power: int, count: int, seed: int) -> np.ndarray:
    """float32 [4, count] below 2^largest_power; odd multiples of 2^-20, so that none lies on the edge of a bin."""
    steps = np.random.default_rng(seed).integers(-(2 ** (19 + largest_power)), 2 ** (19 + largest_power), (4, count))
    return ((2 * steps + 1) * 2.0**-20).astype(np.float32)


def added(blocks: list[tuple[np.ndarray, np.ndarray]]) -> ErrorSum:
    total = ErrorSum()
    for source, other in blocks:
        total.add(measure(source, other))
    return total


@pytest.mark.parametrize("powers", [(0, -7, -3), (-7, 0), (-3, -3), (0, None), (None, 0, None)])
def test_blocks_add_up_to_the_whole(powers) -> None:
    """None: a block that comes back exactly. The histogram's range grows and shrinks on the way."""
    e = [np.zeros((4, 100), np.float32) if p is None else errors(p, 100, i) for i, p in enumerate(powers)]
    rng = np.random.default_rng(1)
    sources = [np.rint(rng.standard_normal(part.shape)).astype(np.float32) for part in e]
    stats = added([(x, x + d) for x, d in zip(sources, e, strict=True)]).stats()
    x, d = np.concatenate(sources, axis=1).astype(np.float64), np.concatenate(e, axis=1).astype(np.float64)
    assert stats.values == d.size
    assert stats.max_error == np.abs(d).max()
    assert stats.rms_error == pytest.approx(math.sqrt((d**2).mean()), rel=1e-7)  # eight squares add in float32
    assert stats.snr_db == pytest.approx(10 * math.log10((x**2).sum() / (d**2).sum()), abs=1e-6)
    assert stats.edges[0] == -stats.edges[-1]
    assert len(stats.counts) == BINS
    assert stats.edges[-1] >= stats.max_error > stats.edges[-1] / 2
    assert list(stats.counts) == np.histogram(d, np.array(stats.edges))[0].tolist()


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    x = np.ones((2, 8), np.float32)
    x[0, :3] = np.nan, np.inf, -np.inf
    stats = added([(x, x + np.float32(0.5))]).stats()
    assert (stats.values, stats.nonfinite, sum(stats.counts)) == (13, 3, 13)
    assert stats.max_error == stats.rms_error == 0.5


def test_an_exact_copy_has_no_histogram() -> None:
    stats = added([(np.ones((2, 8), np.float32),) * 2]).stats()
    assert stats.snr_db == math.inf
    assert stats.counts == stats.edges == ()
    assert ErrorSum().stats().rms_error == 0.0


def test_figures_of_several_tensors_are_those_of_all_values() -> None:
    rng = np.random.default_rng(2)
    pairs = []
    for scale in (1.0, 0.01):
        x = rng.standard_normal((8, 64)).astype(np.float32) * np.float32(scale)
        pairs.append((x, x + rng.standard_normal(x.shape).astype(np.float32) * np.float32(0.1 * scale**2)))
    exact = np.ones((3, 5), np.float32)
    separate = [measure(*p).stats() for p in pairs]
    assert combined_snr([*separate, measure(exact, exact).stats()]) == pytest.approx(added(pairs).stats().snr_db)
    assert combined_snr([]) == math.inf


@pytest.mark.parametrize("guess", [0.0, 2.0**-9, 0.125, 64.0])
def test_a_guess_of_the_limit_changes_nothing(guess: float) -> None:
    rng = np.random.default_rng(5)
    source = rng.standard_normal((9, 100)).astype(np.float32)
    other = source + np.float32(0.1) * rng.random(source.shape, np.float32)
    for reconstruction in (other, source, np.full_like(source, np.inf)):
        with np.errstate(invalid="ignore"):
            expected, found = measure(source, reconstruction), measure(source, reconstruction, guess)
        assert found.counts.tolist() == expected.counts.tolist()
        assert (found.limit, found.error_squares) == (expected.limit, expected.error_squares)
