"""4-bit floats: transformers computes with what we write, and we read what compressed-tensors packs itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from interop.cases import QUESTION, bitsmith

from core.checkpoint.opening import open_checkpoint

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("target", ["nvfp4a16", "mxfp4a16"])
def test_transformers_agrees_with_our_decode(target: str, smollm2_folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    plan = bitsmith("plan", smollm2_folder, "--to", target)
    run = bitsmith("convert", smollm2_folder, "--to", target, "-o", tmp_path / target)
    assert plan["bytes_total"] == run["actual_bytes"]

    ours = AutoModelForCausalLM.from_pretrained(smollm2_folder, dtype=torch.bfloat16).eval()
    places = dict(ours.named_parameters())
    with open_checkpoint(tmp_path / target) as checkpoint:
        packed = [t for t in checkpoint.tensors if t.packed]
        assert len(packed) == 210, "seven linear layers in each of thirty blocks"
        for t in packed:
            places[t.name].data = torch.from_numpy(checkpoint.read_rows(t)).bfloat16()
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / target, dtype=torch.bfloat16).eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / target)
    ids = tokenizer(QUESTION, return_tensors="pt").input_ids
    with torch.inference_mode():
        want, got = ours(ids).logits.float(), theirs(ids).logits.float()
        texts = [m.generate(ids, max_new_tokens=32, do_sample=False)[0].tolist() for m in (ours, theirs)]
    difference = float((got - want).norm() / want.norm())
    print(f"{target}: |Δ logits| is {difference:.2e} of |logits|")
    assert difference < 1e-2
    assert texts[0] == texts[1]


@pytest.mark.parametrize(("preset", "group"), [("NVFP4A16", 16), ("MXFP4A16", 32)])
def test_what_the_library_packs_opens(preset: str, group: int, tmp_path: Path) -> None:
    """Packed by compressed-tensors from its own scales; read to the values that it unpacks, to the last bit."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationScheme, quant_scheme
    from compressed_tensors.quantization.utils.helpers import calculate_qparams, generate_gparam
    from safetensors.torch import save_file

    arguments = getattr(quant_scheme, preset)["weights"]
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments)
    kind = f"{preset.removesuffix('A16').lower()}-pack-quantized"
    library = BaseCompressor.get_value_from_registry(kind)
    torch.manual_seed(2)
    arrays, want = {}, {}
    for name in ("model.layers.0.mlp.up_proj", "model.layers.0.mlp.down_proj"):
        weight = torch.randn(48, 192).bfloat16() * 0.03
        groups = weight.reshape(48, -1, group)
        given = {"weight": weight}
        if preset == "NVFP4A16":
            given["weight_global_scale"] = generate_gparam(weight.min().reshape(1), weight.max().reshape(1))
        scale, _ = calculate_qparams(
            groups.amin(2), groups.amax(2), arguments, global_scale=given.get("weight_global_scale")
        )
        stored = library.compress({**given, "weight_scale": scale}, scheme)
        want[f"{name}.weight"] = library.decompress(stored, scheme)["weight"]
        arrays |= {f"{name}.{part}": tensor.contiguous() for part, tensor in stored.items()}
    save_file(arrays, tmp_path / "model.safetensors", metadata={"format": "pt"})
    groups = {"group_0": {"targets": ["Linear"], "format": kind, "weights": json.loads(arguments.model_dump_json())}}
    config = {"quant_method": "compressed-tensors", "format": kind, "config_groups": groups}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}), encoding="utf-8")
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.packed_problem is None
        for name, tensor in want.items():
            got = torch.from_numpy(checkpoint.read_rows(checkpoint.tensor(name))).to(tensor.dtype)
            assert np.array_equal(got.float().numpy(), tensor.float().numpy())


def test_modelopt_folders_have_no_loader_on_a_processor() -> None:
    pytest.skip("TensorRT-LLM, vLLM and SGLang need a GPU for ModelOpt NVFP4; docs/interop.md has the way by hand")
