"""Engines as a whole: batches, limits, cancelling, memory, threads."""

from __future__ import annotations

import gc
import threading
import time

import numpy as np
import psutil
import pytest

from kernels import cpu, dispatch
from kernels.engine import BATCH, Cancelled, Engine
from kernels.matrix import Activations, Matrix, from_elements
from kernels.program import ActMul, Attention, CacheLayout, Embed, Linear, Norm, Program, Rope, Step
from kernels.reference.program import ReferenceProgram

BACKENDS = [*(f"cpu:{name}" for name in cpu.engine_sets), "reference"]
VOCABULARY, WIDTH, HEADS, KV_HEADS, DIM, INNER = 50, 72, 3, 1, 24, 100
TOLERANCE = 1e-5  # of the largest logit, float32 throughout, two layers


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def matrix(rows: int, columns: int, seed: int) -> Matrix:
    values = np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) / np.float32(columns**0.5)
    return from_elements("F32", rows, columns, lambda start, stop: values[start:stop].view(np.uint8))


def decoder(layers: int = 2, capacity: int = 64, sequences: int = 3, width: int = WIDTH, inner: int = INNER) -> Program:
    """A small Llama. Buffers: stream, normed, q, k, v, attended, gate, up, logits."""
    ones, frequencies = np.ones(width, np.float32), (0.5 ** np.arange(DIM // 2)).astype(np.float32)
    heads = width // DIM
    key = KV_HEADS * DIM
    steps: list[Step] = [Embed(matrix(VOCABULARY, width, 0), 0)]
    for layer in range(layers):
        seed = 10 * layer
        steps += [
            Norm(0, 1, ones, 1e-5),
            Linear(
                1,
                (matrix(width, width, seed + 1), matrix(key, width, seed + 2), matrix(key, width, seed + 3)),
                (2, 3, 4),
            ),
            Rope(2, heads, frequencies),
            Rope(3, KV_HEADS, frequencies),
            Attention(2, 3, 4, 5, layer, heads, KV_HEADS, DIM, DIM**-0.5),
            Linear(5, (matrix(width, width, seed + 4),), (0,), accumulate=True),
            Norm(0, 1, ones, 1e-5),
            Linear(1, (matrix(inner, width, seed + 5), matrix(inner, width, seed + 6)), (6, 7)),
            ActMul(6, 7, 6),
            Linear(6, (matrix(width, inner, seed + 7),), (0,), accumulate=True),
        ]
    steps += [Norm(0, 1, ones, 1e-5), Linear(1, (matrix(VOCABULARY, width, 99),), (8,), logits=True)]
    cache = CacheLayout(((KV_HEADS, DIM),) * layers, capacity, sequences, "F32")
    widths = (width, width, width, key, key, width, inner, inner, VOCABULARY)
    return Program(tuple(steps), widths, 8, cache, Activations.EXACT)


def opened(program: Program, backend: str, threads: int = 2) -> Engine:
    with dispatch.only(backend):
        return Engine(program, threads)


def tokens_of(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, VOCABULARY, count)


def close(got: np.ndarray, want: np.ndarray) -> bool:
    return bool(np.abs(got - want).max() <= TOLERANCE * np.abs(want).max())


def test_batches_of_mixed_lengths_equal_runs_of_their_own(backend: str) -> None:
    program = decoder()
    prompts = [tokens_of(count, count) for count in (1, 17, 40)]
    alone = []
    reference = ReferenceProgram(program)
    for slot, prompt in enumerate(prompts):
        count = len(prompt)
        alone.append(reference.run(prompt, np.full(count, slot), np.arange(count), [count - 1])[0])
        reference.run([1], [slot], [count], [])
    engine = opened(program, backend)
    sequences = np.repeat([0, 1, 2], [1, 17, 40])
    positions = np.concatenate([np.arange(len(prompt)) for prompt in prompts])
    mixed = np.random.default_rng(0).permutation(58)
    last = [int(np.flatnonzero(mixed == at)[0]) for at in (0, 17, 57)]
    got = engine.run(np.concatenate(prompts)[mixed], sequences[mixed], positions[mixed], last)
    assert close(got, np.array(alone))
    step = ([3, 4, 5], [2, 0, 1], [40, 1, 17], [2, 0])
    reference = ReferenceProgram(program)
    reference.run(np.concatenate(prompts), sequences, positions, [])
    assert close(engine.run(*step), reference.run(*step))


def test_long_batches_go_in_parts(backend: str) -> None:
    """Prompts of two sequences that are longer together than what is computed at once, given in any order."""
    program = decoder(layers=1, capacity=400, sequences=2)
    assert BATCH < 700
    tokens, sequences = tokens_of(700), np.repeat([0, 1], 350)
    positions = np.tile(np.arange(350), 2)
    mixed = np.random.default_rng(3).permutation(700)
    rows = np.array([5, 699, 0, 5, 350])
    got = opened(program, backend).run(tokens[mixed], sequences[mixed], positions[mixed], rows)
    assert close(got, ReferenceProgram(program).run(tokens[mixed], sequences[mixed], positions[mixed], rows))


def test_capacity_ends_exactly(backend: str) -> None:
    program = decoder(capacity=20, sequences=1)
    engine = opened(program, backend)
    engine.run(tokens_of(19), np.zeros(19), np.arange(19), [])
    before = engine.run([7], [0], [19], [0])
    for arguments in (
        ([7, 7], [0, 0], [0, 20], [0]),  # one past the end, and the good row before it changes nothing
        ([7], [0], [-1], [0]),
        ([7], [1], [0], [0]),
        ([VOCABULARY], [0], [0], [0]),
        ([-1], [0], [0], [0]),
        ([7], [0], [0], [1]),
        ([7, 7], [0], [0], [0]),
        (np.full(600, 7), np.zeros(600), np.full(600, 20), [0]),
    ):
        with pytest.raises(ValueError):
            engine.run(*arguments)
    assert np.array_equal(engine.run([7], [0], [19], [0]), before)


def test_empty_batches(backend: str) -> None:
    engine = opened(decoder(), backend)
    assert engine.run([], [], [], []).shape == (0, VOCABULARY)
    assert engine.run([1, 2], [0, 0], [0, 1], []).shape == (0, VOCABULARY)


def test_rows_can_be_wanted_twice(backend: str) -> None:
    engine = opened(decoder(), backend)
    logits = engine.run(tokens_of(4), np.zeros(4), np.arange(4), [3, 1, 3])
    assert np.array_equal(logits[0], logits[2])
    assert not np.array_equal(logits[0], logits[1])


def test_number_of_threads_changes_nothing_that_matters(backend: str) -> None:
    program = decoder()
    arguments = (tokens_of(50), np.zeros(50), np.arange(50), np.arange(50))
    want = ReferenceProgram(program).run(*arguments)
    for threads in (1, 2, 4):
        assert close(opened(program, backend, threads).run(*arguments), want)


def test_programs_that_do_not_fit_together_are_refused() -> None:
    if not cpu.engine_sets:
        pytest.skip("numpy's executor finds out when it runs")
    weight = matrix(8, 16, 0)
    for steps, widths in (
        ([Embed(weight, 0)], (15,)),
        ([Embed(weight, 3)], (16,)),
        ([Embed(weight, 0), Linear(0, (weight,), (1,))], (16, 9)),
        ([Embed(weight, 0), Norm(0, 0, np.ones(5, np.float32), 1e-5)], (16,)),
        ([Embed(weight, 0), Attention(0, 0, 0, 0, 0, 1, 1, 16, 1.0)], (16,)),
        ([Embed(weight, 0), ActMul(0, 0, 0, "relu")], (16,)),
    ):
        with pytest.raises(ValueError):
            Engine(Program(tuple(steps), widths, 0, CacheLayout((), 4)), 1)
    with pytest.raises(ValueError):
        Engine(decoder(), 0)


@pytest.mark.parametrize("count", [1, 500])
def test_cancel_answers_at_once(backend: str, count: int) -> None:
    """From another thread, in a prompt and in single steps. The engine goes on afterwards."""
    program = decoder(layers=4, capacity=512, width=480, inner=2000, sequences=1)
    engine = opened(program, backend)
    tokens, zeros, places = tokens_of(count), np.zeros(count), np.arange(count)
    engine.cancel()  # nothing is under way: nothing happens
    engine.run(tokens[:1], zeros[:1], places[:1], [])
    answered: list[float] = []

    def work() -> None:
        try:
            while True:
                engine.run(tokens, zeros, places, [0])
        except Cancelled:
            answered.append(time.perf_counter())

    worker = threading.Thread(target=work)
    worker.start()
    time.sleep(0.05)
    asked = time.perf_counter()
    while not answered and time.perf_counter() < asked + 20:
        engine.cancel()  # again, as it may have come between two runs
        time.sleep(0.005)
    worker.join()
    if backend != "reference":  # numpy looks between steps only
        assert answered[0] - asked < 0.2
    assert engine.run([1], [0], [0], [0]).shape == (1, VOCABULARY)


def test_two_engines_at_once(backend: str) -> None:
    program = decoder()
    engines = [opened(program, backend) for _ in range(2)]
    prompts = [tokens_of(30, seed) for seed in (1, 2)]
    want = [ReferenceProgram(program).run(p, np.zeros(30), np.arange(30), [29]) for p in prompts]
    results: list[list[np.ndarray]] = [[], []]

    def work(i: int) -> None:
        for _ in range(20):
            results[i].append(engines[i].run(prompts[i], np.zeros(30), np.arange(30), [29]))

    workers = [threading.Thread(target=work, args=(i,)) for i in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for i in (0, 1):
        assert len(results[i]) == 20
        assert all(close(result, want[i]) for result in results[i])


def test_one_engine_from_two_threads(backend: str) -> None:
    engine = opened(decoder(), backend)
    want = engine.run([5], [0], [0], [0])
    wrong = []

    def work() -> None:
        wrong.extend(not np.array_equal(engine.run([5], [0], [0], [0]), want) for _ in range(20))

    if backend == "reference":
        return  # is not made for that
    workers = [threading.Thread(target=work) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not any(wrong)


@pytest.mark.skipif(not cpu.engine_sets, reason="about the compiled engine")
def test_idle_threads_sleep() -> None:
    engine = Engine(decoder(), 4)
    engine.run(tokens_of(30), np.zeros(30), np.arange(30), [29])
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.05


@pytest.mark.skipif(not cpu.engine_sets, reason="about the compiled engine")
def test_memory_comes_back_and_does_not_grow() -> None:
    process = psutil.Process()

    def resident() -> int:
        gc.collect()
        return process.memory_info().rss

    program = decoder(capacity=4096, sequences=8)
    threads_before = process.num_threads()
    start = resident()
    engine = Engine(program, 2)
    for slot in range(8):
        engine.run(tokens_of(512), np.full(512, slot), np.arange(512), [511])
    assert engine.nbytes > 12 << 20
    used = resident()
    assert used - start > 2 << 20
    for i in range(1000):
        engine.run(tokens_of(3, i), np.full(3, i % 8), np.arange(3), [2])
        engine.run([1], [i % 8], [3], [0])
    assert resident() - used < 1 << 20
    engine.close()
    assert resident() - start < 3 << 19
    assert process.num_threads() == threads_before
    with pytest.raises(RuntimeError):
        engine.run([1], [0], [0], [0])


def test_bytes_of_a_token() -> None:
    program = decoder(layers=1)
    linear = sum(weight.nbytes for step in program.steps if isinstance(step, Linear) for weight in step.weights)
    row = program.steps[0].weight.nbytes / VOCABULARY
    assert Engine(program, 1).bytes_per_token == round(linear + row)


def test_report(backend: str) -> None:
    engine = opened(decoder(), backend)
    uses = engine.report()
    assert len(set(uses)) == len(uses)
    assert {use.op for use in uses} == {"embedding rows", "linear", "attention"}
    assert {use.isa for use in uses} == {engine.isa}
    assert all(use.reason and use.kernel for use in uses)
    assert f"{INNER} × {WIDTH}" in {use.shape for use in uses}


def test_times_of_steps(backend: str) -> None:
    program = decoder()
    engine = opened(program, backend)
    engine.profile(True)
    started = time.perf_counter()
    engine.run(tokens_of(30), np.zeros(30), np.arange(30), [29])
    elapsed = time.perf_counter() - started
    times = engine.times()
    assert [time.op for time in times] == [type(step).__name__ for step in program.steps]
    assert 0 < sum(time.seconds for time in times) <= elapsed
    assert all(time.seconds > 0 for time in times if time.op in ("Linear", "Attention"))
    engine.profile(True)
    assert not any(time.seconds for time in engine.times())


def test_weights_packed_in_numpy_run_in_numpy() -> None:
    with dispatch.only("reference"):
        program = decoder(layers=1)
    engine = Engine(program, 1)
    assert engine.backend == "reference"
    assert "packed" in engine.report()[0].reason or not cpu.engine_sets
