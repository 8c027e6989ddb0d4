"""A scheme as the engine's cache has it, and which schemes the engine keeps."""

from __future__ import annotations

from core.errors import UserError
from core.kv.scheme import CacheScheme
from kernels.program import CacheLayout

ENGINE_FORMATS = ("F16", "BF16", "F32", "Q8_0", "Q4_0")


def check_engine(scheme: CacheScheme) -> None:
    """Raise UserError for a scheme that the engine can not keep."""
    for form in (scheme.keys, scheme.values):
        if form not in ENGINE_FORMATS:
            raise UserError(f"The engine keeps no cache in {form}.", f"Choose one of {', '.join(ENGINE_FORMATS)}.")
    if not scheme.is_plain:
        raise UserError(
            f"The engine does not know '{scheme.text}': it quantizes all tokens of all layers as they come.",
            f"Give the formats alone: {scheme.dtype}.",
        )


def cache_layout(
    layers: tuple[tuple[int, int], ...], capacity: int, sequences: int, scheme: CacheScheme
) -> CacheLayout:
    """layers: (kv_heads, head_dim) of each. Raises UserError as `check_engine`."""
    check_engine(scheme)
    return CacheLayout(layers, capacity, sequences, scheme.dtype)
