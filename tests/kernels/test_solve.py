"""The solver's loops: compiled ones against the reference bit for bit, and the reference against float64."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import dispatch, solve

_LEVELS = {
    "integers": np.arange(16),
    "signed": np.arange(-8, 8),
    "table": np.array([-1, -0.7, -0.5, -0.2, 0, 0.1, 0.3, 0.9]),
    "many": np.sort(np.random.default_rng(4).standard_normal(200)),
    "one": np.array([3.0]),
}


def _case(rows: int, columns: int, group: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    groups = -(-columns // group)
    x = rng.standard_normal((columns // 2 + 1, columns)).astype(np.float32)
    h = x.T @ x / np.float32(len(x))
    h[columns // 3], h[:, columns // 3] = 0, 0  # a dead channel
    steps = (rng.random((rows, groups)) / 4).astype(np.float32)
    steps[0, 0] = 0
    steps[-1] *= -1
    return {
        "w": rng.standard_normal((rows, columns)).astype(np.float32),
        "matrix": np.tril(rng.standard_normal((columns, columns)) / 8).astype(np.float32),
        "h": h,
        "steps": steps,
        "offsets": (-2 * rng.random((rows, groups))).astype(np.float32),
        "group": rng.permutation(np.arange(columns) // group),
    }


def _values(case: dict[str, np.ndarray], levels: np.ndarray, index: np.ndarray) -> np.ndarray:
    group = case["group"]
    return case["steps"][:, group] * levels.astype(np.float32)[index] + case["offsets"][:, group]


def _both(case: dict[str, np.ndarray], levels: np.ndarray, threads: int = 1) -> tuple[np.ndarray, ...]:
    grid = case["steps"], case["offsets"], case["group"], levels
    index = solve.feedback(case["w"], case["matrix"], *grid, threads)
    start = np.random.default_rng(1).integers(0, len(levels), case["w"].shape).astype(np.uint8)
    gradient = (case["w"] - _values(case, levels, start)).astype(np.float64) @ case["h"]
    gradient = gradient.astype(np.float32)
    changed = solve.descend(gradient, case["h"], *grid, start, threads)
    return index, start, gradient, np.array(changed)


@pytest.mark.parametrize("name", _LEVELS)
@pytest.mark.parametrize(("rows", "columns", "group"), [(1, 1, 1), (33, 64, 64), (40, 131, 50), (70, 200, 200)])
def test_every_set_gives_the_references_bits(compiled: str, name: str, rows: int, columns: int, group: int) -> None:
    case, levels = _case(rows, columns, group), _LEVELS[name]
    with dispatch.only("reference"):
        wanted = _both(case, levels)
    with dispatch.only(compiled):
        for threads in (1, 3):
            for a, b in zip(wanted, _both(case, levels, threads), strict=True):
                np.testing.assert_array_equal(a, b)


def test_feedback_takes_the_nearest_level_to_each_target() -> None:
    case = _case(6, 40, 8)
    levels = np.arange(16)
    index = solve.feedback(case["w"], case["matrix"], case["steps"], case["offsets"], case["group"], levels)
    error = (case["w"] - _values(case, levels, index)).astype(np.float64)
    target = case["w"] + error @ np.tril(case["matrix"], -1).T.astype(np.float64)
    group = case["group"]
    choices = case["steps"][:, group, None] * levels + case["offsets"][:, group, None]
    distance = np.abs(choices - target[:, :, None])
    chosen = np.take_along_axis(distance, index[:, :, None].astype(np.int64), axis=2)[:, :, 0]
    assert (chosen <= distance.min(axis=2) + 1e-4).all()
    assert (index[0, group == 0] == np.clip(np.rint(0), 0, 15)).all()  # a step of 0


def test_descent_lowers_the_error_and_ends_where_no_single_change_helps() -> None:
    case = _case(5, 30, 10)
    levels = np.arange(8)
    grid = case["steps"], case["offsets"], case["group"], levels
    index = solve.feedback(case["w"], case["matrix"], *grid)
    h = case["h"].astype(np.float64)

    def error(of: np.ndarray) -> np.ndarray:
        change = case["w"].astype(np.float64) - _values(case, levels, of)
        return np.einsum("rk,rk->r", change @ h, change)

    first = before = error(index)
    gradient = ((case["w"] - _values(case, levels, index)) @ case["h"]).astype(np.float32)
    for _ in range(50):
        changed = solve.descend(gradient, case["h"], *grid, index)
        after = error(index)
        assert (after <= before * (1 + 1e-5)).all()
        before = after
        if not changed:
            break
    else:
        pytest.fail("the descent does not end")
    assert before.sum() < 0.9 * first.sum()
    for row in range(5):
        for column in range(30):
            for code in range(8):
                other = index.copy()
                other[row, column] = code
                assert error(other)[row] >= before[row] * (1 - 1e-4)


def test_a_raised_flag_ends_the_work(compiled: str) -> None:
    case = _case(40, 200, 50)
    stop = np.ones(1, np.int32)
    grid = case["steps"], case["offsets"], case["group"], np.arange(16)
    index = np.zeros(case["w"].shape, np.uint8)
    with dispatch.only(compiled):
        solve.feedback(case["w"], case["matrix"], *grid, 1, stop)
        assert solve.descend(case["w"].copy(), case["h"], *grid, index, 1, stop) == 0
    assert not index.any()


def test_wrong_shapes_are_refused() -> None:
    case = _case(4, 8, 4)
    grid = [case["steps"], case["offsets"], case["group"], np.arange(4)]
    for place, wrong in ((0, grid[0][:2]), (1, grid[1][:, :1]), (2, grid[2] + 2), (3, np.array([1, 0]))):
        with pytest.raises(ValueError, match=r"steps|groups|levels"):
            solve.feedback(case["w"], case["matrix"], *(wrong if i == place else g for i, g in enumerate(grid)))
    with pytest.raises(ValueError, match="the matrix"):
        solve.feedback(case["w"], case["matrix"][:4], *grid)
    index = np.full((4, 8), 9, np.uint8)
    with pytest.raises(ValueError, match="index"):
        solve.descend(case["w"].copy(), case["h"], *grid, index)
    with pytest.raises(ValueError, match="gradient"):
        solve.descend(case["w"].astype(np.float64), case["h"], *grid, index)
