"""The best choices under a budget: against all choices tried, and against the bound of Lagrange multipliers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from core.budget.frontier import frontier

Units = list[list[tuple[int, float]]]


def drawn(seed: int, units: int, options: int) -> Units:
    rng = np.random.default_rng(seed)
    return [
        [(int(b), float(c)) for b, c in zip(rng.integers(1, 60, options), rng.exponential(1, options), strict=True)]
        for _ in range(units)
    ]


def like_a_model(units: int, seed: int = 0) -> Units:
    """Sizes and costs as formats have them: a bit more quarters the cost; sensitivities differ by four powers of 10."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(units):
        values, slope = int(rng.integers(1, 40)) * 32 * 576, 10 ** rng.uniform(-4, 0)
        found.append([(int(values * b / 8), slope * 4**-b * rng.uniform(0.8, 1.25)) for b in (2.6, 3.4, 4.5, 5.5, 8.5)])
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_choice_at_all_is_better(seed: int) -> None:
    units = drawn(seed, 5, 4)
    found = frontier(units)
    every = [(sum(o[0] for o in c), sum(o[1] for o in c)) for c in product(*units)]
    for budget in range(min(b for b, _ in every), max(b for b, _ in every) + 2):
        at = found.within(budget)
        assert at is not None
        assert found.cost[at] == pytest.approx(min(c for b, c in every if b <= budget), rel=1e-12)
    assert found.within(min(b for b, _ in every) - 1) is None


def test_choices_are_what_bytes_and_costs_say_and_costs_fall() -> None:
    units = like_a_model(40)
    found = frontier(units, limit=500)
    assert (np.diff(found.bytes) > 0).all()
    assert (np.diff(found.cost) < 0).all()
    for at in range(0, len(found), 7):
        chosen = [u[i] for u, i in zip(units, found.choice(at), strict=True)]
        assert sum(b for b, _ in chosen) == found.bytes[at]
        assert sum(c for _, c in chosen) == pytest.approx(found.cost[at], rel=1e-9)
    assert found.bytes[0] == sum(min(b for b, _ in u) for u in units)
    assert found.cost[-1] == pytest.approx(sum(min(c for _, c in u) for u in units))


def test_a_model_of_many_weights_comes_within_two_thousandths_of_the_bound() -> None:
    """For any λ, Σ min(cost + λ·bytes) − λ·budget is at most what any choice within the budget costs."""
    units = like_a_model(240, seed=3)
    found = frontier(units)
    sizes = np.array([[b for b, _ in u] for u in units], float)
    costs = np.array([[c for _, c in u] for u in units])
    for share in (0.1, 0.3, 0.5, 0.8):
        budget = int(found.bytes[0] + share * (found.bytes[-1] - found.bytes[0]))
        bound = max(float((costs + x * sizes).min(axis=1).sum() - x * budget) for x in np.geomspace(1e-12, 1e-4, 4000))
        at = found.within(budget)
        assert at is not None
        assert found.bytes[at] <= budget
        assert found.cost[at] <= bound * 1.002


def test_a_unit_without_options_is_refused() -> None:
    with pytest.raises(ValueError, match="no options"):
        frontier([[(1, 1.0)], []])
