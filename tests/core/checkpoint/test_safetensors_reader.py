"""The safetensors reader against the safetensors library and against files made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from checkpoint_files import safetensors_bytes, write_folder, write_safetensors, write_shards

from core.checkpoint import Container, open_checkpoint
from core.errors import UserError
from core.tensor_info import Role

DTYPES = [
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "bool"),
    *("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8"),
]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_reads_as_the_library_does(tmp_path: Path, dtype: str) -> None:
    kind = getattr(torch, dtype)
    if kind.is_floating_point and kind.itemsize == 1:
        source = torch.arange(256, dtype=torch.uint8).view(kind).reshape(8, 32)
    else:
        source = (torch.arange(96).reshape(3, 32) % 5 if dtype != "bool" else torch.arange(96).reshape(3, 32) % 2).to(
            kind
        )
    safetensors.torch.save_file({"x": source, "scalar": source.reshape(-1)[3].clone()}, tmp_path / "a.safetensors")
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    read = checkpoint.read_rows(checkpoint.tensor("x"))
    expected = source.to(torch.float32).numpy()
    assert read.dtype == np.float32
    np.testing.assert_array_equal(read, expected)
    np.testing.assert_array_equal(np.signbit(read), np.signbit(expected))
    raw = checkpoint.read_raw(checkpoint.tensor("x"), 1, 2)
    assert raw.tobytes() == source.view(torch.uint8)[1].numpy().tobytes()
    scalar = checkpoint.tensor("scalar")
    assert (scalar.shape, scalar.rows, scalar.columns) == ((), 1, 1)
    np.testing.assert_array_equal(checkpoint.read_rows(scalar)[0, 0], expected.reshape(-1)[3])


def test_rows_of_a_stacked_tensor(tmp_path: Path) -> None:
    values = np.arange(4 * 3 * 5, dtype=np.float32).reshape(4, 3, 5)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    checkpoint = open_checkpoint(write_safetensors(tmp_path / "a.safetensors", {name: values}))
    tensor = checkpoint.tensor(name)
    assert (tensor.rows, tensor.columns, tensor.experts, tensor.role) == (12, 5, 4, Role.FFN_GATE_UP)
    np.testing.assert_array_equal(checkpoint.read_rows(tensor, 2, 9), values.reshape(12, 5)[2:9])
    assert checkpoint.read_rows(tensor, 5, 5).shape == (0, 5)
    with pytest.raises(IndexError):
        checkpoint.read_rows(tensor, 3, 13)


def test_folder_and_any_of_its_files_open_the_same_model(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "model")
    opened = [open_checkpoint(folder), open_checkpoint(str(folder)), *(open_checkpoint(f) for f in folder.iterdir())]
    assert len({checkpoint.fingerprint() for checkpoint in opened}) == 1
    for checkpoint in opened:
        assert (checkpoint.path, checkpoint.architecture, len(checkpoint.files)) == (folder, "llama", 3)
        assert checkpoint.container is Container.SAFETENSORS
        assert [t.name for t in checkpoint.tensors][-1] == "model.norm.weight"
        assert [f.name for f in checkpoint.side_files] == ["tokenizer.json"]
        assert checkpoint.total_bytes == 4 * 8 * 32 * 4 + 32 * 4


def test_layers_come_in_natural_order(tmp_path: Path) -> None:
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in (10, 2, 1)]
    checkpoint = open_checkpoint(
        write_safetensors(tmp_path / "a.safetensors", {n: np.ones((1, 2), np.float32) for n in names})
    )
    assert [tensor.layer for tensor in checkpoint.tensors] == [1, 2, 10]


def test_shared_bytes_are_one_tensor(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]}
    header = {"model.embed_tokens.weight": entry, "lm_head.weight": entry}
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(header, bytes(32)))
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert sum(bool(tensor.tied_to) for tensor in checkpoint.tensors) == 1
    assert checkpoint.total_bytes == 32


def test_a_head_stored_twice_is_tied_where_config_and_bytes_agree(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(100, 512)).astype(np.float32)
    config = {"model_type": "llama", "tie_word_embeddings": True}
    tensors = {"model.embed_tokens.weight": values, "lm_head.weight": values}
    same = open_checkpoint(write_folder(tmp_path / "same", tensors, config))
    assert same.tensor("lm_head.weight").tied_to == "model.embed_tokens.weight"
    assert same.total_bytes == values.nbytes
    other = open_checkpoint(write_folder(tmp_path / "other", tensors | {"lm_head.weight": values + 1}, config))
    assert not other.tensor("lm_head.weight").tied_to
    untied = open_checkpoint(write_folder(tmp_path / "untied", tensors, {"model_type": "llama"}))
    assert not untied.tensor("lm_head.weight").tied_to


def test_a_file_that_changes_or_shrinks_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"x": np.ones((1000, 100), np.float32)})
    checkpoint = open_checkpoint(path)
    with path.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(UserError, match=r"a\.safetensors changed while it was in use"):
        checkpoint.read_rows(checkpoint.tensor("x"))


def test_fingerprint_follows_the_source(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "a.safetensors", {"x": np.ones((2, 2), np.float32)})
    first = open_checkpoint(path).fingerprint()
    assert open_checkpoint(path).fingerprint() == first
    write_safetensors(path, {"y": np.ones((2, 2), np.float32)})
    assert open_checkpoint(path).fingerprint() != first


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "is empty"),
        (b"\x10", "is cut off"),
        (bytes(4096), "begins with zeros"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html></html>", "is a web page"),
        (b'{"error": "Repository not found"}', "server's error message"),
        (b"not a model at all, just text", "is not a safetensors file"),
        (safetensors_bytes({"x": ENTRY}, bytes(15)), "is cut off: x ends at byte"),
        (safetensors_bytes({"x": ENTRY}, bytes(16), length=10**6), "is cut off: its header alone"),
        (safetensors_bytes({"x": ENTRY}, bytes(16), length=2**63), "is not a safetensors file"),
        (safetensors_bytes(b"\0" * 64, bytes(16)), "zeros where its header should be"),
        (safetensors_bytes(b'{"x": [', b""), "has a damaged header"),
        (safetensors_bytes(b"[1]", b""), "is not a safetensors file"),
        (safetensors_bytes({"x": 3}), "the entry of x makes no sense"),
        (safetensors_bytes({"x": ENTRY | {"dtype": "F128"}}, bytes(16)), "a type that is not known"),
        (safetensors_bytes({"x": ENTRY | {"shape": [2, -2]}}, bytes(16)), "the shape of x"),
        (safetensors_bytes({"x": ENTRY | {"shape": [2, 3]}}, bytes(16)), "the size of x"),
        (safetensors_bytes({"x": ENTRY | {"shape": [2**62, 2**62]}}, bytes(16)), "the size of x"),
        (safetensors_bytes({"x": ENTRY | {"data_offsets": [-16, 0]}}, bytes(16)), "the size of x"),
        (safetensors_bytes({"x": ENTRY | {"data_offsets": [2**63, 2**63 + 16]}}, bytes(16)), "is cut off"),
        (
            safetensors_bytes({"x": ENTRY, "y": ENTRY | {"data_offsets": [8, 24]}}, bytes(24)),
            "lie inside another tensor",
        ),
        (safetensors_bytes(b'{"x": 1, "x": 2}'), "lists x twice"),
        (safetensors_bytes(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "damaged"),
        (safetensors_bytes(b'{"x":[' + b"0," * 4_100_000 + b"0]}"), "more entries than any model"),
        (safetensors_bytes(b'{"\xff": 1}'), "has a damaged header"),
    ],
)
def test_damaged_files_are_named_in_one_sentence(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(raw)
    with pytest.raises(UserError) as caught:
        open_checkpoint(path)
    assert message in caught.value.message
    assert path.name in caught.value.message
    assert caught.value.hint


def test_ten_thousand_tensors(tmp_path: Path) -> None:
    header = {
        f"model.layers.{i // 100}.mlp.experts.{i % 100}.up_proj.weight": {
            "dtype": "BF16",
            "shape": [1, 4],
            "data_offsets": [8 * i, 8 * i + 8],
        }
        for i in range(10_000)
    }
    (tmp_path / "a.safetensors").write_bytes(safetensors_bytes(header, bytes(80_000)))
    checkpoint = open_checkpoint(tmp_path / "a.safetensors")
    assert len(checkpoint.tensors) == 10_000
    assert checkpoint.tensors[-1].expert == 99


def test_config_of_a_multimodal_model(tmp_path: Path) -> None:
    config = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}, "vision_config": {"a": 1}}
    folder = write_folder(tmp_path / "m", config=config)
    assert open_checkpoint(folder).architecture == "gemma3"
    (folder / "config.json").write_text(json.dumps({"architectures": ["MixtralForCausalLM"]}))
    assert open_checkpoint(folder).architecture == "llama"
