"""Hugging Face tensor names → GGUF tensor names.

GGUF names are part of its specification; which Hugging Face module plays which part follows from the model's code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# The decoder sits under one of these, or directly at the top.
_PREFIX = re.compile(r"^(?:(?:model|language_model|text_model)\.)+")
_LAYER = re.compile(r"^layers\.(\d+)\.(.+)$")
_EXPERT = re.compile(r"^(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight$")
_FUSED = re.compile(r"^(?:mlp|block_sparse_moe)\.experts\.(gate_up_proj|down_proj)(?:\.weight)?$")

# Buffers that older checkpoints carry though they follow from the configuration, what Transformer Engine notes beside
# each layer, and parts that see or hear.
_SKIPPED = re.compile(
    r"(?:\.|^)(?:rotary_emb\.(?:inv_freq|(?:cos|sin)_cached)|_extra_state|attn(?:ention)?\.(?:masked_)?bias)$"
    r"|(?:^|\.)(?:vision_tower|vision_model|multi_modal_projector|visual|image_newline|audio_tower|embed_vision)(?:\.|$)"
)

_TOP = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}

_MODULES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_NORM_AFTER_ATTENTION = {"post_attention_layernorm": "ffn_norm"}
_GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_EXPERT_PARTS = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w2": "ffn_down_exps",
    "w3": "ffn_up_exps",
}


@dataclass(frozen=True)
class GGUFName:
    """Where a tensor goes. name: GGUF's. expert: its place in a stack, or None.

    halves: a fused gate-up stack of experts; `name` is then the gate's and the lower half of each expert's rows
    goes to the up projection's stack.
    """

    name: str
    expert: int | None = None
    stacked: bool = False
    halves: bool = False


def is_skipped(name: str) -> bool:
    """True for tensors that a GGUF of the decoder has no use for."""
    return _SKIPPED.search(name) is not None


def gguf_name(name: str, architecture: str) -> GGUFName | None:
    """GGUF's name for a Hugging Face name, or None when the architecture has no such tensor."""
    rest = _PREFIX.sub("", name)
    module, _, kind = rest.rpartition(".")
    if kind in ("weight", "bias") and module in _TOP:
        return GGUFName(f"{_TOP[module]}.{kind}")
    match = _LAYER.match(rest)
    if match is None:
        return None
    layer, rest = int(match[1]), match[2]
    if expert := _EXPERT.match(rest):
        return GGUFName(f"blk.{layer}.{_EXPERT_PARTS[expert[2]]}.weight", int(expert[1]), stacked=True)
    if fused := _FUSED.match(rest):
        part = "ffn_gate_exps" if fused[1] == "gate_up_proj" else "ffn_down_exps"
        return GGUFName(f"blk.{layer}.{part}.weight", stacked=True, halves=fused[1] == "gate_up_proj")
    module, _, kind = rest.rpartition(".")
    if kind not in ("weight", "bias"):
        return None
    norms = _GEMMA_NORMS if architecture in ("gemma2", "gemma3") else _NORM_AFTER_ATTENTION
    target = norms.get(module) or _MODULES.get(module)
    return GGUFName(f"blk.{layer}.{target}.{kind}") if target else None


def hugging_face_name(name: str, architecture: str) -> str:
    """The usual Hugging Face name of a tensor that GGUF calls so, for messages; the name itself when there is none."""
    head, _, kind = name.rpartition(".")
    parts = head.split(".")
    names = {target: module for module, target in _TOP.items()}
    if head in names:
        return f"{names[head]}.{kind}" if head == "output" else f"model.{names[head]}.{kind}"
    norms = _GEMMA_NORMS if architecture in ("gemma2", "gemma3") else _NORM_AFTER_ATTENTION
    modules = {target: module for module, target in reversed([*_MODULES.items(), *norms.items()])}
    if len(parts) == 4 and parts[2].startswith("ffn_"):  # one expert
        return f"model.layers.{parts[1]}.mlp.experts.{parts[3]}.{parts[2].removeprefix('ffn_')}_proj.{kind}"
    if len(parts) != 3 or parts[2] not in modules:
        return name
    return f"model.layers.{parts[1]}.{modules[parts[2]]}.{kind}"
