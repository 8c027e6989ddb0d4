"""What a tensor's name says: its role, its layer, its expert. Hugging Face, GGUF and some older naming schemes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from core.tensor_info import Role


@dataclass(frozen=True)
class NameParts:
    """role, layer and expert index of a tensor; experts: how many are stacked in it (fused 3-D tensors), else 0."""

    role: Role
    layer: int | None = None
    expert: int | None = None
    experts: int = 0


# Everything that belongs to a picture or sound encoder and not to the decoder that is quantized.
_OTHER_TOWER = re.compile(
    r"(?:^|\.)(?:vision_tower|vision_model|vision_encoder|vision_embed_tokens|visual|vit|image_newline|"
    r"multi_modal_projector|mm_projector|mm|v|a|audio_tower|audio_model|embed_vision|embed_audio|"
    r"speech_encoder|code2wav|talker)\."
)
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blk|blocks?)\.(\d{1,6})\.")
_EXPERT = re.compile(r"(?:^|\.)experts\.(\d{1,6})(?:\.|$)")
_GGUF_EXPERT = re.compile(r"\.ffn_(?:gate|up|down)\.(\d{1,6})\.")  # Mixtral files of early 2024: one tensor an expert
_STACKED = re.compile(r"(?:^|\.)experts\.[a-z]|_exps\b|(?:^|\.)experts$")

# Companions of a quantized weight: they have a layer but no role of their own.
_COMPANION = re.compile(
    r"\.(?:weight_(?:scale\w*|zero_point|shape|g_idx|global_scale|format)|input_(?:scale\w*|global_scale|zero_point|max|min)|"
    r"output_(?:scale|max|min)|[kqv]_scale|scales?|biases|zeros?|qzeros|g_idx|SCB|pre_quant_scale|meta|"
    r"weight\.(?:absmax|quant_map|nested_absmax|nested_quant_map|quant_state\.\w+))$|_scales$|^scaled_fp8$"
)
_SUFFIX = re.compile(r"\.(?:weight|bias|qweight|weight_packed|W_q|_weight_qdata)$|_(?:blocks|bias)$")

# The last words of a name, suffix taken off. The first that fits counts, so narrower ones stand first.
_ATTENTION = r"(?:attn|attention|self_attn|linear_attn|self_attention)"
_ROLES: tuple[tuple[Role, str], ...] = (
    (Role.ROPE, r"rotary_emb\.\w+|rope_freqs|rope_factors_(?:long|short)|inv_freq|rotary_pos_emb\.\w+"),
    (Role.CONV, r"(?:\w+_)?conv1?d?|shortconv\.\w+|short_conv|[qkv]_conv1d"),
    (Role.OTHER, r"wpe|position_embd|position_embeddings|token_types|token_type_embeddings|embed_positions|\w*_rel_b"),
    (Role.NORM, r"(?:\w+_)?(?:layer_?|rms)?norm(?:\d|s)?(?:_\w+)?|ln_\w+|ln\d"),
    (Role.EMBED, r"embed_tokens|wte|word_embeddings|tok_embeddings|embed_in|token_embd|embed|shared|embeddings"),
    (Role.HEAD, r"lm_head|embed_out|output|lm_head\.linear"),
    (Role.ROUTER, r"ffn_gate_inp(?:_shexp)?|router(?:\.(?:layer|proj|classifier))?|shared_expert_gate|gate\.wg|gate"),
    (Role.ATTN_QKV, r"qkv_proj|Wqkv|query_key_value|attn\.c_attn|attn_qkv|qkv|in_proj_qkvz?|wqkv"),
    (Role.ATTN_Q, r"q_proj|wq|q_[ab]_proj|attn_q(?:_[ab])?|query|q_lin|self_attn\.q|wq_[ab]"),
    (Role.ATTN_K, r"k_proj|wk|kv_a_proj(?:_with_mqa)?|attn_k(?:_b)?|attn_kv_a_mqa|key|k_lin|wkv_a"),
    (Role.ATTN_V, r"v_proj|wv|kv_b_proj|attn_v(?:_b)?|attn_kv_b|value|v_lin|wkv_b"),
    (Role.ATTN_OUT, rf"o_proj|wo|attn_out(?:put)?|{_ATTENTION}\.(?:c_proj|out_proj|dense|out|proj)"),
    (Role.ATTN_OUT, r"attention\.output\.dense"),
    (Role.FFN_GATE_UP, r"gate_up_proj|ffn_gate_up(?:_exps)?|gate_and_up_proj"),
    (Role.FFN_GATE, r"gate_proj|w1|ffn_gate(?:_exps|_shexp|_chexps)?"),
    (
        Role.FFN_UP,
        r"up_proj|w3|ffn_up(?:_exps|_shexp|_chexps)?|fc1|fc_in|c_fc|dense_h_to_4h|intermediate\.dense|linear1",
    ),
    (Role.FFN_DOWN, r"down_proj|w2|ffn_down(?:_exps|_shexp|_chexps)?|fc2|fc_out|mlp\.c_proj|dense_4h_to_h|linear2"),
    (Role.FFN_DOWN, r"output\.dense"),
)
_PATTERN = re.compile("|".join(f"(?P<r{i}>(?:^|\\.)(?:{pattern})$)" for i, (_, pattern) in enumerate(_ROLES)))


def parse_name(name: str, shape: Sequence[int] = ()) -> NameParts:
    """Role, layer and expert from a name; `shape` (row-major) tells how many experts a stacked tensor holds."""
    role, layer, expert, stacked = _parse(name)
    experts = shape[0] if stacked and expert is None and len(shape) >= 2 else 0
    return NameParts(role, layer, expert, experts)


@lru_cache(maxsize=4096)
def _parse(name: str) -> tuple[Role, int | None, int | None, bool]:
    if len(name) > 1024 or _OTHER_TOWER.search(name):
        return Role.OTHER, None, None, False
    found = _LAYER.search(name)
    layer = int(found[1]) if found else None
    found = _EXPERT.search(name) or _GGUF_EXPERT.search(name)
    expert = int(found[1]) if found else None
    stacked = bool(_STACKED.search(name))
    if _COMPANION.search(name):
        return Role.OTHER, layer, expert, stacked
    base = _SUFFIX.sub("", name)
    if expert is not None:
        base = re.sub(r"\.\d+$", "", base)
    found = _PATTERN.search(base)
    role = _ROLES[int(found.lastgroup[1:])][0] if found and found.lastgroup else Role.OTHER
    if role is Role.HEAD and layer is not None:  # "output" inside a layer is a projection's name, never the head
        role = Role.OTHER
    is_bias = name.endswith((".bias", "_bias"))
    if is_bias and role is not Role.NORM:
        role = Role.BIAS
    return role, layer, expert, stacked


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key with numbers by value: layer 2 before layer 10."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(p), "") if p.isascii() and p.isdigit() else (1, 0, p) for p in parts if p)
