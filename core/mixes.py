"""Which GGUF type each tensor gets in a named mix: the decisions llama.cpp takes, in its order.

Source: llama.cpp, `llama_tensor_get_type_impl` and `tensor_type_fallback` (0.5.0-dev, October 2026). Only behaviour is
reproduced, so that a file made here has the types that llama-quantize would give it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from core.models.shape import ModelShape
from core.targets import Kind, Target
from core.tensor_info import Role
from kernels.layouts import GRID_KINDS, LAYOUTS, PLAIN_KINDS

# Block of 256 that does not divide the row → the type llama.cpp takes instead.
SMALLER_BLOCK = {
    "IQ4_XS": "IQ4_NL",
    **dict.fromkeys(GRID_KINDS, "IQ4_NL"),
    "Q2_K": "Q4_0",
    "Q3_K": "Q4_0",
    "TQ1_0": "Q4_0",
    "TQ2_0": "Q4_0",
    "Q4_K": "Q5_0",
    "Q5_K": "Q5_1",
    "Q6_K": "Q8_0",
    "NVFP4": "MXFP4",
}

VALUE_ROLES = (Role.ATTN_V, Role.ATTN_QKV)
TWO_BIT_MIXES = ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
_FINER_TWO_BIT_MIXES = ("IQ2_S", "IQ2_M")
# The others get the same type in every layer.
PLACED_ROLES = frozenset({*VALUE_ROLES, Role.FFN_DOWN, Role.FFN_GATE, Role.FFN_UP})


# Of attn_output; of models with eight experts these mixes give it Q5_K.
_OUTPUT = {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_XXS": "IQ3_S", "IQ3_M": "Q4_K"}
_SMALL_MIXES = (
    *("Q2_K", "Q3_K_S", "Q3_K_M", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M"),
)


class Choice(NamedTuple):
    """A type and the clause that explains it."""

    format: str
    reason: str


@dataclass(frozen=True)
class Subject:
    """What a mix looks at. order: how many tensors of the same role come before this one, in layer order."""

    role: Role
    layer: int | None
    order: int
    shape: tuple[int, ...]


def more_bits(i: int, n: int) -> bool:
    """The layers that 'M' mixes treat better: the first and last eighth, and every third between (of n, from 0)."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


def choose(target: Target, t: Subject, model: ModelShape | None, tied: bool, importance: bool) -> Choice:
    """The type of a quantizable tensor, before its row length is looked at (but for the output head's own rule)."""
    base = target.base
    if base in PLAIN_KINDS:
        return Choice(base, "the target's type")
    if base == "NVFP4" and t.role is Role.EMBED:
        return Choice("Q8_0", "llama.cpp reads no tensor scale for the embedding")
    if target.kind is Kind.TYPE:
        return Choice(base, "the target's type")
    if t.role is Role.HEAD or (t.role is Role.EMBED and tied):
        return _head(target, t, base)
    if target.name == "MXFP4_MOE":
        if len(t.shape) == 3:
            return Choice("MXFP4", "an expert")
        return Choice("Q8_0", "not an expert")
    if t.role is Role.EMBED:
        if base in ("TQ1_0", "TQ2_0"):
            return Choice("Q4_K", "ternary is too coarse for the embedding")
        if target.name in ("IQ2_XXS", "IQ2_XS"):
            return Choice("Q2_K", f"{target.name} gives the embedding more bits")
        if target.name in (*_FINER_TWO_BIT_MIXES, "IQ3_XXS"):
            return Choice("IQ3_S", f"{target.name} gives the embedding more bits")
        return Choice(base, "the mix's base type")
    return _body(target.name, base, t, model, importance)


def _head(target: Target, t: Subject, base: str) -> Choice:
    what = "the output head" if t.role is Role.HEAD else "the embedding, which is also the output head,"
    if target.name == "MXFP4_MOE" or base == "Q8_0":
        return Choice("Q8_0", f"{what} gets 8 bits")
    if t.shape[-1] % 256:
        return Choice("Q8_0", f"{what} gets 8 bits, since 256 does not divide its rows")
    if target.name in (*TWO_BIT_MIXES, "IQ3_XXS"):
        return Choice("Q5_K", f"{what} gets 5 bits")
    return Choice("Q6_K", f"{what} gets 6 bits")


def _body(mix: str, base: str, t: Subject, model: ModelShape | None, importance: bool) -> Choice:
    layers = model.layers if model else 0
    experts = model.experts if model else 0
    grouped = bool(model and model.kv_heads and model.heads // model.kv_heads >= 4)
    # With experts, the layer comes from the name; otherwise it is the running count, which is the same in layer order.
    i = t.layer if experts > 1 and t.layer is not None else t.order
    first_eighth = i < layers // 8
    found: str | None = None
    if mix in TWO_BIT_MIXES:
        found = _two_bits(mix, t, layers, grouped, experts)
    elif t.role in VALUE_ROLES:
        found = _value(mix, t.order, layers, grouped, importance)
        if model and is_70b(model) and (found or base) in ("Q3_K", "Q4_K"):
            found = "Q5_K"
        if experts == 8:
            found = "Q8_0"
    elif t.role is Role.ATTN_K and experts == 8:
        found = "Q8_0"
    elif t.role in (Role.ATTN_Q, Role.ATTN_K):
        found = {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(mix)
    elif t.role in (Role.FFN_GATE, Role.FFN_UP):
        found = "IQ3_XXS" if mix == "IQ3_XS" and layers // 8 <= i < 7 * layers // 8 else None
    elif t.role is Role.FFN_DOWN:
        first_eighth = first_eighth or (mix == "IQ3_M" and experts == 8 and more_bits(i, layers))
        found = _down(mix, i, layers, first_eighth, importance)
    elif t.role is Role.ATTN_OUT:
        if experts == 8:
            found = "Q5_K" if mix in _SMALL_MIXES else None
        else:
            found = _OUTPUT.get(mix)
    if found is None or found == base:
        return Choice(base, "the mix's base type")
    more = LAYOUTS[found].bits > LAYOUTS[base].bits
    return Choice(found, f"{mix} gives the {t.role.value} of this layer {'more' if more else 'fewer'} bits")


def _two_bits(mix: str, t: Subject, layers: int, grouped: bool, experts: int) -> str | None:
    finer = "IQ3_S" if mix in _FINER_TWO_BIT_MIXES else "Q2_K"
    if t.role in VALUE_ROLES:
        return "Q4_K" if grouped or experts >= 4 else finer
    if t.role is Role.ATTN_K:
        return "Q4_K" if experts == 8 else None
    if t.role is Role.FFN_DOWN:
        return finer if t.order < layers // 8 else None
    if t.role is Role.ATTN_OUT:
        if experts == 8:
            return "Q5_K"
        return "IQ3_S" if mix in _FINER_TWO_BIT_MIXES else None
    return None


def _value(mix: str, i: int, layers: int, grouped: bool, importance: bool) -> str | None:
    if mix == "Q2_K":
        return "Q4_K" if grouped else "Q3_K"
    if mix == "Q3_K_M":
        return "Q5_K" if i < 2 else "Q4_K"
    if mix == "Q3_K_L":
        return "Q5_K"
    if mix in ("IQ4_NL", "IQ4_XS"):
        return "Q5_K" if grouped else None
    if mix == "IQ3_XXS" and not grouped:
        return None if importance else "IQ3_S"
    if mix in ("IQ3_XXS", "IQ3_XS", "IQ3_S"):
        return "Q4_K" if grouped else None
    if mix == "IQ3_M":
        return "Q4_K"
    if mix in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if more_bits(i, layers) else None
    if mix == "Q4_K_S":
        return "Q5_K" if i < 4 else None
    return None


def _down(mix: str, i: int, layers: int, first_eighth: bool, importance: bool) -> str | None:
    if mix == "Q2_K":
        return "Q3_K"
    if mix == "Q3_K_M":
        return "Q5_K" if i < layers // 16 else "Q4_K"
    if mix == "Q3_K_L":
        return "Q5_K"
    if mix in ("Q4_K_M", "Q5_K_M"):
        return "Q6_K" if more_bits(i, layers) else None
    if mix == "Q4_K_S":
        return "Q5_K" if first_eighth else None
    if mix == "IQ3_XXS" and not importance:
        return "Q4_K" if first_eighth else "Q3_K"
    if mix == "IQ3_M":
        return "Q4_K" if first_eighth else None
    if mix in ("IQ4_NL", "IQ4_XS"):
        return "Q5_K" if first_eighth and not importance else None
    if mix in ("Q4_0", "Q5_0"):
        return {"Q4_0": "Q4_1", "Q5_0": "Q5_1"}[mix] if first_eighth and importance else None
    return None


def is_70b(model: ModelShape) -> bool:
    """80 layers with grouped queries: llama.cpp calls it a 70B and gives its small value matrices more bits."""
    return model.layers == 80 and model.architecture in ("llama", "qwen2") and model.heads != model.kv_heads


def smaller_blocks(name: str) -> Sequence[str]:
    """The types to try, in order, when rows do not divide into this type's blocks. 16 bits come after the last."""
    chain = []
    while (name := SMALLER_BLOCK.get(name, "")) != "":
        chain.append(name)
    return chain
