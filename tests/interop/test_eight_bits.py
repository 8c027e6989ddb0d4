"""FP8, MXFP8 and W8A8 folders in their loaders: transformers with compressed-tensors, and with its own FP8.

Weights are compared, so the loader decodes them: left packed, it would round activations too. ModelOpt's folders have
no loader that runs without a GPU: docs/interop.md says what was done by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_models import difference, prompt, write_model
from interop.cases import PROMPTS, Converted
from job_help import convert, drive
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.plan import make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import load
from kernels.matrix import Activations

pytestmark = [pytest.mark.interop]
COMPRESSED = ("w8a8", "fp8-dynamic", "fp8-static", "fp8-block", "mxfp8")
MODELS = ("llama2", "qwen3", "gemma3", "phi3")
# Experts, which transformers 5.24 joins while it loads, it can decode from 8-bit floats without groups only.
TINY = [(name, target) for name in MODELS for target in COMPRESSED]
TINY += [(name, target) for name in ("qwen3moe", "mixtral") for target in ("fp8-dynamic", "fp8-static")]
BUDGET = 1e-2
ROUNDED = 2e-2  # of logits, from the loader's rounding of its weights to bfloat16
NEAR = 0.05  # two logits that are nearer are a tie, the loader's weights being rounded


def loaded(folder: Path) -> Any:
    """The folder as its own loader decodes it, in bfloat16; in float32 it can not join experts."""
    import torch
    import transformers

    with open_checkpoint(folder) as checkpoint:
        method = checkpoint.config["quantization_config"]["quant_method"]
    how = {}
    if method == "compressed-tensors":
        how["quantization_config"] = transformers.CompressedTensorsConfig(dequantize=True)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **how).eval()


def ours(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Logits of every token, by this program's engine on the packed weights, in float32."""
    with open_checkpoint(folder) as checkpoint:
        model = load(checkpoint, 256, 1, Arithmetic(Activations.EXACT), cache_dtype="F32")
        places = np.arange(len(ids), dtype=np.int32)
        found = model.engine.run(ids.astype(np.int32), np.zeros_like(places), places, places)
        model.unload()
    return found


def decoded(folder: Path, output: Path) -> Path:
    """The same model with plain weights, as this program decodes them, rounded to bfloat16."""
    with open_checkpoint(folder) as checkpoint:
        plan = make_plan(checkpoint, Recipe("fp8-dynamic", rules=(Rule(".", "keep"),)))
        drive(run(plan, checkpoint, output, CancelToken()))
    assert "quantization_config" not in json.loads((output / "config.json").read_text())
    return output


def check_weights(folder: Path, model: Any) -> int:
    """Every weight that the loader keeps under its name is ours, rounded to its type; returns how many there are."""
    import torch

    held = dict(model.named_parameters())
    count = 0
    with open_checkpoint(folder) as checkpoint:
        for tensor in (t for t in checkpoint.tensors if t.packed and t.name in held):
            got = held[tensor.name].detach()
            want = torch.from_numpy(checkpoint.read_rows(tensor)).to(got.dtype)
            assert torch.equal(got, want), tensor.name
            count += 1
    return count


def check_logits(model: Any, plain: Path, ids: np.ndarray) -> None:
    """Those of the loader's weights and of ours, both in bfloat16."""
    import torch
    import transformers

    other = transformers.AutoModelForCausalLM.from_pretrained(plain, dtype=torch.bfloat16).eval()
    tokens = torch.from_numpy(ids.astype(np.int64))[None]
    with torch.inference_mode():
        got, want = (m(tokens).logits[0].float().numpy() for m in (model, other))
    worst = difference(got, want)
    print(f"largest |Δ logit| is {worst:.1e} of the largest logit")
    assert worst < BUDGET


@pytest.mark.parametrize(("name", "target"), TINY)
def test_tiny_models(name: str, target: str, tmp_path: Path) -> None:
    write_model(tmp_path / name, name)
    convert(tmp_path / name, target, tmp_path / "out")
    model = loaded(tmp_path / "out")
    assert check_weights(tmp_path / "out", model) >= 4
    check_logits(model, decoded(tmp_path / "out", tmp_path / "plain"), prompt(24))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_hugging_face_fp8(tied: bool, tmp_path: Path) -> None:
    """Widths that tiles divide: transformers 5.24 can not decode others without a GPU."""
    pytest.importorskip("accelerate", reason="transformers loads FP8 with accelerate only")
    source = write_llama(tmp_path / "source", hidden=256, ffn=512, heads=2, kv_heads=1, tied=tied)
    convert(source, "hf-fp8", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert config["modules_to_not_convert"] == ["lm_head"]
    model = loaded(tmp_path / "out")
    assert check_weights(tmp_path / "out", model) == 14
    check_logits(model, decoded(tmp_path / "out", tmp_path / "plain"), prompt(24, 288))


@pytest.mark.slow
@pytest.mark.parametrize("target", COMPRESSED)
def test_smollm2(
    target: str, converted: Callable[[Path, str], Converted], smollm2_folder: Path, tmp_path: Path
) -> None:
    """Weights and logits; and 32 tokens of greedy text by the loader's weights and by our engine on the packed ones.

    That in float32, since bfloat16 alone moves these logits by 3 %.
    """
    import torch
    from transformers import AutoTokenizer

    folder = converted(smollm2_folder, target).path
    model = loaded(folder)
    assert check_weights(folder, model) == 210
    ids = AutoTokenizer.from_pretrained(smollm2_folder)(PROMPTS[2], return_tensors="pt").input_ids
    check_logits(model, decoded(folder, tmp_path / "plain"), ids[0].numpy())
    model = model.float()
    with torch.inference_mode():
        written = model.generate(ids, max_new_tokens=32, do_sample=False)[0]
        want = model(written[None]).logits[0].numpy()
    found = ours(folder, written.numpy())
    norm = np.linalg.norm(found - want) / np.linalg.norm(want)
    print(f"{target}: relative error of the logits {norm:.1e}")
    assert norm < ROUNDED
    for place in range(ids.shape[1] - 1, len(written) - 1):
        best, theirs = int(found[place].argmax()), int(written[place + 1])
        assert best == theirs or found[place, best] - found[place, theirs] < NEAR, place
