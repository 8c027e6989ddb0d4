"""Compressed-tensors folders: what the library accepts, and what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.errors import UserError
from core.export.compressed_tensors import CompressedTensors, quantization_config
from core.export.ecosystem import ignored_modules
from core.export.folder import folder_layout
from core.formats.pack_quantized import PackQuantized
from core.tensor_info import Role, TensorInfo


def numpy_of(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Unsigned codes [N, K] → int32 [N, K·bits/32], first code in the lowest bits; written out code by code."""
    each = 32 // bits
    words = np.zeros((codes.shape[0], codes.shape[1] // each), np.uint64)
    for i in range(each):
        words |= codes[:, i::each].astype(np.uint64) << np.uint64(bits * i)
    return words.astype(np.uint32).view(np.int32)


def quantize(weight: torch.Tensor, scheme: PackQuantized) -> tuple[dict[str, tuple[str, np.ndarray]], torch.Tensor]:
    """Round-to-nearest by the book: the stored arrays (dtype, values) by suffix, and the weight that they stand for."""
    rows, columns = weight.shape
    group = scheme.group or columns
    w = weight.float().reshape(rows, columns // group, group)
    half = 1 << (scheme.bits - 1)
    if scheme.symmetric:
        scale = (w.abs().amax(-1) / (half - 0.5)).bfloat16()
        zero = torch.zeros_like(scale, dtype=torch.float32)
    else:
        low, high = w.amin(-1).clamp(max=0), w.amax(-1).clamp(min=0)
        scale = ((high - low) / (2 * half - 1)).bfloat16()
        zero = (-half - low / scale.float()).round().clamp(-half, half - 1)
    s = scale.float()[..., None]
    codes = (w / s + zero[..., None]).round().clamp(-half, half - 1)
    dense = ((codes - zero[..., None]) * s).reshape(rows, columns)
    unsigned = (codes.reshape(rows, columns) + half).numpy().astype(np.int64)
    arrays = {
        "_packed": ("I32", pack(unsigned, scheme.bits)),
        "_scale": ("BF16", scale.view(torch.int16).numpy()),
        "_shape": ("I64", np.array([rows, columns])),
    }
    if not scheme.symmetric:
        packed = pack((zero + half).numpy().astype(np.int64).T.copy(), scheme.bits)
        arrays["_zero_point"] = ("I32", np.ascontiguousarray(packed.T))
    return arrays, dense


def write_quantized(
    source: Path, output: Path, schemes: dict[str, PackQuantized], max_shard: int
) -> dict[str, torch.Tensor]:
    """Write the folder as its layout says; returns the dense weights that the stored codes stand for."""
    weights = load_file(source / "model.safetensors")
    entries, data, dense = [], [], {}
    for name, weight in weights.items():
        arrays = {"": ("BF16", weight.view(torch.int16).numpy())}
        if name in schemes:
            arrays, dense[name] = quantize(weight, schemes[name])
        for suffix, (dtype, values) in arrays.items():
            entries.append((name + suffix, values.shape, dtype, values.nbytes))
            data.append(values.tobytes())
    with open_checkpoint(source) as checkpoint:
        layout = folder_layout(checkpoint, entries, CompressedTensors(), schemes, max_shard)
    assert layout.folder
    output.mkdir()
    for file in layout.files:
        with (output / file.name).open("wb") as f:
            f.write(file.header)
            f.truncate(file.size)
    for part in layout.parts:
        with (output / layout.files[part.file].name).open("r+b") as f:
            f.seek(part.offset)
            f.write(data[part.tensor])
    for name, content in layout.extras:
        (output / name).write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    assert sum(p.stat().st_size for p in output.iterdir()) == layout.total_bytes
    return dense


def linear_names(source: Path) -> list[str]:
    return [n for n in load_file(source / "model.safetensors") if n.endswith("proj.weight")]


W4 = PackQuantized(4, 64, True)


@pytest.mark.interop
@pytest.mark.parametrize(
    ("default", "down", "max_shard"),
    [
        (W4, W4, 5_000_000_000),
        (PackQuantized(4, 32, False), PackQuantized(4, 32, False), 300_000),
        (PackQuantized(8, 0, True), PackQuantized(8, 0, True), 5_000_000_000),
        (PackQuantized(8, 128, False), PackQuantized(8, 128, False), 5_000_000_000),
        (W4, PackQuantized(8, 0, True), 5_000_000_000),
        (W4, None, 5_000_000_000),
    ],
    ids=["w4-g64", "w4-g32-asym-shards", "w8-channel", "w8-g128-asym", "two-schemes", "one-kind-left-alone"],
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_transformers_computes_with_it(
    default: PackQuantized, down: PackQuantized | None, max_shard: int, tied: bool, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig

    source = write_llama(tmp_path / "source", tied=tied)
    schemes = {n: down if "down_proj" in n else default for n in linear_names(source)}
    schemes = {n: s for n, s in schemes.items() if s is not None}
    dense = write_quantized(source, tmp_path / "quantized", schemes, max_shard)
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32).eval()
    weights = dict(model.named_parameters())
    for name, weight in dense.items():
        weights[name].data.copy_(weight)
    # Left packed, transformers makes room for asymmetric zero points as if they were not (compressed-tensors 0.20.1
    # on the meta device); decoded while loading, it reads them as they are stored.
    how = {} if default.symmetric else {"quantization_config": CompressedTensorsConfig(dequantize=True)}
    quantized = AutoModelForCausalLM.from_pretrained(tmp_path / "quantized", dtype=torch.float32, **how).eval()
    ids = torch.tensor([[3, 77, 200, 31, 5, 140]])
    with torch.inference_mode():
        want, got = model(ids).logits, quantized(ids).logits
    difference = float((want - got).abs().max() / want.abs().max())
    print(f"largest |Δ logit| is {difference:.1e} of the largest logit")
    assert difference < 1e-2  # the library multiplies code and scale in bfloat16


def test_the_library_accepts_the_config(tmp_path: Path) -> None:
    from compressed_tensors.quantization import QuantizationConfig, QuantizationStrategy

    source = write_llama(tmp_path / "source")
    names = linear_names(source)
    schemes = dict.fromkeys(names, PackQuantized(4, 128, False)) | {names[0]: PackQuantized(8, 0, True)}
    with open_checkpoint(source) as checkpoint:
        config = quantization_config(checkpoint.tensors, schemes)
    parsed = QuantizationConfig.model_validate(config)
    found = sorted((g.weights.num_bits, g.weights.symmetric, g.weights.strategy) for g in parsed.config_groups.values())
    assert found == [(4, False, QuantizationStrategy.GROUP), (8, True, QuantizationStrategy.CHANNEL)]
    targets = [t for g in parsed.config_groups.values() for t in g.targets]
    assert sorted(targets) == sorted(n.removesuffix(".weight") for n in names)
    assert parsed.ignore == ["lm_head"]


def test_one_scheme_targets_the_class() -> None:
    config = quantization_config([], {"a.weight": W4})
    assert config["config_groups"]["group_0"]["targets"] == ["Linear"]
    assert config["config_groups"]["group_0"]["weights"] == {
        "num_bits": 4,
        "type": "int",
        "symmetric": True,
        "group_size": 64,
        "strategy": "group",
        "dynamic": False,
    }


def test_every_matrix_that_stays_is_listed() -> None:
    shapes = {
        "model.embed_tokens.weight": ((10, 8), Role.EMBED),
        "model.layers.0.input_layernorm.weight": ((8,), Role.NORM),
        "model.layers.0.mlp.gate.weight": ((4, 8), Role.ROUTER),
        "model.layers.0.mlp.experts.gate_up_proj": ((4, 16, 8), Role.FFN_GATE_UP),
        "model.layers.0.self_attn.q_proj.weight": ((8, 8), Role.ATTN_Q),
        "model.layers.0.self_attn.k_proj.weight": ((8, 8), Role.ATTN_K),
        "model.layers.0.self_attn.k_proj.bias": ((8,), Role.BIAS),
        "lm_head.weight": ((10, 8), Role.HEAD),
    }
    tensors = [TensorInfo(n, s, "BF16", 2 * int(np.prod(s)), role=r) for n, (s, r) in shapes.items()]
    schemes = {"model.layers.0.self_attn.q_proj.weight": W4}
    assert ignored_modules(tensors, schemes) == [
        "model.layers.0.mlp.gate",
        "model.layers.0.self_attn.k_proj",
        "lm_head",
        r"re:.*\.experts\..*",
    ]
    assert "lm_head" not in ignored_modules(tensors, {**schemes, "lm_head.weight": W4})


@pytest.mark.parametrize(
    ("stored", "loaded"),
    [
        ("language_model.model.layers.0.mlp.up_proj", "model.language_model.layers.0.mlp.up_proj"),
        ("language_model.lm_head", "lm_head"),
        ("vision_tower.encoder.layers.0.mlp.fc1", "model.vision_tower.encoder.layers.0.mlp.fc1"),
        ("multi_modal_projector.linear_1", "model.multi_modal_projector.linear_1"),
    ],
)
def test_parts_of_a_model_that_sees_are_named_as_stored_and_as_loaded(stored: str, loaded: str) -> None:
    """transformers gives the modules of published files other names than their tensors have."""
    names = [f"{stored}.weight", "vision_tower.a.weight", "language_model.model.layers.0.mlp.down_proj.weight"]
    tensors = [TensorInfo(name, (64, 64), "BF16", 8192, role=Role.OTHER) for name in names]
    ignore = quantization_config(tensors, {names[2]: W4})["ignore"]
    assert {stored, loaded} <= set(ignore)
    mixed = quantization_config(tensors, {names[0]: W4, names[2]: PackQuantized(8, 64, True)})["config_groups"]
    assert {stored, loaded} <= set(mixed["group_0"]["targets"])


def test_what_goes_along(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source", shards=2)
    (source / "LICENSE").write_bytes(b"Licence\r\n")
    (source / "pytorch_model.bin").write_bytes(b"old")
    (source / "additional_chat_templates").mkdir()
    (source / "additional_chat_templates" / "tool.jinja").write_text("{{ tools }}", encoding="utf-8")
    with open_checkpoint(source) as checkpoint:
        layout = folder_layout(checkpoint, [("a", (1,), "U8", 1)], CompressedTensors(), {"a": W4})
    names = [name for name, _ in layout.extras]
    assert sorted(names) == [
        *("LICENSE", "README.md", "additional_chat_templates/tool.jinja", "config.json"),
        *("generation_config.json", "tokenizer.json", "tokenizer_config.json"),
    ]
    extras = dict(layout.extras)
    assert extras["LICENSE"] == source / "LICENSE"
    config = json.loads(bytes(extras["config.json"]))
    want = json.loads((source / "config.json").read_text(encoding="utf-8"))
    assert config.pop("quantization_config")["quant_method"] == "compressed-tensors"
    assert config == want
    assert list(config) == list(want)


def test_no_config(tmp_path: Path) -> None:
    source = write_llama(tmp_path / "source")
    (source / "config.json").unlink()
    with open_checkpoint(source / "model.safetensors") as checkpoint, pytest.raises(UserError, match=r"config\.json"):
        folder_layout(checkpoint, [], CompressedTensors(), {})
