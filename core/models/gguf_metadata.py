"""config.json and the side files as GGUF metadata: the keys that llama.cpp reads, with the types that it expects."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.checkpoint.base import Checkpoint
from core.errors import UserError
from core.export.gguf_values import QUANTIZATION_VERSION, GGUFType, GGUFValue, array, boolean, f32, string, u32
from core.models.config import DecoderConfig
from core.models.gguf_general import general_metadata
from core.models.gguf_tensors import MappedTensor, convertible_config, map_tensors
from core.models.side_files import read_json
from core.models.special_tokens import ID_KEYS, read_special_tokens
from core.models.tokenizer import Vocabulary, read_vocabulary

# c·tanh(x / c) is x to within rounding for every score that a model has, where Gemma 2 was trained on without caps.
NO_SOFTCAP = 1e6


def gguf_metadata(
    checkpoint: Checkpoint, file_type: int, tensors: Sequence[MappedTensor] | None = None
) -> dict[str, GGUFValue]:
    """All keys of a GGUF of this Hugging Face checkpoint.

    file_type: llama_ftype of the mix. tensors: what map_tensors gave, so that it is not worked out twice.
    Raises UserError where the checkpoint does not convert.
    """
    config = convertible_config(checkpoint)
    tensors = map_tensors(checkpoint) if tensors is None else tensors
    rows = next(t.shape[0] for t in tensors if t.name == "token_embd.weight")
    folder = checkpoint.path if checkpoint.path.is_dir() else checkpoint.path.parent
    return {
        "general.architecture": string(config.architecture),
        **general_metadata(checkpoint, folder, tensors),
        **{f"{config.architecture}.{key}": value for key, value in _model_keys(config).items()},
        "general.file_type": u32(file_type),
        "general.quantization_version": u32(QUANTIZATION_VERSION),
        **_tokenizer_keys(checkpoint, folder, config, rows),
    }


def _model_keys(config: DecoderConfig) -> dict[str, GGUFValue]:
    """Sizes, attention, rope and experts, without the architecture in front."""
    rope = config.rope
    keys = {
        "block_count": u32(config.layers),
        "context_length": u32(config.context),
        "embedding_length": u32(config.hidden),
        "feed_forward_length": u32(config.intermediate),
        "attention.head_count": u32(config.heads),
        "attention.head_count_kv": u32(config.kv_heads),
        "attention.layer_norm_rms_epsilon": f32(config.rms_eps),
    }
    if config.explicit_head_dim:
        keys["attention.key_length"] = keys["attention.value_length"] = u32(config.head_dim)
    if config.architecture != "gemma2" or rope.theta != 10000.0:
        keys["rope.freq_base"] = f32(rope.theta)
        keys |= _rope_scaling(config)
    if config.architecture == "llama":
        keys["vocab_size"] = u32(config.vocab)
        keys["rope.dimension_count"] = u32(config.head_dim)
    if config.architecture == "phi3":
        keys.pop("attention.key_length", None)
        keys.pop("attention.value_length", None)
        keys["rope.dimension_count"] = u32(int(rope.partial * config.hidden) // config.heads)
        keys["rope.scaling.original_context_length"] = u32(rope.original_context)
        keys["attention.sliding_window"] = u32(config.window)  # 0 tells Phi-4 from Phi-3
    if config.architecture in ("gemma2", "gemma3") and config.window:
        keys["attention.sliding_window"] = u32(config.window)
        if config.layer_windows and config.layer_windows != gemma_windows(config):
            keys["attention.sliding_window_pattern"] = array(GGUFType.BOOL, config.layer_windows)
    if config.architecture == "gemma3" and rope.theta_local:
        keys["rope.freq_base_swa"] = f32(rope.theta_local)
    if config.architecture == "gemma2":  # without a key the loader takes 50 and 30
        keys["attn_logit_softcapping"] = f32(config.attention_softcap or NO_SOFTCAP)
        keys["final_logit_softcapping"] = f32(config.final_softcap or NO_SOFTCAP)
    else:
        caps = {"attn_logit_softcapping": config.attention_softcap, "final_logit_softcapping": config.final_softcap}
        keys |= {key: f32(cap) for key, cap in caps.items() if cap}
    if config.experts:
        keys["expert_count"] = u32(config.experts)
        keys["expert_used_count"] = u32(config.experts_used)
        if config.architecture != "llama":
            keys["expert_feed_forward_length"] = u32(config.expert_intermediate)
    return keys


def gemma_windows(config: DecoderConfig) -> tuple[bool, ...]:
    """Which layers slide when a file does not say: all but every second (Gemma 2) or every sixth (Gemma 3)."""
    period = 2 if config.architecture == "gemma2" else 6
    return tuple(i % period < period - 1 for i in range(config.layers))


def _rope_scaling(config: DecoderConfig) -> dict[str, GGUFValue]:
    """Llama 3's scaling has no keys: it is the tensor rope_freqs.weight."""
    rope = config.rope
    if rope.kind == "linear" and config.architecture != "phi3":
        return {"rope.scaling.type": string("linear"), "rope.scaling.factor": f32(rope.factor)}
    if rope.kind == "yarn" and config.architecture != "phi3":
        keys = {
            "rope.scaling.type": string("yarn"),
            "rope.scaling.factor": f32(rope.factor),
            "rope.scaling.original_context_length": u32(rope.original_context or config.context),
        }
        optional = {
            "yarn_ext_factor": rope.extrapolation_factor,
            "attn_factor": rope.yarn_extra_scale if rope.yarn_extra_scale != 1.0 else None,
            "yarn_beta_fast": rope.beta_fast,
            "yarn_beta_slow": rope.beta_slow,
        }
        return keys | {f"rope.scaling.{k}": f32(v) for k, v in optional.items() if v is not None}
    if config.architecture == "phi3" and rope.long_factor:
        return {"rope.scaling.attn_factor": f32(rope.attention_scale)}
    if rope.kind == "longrope" and config.architecture != "phi3":
        return {"rope.scaling.type": string("longrope")}
    return {}


def _tokenizer_keys(checkpoint: Checkpoint, folder: Path, config: DecoderConfig, rows: int) -> dict[str, GGUFValue]:
    try:
        vocabulary = read_vocabulary(folder, config.architecture, rows)
        special = read_special_tokens(folder, checkpoint.config, vocabulary.tokenizer, vocabulary.ids, rows)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise UserError(
            "The tokenizer files do not have the structure that tokenizers have.",
            "Download tokenizer.json and tokenizer_config.json again from the model's page.",
        ) from error
    keys = {
        "tokenizer.ggml.model": string(vocabulary.model),
        "tokenizer.ggml.pre": string(vocabulary.pre),
        "tokenizer.ggml.tokens": array(GGUFType.STRING, vocabulary.tokens),
        "tokenizer.ggml.token_type": array(GGUFType.I32, vocabulary.types),
    }
    if vocabulary.scores:
        keys["tokenizer.ggml.scores"] = array(GGUFType.F32, vocabulary.scores)
    if vocabulary.merges:
        keys["tokenizer.ggml.merges"] = array(GGUFType.STRING, vocabulary.merges)
    keys |= {ID_KEYS[kind]: u32(number) for kind, number in special.ids.items()}
    keys |= {f"tokenizer.ggml.add_{kind}_token": boolean(value) for kind, value in special.add.items()}
    prefix = _space_prefix(folder, config, vocabulary)
    if prefix is not None:
        keys["tokenizer.ggml.add_space_prefix"] = boolean(prefix)
    named = sorted(name for name in special.templates if name)
    keys |= {f"tokenizer.chat_template.{name}": string(special.templates[name]) for name in named}
    if named:
        keys["tokenizer.chat_templates"] = array(GGUFType.STRING, named)
    if special.templates.get(""):
        keys["tokenizer.chat_template"] = string(special.templates[""])
    return keys


def _space_prefix(folder: Path, config: DecoderConfig, vocabulary: Vocabulary) -> bool | None:
    """Whether text gets a space in front; None leaves it to llama.cpp (yes for SentencePiece, no for BPE)."""
    if config.architecture in ("gemma2", "gemma3") and vocabulary.model == "llama":
        return False
    value = read_json(folder / "tokenizer_config.json").get("add_prefix_space")
    if isinstance(value, bool) and config.architecture == "llama":
        return value
    return False if vocabulary.model == "llama" and not vocabulary.space_in_front else None
