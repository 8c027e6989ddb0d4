"""Which decoder architecture a checkpoint is, by the names that GGUF uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# model_type of config.json → general.architecture of GGUF, where the two differ.
_MODEL_TYPES = {
    "mistral": "llama", "mixtral": "llama", "qwen2_moe": "qwen2moe", "qwen3_moe": "qwen3moe", "qwen3_next": "qwen3next",
    "gemma3_text": "gemma3", "gemma3n_text": "gemma3n", "gpt_neox": "gptneox", "gpt_oss": "gpt-oss", "phi": "phi2",
    "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2", "cohere": "command-r", "llama4_text": "llama4",
    "RefinedWeb": "falcon", "RefinedWebModel": "falcon", "stablelm_epoch": "stablelm", "gpt_bigcode": "starcoder",
    "granitemoe": "granitemoe", "ernie4_5": "ernie4_5", "qwen2_5_vl_text": "qwen2vl", "qwen3_vl_text": "qwen3vl",
}  # fmt: skip
_CLASSES = {
    "LlamaForCausalLM": "llama", "MistralForCausalLM": "llama", "MixtralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3", "Qwen3MoeForCausalLM": "qwen3moe",
    "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3", "Phi3ForCausalLM": "phi3",
}  # fmt: skip


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The decoder's part of a config: `text_config` (or `llm_config`) in a multimodal one, else all of it."""
    for key in ("text_config", "llm_config", "language_config"):
        nested = config.get(key)
        if isinstance(nested, Mapping) and nested:
            return nested
    return config


def gguf_architecture(model_type: str) -> str:
    """GGUF's name for a model_type of config.json; the model_type itself where the two do not differ."""
    return _MODEL_TYPES.get(model_type, model_type)


def architecture_of(config: Mapping[str, Any]) -> str:
    """GGUF's name for the decoder, the model_type itself when it has none, '' when the config does not say."""
    for part in (text_config(config), config):
        model_type = part.get("model_type")
        if isinstance(model_type, str) and 0 < len(model_type) <= 64:
            return gguf_architecture(model_type)
    classes = config.get("architectures")
    if isinstance(classes, list) and classes and isinstance(classes[0], str) and len(classes[0]) <= 64:
        return _CLASSES.get(classes[0], classes[0])
    return ""
