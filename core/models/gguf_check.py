"""What llama.cpp must be able to compute as the model does, and which tensors its loaders want.

A loader takes activation, attention scale, router and more from the architecture's name, and refuses a file with a
tensor too few, too many or of another shape. Both are found here, before anything is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from core.errors import UserError
from core.models.config import DecoderConfig
from core.units import format_count

if TYPE_CHECKING:
    from core.models.gguf_tensors import MappedTensor

_HINT = "Choose a safetensors target, which keeps config.json as it is."
_GEMMA = ("gemma2", "gemma3")
_SILU = frozenset({"silu", "swish"})
_GELU_TANH = frozenset({"gelu_pytorch_tanh", "gelu_new", "gelu_fast"})

# 'dynamic' changes nothing up to the trained context, and llama.cpp does not go beyond it by itself.
_ROPE_KINDS = {"llama": ("linear", "yarn", "llama3"), "phi3": ("longrope", "yarn"), "gemma2": ()}
# YaRN's ramp; ggml's own, as the loaders of these architectures read no others.
_BETA_FAST, _BETA_SLOW = 32.0, 1.0


def check_expressible(config: DecoderConfig) -> None:
    """Raise UserError where GGUF has no key for what config.json says, and llama.cpp would do something else.

    Gemma's attention scale: the head's width, or width ÷ heads in the 27 B models. Qwen 3's router: normalized, and
    experts in every layer. Rope: stretched by the ways that the architecture's loader reads.
    """
    _check_rope(config)
    gemma = config.architecture in _GEMMA
    if config.activation not in (_GELU_TANH if gemma else _SILU):
        expected = "gelu_pytorch_tanh" if gemma else "silu"
        raise UserError(
            f"The model's activation is '{config.activation}', where llama.cpp would compute {expected}.", _HINT
        )
    if config.bidirectional:
        raise UserError(
            "Attention looks in both directions (use_bidirectional_attention), in llama.cpp only back.", _HINT
        )
    if config.architecture == "qwen3moe" and not config.router_normalized:
        raise UserError("The experts' weights are not normalized (norm_topk_prob), as llama.cpp would do.", _HINT)
    if config.architecture == "qwen3moe" and config.dense_layers:
        raise UserError("Some layers have no experts (mlp_only_layers), which llama.cpp expects in each.", _HINT)
    if config.architecture in ("qwen2", "phi3") and config.heads * config.head_dim != config.hidden:
        raise UserError(
            f"{config.heads} heads of {config.head_dim} do not make the width of {config.hidden}, as llama.cpp expects "
            f"of {config.architecture}.",
            _HINT,
        )
    if gemma and config.attention_scalar:
        largest = config.layers == {"gemma2": 46, "gemma3": 62}[config.architecture]
        expected_scale = config.hidden // config.heads if largest else config.head_dim
        if config.attention_scalar != expected_scale:
            raise UserError(
                f"Attention is scaled by {config.attention_scalar:g}, where llama.cpp would scale it by "
                f"{expected_scale}.",
                _HINT,
            )


def _check_rope(config: DecoderConfig) -> None:
    rope = config.rope
    kinds = _ROPE_KINDS.get(config.architecture, ("linear", "yarn"))
    if rope.kind not in ("default", "dynamic", *kinds):
        raise UserError(f"GGUF has no rope scaling '{rope.kind}' for {config.architecture}.", _HINT)
    if rope.kind_local != "default":
        raise UserError(f"GGUF has no rope scaling '{rope.kind_local}' for sliding layers.", _HINT)
    if config.architecture == "phi3":
        if rope.kind in ("longrope", "yarn") and not rope.long_factor:
            raise UserError(
                f"config.json asks for the rope scaling '{rope.kind}' without its factors.",
                "Compare the file with the model's original.",
            )
    elif rope.kind == "yarn":
        betas = (rope.beta_fast or _BETA_FAST, rope.beta_slow or _BETA_SLOW)
        if betas != (_BETA_FAST, _BETA_SLOW) or not rope.truncate:
            raise UserError("YaRN has settings (beta_fast, beta_slow, truncate) that llama.cpp does not read.", _HINT)


def window_warning(config: DecoderConfig) -> str:
    """One sentence where llama.cpp lets every token see more than the model does; '' where it does not."""
    if config.architecture in _GEMMA or not config.window or config.window >= config.context:
        return ""
    return (
        f"The model looks back {format_count(config.window)} tokens in {config.window_layers} of {config.layers} "
        "layers; llama.cpp "
        "looks back over the whole text, so answers to longer texts may differ."
    )


def check_tensors(tensors: Mapping[str, MappedTensor], config: DecoderConfig) -> None:
    """Raise UserError unless these are the tensors, by GGUF name, that llama.cpp loads for this configuration."""
    _check_layers(tensors, config)
    embedding = tensors.get("token_embd.weight")
    rows = embedding.shape[0] if embedding else 0
    wanted = {"token_embd.weight": (rows, config.hidden), "output_norm.weight": (config.hidden,)}
    allowed: dict[str, tuple[int, ...]] = {}
    for i in range(config.layers):
        wanted |= {f"blk.{i}.{part}": shape for part, shape in _layer_shapes(config).items()}
        allowed |= {f"blk.{i}.{part}": shape for part, shape in _bias_shapes(config).items()}
    if config.architecture != "gemma2":
        allowed["output.weight"] = (rows, config.hidden)
    if config.architecture == "qwen2":
        allowed["output.bias"] = (rows,)
    for name in wanted:
        if name not in tensors:
            raise UserError(
                f"The checkpoint has no tensor for '{name}'.",
                "A shard may be missing, or config.json belongs to another model.",
            )
    for name, tensor in tensors.items():
        shape = wanted.get(name) or allowed.get(name)
        source = tensor.sources[0].name if tensor.sources else name
        if shape is None:
            raise UserError(f"llama.cpp does not load '{source}' in models of the kind {config.architecture}.", _HINT)
        if tensor.shape != shape:
            raise UserError(
                f"'{source}' is {_times(tensor.shape)}, where config.json means {_times(shape)}.",
                "Use the config.json that belongs to these weights.",
            )
    if "output.weight" not in tensors and not config.tied:
        raise UserError(
            "config.json says that the output head is a tensor of its own, but there is none.",
            "Download all weight files again; if embedding and head are one, set tie_word_embeddings to true.",
        )


def _check_layers(tensors: Mapping[str, MappedTensor], config: DecoderConfig) -> None:
    extra = [m.layer for m in tensors.values() if m.layer is not None and m.layer >= config.layers]
    if extra:
        raise UserError(
            f"config.json says {config.layers} layers, but the weights have layer {extra[0]}.",
            "Use the config.json that belongs to these weights.",
        )


def _layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """What each layer has, [rows, K] for matrices."""
    hidden, wide = config.hidden, config.intermediate
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = dict.fromkeys(("attn_norm.weight", "ffn_norm.weight"), (hidden,))
    shapes["attn_output.weight"] = (hidden, queries)
    if config.architecture == "phi3":
        shapes |= {"attn_qkv.weight": (queries + 2 * keys, hidden), "ffn_up.weight": (2 * wide, hidden)}
        return shapes | {"ffn_down.weight": (hidden, wide)}
    shapes |= {"attn_q.weight": (queries, hidden), "attn_k.weight": (keys, hidden), "attn_v.weight": (keys, hidden)}
    if config.architecture in ("qwen3", "qwen3moe", "gemma3"):
        shapes |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (config.head_dim,))
    if config.architecture in _GEMMA:
        shapes |= dict.fromkeys(("post_attention_norm.weight", "post_ffw_norm.weight"), (hidden,))
    if config.experts:
        experts, wide = config.experts, config.expert_intermediate
        shapes["ffn_gate_inp.weight"] = (experts, hidden)
        shapes |= dict.fromkeys(("ffn_gate_exps.weight", "ffn_up_exps.weight"), (experts, wide, hidden))
        return shapes | {"ffn_down_exps.weight": (experts, hidden, wide)}
    shapes |= dict.fromkeys(("ffn_gate.weight", "ffn_up.weight"), (wide, hidden))
    return shapes | {"ffn_down.weight": (hidden, wide)}


def _bias_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Biases that a layer may have."""
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    if config.architecture == "phi3":
        return {"attn_qkv.bias": (queries + 2 * keys,)}
    shapes: dict[str, tuple[int, ...]] = {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config.architecture == "llama":
        shapes["attn_output.bias"] = (config.hidden,)
        if not config.experts:
            shapes |= dict.fromkeys(("ffn_gate.bias", "ffn_up.bias"), (config.intermediate,))
            shapes["ffn_down.bias"] = (config.hidden,)
    return shapes


def _times(shape: tuple[int, ...]) -> str:
    return " × ".join(str(n) for n in shape)
