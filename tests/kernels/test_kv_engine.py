"""The compiled engine's cache against numpy's, in every format and with everything that a layout can ask for."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from kernels import cpu, dispatch
from kernels.engine import Engine
from kernels.kv import CACHE_FORMATS, kinds
from kernels.matrix import Activations, Matrix, from_elements
from kernels.program import Attention, CacheLayout, Embed, Program, Rope, with_cache
from kernels.reference.elementwise import softmax
from kernels.reference.kv_cache import HeadCache
from kernels.reference.program import ReferenceProgram

LENGTHS = (1, 31, 32, 33, 127, 128, 129)
DIMS = (64, 80, 96, 128, 256)
MOST = LENGTHS[-1]
VOCABULARY = 50
EXACT = 3e-6  # float32 sums in another order
# Queries in 16 bits move scores by 2⁻¹⁶ of their largest value times a key.
ROUNDED = 1e-4
LONG = 4e-6  # √4096 · 2⁻²⁴: what sums of that many float32 terms may be off
NAMES = [name for name in CACHE_FORMATS if name not in ("F32", "F16", "BF16")]
LAYOUTS = {
    "window": {"window": 40},
    "window and sinks": {"window": 33, "sinks": 5},
    "sinks": {"sinks": 3},
    "rotated": {"rotate_keys": True, "rotate_values": True},
    "all": {"window": 40, "sinks": 4, "rotate_keys": True, "rotate_values": True},
}


@pytest.fixture(params=cpu.engine_sets)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param


# Every head on the best instruction set, one that vectors do not divide on the others.
HEADS = [(isa, dim) for isa in cpu.engine_sets for dim in (DIMS if isa == cpu.engine_sets[0] else (80,))]


def embedding(width: int, seed: int) -> np.ndarray:
    """Rows with channels that stand out, as keys have them."""
    values = np.random.default_rng(seed).standard_normal((VOCABULARY, width)).astype(np.float32)
    values[:, :: max(width // 3, 1)] *= 4
    return values


@cache
def rows(width: int, seed: int) -> Matrix:
    values = embedding(width, seed)
    data = values.view(np.uint8)
    return from_elements("F32", *values.shape, lambda start, stop: data[start:stop])


def pair(name: str) -> str:
    """Formats with scales of channels are for keys."""
    form = CACHE_FORMATS[name]
    return f"{name}/U{form.bits}-g32" if form.channels else name


def program(
    dim: int, dtype: str, *, capacity: int = MOST, sequences: int = 1, window: int = 0, rope: int = 0, **more: object
) -> Program:
    """Three query heads on one key head. window: of `more`, the cache's; rope: frequencies, keys are stored before."""
    widths = 3 * dim, dim, dim, 3 * dim
    steps: list = [Embed(rows(width, seed), seed) for seed, width in enumerate(widths[:3])]
    if rope:
        frequencies = (10000.0 ** -(np.arange(rope) / rope)).astype(np.float32)
        steps += [Rope(0, 3, frequencies), Rope(1, 1, frequencies)]
    steps.append(Attention(0, 1, 2, 3, 0, 3, 1, dim, dim**-0.5))
    layout = CacheLayout(((1, dim),), capacity, sequences, dtype, window, **more)  # type: ignore[arg-type]
    plain = Program(tuple(steps), widths, 3, CacheLayout(layout.layers, 1), Activations.EXACT)
    return with_cache(plain, layout, before_rope=bool(rope))


def difference(got: np.ndarray, want: np.ndarray) -> float:
    assert np.isfinite(want).all()
    return float(np.abs(got - want).max() / np.abs(want).max())


def tolerance(dtype: str) -> float:
    return ROUNDED if dtype.split("/")[0] in ("Q8_0", "Q4_0") else EXACT


def text(seed: int, count: int = MOST) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count)


def run(engine: Engine | ReferenceProgram, tokens: np.ndarray, start: int = 0, sequence: int = 0) -> np.ndarray:
    places = np.arange(len(tokens))
    return engine.run(tokens, np.full_like(places, sequence), places + start, places)


@cache
def wanted(dim: int, name: str, layout: str, rope: int = 0) -> np.ndarray:
    return run(ReferenceProgram(program(dim, pair(name), rope=rope, **LAYOUTS.get(layout, {}))), text(dim))  # type: ignore[arg-type]


@pytest.mark.parametrize(("isa", "dim"), HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_every_format_length_and_head(isa: str, name: str, dim: int) -> None:
    """All at once for each length, which goes back each time; and one token after another."""
    made, tokens, want = program(dim, pair(name)), text(dim), wanted(dim, name, "")
    with dispatch.only(f"cpu:{isa}"):
        engine, slowly = Engine(made, 1), Engine(made, 1)
    for length in reversed(LENGTHS):
        assert difference(run(engine, tokens[:length]), want[:length]) <= tolerance(name)
    single = np.concatenate([run(slowly, tokens[[i]], i) for i in range(MOST)])
    assert difference(single, want) <= tolerance(name)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["Q8_0", "Q4_0", "Q5_1", "INT4", "FP8", "U2-t32", "U4-t32", "LM3"])
def test_tokens_that_wait(isa: str, name: str, layout: str) -> None:
    """A prompt in pieces of any size gives what numpy makes of one token after another; so does going back."""
    made, tokens, want = program(64, pair(name), **LAYOUTS[layout]), text(64), wanted(64, name, layout)  # type: ignore[arg-type]
    for sizes in ([MOST], [1] * MOST, [31, 1, 50, 47]):
        with dispatch.only(f"cpu:{isa}"):
            engine = Engine(made, 2)
        ends = np.cumsum(sizes)
        got = np.concatenate([run(engine, tokens[end - n : end], end - n) for n, end in zip(sizes, ends, strict=True)])
        assert difference(got, want) <= tolerance(name)
    reference = ReferenceProgram(made)
    run(reference, tokens)
    for start in (100, 77, 64, 40, 3, 0):
        other = text(start, 29)
        assert difference(run(engine, other, start), run(reference, other, start)) <= tolerance(name)


@pytest.mark.parametrize("layout", ["", "all"])
@pytest.mark.parametrize("name", ["Q8_0", "INT4", "FP8", "U2-t32"])
def test_keys_before_the_rotary_step(isa: str, name: str, layout: str) -> None:
    made, tokens, want = (
        program(64, pair(name), rope=24, **LAYOUTS.get(layout, {})),
        text(64),
        wanted(64, name, layout, 24),
    )  # type: ignore[arg-type]
    with dispatch.only(f"cpu:{isa}"):
        engine = Engine(made, 2)
    got = np.concatenate([run(engine, tokens[:70]), run(engine, tokens[70:71], 70), run(engine, tokens[71:], 71)])
    assert difference(got, want) <= 1e-5


@pytest.mark.parametrize("name", ["INT8", "U4-t32", "Q4_0"])
def test_sequences_of_different_length(isa: str, name: str) -> None:
    """In one batch, with rows in any order: each as if it were alone."""
    made = program(80, pair(name), sequences=3, window=20, sinks=2)
    lengths, later = (90, 5, 41), (1, 30, 2)
    with dispatch.only(f"cpu:{isa}"):
        engine = Engine(made, 2)
    reference = [ReferenceProgram(made) for _ in lengths]
    rng = np.random.default_rng(1)
    starts = (0, 0, 0)
    for counts in (lengths, later):
        parts = [(s, start + i) for s, (start, n) in enumerate(zip(starts, counts, strict=True)) for i in range(n)]
        order = rng.permutation(len(parts))
        tokens = rng.integers(0, VOCABULARY, len(parts))
        sequences, positions = np.array(parts)[order].T
        got = engine.run(tokens[order], sequences, positions, np.arange(len(parts)))
        for s, each in enumerate(reference):
            mine = np.array([part[0] == s for part in parts])
            want = run(each, tokens[mine], starts[s], s)
            place = np.argsort(order)[mine]
            assert difference(got[place], want) <= tolerance(name)
        starts = counts


def test_layers_that_are_kept(isa: str) -> None:
    made = program(64, "INT4", window=8, kept=frozenset({0}))
    with dispatch.only(f"cpu:{isa}"):
        engine, plain = Engine(made, 1), Engine(program(64, "F16"), 1)
    np.testing.assert_array_equal(run(engine, text(1)), run(plain, text(1)))
    assert engine.cache_bytes == plain.cache_bytes


def test_scales_of_heads(isa: str) -> None:
    """Given ones are used: with a wrong one, all that is larger than it allows is cut off."""
    scales = (((0.03,), (0.02,)),)
    made = program(64, "FP8-head", scales=scales)
    with dispatch.only(f"cpu:{isa}"):
        got = run(Engine(made, 1), text(2))
    assert difference(got, run(ReferenceProgram(made), text(2))) <= EXACT
    assert difference(got, run(ReferenceProgram(program(64, "FP8-head")), text(2))) > 1e-3


def test_what_is_refused(isa: str) -> None:
    with dispatch.only(f"cpu:{isa}"):
        engine = Engine(program(64, "INT4", window=8), 1)
        with pytest.raises(ValueError, match="position"):
            run(engine, text(0, 2), MOST - 1)
        for places in ([0, 2], [1, 1]):
            with pytest.raises(ValueError, match="leave out or repeat"):
                engine.run(np.array([1, 2]), np.array([0, 0]), np.array(places), np.array([0]))
        with pytest.raises(ValueError, match="scale"):
            Engine(program(64, "FP8-head", scales=(((1.0, 2.0), (1.0, 2.0)),)), 1)
        with pytest.raises(ValueError, match="channels"):
            Engine(program(64, "F16/U2-t32"), 1)


@pytest.mark.parametrize("more", [{}, {"window": 128, "sinks": 4}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_memory_is_what_the_formula_says(isa: str, name: str, more: dict[str, int]) -> None:
    """Within 1 % at 4096 positions, allocated."""
    for dim in (64, 80):
        made = program(dim, pair(name), capacity=4096, **more)  # type: ignore[arg-type]
        with dispatch.only(f"cpu:{isa}"):
            assert Engine(made, 1).cache_bytes == pytest.approx(made.cache.nbytes, rel=0.01)


def attended(dim: int, name: str, tokens: np.ndarray) -> np.ndarray:
    """Of the last token, in float64: keys and values appended at once, which gives what one after another does. Queries
    are rounded as the engine rounds them: over this many keys of one head they move what is left after averaging by
    1.2e-4 of its largest value, which is the queries' and no code's."""
    queries, keys, values = (embedding(width, seed)[tokens] for seed, width in enumerate((3 * dim, dim, dim)))
    sides = []
    for form, x in zip(kinds(pair(name)), (keys, values), strict=True):
        held = HeadCache(form, dim)
        held.append(x)
        sides.append(held.read().astype(np.float64))
    query = queries[-1].reshape(3, dim)
    if tolerance(name) == ROUNDED:
        step = np.abs(query).max(axis=1, keepdims=True) / np.float32(32767)
        query = np.rint(query / step) * step
    scores = query.astype(np.float64) @ sides[0].T * dim**-0.5
    return (softmax(scores) @ sides[1]).reshape(-1)


@pytest.mark.slow
@pytest.mark.parametrize(("isa", "dim"), HEADS)
@pytest.mark.parametrize("name", NAMES)
def test_long_context(isa: str, name: str, dim: int) -> None:
    """4096 tokens, as a prompt and then one after another from the middle of a group on: the last ones."""
    made, tokens = program(dim, pair(name), capacity=4096), text(dim, 4096)
    with dispatch.only(f"cpu:{isa}"):
        engine = Engine(made, 2)
    places, last = np.arange(4096), np.array([4095])
    want = attended(dim, name, tokens)
    assert difference(engine.run(tokens, 0 * places, places, last)[0], want) <= LONG
    for start in range(4064, 4096):
        got = run(engine, tokens[[start]], start)
    assert difference(got[0], want) <= LONG
