"""Folders with transforms, written by compressed-tensors itself: what they compute, and what they are converted to.

It is what the model was before; and what nothing here does is refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoder_models import difference, prompt, reference_logits, write_model
from job_help import convert

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import load
from kernels.matrix import Activations

DOWN = r"re:.*down_proj$"
LENGTH = 24


def apply(location: str, inverse: bool = False, targets: str | list[str] = DOWN, **more: Any) -> dict[str, Any]:
    return {"targets": targets, "location": location, "inverse": inverse, **more}


def scheme(kind: str = "hadamard", head_dim: int | None = 32, **more: Any) -> dict[str, Any]:
    """SpinQuant's R4."""
    pair = [apply("input"), apply("weight_input", True)]
    return {"type": kind, "head_dim": head_dim, "apply": pair, "precision": "torch.float32", **more}


# R1 of a model without gains would be folded; here a pair on one layer stands for it, which nothing has to undo.
FOLDED = {
    "type": "random-hadamard",
    "head_dim": 16,
    "apply": [apply("weight_output", targets=r"re:.*v_proj$"), apply("weight_input", True, targets=r"re:.*o_proj$")],
}
QUIP = {
    "type": "hadamard",
    "head_dim": 32,
    "apply": [
        apply("input", targets="Linear", ignore="lm_head"),
        apply("weight_input", True, "Linear", ignore="lm_head"),
    ],
}
WHOLE = {  # name → groups
    "runs": {"R4": scheme()},
    "signs": {"R4": scheme("random-hadamard", None)},
    "folded": {"R2": FOLDED, "R4": scheme("random-hadamard", 48)},
    "everywhere": {"v": QUIP},
}


def written(folder: Path, groups: dict[str, Any], bits: int = 0) -> Path:
    """The tiny model with these transforms, 8 bits a weight where asked for, saved by compressed-tensors."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config
    from compressed_tensors.transform import TransformConfig, apply_transform_config
    from transformers import AutoModelForCausalLM

    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    apply_transform_config(model, TransformConfig.model_validate({"config_groups": groups}))
    if bits:
        weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}
        group = {"targets": ["Linear"], "weights": weights}
        config = QuantizationConfig(config_groups={"group_0": group}, ignore=["lm_head"], format="pack-quantized")
        apply_quantization_config(model, config)
        for module in model.modules():
            if hasattr(module, "weight_scale"):
                module.weight_scale.data = module.weight.data.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    compressor = ModelCompressor.from_pretrained_model(model)
    with torch.inference_mode():
        logits = model(torch.from_numpy(prompt(LENGTH).astype(np.int64))[None]).logits[0].numpy()
    if bits:
        compressor.compress_model(model)
    out = folder.parent / f"{folder.name}-out"
    model.save_pretrained(out)
    compressor.update_config(out)
    for file in folder.glob("token*.json"):
        shutil.copy(file, out)
    np.save(folder.parent / "logits.npy", logits)
    return out


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_model(tmp_path / "llama2", "llama2")
    return tmp_path / "llama2"


def logits(path: Path) -> tuple[np.ndarray, set[str]]:
    """And what is said of matrices that are not kept as they are."""
    with open_checkpoint(path) as checkpoint:
        model = load(
            checkpoint, capacity=LENGTH, arithmetic=Arithmetic(Activations.EXACT), threads=1, cache_dtype="F32"
        )
        places = np.arange(LENGTH, dtype=np.int32)
        found = model.engine.run(prompt(LENGTH), np.zeros(LENGTH, np.int32), places, places)
        reasons = {c.reason for c in model.conversions}
        model.unload()
    return found, reasons


@pytest.mark.parametrize("groups", list(WHOLE))
def test_transforms_without_quantization(groups: str, model: Path) -> None:
    """Weights of the view are those before anything was rotated."""
    out = written(model, WHOLE[groups])
    names = json.loads((out / "config.json").read_text())["quantization_config"]["transform_config"]["config_groups"]
    assert set(names) == set(WHOLE[groups])
    assert difference(logits(out)[0], reference_logits(model, prompt(LENGTH))) < 1e-4
    with open_checkpoint(model) as source, open_checkpoint(out) as seen:
        assert {t.name for t in seen.tensors} == {t.name for t in source.tensors}
        for t in source.tensors:
            if "down_proj" in t.name:
                stored, got = seen.stored.read_rows(seen.stored.tensor(t.name)), seen.read_rows(seen.tensor(t.name))
                np.testing.assert_allclose(got, source.read_rows(t), atol=1e-6)
                assert np.abs(stored - got).max() > 1e-2
                raw = seen.read_raw(seen.tensor(t.name), 1, 3)
                np.testing.assert_array_equal(raw.view(np.float32), got[1:3])
                np.testing.assert_array_equal(seen.read_rows(seen.tensor(t.name), 1, 3, (5, 9)), got[1:3, 5:9])


@pytest.mark.parametrize("groups", list(WHOLE))
def test_quantized_weights_meet_rotated_inputs(groups: str, model: Path) -> None:
    """What the engine computes is what compressed-tensors' hooks compute in transformers."""
    out = written(model, WHOLE[groups], bits=8)
    found, reasons = logits(out)
    theirs = np.load(model.parent / "logits.npy")
    assert difference(found, theirs) < 2e-2  # with weights that were not quantized yet
    others = [r for r in reasons if "rotated first" in r]
    assert bool(others) == (groups == "everywhere")
    with open_checkpoint(out) as checkpoint:
        down = checkpoint.packed["model.layers.1.mlp.down_proj.weight"]  # type: ignore[attr-defined]
        assert down.rotation is not None
        assert checkpoint.tensor(down.name).numbers is None  # codes are no other format's
        assert not any("_input" in t.name for t in checkpoint.tensors)
        values = down.values(0, down.shape[0])
        np.testing.assert_array_equal(down.values(3, 5, (10, 40)), values[3:5, 10:40])
    with open_checkpoint(model) as source:
        np.testing.assert_allclose(values, source.read_rows(source.tensor(down.name)), atol=2e-2 * np.abs(values).max())


@pytest.mark.parametrize("bits", [0, 8])
def test_a_model_that_runs_through_transformers_gets_what_the_weights_were(bits: int, tmp_path: Path) -> None:
    from tiny_models import byte_tokens, tokenizer_json
    from transformers import AutoModelForCausalLM, Olmo2Config

    from core.runtime.transformers_engine import TransformersEngine

    folder = tmp_path / "olmo2"
    torch.manual_seed(1)
    sizes = {"vocab_size": 288, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    config = Olmo2Config(**sizes, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(byte_tokens())), encoding="utf-8")
    want = reference_logits(folder, prompt(LENGTH))
    out = written(folder, WHOLE["signs"], bits)
    with open_checkpoint(out) as checkpoint:
        model = load(checkpoint, LENGTH, 1, Arithmetic(Activations.EXACT), threads=1)
        assert isinstance(model.engine, TransformersEngine)
        places = np.arange(LENGTH, dtype=np.int32)
        found = model.engine.run(prompt(LENGTH), np.zeros(LENGTH, np.int32), places, places)
        model.unload()
    assert difference(found, want) < (2e-2 if bits else 1e-4)


def test_another_container_gets_the_weights_rotated_back(model: Path) -> None:
    out = written(model, WHOLE["signs"], bits=8)
    convert(out, "F32", model.parent / "out.gguf")
    convert(out, "hf-bf16", model.parent / "plain")
    for path, close in ((model.parent / "out.gguf", 1e-4), (model.parent / "plain", 2e-2)):
        assert difference(logits(path)[0], logits(out)[0]) < close
        with open_checkpoint(path) as checkpoint:
            assert not any("_input" in t.name for t in checkpoint.tensors)
    assert "quantization_config" not in json.loads((model.parent / "plain" / "config.json").read_text())


def test_a_matrix_that_is_stored_once_serves_all_layers(model: Path) -> None:
    """As save_pretrained leaves copies out; and a deterministic one need not be there."""
    out = written(model, WHOLE["signs"])
    with open_checkpoint(out) as checkpoint:
        assert sum(t.name.endswith("R4_input.weight") for t in checkpoint.stored.tensors) == 1
    strip(out)
    assert problem(out) == (
        "The matrix of the transform 'R4', 'model.layers.0.mlp.down_proj.R4_input.weight', is not there, and without "
        "it 'model.layers.0.mlp.down_proj.weight' means nothing."
    )
    changed(out, lambda g: g.update(R4=scheme(head_dim=32)))
    assert problem(out) == ""


def strip(folder: Path) -> None:
    """Without the matrices of transforms."""
    from safetensors.torch import load_file, save_file

    (file,) = folder.glob("*.safetensors")
    save_file({n: t for n, t in load_file(file).items() if "R4" not in n}, file, {"format": "pt"})


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    change(config["quantization_config"]["transform_config"]["config_groups"])
    path.write_text(json.dumps(config))
    return folder


def problem(folder: Path) -> str:
    with open_checkpoint(folder) as checkpoint:
        return checkpoint.packed_problem.message if checkpoint.packed_problem else ""


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        ({"R3": scheme() | {"apply": [apply("q_attn"), apply("k_cache")]}}, "changes queries while the model runs"),
        ({"R3": scheme() | {"apply": [apply("k_cache")]}}, "changes keys while the model runs"),
        ({"u": scheme() | {"apply": [apply("weight_output"), apply("output", True)]}}, "what comes out of layers"),
        ({"R4": scheme("random-matrix")}, "of the type 'random-matrix', which can not be done here"),
        ({"R4": scheme("learned")}, "of the type 'learned'"),
        ({"R4": scheme(randomize=True)}, "exchanges columns at random"),
        ({"R4": scheme(head_dim=7)}, "runs of 7, which do not divide the 96 columns"),
        ({"R4": scheme(head_dim=None)}, "rotates 96 values, which is no power of two"),
        ({"a": scheme(), "b": scheme()}, "two transforms of what comes into"),
        ({"R4": {"type": "hadamard", "apply": 3}}, "not as compressed-tensors writes it"),
        ({"R4": {"type": "hadamard", "apply": [3]}}, "not as compressed-tensors writes it"),
        ({"R4": scheme() | {"apply": [apply("input", targets="re:(a")]}}, "is not a valid pattern"),
        ({"R4": scheme() | {"apply": [apply("input", targets="re:(a+)+b")]}}, "could take forever"),
        ({"R4": scheme() | {"apply": [apply("somewhere")]}}, "changes somewhere while the model runs"),
    ],
)
def test_what_nothing_here_does_is_refused(groups: dict[str, Any], words: str, model: Path) -> None:
    """In a folder whose weights would be read without a word otherwise."""
    config = json.loads((model / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "transform_config": {"config_groups": groups},
    }
    (model / "config.json").write_text(json.dumps(config))
    assert words in problem(model)
    with open_checkpoint(model) as checkpoint, pytest.raises(UserError, match=r"transform|pattern"):
        load(checkpoint)
    with pytest.raises(UserError, match=r"transform|pattern"):
        convert(model, "Q8_0", model.parent / "out.gguf")


def test_experts_are_rotated_each(tmp_path: Path) -> None:
    """Written here: transformers has no module for one."""
    from core.cli import main

    for name in ("qwen3moe", "qwen3moe-dense"):
        write_model(tmp_path / name, name)
        out = tmp_path / f"{name}-out"
        words = ["--to", "w8a16-channel", "--transform", "rotation", "--online", "--samples", "2", "--length", "24"]
        assert main(["convert", str(tmp_path / name), *words, "-o", str(out)]) == 0
        found, reasons = logits(out)
        assert not any("rotated first" in r for r in reasons)
        assert difference(found, reference_logits(tmp_path / name, prompt(LENGTH))) < 0.15
        with open_checkpoint(out) as checkpoint:
            experts = [w for n, w in checkpoint.packed.items() if "experts" in n and "down" in n]  # type: ignore[attr-defined]
            assert {w.rotation.label for w in experts} == {"Hadamard 16"}
