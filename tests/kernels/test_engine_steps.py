"""Each kind of step, on each instruction set, against numpy's executor."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

from kernels import cpu, dispatch
from kernels.engine import Engine
from kernels.matrix import Activations, Matrix, from_blocks, from_elements, from_groups
from kernels.program import (
    ActMul,
    Add,
    Attention,
    CacheLayout,
    Embed,
    Experts,
    Linear,
    Norm,
    Program,
    Rope,
    SoftCap,
    Split,
    Step,
)
from kernels.reference.blocks import encode_blocks
from kernels.reference.program import ReferenceProgram

TOLERANCE = 2e-6  # float32 sums in another order, relative to the largest value of a result
VOCABULARY = 40


@pytest.fixture(params=cpu.engine_sets)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


def floats(rows: int, columns: int, seed: int = 0, dtype: str = "F32") -> Matrix:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) / np.float32(columns**0.5)
    return elements(values, dtype)


def elements(values: np.ndarray, dtype: str = "F32") -> Matrix:
    if dtype == "BF16":
        kept = (values.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        kept = values.view(np.uint8)
    return from_elements(dtype, *values.shape, lambda start, stop: kept[start:stop])


def blocks(kind: str, rows: int, columns: int, seed: int) -> Matrix:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) / np.float32(columns**0.5)
    packed = encode_blocks(kind, values, None, False, 1.0, 1)
    return from_blocks(kind, rows, columns, lambda start, stop: packed[start:stop])


def ordered(rows: int, columns: int, seed: int, order: int = 0) -> Matrix:
    """Four bits in groups of 32 columns that lie anywhere. order: equal ones are equal permutations."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 16, (rows, columns)).astype(np.uint8)
    scales = (rng.standard_normal((rows, -(-columns // 32))) / columns**0.5).astype(np.float32)
    permutation = np.random.default_rng(order).permutation(columns)
    return from_groups(rows, columns, 4, 32, lambda a, b: (codes[a:b], scales[a:b], None), "F32", order=permutation)


def table(width: int, seed: int = 3) -> Matrix:
    """Embedding rows that are anything."""
    return elements(np.random.default_rng(seed).standard_normal((VOCABULARY, width)).astype(np.float32))


def program(
    steps: list[Step],
    widths: list[int],
    logits: int,
    layers: tuple[tuple[int, int], ...] = (),
    *,
    capacity: int = 64,
    sequences: int = 2,
    cache: str = "F32",
    activations: Activations = Activations.EXACT,
) -> Program:
    return Program(tuple(steps), tuple(widths), logits, CacheLayout(layers, capacity, sequences, cache), activations)


def difference(got: np.ndarray, want: np.ndarray) -> float:
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


def check(made: Program, isa: str, count: int = 5, threads: int = 2, tolerance: float = TOLERANCE) -> None:
    """All rows of one batch of `count` tokens, and a part of them in another order."""
    rng = np.random.default_rng(1)
    tokens = rng.integers(0, VOCABULARY, count)
    sequences, positions = np.zeros(count, np.int32), np.arange(count)
    rows = np.arange(count)
    want = ReferenceProgram(made).run(tokens, sequences, positions, rows)
    with dispatch.only(f"cpu:{isa}"):
        engine = Engine(made, threads)
    assert difference(engine.run(tokens, sequences, positions, rows), want) <= tolerance
    some = rng.permutation(count)[: max(1, count // 2)]
    assert difference(engine.run(tokens, sequences, positions, some), want[some]) <= tolerance


@pytest.mark.parametrize("width", [1, 31, 64, 100, 2050])
def test_embedding_norm_and_add(isa: str, width: int) -> None:
    gain = np.random.default_rng(0).standard_normal(width).astype(np.float32)
    steps = [Embed(table(width), 0, 1.5), Norm(0, 1, gain, 1e-5), Add(0, 1), Norm(1, 1, gain, 1e-6)]
    check(program(steps, [width, width], 1), isa, count=9)


def test_norm_of_heads(isa: str) -> None:
    gain = np.linspace(0.5, 2, 40).astype(np.float32)
    check(program([Embed(table(120), 0), Norm(0, 0, gain, 1e-6, heads=3)], [120], 0), isa)


@pytest.mark.parametrize("pairs", [False, True])
@pytest.mark.parametrize(("dim", "turned"), [(64, 32), (80, 40), (96, 16), (40, 20), (6, 2)])
def test_rope(isa: str, pairs: bool, dim: int, turned: int) -> None:
    frequencies = (10000.0 ** -(np.arange(turned) / turned)).astype(np.float32)
    steps = [Embed(table(3 * dim), 0), Rope(0, 3, frequencies, 1.25, pairs), Rope(0, 3, frequencies[:1], 1.0, pairs)]
    check(program(steps, [3 * dim], 0), isa, count=40)


@pytest.mark.parametrize("kind", ["silu", "gelu", "gelu_tanh"])
def test_activations(isa: str, kind: str) -> None:
    """Over the whole range where something happens, relative to each value but for denormal ones."""
    gate = np.linspace(-12, 12, VOCABULARY * 101).reshape(VOCABULARY, 101).astype(np.float32)
    gate[0, :6] = [0, -0.0, 30, -30, 90, -90]
    steps = [Embed(elements(gate), 0), Embed(elements(np.ones_like(gate)), 1), ActMul(0, 1, 1, kind)]
    made = program(steps, [101, 101], 1)
    rows = np.arange(VOCABULARY)
    arguments = (rows, np.zeros(VOCABULARY), rows, rows)
    want = ReferenceProgram(made).run(*arguments)
    with dispatch.only(f"cpu:{isa}"):
        got = Engine(made, 1).run(*arguments)
    np.testing.assert_allclose(got, want, rtol=2e-6 if kind == "silu" else 2e-5, atol=1e-10)


def test_exponential(isa: str) -> None:
    """Within 2 units in the last place; 0 where the result would be denormal; what is not a number stays so."""
    x = np.concatenate([np.linspace(-87.3, 88.7, 100_001), [-90, -np.inf, 89, np.inf, np.nan]]).astype(np.float32)
    got = np.empty_like(x)
    assert cpu.engine is not None
    cpu.engine.exp(isa, x, got)
    want = np.exp(x[:-5].astype(np.float64))
    assert np.max(np.abs(got[:-5] - want) / np.spacing(want.astype(np.float32))) <= 2
    np.testing.assert_array_equal(got[-5:], [0, 0, np.inf, np.inf, np.nan])


def test_softcap(isa: str) -> None:
    values = np.linspace(-200, 200, VOCABULARY * 33).reshape(VOCABULARY, 33).astype(np.float32)
    values[0, :4] = [1e-3, -1e-3, 0, 1e6]
    made = program([Embed(elements(values), 0), SoftCap(0, 30.0)], [33], 0)
    rows = np.arange(VOCABULARY)
    arguments = (rows, np.zeros(VOCABULARY), rows, rows)
    with dispatch.only(f"cpu:{isa}"):
        got = Engine(made, 2).run(*arguments)
    np.testing.assert_allclose(got, ReferenceProgram(made).run(*arguments), rtol=5e-7)


def test_split(isa: str) -> None:
    steps = [Embed(table(50), 0), Split(0, (1, 2, 3), (20, 7, 20)), Add(1, 3)]
    check(program(steps, [50, 20, 7, 20], 3), isa)


MATRICES: dict[str, Callable[[int, int, int], Matrix]] = {
    "F32": floats,
    "BF16": lambda rows, columns, seed: floats(rows, columns, seed, "BF16"),
    "Q4_0": lambda rows, columns, seed: blocks("Q4_0", rows, columns, seed),
    "Q6_K": lambda rows, columns, seed: blocks("Q6_K", rows, columns * 8, seed),
    "ordered": lambda rows, columns, seed: ordered(rows, columns * 3, seed, order=seed // 2),
}
# int8 dot products are exact, so only sums of their products differ; bfloat16 products may be summed in pairs.
CONTRACTS = {Activations.EXACT: 2e-6, Activations.FAST: 2e-6, Activations.TOKEN: 2e-6}


@pytest.mark.parametrize("activations", list(CONTRACTS))
@pytest.mark.parametrize("name", list(MATRICES))
@pytest.mark.parametrize("count", [1, 3, 30])
def test_linear(isa: str, name: str, activations: Activations, count: int) -> None:
    """Two weights and their biases at once, then a sum onto what is there, then the logits' rows only."""
    make = MATRICES[name]
    first, second, third = make(50, 32, 1), make(33, 32, 2), make(50, 32, 3)
    width = first.columns
    bias = np.linspace(-1, 1, 33).astype(np.float32)
    steps = [
        Embed(table(width), 0),
        Norm(0, 3, np.ones(width, np.float32), 1e-6),
        Linear(3, (first, second), (1, 2), (None, bias)),
        Linear(0, (third,), (1,), accumulate=True),
        Linear(0, (third,), (4,), logits=True),
        Split(2, (5,), (20,)),
        Split(4, (6,), (20,)),
        Split(1, (7,), (20,)),
        Add(5, 6),
        Add(7, 6),
    ]
    made = program(steps, [width, 50, 33, width, 50, 20, 20, 20], 6, activations=activations)
    check(made, isa, count, tolerance=CONTRACTS[activations])


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("swapped", [False, True])
def test_activation_joins_the_product_before_it(isa: str, count: int, swapped: bool) -> None:
    weights = (blocks("Q8_0", 70, 64, 1), blocks("Q8_0", 70, 64, 2))
    gate, up = (1, 2)[:: -1 if swapped else 1]
    steps = [Embed(table(64), 0), Linear(0, weights, (1, 2)), ActMul(gate, up, gate, "silu")]
    check(program(steps, [64, 70, 70], gate, activations=Activations.FAST), isa, count)


def test_outliers(isa: str) -> None:
    """LLM.int8(): some columns are far from the others, and keep their float values."""
    values = np.random.default_rng(0).standard_normal((VOCABULARY, 96)).astype(np.float32)
    values[:, [3, 50]] *= 40
    codes = np.random.default_rng(1).integers(1, 256, (48, 96)).astype(np.uint8)
    scales = np.full((48, 1), 0.01, np.float32)
    weight = from_groups(48, 96, 8, 96, lambda a, b: (codes[a:b], scales[a:b], None), "F32")
    for each in (weight, ordered(48, 96, 2)):
        steps = [Embed(elements(values), 0), Linear(0, (each,), (1,), outliers=6.0)]
        for count in (1, 17):
            check(program(steps, [96, 48], 1, activations=Activations.TOKEN), isa, count)


def test_columns_in_many_orders(isa: str) -> None:
    """More kinds of activations in one step than there are kinds without orders; rows of such a matrix as embedding."""
    weights = (*(ordered(20, 96, i, order=i) for i in range(7)), floats(20, 96), blocks("Q8_0", 20, 96, 1))
    steps: list[Step] = [Embed(ordered(VOCABULARY, 96, 9, order=3), 0)]
    steps += [Linear(0, weights, tuple(range(1, 10)))] + [Add(i, 1) for i in range(2, 10)]
    for activations in Activations:
        check(program(steps, [96] + [20] * 9, 1, activations=activations), isa, 14)


@pytest.mark.parametrize("name", ["Q4_0", "many orders"])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("count", [1, 3, 50])
def test_experts(isa: str, count: int, normalized: bool, name: str) -> None:
    experts = 7
    make = MATRICES["Q4_0"] if name == "Q4_0" else lambda n, k, seed: ordered(n, k, seed, order=seed)
    gates, ups = (tuple(make(32, 64, 10 * i + e) for e in range(experts)) for i in (1, 2))
    downs = tuple(make(64, 32, 30 + e) for e in range(experts))
    steps = [
        Embed(table(64), 0),
        Embed(table(64, seed=4), 1),
        Linear(0, (floats(experts, 64),), (2,)),
        Experts(0, 2, 1, gates, ups, downs, 3, normalized, "silu"),
    ]
    check(program(steps, [64, 64, experts], 1, activations=Activations.EXACT), isa, count)


def attention(
    heads: int, kv_heads: int, dim: int, cache: str = "F32", window: int = 0, softcap: float = 0.0, capacity: int = 300
) -> Program:
    widths = [heads * dim, kv_heads * dim, kv_heads * dim, heads * dim]
    steps: list[Step] = [Embed(table(width, seed=i), i) for i, width in enumerate(widths[:3])]
    steps.append(Attention(0, 1, 2, 3, 0, heads, kv_heads, dim, dim**-0.5, window, softcap))
    return program(steps, widths, 3, ((kv_heads, dim),), cache=cache, capacity=capacity)


SHAPES = [
    (9, 3, 64, "F16", 0, 0.0),
    (4, 4, 80, "F32", 0, 0.0),
    (8, 1, 40, "BF16", 7, 30.0),
    (3, 3, 96, "F16", 100, 0.0),
    (6, 2, 256, "F32", 64, 50.0),
    (7, 1, 33, "BF16", 1, 0.0),
    (70, 1, 16, "F16", 0, 0.0),
]


Shape = tuple[int, int, int, str, int, float]


@cache
def attended(shape: Shape) -> tuple[Program, list[tuple[tuple[np.ndarray, ...], np.ndarray]]]:
    """The program, what it is run with one after another, and what numpy's executor makes of it (computed once)."""
    made = attention(*shape)
    rng = np.random.default_rng(2)
    items = [(0, p) for p in range(290)] + [(1, p) for p in range(90)]
    rng.shuffle(items)
    reference = ReferenceProgram(made)
    runs = []
    for batch in (np.array(items), np.array([(0, 290), (1, 90)]), np.array([(1, 91)]), np.array([(0, 291)])):
        tokens = rng.integers(0, VOCABULARY, len(batch))
        rows = rng.permutation(len(batch))[:25]
        arguments = (tokens, batch[:, 0], batch[:, 1], rows)
        runs.append((arguments, reference.run(*arguments)))
    return made, runs


CODED: list[Shape] = [
    (9, 3, 64, "Q8_0", 0, 0.0),
    (4, 4, 80, "Q4_0", 0, 0.0),
    (8, 1, 96, "Q8_0/Q4_0", 7, 30.0),
    (6, 2, 256, "Q4_0/Q8_0", 64, 50.0),
    (4, 2, 128, "Q4_0", 0, 0.0),
    (7, 1, 33, "Q8_0", 1, 0.0),
    (3, 3, 64, "F16/Q8_0", 100, 0.0),
    (70, 1, 16, "Q4_0/BF16", 0, 0.0),
]
# Rounded queries move scores by 2⁻¹⁶ of the largest query times a key, and shares by as much.
WITH_CODES = 1e-4


@pytest.mark.parametrize("shape", SHAPES + CODED, ids=str)
@pytest.mark.parametrize("threads", [1, 2, 4])
def test_attention(isa: str, shape: Shape, threads: int) -> None:
    """Two sequences in one shuffled batch, then single steps of both; 300 positions are cut over threads."""
    made, runs = attended(shape)
    with dispatch.only(f"cpu:{isa}"):
        engine = Engine(made, threads)
    tolerance = WITH_CODES if shape[3].startswith("Q") else TOLERANCE
    for arguments, want in runs:
        assert difference(engine.run(*arguments), want) <= tolerance


LENGTHS = (1, 31, 32, 33, 127, 128, 129)


@pytest.mark.parametrize("dim", [64, 80, 96, 128, 256])
@pytest.mark.parametrize("cache", ["Q8_0", "Q4_0"])
def test_cache_with_codes(isa: str, cache: str, dim: int) -> None:
    """Every length, one token at a time, all at once, and after going back: the same results."""
    made = attention(3, 1, dim, cache, capacity=LENGTHS[-1])
    reference = ReferenceProgram(made)
    tokens = np.random.default_rng(dim).integers(0, VOCABULARY, LENGTHS[-1])
    with dispatch.only(f"cpu:{isa}"):
        engine, slowly = Engine(made, 2), Engine(made, 1)
    rows = np.arange(LENGTHS[-1])
    want = reference.run(tokens, np.zeros_like(rows), rows, rows)
    single = np.concatenate([slowly.run(tokens[[i]], [0], [i], [0]) for i in range(len(rows))])  # type: ignore[arg-type]
    assert difference(single, want) <= WITH_CODES
    for length in reversed(LENGTHS):
        part = rows[:length]
        got = engine.run(tokens[part], np.zeros_like(part), part, part)
        assert difference(got, want[:length]) <= WITH_CODES
    # Position 40 again, with another token: what lies behind it is not seen, what lies before is as it was.
    again = (np.array([7]), np.array([0]), np.array([40]), np.array([0]))
    assert difference(slowly.run(*again), reference.run(*again)) <= WITH_CODES
    with pytest.raises(ValueError, match="position"):
        slowly.run(*(np.array([a]) for a in (1, 0, LENGTHS[-1], 0)))


@pytest.mark.parametrize("cache", ["Q8_0", "Q4_0", "Q8_0/Q4_0", "F16"])
def test_cache_takes_what_its_formats_say(isa: str, cache: str) -> None:
    """Within 1 % at 8192 positions; an engine without any layer has the rest."""
    made = attention(3, 1, 64, cache, capacity=8192)
    with dispatch.only(f"cpu:{isa}"):
        held = Engine(made, 1).nbytes - Engine(attention(3, 1, 64, cache, capacity=64), 1).nbytes
    formulas = {"Q8_0": 136, "Q4_0": 72, "Q8_0/Q4_0": 104, "F16": 256}
    assert made.cache.nbytes == 2 * formulas[cache] * 8192
    assert held / (8192 - 64) * 8192 == pytest.approx(made.cache.nbytes, rel=0.01)


def test_what_is_not_a_number_is_seen_until_it_is_overwritten(isa: str) -> None:
    values = np.random.default_rng(0).standard_normal((VOCABULARY, 64)).astype(np.float32)
    broken = values.copy()
    broken[3, 5] = np.nan
    steps = [Embed(elements(values), 0), Embed(elements(broken), 1), Embed(elements(broken), 2)]
    steps.append(Attention(0, 1, 2, 3, 0, 1, 1, 64, 0.125))
    for kept in ("Q8_0", "Q4_0"):
        with dispatch.only(f"cpu:{isa}"):
            engine = Engine(program(steps, [64] * 4, 3, ((1, 64),), cache=kept), 1)
        rows = np.arange(5)
        got = engine.run(np.array([0, 1, 3, 2, 4]), 0 * rows, rows, rows)
        assert np.isfinite(got[:2]).all()
        assert np.isnan(got[2:]).any(axis=1).all()
        # Another text in its place: what is behind it is not seen.
        got = engine.run(np.array([5, 6]), np.zeros(2, np.int32), np.arange(2), np.arange(2))
        assert np.isfinite(got).all()
