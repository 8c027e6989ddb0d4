"""Sizes from config.json and from GGUF keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from core.checkpoint import open_checkpoint
from core.models import ModelShape, model_shape


def shape_of(path: Path) -> ModelShape | None:
    with open_checkpoint(path) as checkpoint:
        return model_shape(checkpoint)


def test_a_folder(tiny: Callable[[str], Path]) -> None:
    assert shape_of(tiny("qwen3moe")) == ModelShape(
        architecture="qwen3moe",
        layers=3,
        hidden=64,
        heads=4,
        kv_heads=2,
        head_dim=32,
        intermediate=96,
        vocab=512,
        context=256,
        experts=4,
        experts_used=2,
    )


def test_a_folder_with_images_and_windows(tiny: Callable[[str], Path]) -> None:
    shape = shape_of(tiny("gemma3-images"))
    assert shape is not None
    assert (shape.architecture, shape.layers, shape.head_dim, shape.tied) == ("gemma3", 7, 32, True)
    assert (shape.window, shape.window_layers) == (64, 6)


def write_gguf(path: Path, architecture: str, keys: Mapping[str, Any], head: bool = False) -> Path:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{key}", value)
        else:
            writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_tensor("token_embd.weight", np.zeros((10, 64), np.float32))
    if head:
        writer.add_tensor("output.weight", np.zeros((10, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


SIZES = {"block_count": 12, "embedding_length": 64, "attention.head_count": 4, "feed_forward_length": 128}


def test_a_gguf(tmp_path: Path) -> None:
    keys = {**SIZES, "attention.head_count_kv": 2, "context_length": 100}
    shape = shape_of(write_gguf(tmp_path / "a.gguf", "llama", keys, head=True))
    assert shape == ModelShape("llama", 12, 64, 4, 2, 16, 128, 10, 100)


@pytest.mark.parametrize(
    ("architecture", "keys", "layers"),
    [
        ("gemma3", {}, 10),
        ("gemma2", {}, 6),
        ("phi3", {}, 0),  # llama.cpp reads the window of Phi-3 and does not use it
        ("exaone4", {"attention.sliding_window_pattern": 4}, 9),
        ("gemma4", {"attention.sliding_window_pattern": [True] * 5 + [False] * 7}, 5),
        ("starcoder2", {}, 12),
    ],
)
def test_a_gguf_with_windows(architecture: str, keys: dict[str, Any], layers: int, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", architecture, {**SIZES, "attention.sliding_window": 512, **keys})
    shape = shape_of(path)
    assert shape is not None
    assert shape.tied
    assert (shape.window, shape.window_layers) == (512, layers)


def test_a_gguf_with_sizes_by_layer(tmp_path: Path) -> None:
    keys = {**SIZES, "attention.head_count_kv": [2, 0, 4] * 4, "attention.key_length": 24}
    shape = shape_of(write_gguf(tmp_path / "a.gguf", "deci", keys))
    assert shape is not None
    assert (shape.kv_heads, shape.head_dim) == (4, 24)


def test_latent_attention(tmp_path: Path) -> None:
    keys = {**SIZES, "attention.kv_lora_rank": 512, "rope.dimension_count": 64, "expert_count": 8}
    shape = shape_of(write_gguf(tmp_path / "a.gguf", "deepseek2", keys))
    assert shape is not None
    assert (shape.latent_rank, shape.latent_rope, shape.experts) == (512, 64, 8)


def test_a_gguf_that_says_nothing(tmp_path: Path) -> None:
    assert shape_of(write_gguf(tmp_path / "a.gguf", "llama", {"block_count": 2})) is None
