"""Files made to harm: every one gives a UserError or opens, in little memory and time."""

from __future__ import annotations

import json
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from checkpoint_files import (
    gguf_bytes,
    gguf_key,
    gguf_list,
    gguf_string,
    gguf_tensor,
    gguf_text,
    gguf_u32,
    safetensors_bytes,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.checkpoint import open_checkpoint
from core.checkpoint.doctor import examine
from core.errors import UserError

MEMORY = 16 << 20
EDGES = st.sampled_from(
    [0, 1, 2, 7, 31, 32, 33, 64, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1]
)
NUMBERS = st.one_of(EDGES, st.integers(0, 200))
hostile = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


def use(path: Path) -> str:
    """Open, examine and read a little. The sentence of a UserError, else ''."""
    try:
        checkpoint = open_checkpoint(path)
        examine(checkpoint)
        for tensor in checkpoint.tensors[:3]:
            checkpoint.read_raw(tensor, 0, min(1, tensor.rows))
            checkpoint.read_rows(tensor, 0, min(1, tensor.rows))
        for key in list(checkpoint.metadata)[:5]:
            checkpoint.metadata[key]
    except UserError as error:
        return error.message
    return ""


def survives(path: Path, raw: bytes) -> None:
    """Only a UserError may come of it, and memory stays small."""
    path.write_bytes(raw)
    tracemalloc.start()
    message = use(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(message) < 500
    assert not message or message.endswith(".")
    assert peak < MEMORY + 20 * len(raw)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=9,
)
SIGNED = st.one_of(EDGES, st.integers(-5, 200), EDGES.map(lambda n: -n))
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["F32", "BF16", "F8_E4M3", "F4", "F6_E2M3", "I64", "BOOL", "", "X"]) | JSON,
        "shape": st.lists(SIGNED, max_size=5) | JSON,
        "data_offsets": st.lists(SIGNED, min_size=2, max_size=2) | JSON,
    },
)
NAME = st.sampled_from(["lm_head.weight", "model.embed_tokens.weight", "__metadata__", "", "a" * 70]) | st.text(
    max_size=20
)


@hostile
@given(st.dictionaries(NAME, ENTRY | JSON, max_size=5), st.binary(max_size=200), st.none() | NUMBERS)
def test_safetensors_headers(tmp_path: Path, header: dict[str, Any], data: bytes, length: int | None) -> None:
    survives(tmp_path / "a.safetensors", safetensors_bytes(json.dumps(header).encode(), data, length))


@hostile
@given(
    st.binary(max_size=300),
    st.sampled_from(["a.safetensors", "a.gguf", "a.bin"]),
    st.sampled_from([b"", b"GGUF", b"PK"]),
)
def test_any_bytes(tmp_path: Path, raw: bytes, name: str, magic: bytes) -> None:
    survives(tmp_path / name, magic + raw)


@st.composite
def gguf_keys(draw: st.DrawFn) -> bytes:
    key = draw(
        st.sampled_from([b"general.alignment", b"general.architecture", b"split.count"]) | st.binary(max_size=12)
    )
    element, count = draw(st.integers(0, 14)), draw(NUMBERS)
    value = draw(
        st.one_of(
            st.binary(max_size=24),
            st.binary(max_size=24).map(gguf_string),
            st.builds(lambda body: struct.pack("<IQ", element, count) + body, st.binary(max_size=64)),
        )
    )
    return gguf_key(key, draw(st.integers(0, 14)), value)


@st.composite
def gguf_tensors(draw: st.DrawFn) -> bytes:
    dims = draw(st.lists(NUMBERS, max_size=6))
    name = draw(st.sampled_from([b"token_embd.weight", b"output.weight"]) | st.binary(max_size=70))
    return gguf_tensor(name, dims, draw(st.integers(0, 45)), draw(NUMBERS))


@hostile
@given(
    st.lists(gguf_keys(), max_size=4),
    st.lists(gguf_tensors(), max_size=4),
    st.binary(max_size=300),
    st.none() | NUMBERS,
    st.none() | NUMBERS,
)
def test_gguf_headers(
    tmp_path: Path,
    keys: list[bytes],
    tensors: list[bytes],
    data: bytes,
    key_count: int | None,
    tensor_count: int | None,
) -> None:
    raw = gguf_bytes(keys, tensors, data, key_count=key_count, tensor_count=tensor_count)
    survives(tmp_path / "a.gguf", raw)


WHOLE = gguf_bytes(
    [
        gguf_text("general.architecture", "llama"),
        gguf_u32("llama.block_count", 1),
        gguf_list("tokenizer.ggml.tokens", 8, [gguf_string(t) for t in ("a", "bc", "d" * 40)]),
        gguf_list("scores", 6, [bytes(4)] * 3),
    ],
    [gguf_tensor("token_embd.weight", (32, 3), 8, 0), gguf_tensor("blk.0.attn_q.weight", (8,), 0, 128)],
    bytes(160),
)


@hostile
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=8), st.integers(0, len(WHOLE)))
def test_a_good_gguf_with_some_bytes_changed_or_cut(tmp_path: Path, at: int, patch: bytes, end: int) -> None:
    survives(tmp_path / "a.gguf", (WHOLE[:at] + patch + WHOLE[at + len(patch) :])[:end])
    survives(tmp_path / "a.gguf", WHOLE[:at] + patch + WHOLE[at + len(patch) :])


def deep(opening: str, closing: str, depth: int = 200_000) -> bytes:
    return ('{"__metadata__":' + opening * depth + closing * depth + "}").encode()


@pytest.mark.parametrize(
    "header",
    [
        deep("[", "]"),
        deep('{"a":', "}"),
        b'{"a":' * 200_000,
        b'{"x":' + b"9" * 1_000_000 + b"}",
        b'{"x": {"dtype": "F32", "shape": [' + b"9" * 5000 + b'], "data_offsets": [0, 0]}}',
        b'{"x": {"dtype": "F32", "shape": [1e999], "data_offsets": [0, NaN]}}',
        json.dumps({"x": {"dtype": "F32", "shape": [0] * 70, "data_offsets": [0, 0]}}).encode(),
        json.dumps({"x" * 100_000: {"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}}).encode(),
        json.dumps({"x": {"dtype": "y" * 100_000, "shape": [2], "data_offsets": [0, 8]}}).encode(),
    ],
    ids=lambda header: header[:12].decode(),
)
def test_json_bombs(tmp_path: Path, header: bytes) -> None:
    survives(tmp_path / "a.safetensors", safetensors_bytes(header, bytes(64)))


def test_a_config_of_the_wrong_kinds(tmp_path: Path) -> None:
    entry = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    header = {"model.embed_tokens.weight": entry}
    for value in (3, "x", [], {}, None, True, [[]], {"a": {"b": []}}, 1e300, -1):
        keys = ("model_type", "architectures", "text_config", "quantization_config", "vocab_size", "num_hidden_layers")
        (tmp_path / "config.json").write_text(json.dumps(dict.fromkeys((*keys, "tie_word_embeddings"), value)))
        (tmp_path / "tokenizer.json").write_text(json.dumps({"model": value, "added_tokens": value}))
        survives(tmp_path / "model.safetensors", safetensors_bytes(header, bytes(16)))


def test_a_sparse_file_that_claims_everything(tmp_path: Path) -> None:
    """A header whose lengths are all within a file of a terabyte that holds nothing: no length is believed alone."""
    keys = {
        "text": gguf_key("k", 8, struct.pack("<Q", 2**39)),
        "numbers": gguf_list("k", 10, [], 2**36),
        "texts": gguf_list("k", 8, [], 2**36),
    }
    for name, key in keys.items():
        path = tmp_path / f"{name}.gguf"
        with path.open("wb") as file:
            file.write(gguf_bytes([key], key_count=1))
            file.truncate(1 << 40)
        tracemalloc.start()
        with pytest.raises(UserError):
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < MEMORY
        tracemalloc.stop()


def test_an_empty_tensor_with_a_vast_axis(tmp_path: Path) -> None:
    for shape in ([0, 2**62], [2**62, 0], [2**39, 2, 0]):
        entry = {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}
        (tmp_path / "a.safetensors").write_bytes(safetensors_bytes({"x": entry}))
        assert "the size of x" in use(tmp_path / "a.safetensors")
        (tmp_path / "a.gguf").write_bytes(gguf_bytes([], [gguf_tensor("x", shape, 0, 0)]))
        assert "makes no sense" in use(tmp_path / "a.gguf")
