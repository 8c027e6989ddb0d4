"""Scales of a key-value cache in FP8, which a folder can have beside its weights: one for keys, one for values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.contract import ElementType
from core.errors import UserError
from core.formats.cache_scale import CacheScale
from core.models.gguf_tensors import MappedTensor
from core.targets import Target
from core.tensor_info import Role

# The ecosystems that have such scales, how they are stored, and whether the projection's name is part of theirs.
# compressed-tensors: '….self_attn.k_scale'. ModelOpt: '….self_attn.k_proj.k_scale'.
_STORED = {
    "compressed-tensors": (CacheScale(ElementType.BF16, (1,)), False),
    "modelopt": (CacheScale(ElementType.F32, ()), True),
}
_PROJECTIONS = {Role.ATTN_K: "k", Role.ATTN_V: "v", Role.ATTN_QKV: "kv"}


CACHE_HINT = "Choose a compressed-tensors or ModelOpt target, or leave the cache in 16 bits."


def why_no_cache(target: Target) -> str:
    """'' where a target's files have a place for such scales, else a sentence that says that they have none."""
    return "" if target.ecosystem in _STORED else f"{target.name} has no place for scales of an 8-bit cache."


def check_cache(cache: str, target: Target) -> None:
    """Raise UserError where a target's files have no place for such scales."""
    if cache and (why := why_no_cache(target)):
        raise UserError(why, CACHE_HINT)


def cache_scales(target: Target, tensors: Sequence[MappedTensor]) -> list[tuple[MappedTensor, CacheScale]]:
    """A tensor for the scale of each decoder layer's keys, and one for its values, and the format that stores them."""
    form, in_projection = _STORED[target.ecosystem]
    found = []
    for t in tensors:
        module, _, last = t.name.removesuffix(".weight").rpartition(".")
        if t.layer is None or t.role not in _PROJECTIONS or not t.name.endswith(".weight"):
            continue
        place = f"{module}.{last}" if in_projection else module
        for letter in _PROJECTIONS[t.role]:
            values = np.ones(1, np.float32)
            found.append((MappedTensor(f"{place}.{letter}_scale", (1,), (), values=values, layer=t.layer), form))
    if not found:
        raise UserError(
            "The model has no layers with keys and values, so there is no cache to give scales to.",
            "Leave the cache in 16 bits.",
        )
    return found
