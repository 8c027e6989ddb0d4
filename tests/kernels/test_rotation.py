"""Rotations of rows against whole matrices: what they are made of, in numpy, in the engine, and among experts."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import cpu, dispatch
from kernels.engine import Engine
from kernels.matrix import Activations, Matrix, from_elements
from kernels.program import CacheLayout, Embed, Experts, Hadamard, Linear, Program, Step
from kernels.reference.elementwise import rotated
from kernels.reference.program import ReferenceProgram
from kernels.rotation import Rotation, of_matrix, sylvester

TOKENS = 40
# 12 and 20 by Paley's first construction, as circulants of squares
SHAPES = [(1, 1), (2, 1), (4, 1), (8, 1), (32, 1), (64, 1), (512, 1), (2048, 1), (1, 12), (4, 12), (16, 20), (128, 12)]


def paley(order: int) -> np.ndarray:
    """A Hadamard matrix of order q + 1, q a prime that is 3 modulo 4."""
    q = order - 1
    squares = {i * i % q for i in range(1, q)}
    jacobsthal = np.array([[0 if a == b else 1 if (a - b) % q in squares else -1 for b in range(q)] for a in range(q)])
    matrix = np.ones((order, order))
    matrix[1:, 1:] = jacobsthal - np.eye(q)
    matrix[0, 0] = matrix[0, 1:] = 1
    return matrix.astype(np.float32)


def rotation(size: int, order: int, seed: int = 0) -> Rotation:
    factor = np.ones((1, 1), np.float32) if order == 1 else paley(order)
    signs = np.random.default_rng(seed).choice(np.array([-1, 1], np.float32), size * order)
    return Rotation(size, factor, signs)


def values(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize(("size", "order"), SHAPES)
def test_it_is_the_whole_matrix_and_can_be_undone(size: int, order: int) -> None:
    made, x = rotation(size, order), values(3, 2 * size * order)
    whole = np.kron(made.factor, sylvester(size)) * made.signs[:, None] / np.sqrt(size * order)
    np.testing.assert_allclose(whole @ whole.T, np.eye(len(whole)), atol=1e-5)
    want = x.reshape(6, -1).astype(np.float64) @ whole
    np.testing.assert_allclose(made.apply(x), want.reshape(x.shape), atol=2e-5)
    np.testing.assert_allclose(rotated(x, made), want.reshape(x.shape), atol=1e-9 + 2e-6)
    np.testing.assert_allclose(made.undo(made.apply(x)), x, atol=2e-5)
    np.testing.assert_allclose(made.matrix(), whole, atol=1e-6)


def test_sylvesters_matrix_is_written_out() -> None:
    assert sylvester(4).tolist() == [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]
    two = Rotation.plain(2).apply(np.array([[3, 1, 5, 0]], np.float32))
    np.testing.assert_allclose(two, np.array([[4, 2, 5, 5]]) / np.sqrt(2), rtol=1e-6)
    with pytest.raises(ValueError, match="powers of two, not 12"):
        Rotation.plain(12)
    with pytest.raises(ValueError, match="no whole runs of 4"):
        Rotation.plain(4).apply(values(2, 6))


@pytest.mark.parametrize(("size", "order"), SHAPES)
def test_a_matrix_tells_what_it_is_made_of(size: int, order: int) -> None:
    made = rotation(size, order, seed=3)
    found = of_matrix(np.rint(made.matrix() * np.sqrt(made.width)))
    assert found is not None
    assert found.size >= size
    np.testing.assert_allclose(found.matrix(), made.matrix(), atol=1e-6)


def test_other_matrices_are_none() -> None:
    one = np.rint(rotation(8, 12).matrix() * np.sqrt(96))
    for change in ((3, 5), (0, 0), (95, 95)):
        wrong = one.copy()
        wrong[change] *= -1
        assert of_matrix(wrong) is None
    assert of_matrix(one * 2) is None
    assert of_matrix(one[:, :48]) is None
    assert of_matrix(np.ones((8, 8), np.float32)) is None
    large = rotation(64, 12).matrix() * np.sqrt(768)
    assert of_matrix(np.rint(large)) is not None
    assert of_matrix(np.rint(large)[np.random.default_rng(0).permutation(768)]) is None  # orthogonal, and slow


def elements(array: np.ndarray) -> Matrix:
    kept = np.ascontiguousarray(array, np.float32).view(np.uint8)
    return from_elements("F32", *array.shape, lambda start, stop: kept[start:stop])


def difference(steps: list[Step], widths: list[int], out: int, isa: str, count: int, threads: int) -> float:
    made = Program(tuple(steps), tuple(widths), out, CacheLayout((), TOKENS, 1, "F32"), Activations.EXACT)
    tokens, rows = np.arange(count) % TOKENS, np.arange(count)
    batch = tokens, np.zeros(count, np.int32), rows % TOKENS, rows
    want = ReferenceProgram(made).run(*batch)
    with dispatch.only(f"cpu:{isa}"):
        got = Engine(made, threads).run(*batch)
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize("isa", cpu.engine_sets)
@pytest.mark.parametrize(("size", "order"), SHAPES)
@pytest.mark.parametrize("count", [1, 3, 40])
def test_in_the_engine(isa: str, size: int, order: int, count: int) -> None:
    made = rotation(size, order)
    width = 3 * made.width
    for threads in (1, 3):
        steps = [Embed(elements(values(TOKENS, width)), 0), Hadamard(0, made)]
        assert difference(steps, [width], 0, isa, count, threads) < 3e-6


@pytest.mark.parametrize("isa", cpu.engine_sets)
@pytest.mark.parametrize("count", [1, 40])
def test_a_rotated_weight_gives_what_the_weight_does(isa: str, count: int) -> None:
    made, width = rotation(16, 12), 384
    weight, table = values(24, width, seed=5), elements(values(TOKENS, width))
    plain = [Embed(table, 0), Linear(0, (elements(weight),), (1,))]
    turned = [Embed(table, 0), Hadamard(0, made), Linear(0, (elements(made.apply(weight)),), (1,))]
    found = []
    for steps in (plain, turned):
        program = Program(tuple(steps), (width, 24), 1, CacheLayout((), TOKENS, 1, "F32"), Activations.EXACT)
        with dispatch.only(f"cpu:{isa}"):
            rows = np.arange(count, dtype=np.int32)
            found.append(Engine(program, 2).run(rows, rows * 0, rows, rows))
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)


@pytest.mark.parametrize("isa", cpu.engine_sets)
@pytest.mark.parametrize("count", [1, 3, 40])
def test_among_experts(isa: str, count: int) -> None:
    made, experts = rotation(4, 12), 5
    gates, ups = (tuple(elements(values(96, 64, seed=10 * i + e)) for e in range(experts)) for i in (1, 2))
    downs = tuple(elements(values(64, 96, seed=30 + e)) for e in range(experts))
    steps = [
        Embed(elements(values(TOKENS, 64)), 0),
        Embed(elements(values(TOKENS, 64, seed=4)), 1),
        Linear(0, (elements(values(experts, 64)),), (2,)),
        Experts(0, 2, 1, gates, ups, downs, 2, True, "silu", made),
    ]
    for threads in (1, 2):
        assert difference(steps, [64, 64, experts], 1, isa, count, threads) < 3e-6
    other = [*steps[:3], Experts(0, 2, 1, gates, ups, downs, 2)]
    both = [
        ReferenceProgram(Program(tuple(s), (64, 64, experts), 1, CacheLayout((), TOKENS, 1, "F32"))).run(
            np.arange(3), np.zeros(3, np.int32), np.arange(3), np.arange(3)
        )
        for s in (steps, other)
    ]
    assert np.abs(both[0] - both[1]).max() > 0.1


def test_what_does_not_fit_is_refused() -> None:
    table = elements(values(TOKENS, 96))
    for wrong in (
        Rotation(3, np.ones((1, 1), np.float32), np.ones(3, np.float32)),
        Rotation(64, np.ones((1, 1), np.float32), np.ones(64, np.float32)),
        Rotation(32, np.ones((1, 1), np.float32), np.ones(16, np.float32)),
        Rotation(1, np.ones((300, 300), np.float32), np.ones(300, np.float32)),
    ):
        steps = (Embed(table, 0), Hadamard(0, wrong))
        program = Program(steps, (96,), 0, CacheLayout((), TOKENS, 1, "F32"), Activations.EXACT)
        if cpu.engine_sets:
            with pytest.raises(ValueError), dispatch.only(f"cpu:{cpu.engine_sets[0]}"):
                Engine(program, 1)
