"""Tiny random models of every family in float32, made by transformers, and what transformers computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import byte_tokens, tokenizer_json

from core.checkpoint import Checkpoint
from core.models.config import DecoderConfig
from core.progress import CancelToken
from core.runtime.decoder import DecoderWeights
from core.runtime.reading import Conversion
from core.runtime.weights import plan_weights, read_weights

SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 288,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "long_factor": [1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 8.0],
    "short_factor": [1.0, 1.1, 1.1, 1.2, 1.2, 1.3, 1.4, 1.5],
    "original_max_position_embeddings": 32,
}
GEMMA = {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16}
MOE = {"head_dim": 32, "num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48}
PHI = {"pad_token_id": 0, "eos_token_id": 2, "num_key_value_heads": 4}

# name → model class, configuration class, fields beside SIZES
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama2": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 4}),
    "llama-biases": ("LlamaForCausalLM", "LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "llama3": ("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": LLAMA3, "tie_word_embeddings": True}),
    "llama-linear": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}, "head_dim": 24},
    ),
    "llama-yarn": ("LlamaForCausalLM", "LlamaConfig", {"rope_parameters": YARN}),
    "smollm": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 144, "tie_word_embeddings": True},
    ),
    "mistral": ("MistralForCausalLM", "MistralConfig", {"head_dim": 24, "sliding_window": None}),
    "mistral-window": ("MistralForCausalLM", "MistralConfig", {"head_dim": 24, "sliding_window": 16}),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", {}),
    "qwen2-window": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen3moe-window": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**MOE, "norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1},
    ),
    "qwen2-yarn": ("Qwen2ForCausalLM", "Qwen2Config", {"rope_parameters": {**YARN, "attention_factor": 1.3}}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True}),
    "qwen3moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**MOE, "norm_topk_prob": True}),
    "qwen3moe-dense": (
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        {**MOE, "norm_topk_prob": False, "mlp_only_layers": [1]},
    ),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", GEMMA),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **GEMMA,
            "num_hidden_layers": 7,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
    ),
    "gemma3-images": (
        "Gemma3ForConditionalGeneration",
        "Gemma3Config",
        {
            "text_config": {**SIZES, **GEMMA, "num_hidden_layers": 7},
            "vision_config": {
                "hidden_size": 32,
                "intermediate_size": 32,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 28,
                "patch_size": 14,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": 5,
        },
    ),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", {**PHI, "sliding_window": 16, "original_max_position_embeddings": 256}),
    "phi3-long": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {**PHI, "original_max_position_embeddings": 32, "rope_parameters": LONGROPE},
    ),
    "phi3-partial": (
        "Phi3ForCausalLM",
        "Phi3Config",
        {
            **PHI,
            "hidden_size": 128,
            "original_max_position_embeddings": 32,
            "rope_parameters": {**LONGROPE, "partial_rotary_factor": 0.5},
        },
    ),
    "llama-dynamic": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {"max_position_embeddings": 32, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
}
# What GGUF has no word for: windows of Mistral and Qwen, router without normalization, layers without experts.
FOLDER_ONLY = ("mistral-window", "qwen2-window", "qwen3moe-window", "qwen3moe-dense", "llama-dynamic")
CAPACITY = {"phi3-long": 32, "phi3-partial": 32}


def write_model(folder: Path, name: str) -> None:
    """A Hugging Face folder of float32 weights with a byte-level tokenizer."""
    import torch
    import transformers

    torch.manual_seed(7)
    model_class, config_class, fields = MODELS[name]
    sizes = {} if "text_config" in fields else SIZES
    config = getattr(transformers, config_class)(**{**sizes, **fields})
    model = getattr(transformers, model_class)(config)
    for key, parameter in model.named_parameters():
        if "norm" in key or key.endswith("bias"):  # transformers starts these at 0 or 1, where mistakes do not show
            parameter.data += torch.randn_like(parameter) * 0.1
        elif parameter.dim() > 1:  # else attention is nearly uniform, and positions hardly matter
            parameter.data *= 10 if any(part in key for part in ("q_proj.weight", "k_proj.weight", "qkv_proj")) else 3
    model.save_pretrained(folder)
    tokenizer_files(folder)


def tokenizer_files(folder: Path) -> None:
    """Of a byte-level tokenizer, which all the models here share."""
    tokens = ["<|start|>", "<|end|>", *byte_tokens(), "Ġt", "he"]
    tokens += [f"<|x{i}|>" for i in range(SIZES["vocab_size"] - len(tokens))]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json(tokens)), encoding="utf-8")
    settings = {"tokenizer_class": "GPT2Tokenizer", "bos_token": "<|start|>", "eos_token": "<|end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def reference_logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    """float32 [tokens, vocabulary], computed by transformers in float32."""
    import torch
    import transformers

    sees = folder.name == "gemma3-images"
    loader = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
    model = loader.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        return model(torch.from_numpy(ids.astype(np.int64))[None]).logits[0].numpy()


def prompt(length: int, vocabulary: int = SIZES["vocab_size"]) -> np.ndarray:
    return np.random.default_rng(3).integers(2, vocabulary, length).astype(np.int32)


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Largest |Δ logit| over the largest |logit|."""
    return float(np.abs(got.astype(np.float64) - want).max() / np.abs(want).max())


def weights_of(checkpoint: Checkpoint, config: DecoderConfig) -> tuple[DecoderWeights, tuple[Conversion, ...]]:
    """Everything read at once."""
    steps = read_weights(plan_weights(checkpoint, config), CancelToken())
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            return stop.value
