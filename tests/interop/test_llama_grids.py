"""llama.cpp computes with the values that we decode: IQ2_XXS … IQ3_S, chosen with an importance matrix of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from interop.llama import Llama
from job_help import drive
from tiny_models import write_llama

from core.calibration.imatrix import Importance, ImportanceMatrix
from core.calibration.imatrix_file import write_imatrix
from core.checkpoint import open_checkpoint
from core.methods.choice import Calibrated, DataMethod
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run
from kernels.layouts import GRID_KINDS

pytestmark = pytest.mark.interop

PROMPT = "he"  # after some others the model of random weights ends at once, and llama.cpp tells no probabilities
LINEAR = "(attn_(q|k|v|output)|ffn_(gate|up|down))\\.weight"
# llama.cpp rounds activations to 8 bits where it multiplies with these types.
ROUNDED_ACTIVATIONS = 0.03


def convert(source: Path, recipe: Recipe, output: Path) -> None:
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, recipe)
        drive(run(plan, checkpoint, output, CancelToken()))
    assert output.stat().st_size == plan.bytes_total


def importance_file(path: Path, layers: int, hidden: int, ffn: int) -> Path:
    rng = np.random.default_rng(3)
    entries = {}
    for layer in range(layers):
        for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            columns = ffn if part == "ffn_down" else hidden
            sums = np.exp(rng.standard_normal((1, columns))).astype(np.float32)
            entries[f"blk.{layer}.{part}.weight"] = Importance(sums, np.array([1], np.int64))
    write_imatrix(path, ImportanceMatrix(entries, 1, 512))
    return path


@pytest.mark.parametrize("kind", GRID_KINDS)
def test_next_tokens_are_those_of_the_decoded_file(kind: str, tmp_path: Path) -> None:
    folder = write_llama(tmp_path / "tiny")
    data = Calibrated(DataMethod.IMPORTANCE, imatrix=str(importance_file(tmp_path / "im.gguf", 2, 256, 512)))
    packed, plain = tmp_path / "packed.gguf", tmp_path / "plain.gguf"
    convert(folder, Recipe("F32", rules=(Rule(LINEAR, kind),), calibrated=data), packed)
    with open_checkpoint(packed) as made:
        assert sum(t.dtype == kind for t in made.tensors) == 14
    convert(packed, Recipe("F32"), plain)
    ours, theirs = Llama(plain), Llama(packed)
    want, got = ours.logprobs(PROMPT, 50), theirs.logprobs(PROMPT, 50)
    both = set(want) & set(got)
    assert len(both) > 40
    assert np.mean([abs(want[token] - got[token]) for token in both]) < ROUNDED_ACTIVATIONS
