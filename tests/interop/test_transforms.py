"""compressed-tensors runs the rotations that our config.json asks for, and gets what our engine computes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_models import MODELS, difference, prompt, write_model

from core.checkpoint import open_checkpoint
from core.cli import main
from core.runtime.arithmetic import Arithmetic
from core.runtime.load import load
from kernels.matrix import Activations

pytestmark = pytest.mark.interop
LENGTH = 32


def ours(folder: Path) -> np.ndarray:
    with open_checkpoint(folder) as checkpoint:
        model = load(checkpoint, LENGTH, 1, Arithmetic(Activations.EXACT), threads=1, cache_dtype="F32")
        places = np.arange(LENGTH, dtype=np.int32)
        found = model.engine.run(prompt(LENGTH), np.zeros(LENGTH, np.int32), places, places)
        model.unload()
    return found


@pytest.mark.parametrize(("target", "inner"), [("w8a16-channel", 96), ("w4a16-g32", 96), ("w4a16-g64-asym", 1024)])
def test_compressed_tensors_rotates_as_we_do(
    target: str, inner: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compressed_tensors.transform import TransformConfig, apply_transform_config
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    kept = MODELS["llama3"]
    monkeypatch.setitem(MODELS, "llama3", (*kept[:2], {**kept[2], "intermediate_size": inner}))
    source, out = tmp_path / "llama3", tmp_path / "out"
    write_model(source, "llama3")
    words = ["--transform", "rotation", "--online", "--method", "gptq", "--samples", "2", "--length", "24"]
    assert main(["convert", str(source), "--to", target, *words, "-o", str(out)]) == 0

    stated = json.loads((out / "config.json").read_text())["quantization_config"]["transform_config"]
    config = TransformConfig.model_validate(stated)
    for scheme in config.config_groups.values():  # weights have taken their part already
        scheme.apply = [args for args in scheme.apply if args.is_online()]
    model = AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    ids = torch.from_numpy(prompt(LENGTH).astype(np.int64))[None]
    with torch.inference_mode():
        without = model(ids).logits[0].numpy()
        apply_transform_config(model, config)
        theirs = model(ids).logits[0].numpy()
    got = ours(out)
    print(f"{target}: {difference(got, theirs):.1e} with the rotation, {difference(got, without):.2f} without")
    assert difference(got, theirs) < 2e-2  # compressed-tensors multiplies code and scale in bfloat16
    assert difference(got, without) > 0.2
    with open_checkpoint(out) as checkpoint:
        (matrix,) = (t for t in checkpoint.stored.tensors if "R4" in t.name)
        made = model.get_submodule(matrix.name.removesuffix(".weight")).weight
        np.testing.assert_array_equal(checkpoint.stored.read_rows(matrix), made.detach().numpy())
