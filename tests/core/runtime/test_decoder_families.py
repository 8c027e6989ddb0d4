"""Every family computes what transformers computes, from its folder and from an F32 GGUF of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decoder_models import FOLDER_ONLY, MODELS, difference, prompt, reference_logits, weights_of, write_model
from job_help import convert

from core.checkpoint import open_checkpoint
from core.models.config import read_config
from core.models.gguf_config import read_gguf_config
from core.runtime.decoder import decoder_program
from kernels.engine import Engine
from kernels.matrix import Activations
from kernels.program import Attention, Experts, Program, Rope, Step
from kernels.reference.program import ReferenceProgram

LENGTH = 40  # more than every window; more than the original context of phi3-long
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """tiny(name) → the folder of that model of MODELS, made once."""
    root = tmp_path_factory.mktemp("families")

    def make(name: str) -> Path:
        if not (root / name).exists():
            write_model(root / name, name)
        return root / name

    return make


def program_of(path: Path, capacity: int, sequences: int = 1) -> Program:
    with open_checkpoint(path) as checkpoint:
        config = read_gguf_config(checkpoint) if path.suffix == ".gguf" else read_config(checkpoint.config)
        assert config is not None
        weights, conversions = weights_of(checkpoint, config)
        assert not conversions
    return decoder_program(config, weights, capacity, sequences, Activations.EXACT, "F32")


def run_at_once(program: Program, ids: np.ndarray) -> np.ndarray:
    count = len(ids)
    return ReferenceProgram(program).run(ids, np.zeros(count), np.arange(count), np.arange(count))


@pytest.mark.parametrize("name", MODELS)
def test_folder(name: str, tiny: Callable[[str], Path]) -> None:
    ids = prompt(LENGTH)
    found = difference(run_at_once(program_of(tiny(name), LENGTH), ids), reference_logits(tiny(name), ids))
    print(f"{name}: {found:.1e}")
    assert found < TOLERANCE


@pytest.mark.parametrize("name", [name for name in MODELS if name not in FOLDER_ONLY])
def test_gguf(name: str, tiny: Callable[[str], Path], tmp_path: Path) -> None:
    convert(tiny(name), "F32", tmp_path / "model.gguf")
    ids = prompt(LENGTH)
    found = difference(run_at_once(program_of(tmp_path / "model.gguf", LENGTH), ids), reference_logits(tiny(name), ids))
    print(f"{name}: {found:.1e}")
    assert found < TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_engine(name: str, tiny: Callable[[str], Path]) -> None:
    """What runs here (compiled, where it is built): the prompt at once, in two pieces, and token by token."""
    ids, places = prompt(LENGTH), np.arange(LENGTH)
    want = reference_logits(tiny(name), ids)
    engine = Engine(program_of(tiny(name), LENGTH), threads=2)
    at_once = engine.run(ids, np.zeros(LENGTH), places, places)
    pieces = [engine.run(ids[i:j], np.zeros(j - i), places[i:j], np.arange(j - i)) for i, j in ((0, 17), (17, LENGTH))]
    steps = [engine.run(ids[i : i + 1], [0], [i], [0]) for i in range(LENGTH)]
    engine.close()
    found = [difference(got, want) for got in (at_once, np.concatenate(pieces), np.concatenate(steps))]
    print(f"{name} on {engine.isa}: " + ", ".join(f"{f:.1e}" for f in found))
    assert max(found) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "forget"),
    [
        ("mistral-window", lambda step: replace(step, window=0) if isinstance(step, Attention) else step),
        ("phi3-long", lambda step: replace(step, scale=1.0) if isinstance(step, Rope) else step),
        ("gemma2", lambda step: replace(step, softcap=0.0) if isinstance(step, Attention) else step),
        ("llama3", lambda step: replace(step, pairs=True) if isinstance(step, Rope) else step),
        ("qwen3moe", lambda step: replace(step, normalized=False) if isinstance(step, Experts) else step),
    ],
)
def test_a_mistake_would_show(name: str, forget: Callable[[Step], Step], tiny: Callable[[str], Path]) -> None:
    ids = prompt(LENGTH)
    program = program_of(tiny(name), LENGTH)
    right, wrong = (run_at_once(p, ids) for p in (program, replace(program, steps=tuple(map(forget, program.steps)))))
    found = difference(wrong, right)
    print(f"{name}: {found:.1e}")
    assert found > 30 * TOLERANCE


@pytest.mark.parametrize("name", ["llama3", "gemma3", "mistral-window", "qwen3moe"])
def test_step_by_step_is_as_at_once(name: str, tiny: Callable[[str], Path]) -> None:
    """Also of sequences of different length in one batch, and after a prompt in two pieces."""
    ids = prompt(LENGTH)
    want = run_at_once(program_of(tiny(name), LENGTH), ids)
    engine = ReferenceProgram(program_of(tiny(name), LENGTH, sequences=2))
    first = engine.run(ids[:20], np.ones(20), np.arange(20), [19])
    assert difference(first, want[19:20]) < 1e-6
    mixed = np.concatenate([ids[20:30], ids[:25]])
    places = np.concatenate([np.arange(20, 30), np.arange(25)])
    second = engine.run(mixed, np.repeat([1, 0], [10, 25]), places, [9, 34])
    assert difference(second, want[[29, 24]]) < 1e-6
    for i in range(30, LENGTH):
        assert difference(engine.run(ids[i : i + 1], [1], [i], [0]), want[i : i + 1]) < 1e-6


@pytest.mark.parametrize("capacity", [32, 33])
def test_longrope_is_chosen_by_the_capacity(capacity: int, tiny: Callable[[str], Path]) -> None:
    """Short factors up to the original context of 32, long ones past it, as transformers does for texts so long."""
    ids = prompt(capacity)
    found = difference(
        run_at_once(program_of(tiny("phi3-long"), capacity), ids), reference_logits(tiny("phi3-long"), ids)
    )
    assert found < TOLERANCE


def test_positions_past_the_capacity_are_refused(tiny: Callable[[str], Path]) -> None:
    engine = ReferenceProgram(program_of(tiny("llama2"), 4))
    engine.run(prompt(4), np.zeros(4), np.arange(4), [3])
    with pytest.raises(ValueError, match="position"):
        engine.run(prompt(1), [0], [4], [0])
    with pytest.raises(ValueError, match="sequence"):
        engine.run(prompt(1), [1], [0], [0])
    with pytest.raises(ValueError, match="token"):
        engine.run([288], [0], [0], [0])
