"""GPTQ against the textbook's column by column in float64, and on inputs that leave it little to work with."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from cancel_help import Watch, most_work

from core.contract import ElementType
from core.errors import Cancelled, UserError
from core.formats.affine import Affine, RealZeros
from core.formats.base import EncodeOptions, Method
from core.formats.codebook import Codebook
from core.formats.float4 import MXFP4, NVFP4
from core.formats.float8 import Float8
from core.formats.ggml_integers import INTEGER_BLOCKS
from core.formats.numbers import Codes, Integers, Numbers
from core.methods import gptq as module
from core.methods.clipping import ClipSearch
from core.methods.factor import feedback_factor
from core.methods.gptq import Gptq
from core.methods.grid import grid_of, quantized, search_options, why_no_grid
from core.methods.problem import Problem, output_error
from core.progress import CancelToken
from core.threads import whole_products
from kernels import dispatch

F16, BF16 = ElementType.F16, ElementType.BF16
NUMBERS: dict[str, Numbers] = {
    "symmetric": Integers(4, 16, True, F16),
    "asymmetric": Integers(4, 32, False, BF16),
    "three bits": Integers(3, 16, False, F16),
    "rows": Integers(4, 0, True, BF16),
    "affine": Affine(4, 32),
    "real zeros": RealZeros(4, 16),
    "Q4_0": INTEGER_BLOCKS["Q4_0"],
    "Q8_0": INTEGER_BLOCKS["Q8_0"],
    "NF4": Codebook("NF4", 64),
    "FP4": Codebook("FP4", 64),
    "NVFP4": NVFP4,
    "MXFP4": MXFP4,
    "FP8 tensor": Float8(height=0),
    "FP8 tiles": Float8(height=128, size=128),
    "FP8 rows": Float8(),
}


def _problem(
    numbers: Numbers, rows: int = 24, columns: int = 96, tokens: int = 400, seed: int = 0, scale: float = 1.0
) -> Problem:
    rng = np.random.default_rng(seed)
    mixed = rng.standard_normal((columns, columns)) / columns**0.5 + np.eye(columns)
    x = rng.standard_normal((tokens, columns)) @ mixed * np.exp(rng.standard_normal(columns))
    weight = (scale * rng.standard_normal((rows, columns))).astype(np.float32)
    return Problem("blk.0.ffn_up.weight", weight, (x.T @ x / tokens).astype(np.float32), None, tokens, numbers)


def _textbook(
    weight: np.ndarray,
    gram: np.ndarray,
    order: np.ndarray,
    damping: float,
    step: np.ndarray,
    offset: np.ndarray,
    top: int,
) -> np.ndarray:
    """Codes by the inverse's upper Cholesky factor, one update of all later columns for each (Frantar et al.)."""
    w = weight[:, order].astype(np.float64)
    h = gram[np.ix_(order, order)].astype(np.float64)
    h += damping * np.mean(np.diag(h)) * np.eye(len(h))
    upper = np.linalg.cholesky(np.linalg.inv(h)).T
    codes = np.zeros(w.shape, np.int64)
    for k, column in enumerate(order):
        s, o = step[:, column].astype(np.float64), offset[:, column].astype(np.float64)
        codes[:, k] = np.clip(np.rint((w[:, k] - o) / s), 0, top)
        error = (w[:, k] - (s * codes[:, k] + o)) / upper[k, k]
        w[:, k + 1 :] -= error[:, None] * upper[k, k + 1 :]
    out = np.empty_like(codes)
    out[:, order] = codes
    return out


def _chosen_scales(problem: Problem) -> Codes:
    options = search_options(problem.numbers, problem.weight, None, 0.0, 1)
    return quantized(problem.numbers, problem.weight, options, CancelToken())


@pytest.mark.parametrize("act_order", [False, True])
@pytest.mark.parametrize("name", ["symmetric", "asymmetric", "affine", "real zeros", "rows"])
def test_codes_are_the_textbooks(name: str, act_order: bool) -> None:
    problem = _problem(NUMBERS[name])
    found = Gptq(act_order=act_order, weighted=False, sweeps=0).solve(problem, CancelToken())
    chosen = _chosen_scales(problem)
    np.testing.assert_array_equal(found.scales, chosen.scales)
    size = problem.numbers.group or problem.weight.shape[1]
    step = np.repeat(chosen.scales, size, axis=1)
    nothing = Codes(np.zeros_like(chosen.codes), chosen.scales, chosen.zeros, chosen.offsets)
    order = np.argsort(-np.diag(problem.gram), kind="stable") if act_order else np.arange(len(problem.gram))
    wanted = _textbook(
        problem.weight,
        problem.gram,
        order,
        0.01,
        step,
        problem.numbers.values(nothing),
        (1 << problem.numbers.bits) - 1,
    )
    # A target halfway between two codes may fall to either side, and all later ones of its row then differ. And where
    # rounding is better for a row, that is what is taken.
    same = (found.codes == wanted).all(axis=1)
    assert (same | (found.codes == chosen.codes).all(axis=1)).sum() >= len(wanted) - 1
    assert same.sum() >= len(wanted) - 4


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("tokens", [3, 400])
def test_no_row_is_worse_than_rounded(name: str, tokens: int) -> None:
    columns = 256 if name == "FP8 tiles" else 128
    problem = _problem(NUMBERS[name], columns=columns, tokens=tokens, rows=40)
    solver = Gptq(weighted=False)
    found = solver.solve(problem, CancelToken())
    again = solver.solve(problem, CancelToken())
    np.testing.assert_array_equal(found.codes, again.codes)
    plain = _chosen_scales(problem)
    h = problem.gram.astype(np.float64)
    errors = []
    for codes in (found, plain):
        change = problem.weight.astype(np.float64) - problem.numbers.values(codes)
        errors.append(np.einsum("nk,nk->n", change @ h, change))
    assert (errors[0] <= errors[1] * (1 + 1e-4)).all()
    assert errors[0].sum() < (1.0 if tokens < 400 else 0.98) * errors[1].sum()


def test_grid_holds_the_values_of_the_numbers() -> None:
    for name, numbers in NUMBERS.items():
        problem = _problem(numbers, columns=256, rows=70)
        assert Gptq().why_not(numbers) == ""
        chosen = _chosen_scales(problem)
        grid = grid_of(numbers, chosen)
        index = grid.index()
        values = grid.steps[:, grid.group] * grid.levels[index] + grid.offsets[:, grid.group]
        np.testing.assert_allclose(values, numbers.values(chosen), rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(numbers.values(grid.with_index(index)), numbers.values(chosen), err_msg=name)
        whole = numbers.quantize(problem.weight, search_options(numbers, problem.weight, None, 0.0, 2))
        np.testing.assert_array_equal(whole.codes, chosen.codes)


def test_what_has_no_grid_is_said() -> None:
    nested = Codebook("NF4", 64, 256)
    assert "rounded once more" in why_no_grid(nested) == Gptq().why_not(nested)
    assert "AMD" in why_no_grid(Float8(fnuz=True))
    with pytest.raises(ValueError, match="rounded once more"):
        grid_of(nested, Codes(np.zeros((1, 64), np.uint8), np.ones((1, 1), np.float32)))


def test_each_part_lowers_the_error() -> None:
    numbers = Integers(3, 32, True, F16)
    problem = _problem(numbers, rows=64, columns=128)

    def error(solver: Gptq) -> float:
        codes = solver.solve(problem, CancelToken())
        return output_error(problem.weight, numbers.values(codes), problem.gram)

    plain = error(Gptq(act_order=False, weighted=False, sweeps=0))
    ordered = error(Gptq(weighted=False, sweeps=0))
    weighted = error(Gptq(sweeps=0))
    assert error(Gptq()) < weighted < ordered < plain


@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e3])
@pytest.mark.parametrize("name", ["symmetric", "asymmetric", "rows", "NVFP4"])
def test_size_of_weights_and_inputs_changes_nothing(name: str, scale: float) -> None:
    numbers = NUMBERS[name]
    one, other = _problem(numbers), _problem(numbers, scale=scale)
    other = Problem(other.name, other.weight, other.gram * np.float32(scale), None, 1, numbers)
    errors = [output_error(p.weight, numbers.values(Gptq().solve(p, CancelToken())), p.gram) for p in (one, other)]
    assert errors[1] == pytest.approx(errors[0], rel=0.05)


def _dead(problem: Problem) -> np.ndarray:
    gram = problem.gram.copy()
    gram[::3], gram[:, ::3] = 0, 0
    return gram


def _twins(problem: Problem) -> np.ndarray:
    again = np.arange(len(problem.gram)) // 2 * 2
    return problem.gram[np.ix_(again, again)]


def _one_token(problem: Problem) -> np.ndarray:
    x = np.random.default_rng(5).standard_normal(len(problem.gram)).astype(np.float32)
    return np.outer(x, x)


def _indefinite(problem: Problem) -> np.ndarray:
    values, vectors = np.linalg.eigh(problem.gram)
    values[: len(values) // 2] = -0.03 * values.mean()  # as rounding may leave it, and more
    found = ((vectors * values) @ vectors.T).astype(np.float32)
    np.fill_diagonal(found, np.maximum(np.diag(found), 0))
    return found


@pytest.mark.parametrize("make", [_dead, _twins, _one_token, _indefinite, lambda p: np.zeros_like(p.gram)])
@pytest.mark.parametrize("name", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("damping", [0.0, 0.01])
def test_poor_inputs_finish(make: object, name: str, damping: float) -> None:
    numbers = NUMBERS[name]
    good = _problem(numbers)
    problem = Problem(good.name, good.weight, make(good), None, 1, numbers)  # type: ignore[operator]
    found = Gptq(damping=damping).solve(problem, CancelToken())
    values = numbers.values(found)
    assert np.isfinite(values).all()
    # What nothing is known of is still near its weight: no code runs away.
    assert np.abs(values - problem.weight).max() <= 3 * np.abs(problem.weight).max()
    if not problem.gram.any():
        plain = numbers.quantize(problem.weight, EncodeOptions(method=Method.SEARCH))
        np.testing.assert_array_equal(found.codes, plain.codes)


def test_inputs_that_are_not_finite_are_refused_by_name() -> None:
    good = _problem(NUMBERS["symmetric"])
    for bad in (np.nan, np.inf):
        gram = good.gram.copy()
        gram[3, 4] = bad
        with pytest.raises(UserError, match=r"blk\.0\.ffn_up\.weight"):
            Gptq().solve(Problem(good.name, good.weight, gram, None, 1, good.numbers), CancelToken())


def test_full_inputs_are_aimed_at() -> None:
    """With drift, the unrounded optimum is the regression of W x_full on x: the error against it falls."""
    numbers = Integers(8, 16, True, F16)
    good = _problem(numbers)
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, len(good.gram))).astype(np.float32)
    full = x + (x @ rng.standard_normal((len(good.gram), len(good.gram))).astype(np.float32)) / 100
    gram, drift = x.T @ x / 500, (full - x).T @ x / 500
    behind = x @ rng.standard_normal((len(good.gram), len(good.weight))).astype(np.float32) / 50
    for missing, target in ((None, full @ good.weight.T), (behind.T @ x / 500, full @ good.weight.T + behind)):
        problem = Problem(good.name, good.weight, gram, drift, 500, numbers, missing=missing)
        lost = []
        for solver in (Gptq(), Gptq(follows_full=True)):
            values = numbers.values(solver.solve(problem, CancelToken()))
            lost.append(float(np.square(target - x @ values.T).sum()))
        best = np.linalg.lstsq(x, target, rcond=None)[0]
        assert lost[1] < 0.3 * lost[0]
        assert float(np.square(target - x @ best).sum()) <= lost[1]


@pytest.mark.parametrize("size", [5, 300, 700])
@pytest.mark.parametrize("double", [True, False])
def test_factor_is_that_of_the_matrix(monkeypatch: pytest.MonkeyPatch, size: int, double: bool) -> None:
    monkeypatch.setattr("core.methods.factor._DOUBLE", 8192 if double else 0)
    x = np.random.default_rng(0).standard_normal((2 * size, size))
    gram = (x.T @ x / size).astype(np.float32)
    order = np.random.default_rng(1).permutation(size)
    matrix, left, added = feedback_factor(gram, order, 0.01, CancelToken())
    whole = gram[np.ix_(order, order)] + added * np.eye(size)
    upper = np.tril(matrix, -1).T.astype(np.float64) + np.eye(size)
    np.testing.assert_allclose(upper * left @ upper.T, whole, atol=1e-5 if double else 2e-4)
    assert added == pytest.approx(0.01 * np.mean(np.diag(gram)), rel=1e-5)


def test_threads_and_sets_give_the_same_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = _problem(NUMBERS["asymmetric"], rows=100)
    wanted = Gptq().solve(problem, CancelToken()).codes
    for threads in (1, 4):
        monkeypatch.setattr(module, "worker_count", lambda threads=threads: threads)
        np.testing.assert_array_equal(Gptq().solve(problem, CancelToken()).codes, wanted)
    for backend in dispatch.backends("solve_feedback"):
        with dispatch.only(backend):
            np.testing.assert_array_equal(Gptq().solve(problem, CancelToken()).codes, wanted)


@pytest.mark.parametrize("after", [0.2, 0.7, 1.5])
def test_cancelled_soon(after: float) -> None:
    """A layer of an 8 B model, cancelled while it is looked at, factored, or solved."""
    rng = np.random.default_rng(0)
    columns = 4096
    x = rng.standard_normal((64, columns)).astype(np.float32)
    weight = rng.standard_normal((2048, columns)).astype(np.float32)
    problem = Problem("w", weight, x.T @ x, None, 64, Integers(4, 64, True, F16))
    token = CancelToken()
    watch = Watch(token.cancel)
    timer = threading.Timer(after, watch.press)
    timer.start()
    with pytest.raises(Cancelled):
        Gptq().solve(problem, token)
    assert watch.work < most_work()


@pytest.mark.parametrize("solver", [Gptq(), ClipSearch()], ids=["GPTQ", "clipping"])
def test_what_a_weight_costs_is_known_beforehand(solver: Gptq | ClipSearch) -> None:
    """In processor time, within a wide margin: however short the text, each weight has to be solved."""
    problem = _problem(NUMBERS["asymmetric"], 384, 768)
    with whole_products():  # as in a run: numpy's threads that wait for work would be counted
        solver.solve(problem, CancelToken())  # what is loaded and compiled once
        fresh = replace(problem, gram=problem.gram.copy())
        begin = time.process_time()
        solver.solve(fresh, CancelToken())
        taken = time.process_time() - begin
    assert solver.seconds_for(384, 768) / 8 < taken < 8 * solver.seconds_for(384, 768) + 0.05
