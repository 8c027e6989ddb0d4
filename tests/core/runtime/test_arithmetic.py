"""The four ways in which activations meet weights, from their names to the logits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from decoder_models import difference, prompt, write_model
from job_help import convert

from core.checkpoint import open_checkpoint
from core.cli import main
from core.cli_generate import ACTIVATIONS
from core.runtime.arithmetic import ARITHMETICS, Arithmetic
from core.runtime.load import load
from core.runtime.transformers_weights import Work
from kernels.matrix import Activations, from_groups, product
from kernels.program import Linear
from kernels.reference.program import ReferenceProgram

RNG = np.random.default_rng(5)


def test_the_command_line_offers_all_of_them() -> None:
    assert tuple(ARITHMETICS) == ACTIVATIONS


@pytest.fixture(scope="module")
def eight_bits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arithmetic")
    write_model(folder / "source", "qwen3")
    convert(folder / "source", "w8a16-channel", folder / "w8")
    return folder / "w8"


@pytest.mark.parametrize("name", tuple(ARITHMETICS))
def test_a_loaded_file_computes_as_the_reference(name: str, eight_bits: Path) -> None:
    ids = prompt(20)
    places = np.arange(20, dtype=np.int32)
    lots = np.zeros(20, np.int32)
    model = load(open_checkpoint(eight_bits), 32, 1, ARITHMETICS[name], 2, "F32")
    try:
        got = model.engine.run(ids, lots, places, places)
        want = ReferenceProgram(model.program).run(ids, lots, places, places)
        linear = [step for step in model.program.steps if isinstance(step, Linear)]
        assert {step.outliers for step in linear} == {ARITHMETICS[name].outliers}
        assert model.program.activations is ARITHMETICS[name].activations
        uses = [use.kernel for use in model.engine.report() if use.op == "linear" and use.kernel.startswith("int8")]
        assert uses
        assert all(use.endswith(ARITHMETICS[name].text) for use in uses), uses
    finally:
        model.unload()
    # an activation that lies between two codes may be rounded to either, which one token feels most
    assert difference(got, want) < (1e-4 if name == "exact" else 2e-2)


def test_outliers_outside_the_program_are_multiplied_apart() -> None:
    """Where transformers runs the model, a product is the sum of two."""
    codes = RNG.integers(0, 256, (24, 64)).astype(np.uint8)
    scales = RNG.uniform(0.5, 1, (24, 1)).astype(np.float32)
    matrix = from_groups(24, 64, 8, 64, lambda a, b: (codes[a:b], scales[a:b], None), "F32")
    x = RNG.normal(0, 1, (7, 64)).astype(np.float32)
    x[3, 11], x[0, 40] = 80.0, -7.0
    weights = (codes.astype(np.float64) - 128) * scales
    exact = x @ weights.T
    apart = Work(ARITHMETICS["llm.int8"], 1)._product(x, matrix)
    together = product(x, matrix, Activations.TOKEN, 1)
    error, before = np.abs(apart - exact)[3].max(), np.abs(together - exact)[3].max()
    assert error < before / 8  # the row's scale is set by 80 no more
    np.testing.assert_allclose(Work(Arithmetic(Activations.TOKEN), 1)._product(x, matrix), together)


@pytest.mark.parametrize("name", ["token", "llm.int8"])
def test_generate_says_what_it_computed_with(name: str, eight_bits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["generate", str(eight_bits), "--prompt", "the", "--max-tokens", "2", "--activations", name, "--json"])
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert ARITHMETICS[name].text in out
