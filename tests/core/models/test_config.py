"""config.json in its spellings, and what a missing field means."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from core.errors import UserError
from core.models.config import DecoderConfig, read_config

SIZES = {"num_hidden_layers": 8, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}


def read(**fields: Any) -> DecoderConfig:
    config = read_config({**SIZES, **fields})
    assert config is not None
    return config


def test_llama_2_as_published() -> None:
    """No num_key_value_heads, no rope_theta, no head_dim: one key head a query head, base 10,000."""
    config = read(model_type="llama", architectures=["LlamaForCausalLM"], rms_norm_eps=1e-5)
    assert (config.architecture, config.kv_heads, config.head_dim, config.rope.theta) == ("llama", 4, 16, 10000.0)
    assert (config.context, config.tied, config.window_layers) == (2048, False, 0)


def test_gemma_3_as_published_with_images() -> None:
    """The 4 B model's text_config says little more than its sizes."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    config = read_config(
        {"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    )
    assert config is not None
    assert (config.architecture, config.heads, config.kv_heads, config.head_dim) == ("gemma3", 8, 4, 256)
    assert (config.vocab, config.context, config.tied) == (262208, 131072, True)
    assert (config.window, config.window_layers) == (1024, 29)
    assert (config.rope.kind, config.rope.factor, config.rope.theta) == ("linear", 8.0, 1e6)
    assert config.rope.theta_local == 10000.0


def test_both_spellings_of_rope_say_the_same() -> None:
    scaling = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    old = read(model_type="llama", rope_theta=5e5, rope_scaling={"rope_type": "llama3", **scaling})
    older = read(model_type="llama", rope_theta=5e5, rope_scaling={"type": "llama3", **scaling})
    new = read(model_type="llama", rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **scaling})
    assert old.rope == older.rope == new.rope
    assert new.rope.theta == 5e5


def test_rope_of_its_own_for_sliding_layers() -> None:
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    new = read(model_type="gemma3_text", rope_parameters=nested)
    old = read(
        model_type="gemma3_text",
        rope_theta=1e6,
        rope_local_base_freq=1e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    assert new.rope == old.rope


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({"model_type": "mistral"}, 8),
        ({"model_type": "mistral", "sliding_window": None}, 0),
        ({"model_type": "gemma2"}, 4),
        ({"model_type": "gemma3_text"}, 7),
        ({"model_type": "gemma3_text", "sliding_window_pattern": 4}, 6),
        ({"model_type": "gemma3_text", "layer_types": ["sliding_attention"] * 3 + ["full_attention"] * 5}, 3),
        ({"model_type": "qwen2", "sliding_window": 32768}, 0),
        ({"model_type": "qwen2", "sliding_window": 32768, "use_sliding_window": True, "max_window_layers": 6}, 2),
        ({"model_type": "phi3", "sliding_window": 2047}, 8),
        ({"model_type": "llama"}, 0),
    ],
)
def test_how_many_layers_slide(fields: dict[str, Any], layers: int) -> None:
    config = read(**fields)
    assert config.window_layers == layers
    assert bool(config.window) is bool(layers)


# What transformers' classes make of files that leave out what its newer versions write: layer types, scales, contexts.
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_OLDER_FILES: list[dict[str, Any]] = [
    {"model_type": "gemma3_text"},
    {"model_type": "gemma3_text", "sliding_window_pattern": 3},
    {"model_type": "gemma2"},
    {"model_type": "gemma2", "query_pre_attn_scalar": 224},
    {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 3},
    {"model_type": "qwen3", "use_sliding_window": True, "max_window_layers": 9},
    {"model_type": "qwen2"},
    {"model_type": "llama", "rope_scaling": _LLAMA3, "max_position_embeddings": 4096},
    {"model_type": "qwen2", "rope_scaling": {"type": "yarn", "factor": 4.0}, "rope_theta": 1e6},
    {
        "model_type": "qwen3",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "rope_scaling": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0},
    },
]


@pytest.mark.parametrize("fields", _OLDER_FILES, ids=lambda fields: "-".join(map(str, fields.values())))
def test_older_files_mean_what_transformers_makes_of_them(fields: dict[str, Any]) -> None:
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(**{**SIZES, **copy.deepcopy(fields)})
    config = read(**fields)
    types = getattr(theirs, "layer_types", None) or [""] * config.layers
    slides = tuple(kind == "sliding_attention" for kind in types)
    assert (config.layer_windows or (False,) * config.layers) == slides
    assert config.window == (theirs.sliding_window if any(slides) else 0)
    assert config.attention_scalar == getattr(theirs, "query_pre_attn_scalar", 0)
    rope = theirs.rope_parameters.get("full_attention") or theirs.rope_parameters
    assert (config.rope.kind, config.rope.theta) == (rope["rope_type"], rope["rope_theta"])
    if "factor" in rope:
        assert config.rope.factor == rope["factor"]
        assert config.rope.original_context == rope["original_max_position_embeddings"]


def test_a_window_of_a_qwen_3_mixture_is_in_every_layer() -> None:
    """Qwen3MoeModel has one mask for all layers; max_window_layers stands in its files and does nothing."""
    config = read(model_type="qwen3_moe", use_sliding_window=True, sliding_window=64, max_window_layers=6)
    assert config.layer_windows == (True,) * 8


def test_a_base_that_an_added_rope_scaling_would_hide() -> None:
    added = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}
    with pytest.raises(UserError, match="rope_scaling, which goes before it, has none") as refused:
        read(model_type="qwen3", rope_parameters={"rope_type": "default", "rope_theta": 1e6}, **added)
    assert "take rope_scaling away" in refused.value.hint
    assert read(model_type="qwen3", rope_theta=1e6, **added).rope.theta == 1e6


def test_layer_types_that_are_too_few() -> None:
    with pytest.raises(UserError, match="layer_types names 3 of 8 layers"):
        read(model_type="gemma3_text", layer_types=["sliding_attention"] * 3)


def test_longrope_s_attention_scale() -> None:
    """√(1 + ln 32 / ln 4096) = 1.190238 for a model stretched from 4,096 to 131,072 tokens (Phi-3 mini 128k)."""
    config = read(
        model_type="phi3",
        max_position_embeddings=131072,
        original_max_position_embeddings=4096,
        rope_scaling={"type": "longrope", "long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
    )
    assert config.rope.attention_scale == pytest.approx(1.1902380714238083)
    assert config.rope.factor == 32.0


def test_experts() -> None:
    config = read(model_type="qwen3_moe", num_experts=16, num_experts_per_tok=4, moe_intermediate_size=48)
    assert (config.experts, config.experts_used, config.expert_intermediate) == (16, 4, 48)
    config = read(model_type="mixtral")
    assert (config.experts, config.experts_used, config.expert_intermediate) == (8, 2, 128)


def test_latent_attention() -> None:
    config = read(model_type="deepseek_v3", kv_lora_rank=512, qk_rope_head_dim=64)
    assert (config.architecture, config.latent_rank, config.latent_rope) == ("", 512, 64)


@pytest.mark.parametrize("name", ["Gemma3TextModel", "LlamaForSequenceClassification", "Qwen3ForTokenClassification"])
def test_models_that_are_no_text_generators(name: str) -> None:
    assert read(model_type="llama", architectures=[name]).architecture == ""


def test_too_little_to_go_by() -> None:
    assert read_config({}) is None
    assert read_config({"model_type": "llama"}) is None


@pytest.mark.parametrize("fields", [{"hidden_size": "wide"}, {"num_attention_heads": [4]}, {"rope_theta": "big"}])
def test_values_that_can_not_be(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        read(model_type="llama", **fields)


@pytest.mark.parametrize("fields", [{"rope_scaling": "linear"}, {"text_config": 3, "rope_scaling": [1]}])
def test_structures_that_can_not_be(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        read(model_type="llama", **fields)
