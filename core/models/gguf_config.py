"""A GGUF's keys as the same DecoderConfig that config.json gives, with the defaults that llama.cpp's loaders have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.checkpoint.base import Checkpoint
from core.checkpoint.gguf import refuse_matrix
from core.errors import UserError
from core.models.config import DecoderConfig, RopeConfig
from core.models.gguf_metadata import NO_SOFTCAP
from core.units import format_count

_AGAIN = "Download the file again, or look for the same model from another source."
_GEMMA = ("gemma2", "gemma3")
LIMIT = 1 << 31  # of a size
MAX_LAYERS = 1 << 16
# Of the 27 B models, whose attention is scaled by width ÷ heads instead of the head's width.
_LARGEST_GEMMA = {"gemma2": 46, "gemma3": 62}


def read_gguf_config(checkpoint: Checkpoint) -> DecoderConfig:
    """The decoder of a GGUF. The order of rotary pairs, norm offsets and the like follow from the architecture's name.

    Raises UserError when a key is missing, has a value that no decoder can have, or differs between layers.
    """
    refuse_matrix(checkpoint)
    keys = _Keys(checkpoint.metadata)
    layers, hidden = keys.count("block_count"), keys.count("embedding_length")
    heads = keys.count("attention.head_count")
    if layers > MAX_LAYERS:
        raise UserError(f"The file says that it has {format_count(layers)} layers, which no model has.", _AGAIN)
    head_dim = keys.count("attention.key_length", hidden // heads)
    if keys.count("attention.value_length", head_dim) != head_dim:
        raise UserError("Keys and values of the attention differ in width, which is not known here.", _AGAIN)
    architecture = keys.architecture
    experts = keys.count("expert_count", 0)
    intermediate = keys.count("feed_forward_length", 0 if experts else None)
    windows = _windows(keys, layers)
    named = {t.name for t in checkpoint.tensors}
    return DecoderConfig(
        model_type=architecture,
        architecture=architecture,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=keys.count("attention.head_count_kv", heads),
        head_dim=head_dim,
        explicit_head_dim=True,
        intermediate=intermediate,
        vocab=_vocabulary(checkpoint, keys),
        context=keys.count("context_length"),
        rms_eps=keys.number("attention.layer_norm_rms_epsilon"),
        tied="output.weight" not in named,
        rope=_rope(checkpoint, keys, head_dim),
        experts=experts,
        experts_used=keys.count("expert_used_count", 0) if experts else 0,
        expert_intermediate=keys.count("expert_feed_forward_length", intermediate) if experts else 0,
        window=keys.count("attention.sliding_window", 4096) if any(windows) else 0,
        window_layers=sum(windows),
        layer_windows=windows,
        attention_scalar=_scalar(architecture, layers, hidden // heads, head_dim),
        attention_softcap=_cap(keys, "attn_logit_softcapping", 50.0 if architecture == "gemma2" else 0.0),
        final_softcap=_cap(keys, "final_logit_softcapping", 30.0 if architecture == "gemma2" else 0.0),
        activation="gelu_pytorch_tanh" if architecture in _GEMMA else "silu",
    )


class _Keys:
    """The architecture's own keys as numbers, the architecture's name left out."""

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.architecture = str(metadata.get("general.architecture", ""))
        self.metadata = metadata

    def raw(self, key: str) -> Any:
        return self.metadata.get(f"{self.architecture}.{key}")

    def number(self, key: str, default: float | None = None) -> float:
        value = self.raw(key)
        if value is None and default is not None:
            return default
        if value is None:
            raise UserError(f"The file does not say '{self.architecture}.{key}'.", _AGAIN)
        if not isinstance(value, (int, float)):  # one value a layer
            try:
                values = {float(x) for x in value}
            except (TypeError, ValueError):
                values = set()
            if len(values) != 1:
                raise UserError(f"'{self.architecture}.{key}' differs between layers, which is not known here.", _AGAIN)
            value = values.pop()
        if not math.isfinite(value):
            raise UserError(f"'{self.architecture}.{key}' is no number.", _AGAIN)
        return float(value)

    def count(self, key: str, default: int | None = None) -> int:
        value = self.number(key, default)
        if value != int(value) or not 0 <= value < LIMIT or (value == 0 and default is None):
            raise UserError(f"'{self.architecture}.{key}' is {value:g}, which no model can have.", _AGAIN)
        return int(value)


def _vocabulary(checkpoint: Checkpoint, keys: _Keys) -> int:
    """Tokens that the tokenizer has; without one, what a key says, or the rows of the embedding."""
    tokens = checkpoint.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None:
        if not isinstance(tokens, list):
            raise UserError("The tokens of the tokenizer in this file are no list of texts.", _AGAIN)
        return len(tokens)
    rows = next((t.rows for t in checkpoint.tensors if t.name == "token_embd.weight"), 0)
    return keys.count("vocab_size", rows)


def _windows(keys: _Keys, layers: int) -> tuple[bool, ...]:
    """Which layers slide. Only Gemma's and Phi-3's loaders know windows; Gemma 2 has one when the file has no key."""
    architecture = keys.architecture
    if architecture == "phi3":
        return (keys.count("attention.sliding_window", 0) > 0,) * layers
    if architecture not in _GEMMA or not keys.count(
        "attention.sliding_window", 4096 if architecture == "gemma2" else 0
    ):
        return (False,) * layers
    pattern = keys.raw("attention.sliding_window_pattern")
    if isinstance(pattern, np.ndarray) and pattern.dtype.kind in "biu":
        listed = tuple(bool(x) for x in pattern)
        if len(listed) < layers:
            raise UserError(f"The file tells of {len(listed)} of {layers} layers whether they slide.", _AGAIN)
        return listed[:layers]
    period = keys.count("attention.sliding_window_pattern", 0) or (2 if architecture == "gemma2" else 6)
    return tuple(i % period < period - 1 for i in range(layers))


def _scalar(architecture: str, layers: int, share: int, head_dim: int) -> float:
    if architecture not in _GEMMA:
        return 0.0
    return float(share if layers == _LARGEST_GEMMA[architecture] else head_dim)


def _cap(keys: _Keys, key: str, default: float) -> float | None:
    value = keys.number(key, default)
    return value if 0.0 < value < NO_SOFTCAP else None


def _rope(checkpoint: Checkpoint, keys: _Keys, head_dim: int) -> RopeConfig:
    """Factors stand in tensors: rope_freqs (Llama 3) for every length, rope_factors_long and _short (LongRoPE)."""
    turned = keys.count("rope.dimension_count", head_dim)
    if not 0 < turned <= head_dim or turned % 2:
        raise UserError(f"{turned} of a head's {head_dim} values can not be turned in pairs.", _AGAIN)
    theta = keys.number("rope.freq_base", 10000.0)
    if not theta > 0.0:
        raise UserError(f"The rope base is {theta:g}, which no model has.", _AGAIN)
    named = keys.raw("rope.scaling.type")
    if named is not None and not isinstance(named, str):
        raise UserError(f"'{keys.architecture}.rope.scaling.type' is no name.", _AGAIN)
    kind = (named or "default").lower()
    kind = "default" if kind == "none" else kind
    factor = keys.number("rope.scaling.factor", 0.0) or keys.number("rope.scale_linear", 1.0)
    if kind == "default" and named is None and factor != 1.0:
        kind = "linear"
    original = keys.count("rope.scaling.original_context_length", 0)
    tables = {t.name: t for t in checkpoint.tensors if t.name.startswith("rope_f")}

    def factors(name: str) -> tuple[float, ...]:
        tensor = tables.get(name + ".weight")
        if tensor is not None and not 0 < tensor.values <= head_dim:
            raise UserError(f"'{tensor.name}' has {format_count(tensor.values)} values, which no model has.", _AGAIN)
        return () if tensor is None else tuple(float(x) for x in checkpoint.read_rows(tensor).reshape(-1))

    long_factor, short_factor = factors("rope_factors_long"), factors("rope_factors_short")
    if bool(long_factor) != bool(short_factor):
        there, missing = ("long", "short") if long_factor else ("short", "long")
        raise UserError(f"The file has 'rope_factors_{there}.weight', but no 'rope_factors_{missing}.weight'.", _AGAIN)
    if always := factors("rope_freqs"):
        long_factor = short_factor = always
    if long_factor:
        kind = "longrope"
    scale = None
    if kind == "yarn":
        scale = keys.number("rope.scaling.attn_factor", 1.0) * RopeConfig(factor=factor).yarn_paper_scale
    elif kind == "longrope":
        scale = keys.number("rope.scaling.attn_factor", 1.0)

    def optional(key: str) -> float | None:
        return None if keys.raw(f"rope.scaling.{key}") is None else keys.number(f"rope.scaling.{key}")

    local = 10000.0 if keys.architecture == "gemma3" else 0.0
    return RopeConfig(
        kind=kind,
        theta=theta,
        theta_local=keys.number("rope.freq_base_swa", local) if local else 0.0,
        factor=factor,
        partial=turned / head_dim,
        original_context=original or keys.count("context_length"),
        attention_factor=scale,
        long_factor=long_factor,
        short_factor=short_factor,
        extrapolation_factor=optional("yarn_ext_factor"),
        beta_fast=optional("yarn_beta_fast"),
        beta_slow=optional("yarn_beta_slow"),
    )
