"""What a tensor's name says: its role, its layer, its expert. Hugging Face, GGUF and some older naming schemes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from core.tensor_info import Role


@dataclass(frozen=True)
class NameParts:
    """role, layer and expert index of a tensor; experts: how many are stacked in it (fused 3-D tensors), else 0."""

    role: Role
    layer: int | None = None
    expert: int | None = None
    experts: int = 0


# Words of everything that belongs to a picture or sound encoder and not to the decoder that is quantized.
_TOWERS = frozenset(
    ("vision_tower", "vision_model", "vision_encoder", "vision_embed_tokens", "visual", "vit", "mm_projector",
     "multi_modal_projector", "audio_tower", "audio_model", "embed_vision", "embed_audio", "speech_encoder", "code2wav",
     "talker")
)  # fmt: skip
_GGUF_TOWERS = frozenset(("v", "a", "mm"))  # the first word of names in an mmproj file
_LAYER_WORDS = frozenset(["layers", "layer", "h", "blk", "block", "blocks"])

# Companions of a quantized weight: they have a layer but no role of their own.
_COMPANION = re.compile(
    r"weight_(?:scale\w*|zero_point|shape|g_idx|global_scale|format)|input_(?:scale\w*|global_scale|zero_point|max|min)|"
    r"output_(?:scale|max|min)|[kqv]_scale|scales?|biases|zeros?|qzeros|g_idx|SCB|pre_quant_scale|meta|"
    r"absmax|quant_map|nested_absmax|nested_quant_map|bitsandbytes__\w+|\w+_scales|scaled_fp8"
)
_VALUE_WORDS = frozenset(["weight", "bias", "qweight", "weight_packed", "W_q", "_weight_qdata"])

# What the last one, two or three words of a name mean, its suffix taken off. Longer matches count first.
_WORDS: dict[Role, str] = {
    Role.EMBED: "embed_tokens wte word_embeddings tok_embeddings embed_in token_embd embed shared embeddings",
    Role.HEAD: "lm_head embed_out output lm_head.linear",
    Role.ROUTER: "gate router router.layer router.proj router.classifier gate.wg shared_expert_gate ffn_gate_inp "
    "ffn_gate_inp_shexp",
    Role.ATTN_QKV: "qkv_proj Wqkv wqkv query_key_value c_attn attn_qkv qkv in_proj_qkv in_proj_qkvz",
    # Latent attention has two steps a projection: the narrow one (a) and the wide one (b).
    Role.ATTN_Q: "q_proj wq attn_q query q_lin q_a_proj q_b_proj wq_a wq_b attn_q_a attn_q_b",
    Role.ATTN_K: "k_proj wk attn_k key k_lin kv_a_proj kv_a_proj_with_mqa wkv_a attn_kv_a_mqa attn_k_b",
    Role.ATTN_V: "v_proj wv attn_v value v_lin kv_b_proj wkv_b attn_kv_b attn_v_b",
    Role.ATTN_OUT: "o_proj wo attn_output attn_out attn.c_proj attn.out_proj attention.dense attention.out_proj "
    "self_attn.dense self_attn.out_proj self_attention.dense linear_attn.out_proj attention.output.dense out_lin",
    Role.FFN_GATE_UP: "gate_up_proj ffn_gate_up ffn_gate_up_exps gate_and_up_proj",
    Role.FFN_GATE: "gate_proj w1 ffn_gate ffn_gate_exps ffn_gate_shexp ffn_gate_chexps",
    Role.FFN_UP: "up_proj w3 ffn_up ffn_up_exps ffn_up_shexp ffn_up_chexps fc1 fc_in c_fc dense_h_to_4h "
    "intermediate.dense linear1 lin1",
    Role.FFN_DOWN: "down_proj w2 ffn_down ffn_down_exps ffn_down_shexp ffn_down_chexps fc2 fc_out mlp.c_proj "
    "dense_4h_to_h output.dense linear2 lin2",
    Role.ROPE: "inv_freq rope_freqs rope_factors_long rope_factors_short",
    Role.CONV: "conv conv1d short_conv shortconv ssm_conv1d q_conv1d k_conv1d v_conv1d",
}
_ROLE_OF = {words: role for role, names in _WORDS.items() for words in names.split()}
_NORM = re.compile(r"(?:\w+_)?(?:layer_?|rms)?norm(?:\d|s)?(?:_\w+)?|ln_\w+|ln\d?")


def parse_name(name: str, shape: Sequence[int] = ()) -> NameParts:
    """Role, layer and expert from a name; `shape` (row-major) tells how many experts a stacked tensor holds."""
    words = name.split(".")
    if len(name) > 1024 or words[0] in _GGUF_TOWERS or not _TOWERS.isdisjoint(words):
        return NameParts(Role.OTHER)
    layer = _number_after(words, _LAYER_WORDS)
    expert = _number_after(words, ("experts", "ffn_gate", "ffn_up", "ffn_down"))  # the last three: early Mixtral GGUF
    stacked = expert is None and len(shape) >= 2 and ("experts" in words or "_exps" in name)
    return NameParts(_role(tuple(words[-4:]), layer is not None), layer, expert, shape[0] if stacked else 0)


def _number_after(words: Sequence[str], before: Collection[str]) -> int | None:
    for word, number in pairwise(words):
        if word in before and number.isdecimal() and len(number) <= 6:
            return int(number)
    return None


@lru_cache(maxsize=4096)
def _role(ending: tuple[str, ...], in_layer: bool) -> Role:
    """Role from the last four words, which layers have in common."""
    words, last = list(ending), ending[-1]
    if _COMPANION.fullmatch(last):
        return Role.OTHER
    is_bias = last.endswith("bias")
    if last in _VALUE_WORDS:
        words = words[:-1]
    else:  # fused experts: gate_up_proj_blocks, gate_up_proj_bias
        words = [*words[:-1], last.removesuffix("_blocks").removesuffix("_bias")]
    if len(words) > 1 and words[-1].isdecimal():  # ffn_up.3
        words = words[:-1]
    role = next((found for n in (3, 2, 1) if (found := _ROLE_OF.get(".".join(words[-n:])))), None)
    if role in (Role.HEAD, Role.EMBED) and in_layer:  # inside a layer these words mean something else
        role = Role.OTHER
    if role is None:
        role = Role.NORM if words and _NORM.fullmatch(words[-1]) else Role.OTHER
    return Role.BIAS if is_bias and role is not Role.NORM else role


def natural_key(name: str) -> tuple[str | int, ...]:
    """Sort key with numbers by value: layer 2 before layer 10."""
    parts: list[str | int] = [*_DIGITS.split(name)]  # text and digits take turns, text first
    parts[1::2] = map(int, parts[1::2])
    return tuple(parts)


_DIGITS = re.compile(r"([0-9]{1,18})")
