"""Every family computes what transformers computes, from its folder and from an F32 GGUF of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from job_help import convert

from core.checkpoint import open_checkpoint
from core.models.config import read_config
from core.models.gguf_config import read_gguf_config
from core.progress import CancelToken
from core.runtime.decoder import decoder_program
from core.runtime.weights import plan_weights, read_weights
from decoder_models import CAPACITY, FOLDER_ONLY, MODELS, difference, prompt, reference_logits, write_model
from kernels.matrix import Activations
from kernels.program import Program
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
        steps = read_weights(plan_weights(checkpoint, config), CancelToken())
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                weights, conversions = stop.value
                break
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
