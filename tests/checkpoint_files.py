"""Model files made byte by byte, right ones and wrong ones, without the code under test."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def safetensors_bytes(header: Mapping[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file; `length` overrides the true header length."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


_DTYPES = {"float32": "F32", "float16": "F16", "uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64"}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], dtypes: Mapping[str, str] | None = None) -> Path:
    """Write float32 (or raw uint8 with a dtype from `dtypes`) arrays one after another."""
    header: dict[str, Any] = {}
    data = b""
    for name, array in tensors.items():
        raw = np.ascontiguousarray(array).tobytes()
        dtype = (dtypes or {}).get(name) or _DTYPES[str(array.dtype)]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    path.write_bytes(safetensors_bytes(header, data))
    return path


def gguf_string(text: str | bytes) -> bytes:
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_key(key: str | bytes, kind: int, value: bytes) -> bytes:
    return gguf_string(key) + struct.pack("<I", kind) + value


def gguf_text(key: str, text: str) -> bytes:
    return gguf_key(key, 8, gguf_string(text))


def gguf_u32(key: str, value: int) -> bytes:
    return gguf_key(key, 4, struct.pack("<I", value))


def gguf_list(key: str, element: int, items: Sequence[bytes], count: int | None = None) -> bytes:
    number = len(items) if count is None else count
    return gguf_key(key, 9, struct.pack("<IQ", element, number) + b"".join(items))


def gguf_tensor(name: str | bytes, dims: Sequence[int], kind: int, offset: int) -> bytes:
    return gguf_string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def gguf_bytes(
    keys: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    version: int = 3,
    key_count: int | None = None,
    tensor_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file from whole records; counts can be lied about."""
    header = b"GGUF" + struct.pack(
        "<IQQ",
        version,
        len(tensors) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    header += b"".join(keys) + b"".join(tensors)
    return header + bytes(-len(header) % alignment) + data


LLAMA_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 1,
    "vocab_size": 8,
    "tie_word_embeddings": False,
}


def llama_tensors(rows: int = 8, columns: int = 32) -> dict[str, np.ndarray]:
    """Names and values of a decoder with one layer and a head of its own."""
    rng = np.random.default_rng(1)
    names = ("model.embed_tokens", "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.down_proj", "lm_head")
    tensors = {f"{name}.weight": rng.normal(0, 0.1, (rows, columns)).astype(np.float32) for name in names}
    tensors["model.norm.weight"] = np.ones(columns, np.float32)
    return tensors


def tokenizer_bytes(tokens: int) -> bytes:
    vocabulary = {f'tok "{i}" \\': i for i in range(tokens)}
    added = [{"id": tokens - 1, "content": '"id": 99'}]
    return json.dumps(
        {"added_tokens": added, "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]}}
    ).encode()


def write_folder(
    folder: Path,
    tensors: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
    tokens: int | None = 8,
) -> Path:
    """A Hugging Face folder with one safetensors file."""
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", llama_tensors() if tensors is None else tensors)
    (folder / "config.json").write_text(json.dumps(LLAMA_CONFIG if config is None else config))
    if tokens is not None:
        (folder / "tokenizer.json").write_bytes(tokenizer_bytes(tokens))
    return folder


def write_shards(folder: Path, count: int = 3) -> Path:
    """A folder with an index and `count` safetensors files."""
    write_folder(folder)
    (folder / "model.safetensors").unlink()
    tensors = llama_tensors()
    weight_map = {}
    for number in range(count):
        part = dict(list(tensors.items())[number::count])
        name = f"model-{number + 1:05d}-of-{count:05d}.safetensors"
        write_safetensors(folder / name, part)
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
