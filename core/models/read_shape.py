"""A checkpoint's sizes, from config.json or from GGUF's keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.checkpoint.base import Checkpoint, Container
from core.models.config import read_config
from core.models.shape import ModelShape
from core.tensor_info import Role


def model_shape(checkpoint: Checkpoint) -> ModelShape | None:
    """Sizes of the decoder, or None when the checkpoint does not say them."""
    if checkpoint.container is Container.GGUF:
        return _gguf_shape(checkpoint)
    config = read_config(checkpoint.config)
    if config is None:
        return None
    return ModelShape(
        architecture=checkpoint.architecture or config.architecture or config.model_type,
        layers=config.layers,
        hidden=config.hidden,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        intermediate=config.intermediate,
        vocab=config.vocab,
        context=config.context,
        tied=_tied(checkpoint),
        experts=config.experts,
        experts_used=config.experts_used,
        window=config.window,
        window_layers=config.window_layers,
        latent_rank=config.latent_rank,
        latent_rope=config.latent_rope,
    )


def _tied(checkpoint: Checkpoint) -> bool:
    heads = [t for t in checkpoint.tensors if t.role is Role.HEAD]
    return not heads or all(t.tied_to for t in heads)


def _gguf_shape(checkpoint: Checkpoint) -> ModelShape | None:
    metadata = checkpoint.metadata
    architecture = str(metadata.get("general.architecture", ""))

    def number(key: str, default: int = 0) -> int:
        return _largest(metadata.get(f"{architecture}.{key}", default))

    layers, hidden, heads = number("block_count"), number("embedding_length"), number("attention.head_count")
    if not layers or not hidden or not heads:
        return None
    window = number("attention.sliding_window")
    embedding = next((t for t in checkpoint.tensors if t.role is Role.EMBED), None)
    return ModelShape(
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=number("attention.head_count_kv", heads),
        head_dim=number("attention.key_length", hidden // heads),
        intermediate=number("feed_forward_length"),
        vocab=number("vocab_size") or (embedding.rows if embedding else 0),
        context=number("context_length"),
        tied=_tied(checkpoint),
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        window=window,
        window_layers=_gguf_window_layers(architecture, layers, metadata) if window else 0,
        latent_rank=number("attention.kv_lora_rank"),
        latent_rope=number("rope.dimension_count") if number("attention.kv_lora_rank") else 0,
    )


def _largest(value: Any) -> int:
    """A number, or the largest of an array with one for each layer."""
    if isinstance(value, (int, float)):
        return int(value)
    items = list(value)
    return int(max(items, default=0))


def _gguf_window_layers(architecture: str, layers: int, metadata: Mapping[str, Any]) -> int:
    """How many layers slide: a list or a period in the file, else the period that llama.cpp knows by architecture."""
    pattern = metadata.get(f"{architecture}.attention.sliding_window_pattern")
    if pattern is not None and not isinstance(pattern, (int, float)):
        return sum(bool(x) for x in list(pattern)[:layers])
    period = int(pattern or {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4, "phi3": 1}.get(architecture, 0))
    if period == 2:
        return (layers + 1) // 2
    return layers - layers // period if period else layers
