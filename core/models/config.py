"""config.json of a decoder as types, with the defaults that its architecture's own configuration class has.

Two spellings are read: rope settings in `rope_theta` and `rope_scaling`, or in `rope_parameters` (possibly one set for
each kind of layer); the decoder's fields at the top, or under `text_config` when the model also sees images.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from core.checkpoint.architecture import gguf_architecture
from core.errors import UserError

# Hugging Face `model_type` → GGUF architecture, for the architectures that convert.
GGUF_ARCHITECTURES = {
    kind: gguf_architecture(kind)
    for kind in (
        *("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe"),
        *("gemma2", "gemma3", "gemma3_text", "phi3"),
    )
}

# Class in `architectures` → model_type, for files that leave the latter out.
_CLASSES = {
    "LlamaForCausalLM": "llama",
    "LLaMAForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
    "Phi3ForCausalLM": "phi3",
}

# What the configuration classes of transformers fill in when config.json leaves a field out.
_COMMON = {"hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {"max_position_embeddings": 2048, "vocab_size": 32000},
    "mistral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
        "vocab_size": 32000,
    },
    "mixtral": {
        "max_position_embeddings": 131072,
        "num_key_value_heads": 8,
        "num_experts_per_tok": 2,
        "num_local_experts": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "vocab_size": 32000,
    },
    "qwen2": {"sliding_window": 4096, "max_window_layers": 28, "vocab_size": 151936},
    "qwen3": {"head_dim": 128, "sliding_window": 4096, "max_window_layers": 28, "vocab_size": 151936},
    "qwen3_moe": {
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "vocab_size": 151936,
    },
    "gemma2": {
        "hidden_activation": "gelu_pytorch_tanh",
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "head_dim": 256,
        "max_position_embeddings": 8192,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
        "vocab_size": 256000,
    },
    "gemma3_text": {
        "hidden_activation": "gelu_pytorch_tanh",
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000.0,
        "rope_theta": 1e6,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
        "vocab_size": 262208,
    },
    "phi3": {
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "vocab_size": 32064,
    },
}
_DEFAULTS["gemma3"] = _DEFAULTS["gemma3_text"]
_MOST_LAYERS = 1 << 16  # more than any model has: a damaged number shall not become a list


@dataclass(frozen=True)
class RopeConfig:
    """Rotary positions. kind: 'default', 'linear', 'llama3', 'yarn', 'longrope', 'dynamic' …

    theta_local: base of the sliding layers, 0 when they use the same. partial: rotated share of a head.
    kind_local: kind of the sliding layers. attention_factor: scale of queries and keys, where config.json gives it or
    the two scales that it follows from. extrapolation_factor, beta_fast, beta_slow: None when there are none.
    truncate: YaRN's ramp starts and ends at whole dimensions.
    """

    kind: str = "default"
    kind_local: str = "default"
    theta: float = 10000.0
    theta_local: float = 0.0
    factor: float = 1.0
    partial: float = 1.0
    original_context: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    extrapolation_factor: float | None = None
    beta_fast: float | None = None
    beta_slow: float | None = None
    truncate: bool = True
    long_factor: tuple[float, ...] = ()
    short_factor: tuple[float, ...] = ()

    @property
    def attention_scale(self) -> float:
        """Scale of longrope's attention for `factor` = longest ÷ original context (LongRoPE paper, Phi-3)."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1.0:
            return 1.0
        return math.sqrt(1.0 + math.log(self.factor) / math.log(self.original_context))

    @property
    def yarn_paper_scale(self) -> float:
        """0.1·ln(factor) + 1, as the YaRN paper has it."""
        return _yarn_scale(self.factor, 1.0)

    @property
    def yarn_extra_scale(self) -> float:
        """The attention factor over the 0.1·ln(factor) + 1 of the YaRN paper, which llama.cpp applies by itself."""
        return 1.0 if self.attention_factor is None else self.attention_factor / self.yarn_paper_scale

    def llama3_factors(self, head_dim: int) -> tuple[float, ...]:
        """Divisor of each of the head_dim/2 rotary frequencies (Llama 3.1: 1, blended, or `factor`)."""
        original = self.original_context or 8192
        low_wave, high_wave = original / self.low_freq_factor, original / self.high_freq_factor
        factors = []
        for i in range(0, head_dim, 2):
            wave = 2.0 * math.pi * self.theta ** (i / head_dim)
            if wave < high_wave:
                factors.append(1.0)
            elif wave > low_wave:
                factors.append(self.factor)
            else:
                smooth = (original / wave - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
                factors.append(1.0 / ((1.0 - smooth) / self.factor + smooth))
        return tuple(factors)


def _yarn_scale(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


@dataclass(frozen=True)
class DecoderConfig:
    """One decoder's configuration. A field that the model does not have is 0, None or empty.

    model_type: as config.json says it. architecture: GGUF's name, '' when GGUF conversion does not know the model.
    explicit_head_dim: the converter that defined GGUF's keys finds head_dim in this configuration. window_layers: how
    many layers use the sliding window; layer_windows: which, one entry a layer, empty without a window.
    attention_scalar: scores are divided by its root instead of head_dim's (Gemma). router_normalized: the chosen
    experts' weights add up to 1. dense_layers: some layers have no experts. bidirectional: tokens also attend to those
    that follow.
    """

    model_type: str
    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    explicit_head_dim: bool
    intermediate: int
    vocab: int
    context: int
    rms_eps: float
    tied: bool
    rope: RopeConfig
    experts: int = 0
    experts_used: int = 0
    expert_intermediate: int = 0
    router_normalized: bool = True
    window: int = 0
    window_layers: int = 0
    layer_windows: tuple[bool, ...] = ()
    attention_scalar: float = 0.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    latent_rank: int = 0
    latent_rope: int = 0
    activation: str = ""
    dense_layers: bool = False
    bidirectional: bool = False


def text_fields(config: Mapping[str, Any]) -> dict[str, Any]:
    """The decoder's own fields: those at the top, overridden by `text_config` where there is one."""
    nested = config.get("text_config")
    if not isinstance(nested, Mapping):
        return dict(config)
    merged = {**config, **nested}
    if nested.get("tie_word_embeddings") is None and "tie_word_embeddings" in config:
        merged["tie_word_embeddings"] = config["tie_word_embeddings"]
    return merged


def read_config(config: Mapping[str, Any]) -> DecoderConfig | None:
    """The decoder that config.json describes, or None when it has not even layers and a width.

    Raises UserError when a field has a value that no decoder can have.
    """
    fields = text_fields(config)
    model_type = str(fields.get("model_type") or _CLASSES.get(_class_name(config), ""))
    gemma = model_type.startswith("gemma")
    defaults = {**_COMMON, **_DEFAULTS.get(model_type, {})}

    def get(*names: str) -> Any:
        for name in names:
            if fields.get(name) is not None:
                return fields[name]
        for name in names:
            if name in defaults:
                return defaults[name]
        return None

    try:
        layers = int(get("num_hidden_layers", "n_layer", "num_layers") or 0)
        hidden = int(get("hidden_size", "n_embd", "dim") or 0)
        heads = int(get("num_attention_heads", "n_head") or 0)
        if not layers or not hidden or not heads:
            return None
        head_dim = int(get("head_dim") or hidden // heads)
        kv_heads = fields.get("num_key_value_heads", defaults.get("num_key_value_heads"))
        window = int(get("sliding_window") or 0)
        windows = _layer_windows(fields, defaults, model_type, layers, window)
        experts = int(get("num_local_experts", "num_experts", "n_routed_experts") or 0)
        intermediate = int(get("intermediate_size", "n_inner") or 0)
        return DecoderConfig(
            model_type=model_type,
            architecture=_gguf_architecture(config, model_type),
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=int(kv_heads or heads),
            head_dim=head_dim,
            explicit_head_dim=get("head_dim") is not None or model_type in ("llama", "mistral"),
            intermediate=intermediate,
            vocab=int(get("vocab_size") or 0),
            context=int(get("max_position_embeddings", "n_positions", "n_ctx") or 0),
            rms_eps=float(get("rms_norm_eps", "norm_eps", "layer_norm_epsilon") or 1e-6),
            tied=bool(get("tie_word_embeddings")),
            rope=_read_rope(fields, defaults, model_type),
            experts=experts,
            experts_used=int(get("num_experts_per_tok", "num_experts_per_token") or 0) if experts else 0,
            expert_intermediate=int(get("moe_intermediate_size") or intermediate) if experts else 0,
            router_normalized=model_type != "qwen3_moe" or bool(fields.get("norm_topk_prob")),
            window=window if any(windows) else 0,
            window_layers=sum(windows),
            layer_windows=windows,
            attention_scalar=float(get("query_pre_attn_scalar") or 0.0),
            attention_softcap=_number(fields, defaults, "attn_logit_softcapping"),
            final_softcap=_number(fields, defaults, "final_logit_softcapping"),
            latent_rank=int(get("kv_lora_rank") or 0),
            latent_rope=int(get("qk_rope_head_dim") or 0) if get("kv_lora_rank") else 0,
            activation=str(get("hidden_activation", "hidden_act") if gemma else get("hidden_act")),
            dense_layers=bool(fields.get("mlp_only_layers")) or int(fields.get("decoder_sparse_step") or 1) != 1,
            bidirectional=bool(fields.get("use_bidirectional_attention")),
        )
    except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
        what = str(error) if type(error) is ValueError else "a list or text where a number belongs, or the reverse"
        raise UserError(
            f"config.json has a value that can not be read: {what}.", "Compare the file with the model's original."
        ) from error


def _class_name(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else ""


def _gguf_architecture(config: Mapping[str, Any], model_type: str) -> str:
    """'' where the class is unknown too: embedding models, classifiers and variants share a model_type with others."""
    name = _class_name(config)
    wrapped = isinstance(config.get("text_config"), Mapping) and name.endswith("ForConditionalGeneration")
    return GGUF_ARCHITECTURES.get(model_type, "") if not name or name in _CLASSES or wrapped else ""


def _number(fields: Mapping[str, Any], defaults: Mapping[str, Any], name: str) -> float | None:
    """A number, where null in the file means 'off' and only a missing field takes the default."""
    value = fields.get(name, defaults.get(name))
    return None if value is None else float(value)


def _layer_windows(
    fields: Mapping[str, Any], defaults: Mapping[str, Any], model_type: str, layers: int, window: int
) -> tuple[bool, ...]:
    """Which layers look back over the window only: as listed, else by the rule of the architecture's own class."""
    if not window or ("sliding_window" in fields and fields["sliding_window"] is None):
        return ()
    if model_type.startswith("qwen") and not fields.get("use_sliding_window"):
        return ()
    if layers > _MOST_LAYERS:
        raise ValueError(f"{layers} layers")
    kinds = fields.get("layer_types")
    if kinds:
        if len(kinds) < layers:
            raise ValueError(f"layer_types names {len(kinds)} of {layers} layers")
        return tuple(kind == "sliding_attention" for kind in kinds[:layers])
    if model_type in ("qwen2", "qwen3"):  # Qwen 3's mixture of experts slides in every layer
        first = int(fields.get("max_window_layers", defaults.get("max_window_layers")) or 0)
        return tuple(i >= first for i in range(layers))
    if model_type == "gemma2":
        return tuple(i % 2 == 0 for i in range(layers))
    pattern = int(
        fields.get("sliding_window_pattern")
        or fields.get("_sliding_window_pattern")
        or defaults.get("sliding_window_pattern")
        or 0
    )
    return tuple(not pattern or (i + 1) % pattern != 0 for i in range(layers))


def _read_rope(fields: Mapping[str, Any], defaults: Mapping[str, Any], model_type: str) -> RopeConfig:
    """As transformers reads it: `rope_scaling`, which people add by hand, goes before `rope_parameters`."""
    given = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ValueError("rope settings are no object")
    local = given.get("sliding_attention") or {}
    settings = given.get("full_attention") or given
    context = int(fields.get("max_position_embeddings") or defaults["max_position_embeddings"])
    kind = str(settings.get("rope_type") or settings.get("type") or "default").lower()
    kind = "longrope" if kind == "su" else kind
    original = int(
        settings.get("original_max_position_embeddings")
        or fields.get("original_max_position_embeddings")
        or defaults.get("original_max_position_embeddings")
        or (context if kind in ("llama3", "yarn", "longrope") else 0)
    )
    long_factor = tuple(float(x) for x in settings.get("long_factor") or ())
    if kind in ("linear", "llama3") and settings.get("factor") is None:
        raise ValueError(f"rope scaling '{kind}' without a factor")
    factor = float(settings.get("factor") or 1.0)
    theta = float(_stated_base(settings, fields) or defaults["rope_theta"])
    if not 0.0 < theta < math.inf or not 0.0 < factor < math.inf:
        raise ValueError(f"rope base {theta:g}, factor {factor:g}")
    if settings.get("factor") is None and kind in ("longrope", "yarn") and original:
        factor = context / original
    attention = settings.get("attention_factor")
    attention = settings.get("attn_factor") if attention is None else attention
    if attention is None and kind == "yarn" and settings.get("mscale") and settings.get("mscale_all_dim"):
        scales = (_yarn_scale(factor, float(settings[name])) for name in ("mscale", "mscale_all_dim"))
        attention = next(scales) / next(scales)

    def optional(name: str) -> float | None:
        return None if settings.get(name) is None else float(settings[name])

    local_theta = local.get("rope_theta") or fields.get("rope_local_base_freq") or defaults.get("rope_local_base_freq")
    return RopeConfig(
        kind=kind,
        kind_local=str(local.get("rope_type") or local.get("type") or "default").lower(),
        theta=theta,
        theta_local=float(local_theta or 0.0),
        factor=factor,
        partial=_partial(settings, fields, model_type),
        original_context=original,
        low_freq_factor=float(settings.get("low_freq_factor") or 1.0),
        high_freq_factor=float(settings.get("high_freq_factor") or 4.0),
        attention_factor=None if attention is None else float(attention),
        extrapolation_factor=optional("extrapolation_factor"),
        beta_fast=optional("beta_fast"),
        beta_slow=optional("beta_slow"),
        truncate=settings.get("truncate") is not False,
        long_factor=long_factor,
        short_factor=tuple(float(x) for x in settings.get("short_factor") or ()),
    )


def _stated_base(settings: Mapping[str, Any], fields: Mapping[str, Any]) -> Any:
    """rope_theta, or None. `rope_scaling` added by hand to a file that has `rope_parameters` hides the base in these:
    transformers then takes its default, which nobody means.
    """
    stated = settings.get("rope_theta") or fields.get("rope_theta")
    other = fields.get("rope_parameters")
    if stated is None and isinstance(other, Mapping) and other.get("rope_theta"):
        raise UserError(
            "config.json has rope_theta in rope_parameters, but rope_scaling, which goes before it, has none.",
            "Move the values of rope_scaling into rope_parameters, and take rope_scaling away.",
        )
    return stated


def _partial(settings: Mapping[str, Any], fields: Mapping[str, Any], model_type: str) -> float:
    """Rotated share of a head. Of the models here only Phi-3 heeds it; the others turn the whole head."""
    value = settings.get("partial_rotary_factor")
    share = float(fields.get("partial_rotary_factor") or 1.0) if value is None else float(value)
    return 1.0 if model_type in _DEFAULTS and model_type != "phi3" and 0.0 < share < 1.0 else share
