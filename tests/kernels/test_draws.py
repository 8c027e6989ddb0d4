"""Sampling against its definition in numpy, and what the definition promises."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kernels import cpu, dispatch
from kernels.engine import sample
from kernels.reference.sample import uniform

BACKENDS = [*(f"cpu:{name}" for name in cpu.engine_sets), "reference"]
NOTHING = np.zeros(0, np.int32)


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def cases() -> list[tuple[np.ndarray, dict[str, float]]]:
    rng = np.random.default_rng(5)
    found = []
    for case in range(160):
        count = int(rng.choice([1, 5, 37, 1000, 20011]))
        logits = (rng.standard_normal(count) * rng.choice([0.01, 1, 4, 10])).astype(np.float32)
        if case % 4 == 1:
            logits = np.round(logits)  # many equal ones
        elif case % 4 == 2:
            logits[:] = 1.5
        elif count > 3:
            logits[rng.integers(0, count, count // 3)] = -np.inf
            logits[:2] = 1, np.nan
        settings = {
            "temperature": float(rng.choice([0, 0.3, 1, 2.5])),
            "top_k": int(rng.choice([0, 0, 1, 5, 40, 3000])),
            "top_p": float(rng.choice([1, 1, 0.95, 0.5, 0.1, 0])),
            "min_p": float(rng.choice([0, 0, 0.05, 0.9, 1])),
            "repetition": float(rng.choice([1, 1.1, 2])),
        }
        found.append((logits, settings))
    return found


@pytest.mark.parametrize("isa", cpu.engine_sets)
def test_same_token_for_the_same_seed(isa: str) -> None:
    for seed, (logits, settings) in enumerate(cases()):
        previous = np.random.default_rng(seed).integers(-1, len(logits) + 3, 20)
        for step in range(2):
            tokens = []
            for backend in (f"cpu:{isa}", "reference"):
                with dispatch.only(backend):
                    tokens.append(sample(logits, previous, **settings, seed=seed, step=step))
            assert tokens[0] == tokens[1], (len(logits), settings)


def draws(backend: str, logits: np.ndarray, count: int, **settings: float) -> np.ndarray:
    with dispatch.only(backend):
        tokens = [sample(logits, NOTHING, seed=9, step=step, **settings) for step in range(count)]
    return np.bincount(tokens, minlength=len(logits))


def test_frequencies_are_the_probabilities(backend: str) -> None:
    probabilities = np.array([0.5, 0.2, 0.2, 0.1])
    logits = np.log(probabilities).astype(np.float32)
    error = 4 * np.sqrt(0.25 / 4000)  # four standard deviations
    for temperature in (1.0, 0.5, 2.0):
        want = probabilities ** (1 / temperature) / (probabilities ** (1 / temperature)).sum()
        assert np.abs(draws(backend, logits, 4000, temperature=temperature) / 4000 - want).max() < error


def test_what_each_setting_leaves(backend: str) -> None:
    logits = np.log(np.array([0.1, 0.4, 0.2, 0.2, 0.1])).astype(np.float32)
    for settings, kept in (
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 2]),  # the lower of two equal tokens
        ({"top_p": 0.39}, [1]),
        ({"top_p": 0.5}, [1, 2]),
        ({"top_p": 0.0}, [1]),
        ({"top_k": 3, "top_p": 0.6}, [1, 2]),  # 0.6 of what top-k left
        ({"min_p": 0.4}, [1, 2, 3]),
        ({"temperature": 0.0}, [1]),
    ):
        assert np.flatnonzero(draws(backend, logits, 200, **settings)).tolist() == kept, settings


def test_repetition(backend: str) -> None:
    logits = np.array([2.0, 1.5, -0.5, -0.6], np.float32)
    with dispatch.only(backend):
        assert sample(logits, np.array([0, 0, 0]), temperature=0, repetition=1.5) == 1  # once, however often seen
        assert sample(logits[2:], np.array([0]), temperature=0, repetition=1.5) == 1
        assert sample(logits, np.array([0, 99, -1]), temperature=0, repetition=1.0) == 0
    assert logits[0] == 2


def test_logits_without_a_largest(backend: str) -> None:
    for bad in ([np.nan, np.nan], [-np.inf], [np.inf, 1.0]):
        with dispatch.only(backend), pytest.raises(ValueError):
            sample(np.array(bad, np.float32), NOTHING)


def test_uniform_is_splitmix() -> None:
    """The published first outputs of SplitMix64 with state 1234567, whose mixing and increment are used here."""
    from kernels.reference import sample as module

    golden = module._GOLDEN
    state, outputs = 1234567, []
    for _ in range(3):
        state = (state + golden) % 2**64
        outputs.append(module._mix(state))
    assert outputs == [6457827717110365317, 3203168211198807973, 9817491932198370423]
    values = [uniform(seed, step) for seed in range(100) for step in range(100)]
    assert len(set(values)) == 10000
    assert abs(np.mean(values) - 0.5) < 0.02
    assert np.histogram(values, 10, (0, 1))[0].min() > 850


@pytest.mark.skipif(not cpu.engine_sets, reason="about the compiled engine")
def test_large_vocabularies_are_quick() -> None:
    """Below a millisecond where the machine is free; processor time, three times that for one that is not."""
    if not cpu.engine_sets[0].startswith(("avx", "amx")):
        pytest.skip("measured on x86")
    logits = (3 * np.random.default_rng(0).standard_normal(262_144)).astype(np.float32)
    for settings in ({}, {"top_k": 40, "top_p": 0.95, "min_p": 0.05}, {"top_p": 0.95}, {"min_p": 0.05}):
        times = []
        for step in range(10):
            started = time.process_time()
            sample(logits, NOTHING, seed=1, step=step, **settings)
            times.append(time.process_time() - started)
        assert min(times) < 3e-3, settings
