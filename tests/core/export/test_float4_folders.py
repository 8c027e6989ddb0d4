"""Folders of 4-bit floats as they are written: what fused matrices share, what the library compressed-tensors reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from decoder_models import write_model
from job_help import convert, drive
from safetensors.torch import load_file
from tiny_models import write_llama

from core.blocks import split, with_options
from core.checkpoint.opening import open_checkpoint
from core.formats import EncodeOptions
from core.formats.float4 import TensorScale, power_scale
from core.plan import Action, make_plan
from core.progress import CancelToken
from core.recipe import Recipe, Rule
from core.run import run

LAYER = "model.layers.0."


def unlike(arrays: dict[str, torch.Tensor]) -> None:
    """Fused matrices of different sizes, so that what they share is not what each would have."""
    for name, factor in (("q_proj", 1), ("k_proj", 64), ("v_proj", 0.01), ("gate_proj", 0.1), ("up_proj", 9)):
        for key in arrays:
            if key.endswith(f"{name}.weight"):
                arrays[key] = arrays[key] * factor


def test_fused_matrices_share_their_tensor_scale(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", change=unlike)
    convert(source, "nvfp4a16", tmp_path / "out")
    original, made = load_file(source / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    for layer in ("model.layers.0.", "model.layers.1."):
        for fused in (
            [f"{layer}self_attn.{n}_proj.weight" for n in "qkv"],
            [f"{layer}mlp.{n}_proj.weight" for n in ("gate", "up")],
            [f"{layer}self_attn.o_proj.weight"],
            [f"{layer}mlp.down_proj.weight"],
        ):
            largest = max(float(original[name].abs().max()) for name in fused)
            want = 1 / power_scale(largest)
            assert [made[f"{name}_global_scale"].item() for name in fused] == [want] * len(fused)


def test_a_matrix_in_another_format_shares_nothing(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "m", change=unlike)
    recipe = Recipe(target="nvfp4a16", rules=(Rule("k_proj", "mxfp4a16"), Rule("up_proj", "w4a16-g32")))
    with open_checkpoint(source) as checkpoint:
        plan = make_plan(checkpoint, recipe)
        fused = {t.name.removeprefix(LAYER): {f.name.removeprefix(LAYER) for f in t.fused} for t in plan.tensors}
        assert fused["self_attn.q_proj.weight"] == {"self_attn.v_proj.weight"}
        assert fused["self_attn.v_proj.weight"] == {"self_attn.q_proj.weight"}
        assert not fused["mlp.gate_proj.weight"]
        (t,) = [t for t in plan.tensors if t.name == f"{LAYER}self_attn.v_proj.weight"]
        both = max(float(np.abs(checkpoint.read_rows(s)).max()) for s in (*t.source.sources, *t.fused[0].sources))
        blocks = split(0, t, 1)
        for _, options in with_options(checkpoint, t, blocks, EncodeOptions(), CancelToken()):
            assert options.amax == both


def test_experts_share_by_expert_and_the_router_stays(tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig

    write_model(tmp_path / "m", "qwen3moe")
    convert(tmp_path / "m", "nvfp4a16", tmp_path / "out")
    made = load_file(tmp_path / "out" / "model.safetensors")
    original = load_file(tmp_path / "m" / "model.safetensors")
    scales = {name: tensor.item() for name, tensor in made.items() if name.endswith("_global_scale")}
    experts = [f"{LAYER}mlp.experts.{e}." for e in range(6)]
    stacked = any(".experts." in name and tensor.dim() == 3 for name, tensor in original.items())
    assert not stacked
    for expert in experts:
        pair = [f"{expert}{n}_proj.weight" for n in ("gate", "up")]
        largest = max(float(original[name].abs().max()) for name in pair)
        assert [scales[f"{name}_global_scale"] for name in pair] == [1 / power_scale(largest)] * 2
    assert f"{LAYER}mlp.gate.weight" in made
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    assert {f"{LAYER}mlp.gate", "lm_head"} <= set(config["ignore"])
    read = QuantizationConfig.model_validate(config)
    assert read.config_groups["group_0"].weights.group_size == 16


@pytest.mark.parametrize(("target", "preset"), [("nvfp4a16", "NVFP4A16"), ("mxfp4a16", "MXFP4A16")])
def test_the_scheme_is_the_librarys_preset(target: str, preset: str, tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationArgs, quant_scheme

    convert(write_llama(tmp_path / "m"), target, tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    group = config["config_groups"]["group_0"]
    assert config["format"] == group["format"] == f"{target.removesuffix('a16')}-pack-quantized"
    assert group["input_activations"] is None
    got, want = QuantizationArgs.model_validate(group["weights"]), getattr(quant_scheme, preset)["weights"]
    names = ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic", "scale_dtype", "block_structure")
    assert [getattr(got, name) for name in names] == [getattr(want, name) for name in names]


def decoded(folder: Path) -> dict[str, torch.Tensor]:
    with open_checkpoint(folder) as checkpoint:
        assert checkpoint.packed_problem is None
        return {t.name: torch.from_numpy(checkpoint.read_rows(t)) for t in checkpoint.tensors if t.packed}


MIXED = (("down_proj", "mxfp4a16"), ("o_proj", "w8a16-g32"), (r"layers\.1\.mlp", "keep"))


@pytest.mark.parametrize(
    ("target", "rules"),
    [("nvfp4a16", ()), ("nvfp4a16", MIXED), ("mxfp4a16", ()), ("mxfp4a16", MIXED), ("nvfp4a4", ())],
)
def test_transformers_computes_with_it(target: str, rules: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    source = write_llama(tmp_path / "m")
    recipe = Recipe(target=target, rules=tuple(Rule(pattern, name) for pattern, name in rules))
    with open_checkpoint(source) as checkpoint:
        drive(run(make_plan(checkpoint, recipe), checkpoint, tmp_path / "out", CancelToken()))
    values = decoded(tmp_path / "out")
    assert len(values) == (14 if not rules else 12)
    # Without this, activations are rounded to 4 bits too, which says nothing of the weights.
    more = {"quantization_config": CompressedTensorsConfig(dequantize=True)} if target == "nvfp4a4" else {}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.bfloat16, **more).eval()
    ours = AutoModelForCausalLM.from_pretrained(source).eval()
    for name, parameter in ours.named_parameters():
        if name in values:
            parameter.data = values[name].to(parameter.dtype)
    ids = torch.tensor([[0, 5, 70, 100, 33]])
    with torch.inference_mode():
        want, got = ours(ids).logits.float(), theirs(ids).logits.float()
    assert float((got - want).norm() / want.norm()) < 1e-2


@pytest.mark.parametrize("target", ["nvfp4a16", "mxfp4a16"])
def test_what_is_written_is_repacked_and_not_quantized_again(target: str, tmp_path: Path) -> None:
    """Folder → GGUF: the same values, bit for bit, since the tensor scale is a power of two."""
    convert(write_llama(tmp_path / "m"), target, tmp_path / "out")
    kind = target.removesuffix("a16").upper()
    with open_checkpoint(tmp_path / "out") as checkpoint:
        plan = make_plan(checkpoint, Recipe(target=kind))
        moved = [t for t in plan.tensors if t.action is Action.REPACK]
        assert len(moved) == 14
        assert not any(t.rounding for t in moved)
        kinds = {t.numbers.tensor for t in checkpoint.tensors if t.numbers is not None}  # type: ignore[union-attr]
        assert kinds == {TensorScale.POWER if kind == "NVFP4" else TensorScale.NONE}
    convert(tmp_path / "out", kind, tmp_path / "out.gguf")
    values = decoded(tmp_path / "out")
    with open_checkpoint(tmp_path / "out.gguf") as checkpoint:
        for ours, theirs in (("attn_v", "self_attn.v_proj"), ("ffn_up", "mlp.up_proj")):
            got = checkpoint.read_rows(checkpoint.tensor(f"blk.1.{ours}.weight"))
            assert np.array_equal(got, values[f"model.layers.1.{theirs}.weight"].numpy())


@pytest.mark.parametrize("target", ["nvfp4a4", "modelopt-nvfp4"])
def test_activations_are_measured(target: str, tmp_path: Path) -> None:
    """The scale puts the largest activation / 6 at E4M3's largest; one input has one scale."""
    source = write_llama(tmp_path / "m")
    convert(source, target, tmp_path / "out")
    arrays = load_file(tmp_path / "out" / "model.safetensors")
    end = "input_scale" if target.startswith("modelopt") else "input_global_scale"
    scales = {n.removesuffix(f".{end}"): t.item() for n, t in arrays.items() if n.endswith(end)}
    assert len(scales) == 14
    for layer in ("model.layers.0.", "model.layers.1."):
        assert len({scales[f"{layer}self_attn.{n}_proj"] for n in "qkv"}) == 1
        assert len({scales[f"{layer}mlp.{n}_proj"] for n in ("gate", "up")}) == 1
    # What the norm gives has a largest value of some units.
    largest = 2688 / scales[f"{LAYER}self_attn.q_proj"] if end == "input_global_scale" else None
    largest = largest or 2688 * scales[f"{LAYER}self_attn.q_proj"]
    assert 1 < largest < 100
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert checkpoint.packed_problem is None
        assert all(t.input_scale for t in checkpoint.tensors if t.packed)


def test_modelopts_words(tmp_path: Path) -> None:
    """As modelopt 0.47 writes them for NVFP4."""
    convert(write_llama(tmp_path / "m", tied=False), "modelopt-nvfp4", tmp_path / "out")
    about = json.loads((tmp_path / "out" / "hf_quant_config.json").read_text(encoding="utf-8"))
    assert about["producer"]["name"] == "modelopt"
    assert about["quantization"] == {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": None,
        "group_size": 16,
        "exclude_modules": ["lm_head", "model.embed_tokens"],
    }
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    each = {"dynamic": False, "num_bits": 4, "type": "float", "group_size": 16}
    assert config["config_groups"] == {
        "group_0": {"input_activations": each, "weights": each, "targets": ["Linear"]},
    }
    assert (config["quant_algo"], config["quant_method"]) == ("NVFP4", "modelopt")
    assert config["ignore"] == ["lm_head", "model.embed_tokens"]


def test_four_bit_activations_are_the_librarys_preset(tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationArgs, quant_scheme

    convert(write_llama(tmp_path / "m"), "nvfp4a4", tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    got = QuantizationArgs.model_validate(config["config_groups"]["group_0"]["input_activations"])
    want = quant_scheme.NVFP4["input_activations"]
    names = ("num_bits", "type", "strategy", "group_size", "symmetric", "dynamic", "scale_dtype")
    assert [getattr(got, name) for name in names] == [getattr(want, name) for name in names]
