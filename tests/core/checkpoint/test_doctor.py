"""Each finding of the input doctor, from a checkpoint that has just that trouble."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import (
    LLAMA_CONFIG,
    gguf_bytes,
    gguf_key,
    gguf_list,
    gguf_string,
    gguf_tensor,
    gguf_text,
    gguf_u32,
    llama_tensors,
    safetensors_bytes,
    tokenizer_bytes,
    write_folder,
    write_shards,
)
from job_help import convert
from tiny_models import write_llama

from core.checkpoint import open_checkpoint
from core.checkpoint.doctor import Finding, examine


def findings(path: Path) -> dict[str, Finding]:
    found = examine(open_checkpoint(path))
    for finding in found:
        assert finding.message.endswith(".")
        assert finding.hint.endswith(".")
        assert "\n" not in finding.message
    assert [f.severity for f in found] == sorted((f.severity for f in found), key=["error", "warning", "info"].index)
    return {finding.code: finding for finding in found}


def test_a_sound_folder_has_nothing(tmp_path: Path) -> None:
    assert findings(write_folder(tmp_path / "m")) == {}


def with_config(**changes: Any) -> Callable[[Path], Path]:
    return lambda folder: write_folder(folder, config=LLAMA_CONFIG | changes)


def with_tensors(**changes: np.ndarray) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        return write_folder(
            folder, llama_tensors() | {name.replace("__", "."): value for name, value in changes.items()}
        )

    return write


def rewritten(name: str, content: bytes | str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_folder(folder)
        (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return write


def tied_but_different(folder: Path) -> Path:
    return write_folder(folder, config=LLAMA_CONFIG | {"tie_word_embeddings": True})


def tied_twice(folder: Path) -> Path:
    tensors = llama_tensors()
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"]
    return write_folder(folder, tensors, LLAMA_CONFIG | {"tie_word_embeddings": True})


def without(*names: str, **config: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        tensors = {name: value for name, value in llama_tensors().items() if name not in names}
        return write_folder(folder, tensors, LLAMA_CONFIG | config)

    return write


def index_of(change: Callable[[dict[str, str]], dict[str, str]]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = write_shards(folder) / "model.safetensors.index.json"
        path.write_text(json.dumps({"weight_map": change(json.loads(path.read_text())["weight_map"])}))
        return folder

    return write


def extra_bytes(folder: Path) -> Path:
    path = write_folder(folder) / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"tail")
    return folder


def no_tensors(folder: Path) -> Path:
    return rewritten("model.safetensors", safetensors_bytes({}))(folder)


def multimodal(folder: Path) -> Path:
    tensors = llama_tensors() | {"vision_tower.a.weight": np.ones((2, 2), np.float32)}
    return write_folder(folder, tensors, LLAMA_CONFIG | {"vision_config": {"a": 1}})


def alone(folder: Path) -> Path:
    path = write_folder(folder) / "model.safetensors"
    (folder / "config.json").unlink()
    return path


Q = np.ones((4, 4), np.int32)
ERROR, WARNING, INFO = "error", "warning", "info"


@pytest.mark.parametrize(
    ("make", "code", "severity", "words"),
    [
        (lambda f: write_folder(f, tokens=None), "no-tokenizer", WARNING, "no tokenizer"),
        (lambda f: write_folder(f, tokens=9), "vocabulary-larger", ERROR, "9 tokens, more than the embedding's 8 rows"),
        (
            lambda f: write_folder(f, tokens=7),
            "vocabulary-smaller",
            INFO,
            "7 tokens, fewer than the embedding's 8 rows",
        ),
        (with_config(vocab_size=9), "vocabulary-config", ERROR, "9 tokens, more than the embedding's 8"),
        (with_config(vocab_size=7), "vocabulary-config", INFO, "7 tokens, fewer than the embedding's 8"),
        (rewritten("tokenizer.json", "version https://git-lfs.github.com/spec/v1"), "tokenizer-broken", ERROR, "LFS"),
        (rewritten("tokenizer.json", ""), "tokenizer-broken", ERROR, "is empty"),
        (rewritten("tokenizer.json", "<html>"), "tokenizer-broken", ERROR, "web page"),
        (rewritten("tokenizer.json", bytes(99)), "tokenizer-broken", ERROR, "zeros"),
        (rewritten("tokenizer.json", tokenizer_bytes(8)[:-5]), "tokenizer-broken", ERROR, "cut off"),
        (with_config(model_type="mamba9"), "unknown-architecture", WARNING, "mamba9 is not known here"),
        (rewritten("config.json", "{}"), "no-config", WARNING, "can not be written as GGUF"),
        (rewritten("config.json", '{"a": 1}'), "unknown-architecture", WARNING, "does not say which architecture"),
        (alone, "no-config", WARNING, "no config.json"),
        (with_config(num_hidden_layers=3), "layers-missing", ERROR, "should have 3 layers, but only 1"),
        (
            with_tensors(model__layers__5__mlp__up_proj__weight=np.ones((2, 2), np.float32)),
            "layers-missing",
            ERROR,
            "1, 2, 3",
        ),
        (tied_but_different, "tied-head-differs", WARNING, "a different lm_head.weight is stored"),
        (tied_twice, "tied", INFO, "counted once"),
        (without("lm_head.weight", tie_word_embeddings=True), "tied", INFO, "counted once"),
        (without("lm_head.weight"), "head-missing", ERROR, "but there is none"),
        (index_of(lambda m: m | {"ghost": next(iter(m.values()))}), "index-missing", ERROR, "no file holds: ghost"),
        (
            index_of(
                lambda m: (
                    m | {"lm_head.weight": m["model.embed_tokens.weight"], "model.norm.weight": m["lm_head.weight"]}
                )
            ),
            "index-moved",
            WARNING,
            "another file than the right one",
        ),
        (rewritten("other.crdownload", "x"), "unfinished", WARNING, "other.crdownload"),
        (extra_bytes, "extra-bytes", WARNING, "bytes that belong to none"),
        (no_tensors, "no-tensors", ERROR, "no tensor"),
        (rewritten("adapter_config.json", "{}"), "adapter-beside", INFO, "not applied"),
        (multimodal, "other-tower", INFO, "1 tensors belong to a picture or sound encoder"),
        (with_tensors(model__layers__0__self_attn__q_proj__qzeros=Q), "quantized-packed", ERROR, "GPTQ or AWQ"),
        (
            with_config(quantization_config={"quant_method": "gptq", "bits": 4}),
            "quantization-config",
            WARNING,
            "are not",
        ),
    ],
)
def test_folders(tmp_path: Path, make: Callable[[Path], Path], code: str, severity: str, words: str) -> None:
    found = findings(make(tmp_path / "m"))
    assert code in found, found
    assert found[code].severity == severity
    assert words in found[code].message


SCHEMES = [
    ({"quant_method": "gptq", "bits": 4}, "qweight", "GPTQ, 4 bits"),
    ({"quant_method": "awq", "w_bit": 4}, "qweight", "AWQ, 4 bits"),
    (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}},
        "weight_packed",
        "compressed-tensors, 8 bits",
    ),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "weight.absmax", "bitsandbytes, 4 bits"),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "SCB", "bitsandbytes, 8 bits"),
    ({"quant_method": "fp8"}, "weight_scale_inv", "FP8, 8 bits"),
    ({"quant_method": "mxfp4"}, "weight_blocks", "MXFP4, 4 bits"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "weight_scale_2", "ModelOpt, 4 bits"),
    ({"group_size": 64, "bits": 4}, "scales", "MLX, 4 bits"),
    ({"quant_method": "hqq", "quant_config": {"weight_quant_params": {"nbits": 3}}}, "W_q", "HQQ, 3 bits"),
    ({"quant_method": "torchao"}, "_weight_qdata", "torchao"),
    ({"quant_method": "newmethod"}, "codes", "newmethod"),
]


@pytest.mark.parametrize(("config", "suffix", "label"), SCHEMES, ids=[scheme[2] for scheme in SCHEMES])
@pytest.mark.parametrize("key", ["quantization_config", "quantization"])
def test_schemes_are_named(tmp_path: Path, config: dict[str, Any], suffix: str, label: str, key: str) -> None:
    tensors = llama_tensors() | {f"model.layers.0.mlp.up_proj.{suffix}": Q}
    found = findings(write_folder(tmp_path / "m", tensors, LLAMA_CONFIG | {key: config}))
    assert f"already quantized ({label}" in found["quantized-packed"].message
    assert "original 16-bit checkpoint" in found["quantized-packed"].hint


@pytest.mark.parametrize(
    ("file", "content", "label"),
    [
        ("hf_quant_config.json", {"quantization": {"quant_algo": "FP8"}}, "ModelOpt, 8 bits"),
        ("quantize_config.json", {"bits": 3, "group_size": 128}, "GPTQ, 3 bits"),
    ],
)
def test_schemes_told_by_a_file_beside(tmp_path: Path, file: str, content: dict[str, Any], label: str) -> None:
    folder = write_folder(tmp_path / "m", llama_tensors() | {"model.layers.0.mlp.up_proj.qweight": Q})
    (folder / file).write_text(json.dumps(content))
    assert label in findings(folder)["quantized-packed"].message


def test_an_adapter_saved_as_a_model(tmp_path: Path) -> None:
    tensors = {f"model.layers.0.self_attn.q_proj.lora_{part}.weight": np.ones((2, 2), np.float32) for part in "AB"}
    assert findings(write_folder(tmp_path / "m", tensors))["adapter"].severity == "error"


def test_a_picture_model(tmp_path: Path) -> None:
    tensors = {"model.diffusion_model.input_blocks.0.0.weight": np.ones((2, 2), np.float32)}
    assert "not-a-language-model" in findings(write_folder(tmp_path / "m", tensors, {}))


def test_long_names(tmp_path: Path) -> None:
    name = "transformer.blocks.0." + "x" * 60
    tensors = {name: np.ones((2, 2), np.float32)}
    found = findings(write_folder(tmp_path / "m", tensors, {"model_type": "mine"}))
    assert found["long-names"].severity == "warning"
    assert found["long-names"].tensor == name
    # A known architecture's names are translated, so their length does not matter.
    assert "long-names" not in findings(write_folder(tmp_path / "n", tensors, {"model_type": "llama"}))


def test_types_that_can_not_be_read(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    entry = {"dtype": "F4", "shape": [2, 4], "data_offsets": [0, 4]}
    (folder / "model.safetensors").write_bytes(safetensors_bytes({"x": entry}, bytes(4)))
    assert "(F4)" in findings(folder)["unreadable-type"].message


TOKENS = gguf_list("tokenizer.ggml.tokens", 8, [gguf_string(str(i)) for i in range(4)])
LLAMA = gguf_text("general.architecture", "llama")
EMBED = gguf_tensor("token_embd.weight", (8, 4), 0, 0)


@pytest.mark.parametrize(
    ("keys", "tensors", "code", "severity", "words"),
    [
        ([LLAMA], [EMBED], "no-tokenizer", WARNING, "no tokenizer"),
        (
            [LLAMA, TOKENS],
            [gguf_tensor("token_embd.weight", (8, 2), 0, 0)],
            "vocabulary-larger",
            ERROR,
            "4 tokens, more",
        ),
        (
            [LLAMA, TOKENS],
            [gguf_tensor("token_embd.weight", (4, 5), 0, 0)],
            "vocabulary-smaller",
            INFO,
            "4 tokens, fewer",
        ),
        ([TOKENS], [EMBED], "no-architecture", ERROR, "general.architecture"),
        ([LLAMA, TOKENS], [], "no-tensors", ERROR, "no tensor"),
        ([gguf_text("general.architecture", "clip")], [EMBED], "not-a-model", ERROR, "mmproj"),
        ([LLAMA, gguf_text("general.type", "mmproj")], [EMBED], "not-a-model", ERROR, "mmproj"),
        ([gguf_text("general.type", "imatrix")], [EMBED], "not-a-model", ERROR, "importance matrix"),
        ([LLAMA, gguf_text("general.type", "adapter")], [EMBED], "adapter", ERROR, "LoRA"),
        ([LLAMA, gguf_text("general.type", "vocab")], [EMBED], "not-a-model", ERROR, "vocabulary only"),
        ([LLAMA], [gguf_tensor("b" * 64, (8, 4), 0, 0)], "long-names", ERROR, "1 tensor names"),
        ([LLAMA], [gguf_tensor("token_embd.weight", (32, 1), 8, 0)], "quantized", WARNING, "(Q8_0, 8.5 bits a weight)"),
        (
            [gguf_text("general.architecture", "gpt-oss"), TOKENS],
            [gguf_tensor("blk.0.ffn_up_exps.weight", (32, 1, 1), 39, 0)],
            "quantized-original",
            INFO,
            "MXFP4 in the original too",
        ),
        (
            [LLAMA, gguf_u32("llama.block_count", 2)],
            [gguf_tensor("blk.0.attn_q.weight", (8, 4), 0, 0)],
            "layers-missing",
            ERROR,
            "2 layers, but only 1",
        ),
    ],
)
def test_gguf(tmp_path: Path, keys: list[bytes], tensors: list[bytes], code: str, severity: str, words: str) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(keys, tensors, bytes(128)))
    found = findings(path)
    assert code in found, found
    assert found[code].severity == severity
    assert words in found[code].message


def test_a_sound_gguf_has_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(gguf_bytes([LLAMA, TOKENS], [EMBED], bytes(128)))
    assert findings(tmp_path / "a.gguf") == {}


def test_a_split_set_with_a_wrong_count(tmp_path: Path) -> None:
    for number in (1, 2):
        keys = [LLAMA, TOKENS, gguf_key("split.tensors.count", 5, struct.pack("<i", 3))] if number == 1 else []
        raw = gguf_bytes(keys, [gguf_tensor(f"x{number}", (4,), 0, 0)], bytes(16))
        (tmp_path / f"m-{number:05d}-of-00002.gguf").write_bytes(raw)
    assert "(2 of 3)" in findings(tmp_path)["split-count"].message


def _incomplete(path: Path) -> list[str]:
    with open_checkpoint(path) as checkpoint:
        return [f.message for f in examine(checkpoint) if f.code == "layer-incomplete"]


@pytest.mark.parametrize("layers", [2, 3])
def test_a_layer_that_lacks_what_the_others_have(layers: int, tmp_path: Path) -> None:
    def without(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]

    folder = write_llama(tmp_path / "m", hidden=64, ffn=64, layers=layers, change=without)
    assert _incomplete(folder) == ["Layer 1 lacks what every other layer has: model.layers.1.mlp.up_proj.weight."]


def test_a_gguf_whose_conversion_was_stopped(tmp_path: Path) -> None:
    import gguf

    whole, cut = tmp_path / "whole.gguf", tmp_path / "cut.gguf"
    convert(write_llama(tmp_path / "m", hidden=64, ffn=64, layers=3), "F16", whole)
    writer = gguf.GGUFWriter(str(cut), "llama")
    writer.add_block_count(3)
    for tensor in gguf.GGUFReader(str(whole)).tensors:
        if tensor.name != "blk.2.ffn_down.weight":
            writer.add_tensor(tensor.name, tensor.data)
    for step in ("write_header_to_file", "write_kv_data_to_file", "write_tensors_to_file", "close"):
        getattr(writer, step)()
    assert _incomplete(whole) == []
    assert _incomplete(cut) == ["Layer 2 lacks what every other layer has: blk.2.ffn_down.weight."]


def test_layers_of_two_kinds_lack_nothing(tmp_path: Path) -> None:
    def mixed(tensors: dict[str, torch.Tensor]) -> None:
        for part in ("gate", "up", "down"):  # the first layer has experts, or no key of its own
            tensors[f"model.layers.0.mlp.experts.0.{part}_proj.weight"] = tensors.pop(
                f"model.layers.0.mlp.{part}_proj.weight"
            )

    assert _incomplete(write_llama(tmp_path / "experts", hidden=64, ffn=64, layers=3, change=mixed)) == []

    def shared(tensors: dict[str, torch.Tensor]) -> None:
        for layer in (2, 3):
            del tensors[f"model.layers.{layer}.self_attn.k_proj.weight"]

    assert _incomplete(write_llama(tmp_path / "shared", hidden=64, ffn=64, layers=4, change=shared)) == []
