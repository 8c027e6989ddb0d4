"""transformers loads the compressed-tensors folder, and computes with the numbers that we decode from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from interop.cases import QUESTION, Converted

from core.formats import FORMATS

pytestmark = pytest.mark.interop


def stored(folder: Path) -> dict[str, np.ndarray]:
    """All arrays of a folder by name, as bytes."""
    from safetensors import safe_open

    arrays = {}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - a safe_open object is no mapping
                arrays[name] = shard.get_tensor(name).contiguous().reshape(-1).view(torch.uint8).numpy()
    return arrays


@pytest.mark.parametrize("target", ["w4a16-g64", "w8a16-channel", "w4a16-g64-asym"])
def test_logits_agree_with_our_decode(
    target: str, converted: Callable[[Path, str], Converted], smollm2_folder: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, CompressedTensorsConfig

    made = converted(smollm2_folder, target)
    files = [path for path in made.path.iterdir() if path.suffix == ".safetensors"]
    assert made.plan["bytes_total"] == made.run["actual_bytes"]
    assert sum(path.stat().st_size for path in files) <= made.run["actual_bytes"]
    config = json.loads((made.path / "config.json").read_text(encoding="utf-8"))
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"

    # The same model, with each quantized weight replaced by our own decode of the stored arrays.
    ours = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.float32).eval()
    (form,) = [f for f in FORMATS if f.name == target]
    arrays = stored(made.path)
    replaced = 0
    for name, module in ours.named_modules():
        if f"{name}.weight_packed" in arrays:
            shape = tuple(module.weight.shape)
            parts = [arrays[name + ".weight" + part.suffix] for part in form.parts(shape)]
            module.weight.data = torch.from_numpy(np.array(form.decode(parts, *shape)))
            replaced += 1
    assert replaced == 210, "seven linear layers in each of thirty blocks"

    # Zero points load only so: compressed-tensors 0.20 makes their place without counting how they are packed.
    more = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if "asym" in target else {}
    theirs = AutoModelForCausalLM.from_pretrained(made.path, dtype=torch.float32, **more).eval()
    tokenizer = AutoTokenizer.from_pretrained(made.path)
    ids = tokenizer(QUESTION, return_tensors="pt").input_ids
    with torch.inference_mode():
        want, got = ours(ids).logits, theirs(ids).logits
        written = theirs.generate(ids, max_new_tokens=12, do_sample=False)[0, ids.shape[1] :]
    difference = float((want - got).abs().max() / want.abs().max())
    print(f"{target}: largest |Δ logit| is {difference:.2e} of the largest logit")
    # compressed-tensors multiplies code and scale in the scale's own type and may round there, 2⁻⁹ for bfloat16.
    assert difference < 2e-2
    assert "Paris" in tokenizer.decode(written)
