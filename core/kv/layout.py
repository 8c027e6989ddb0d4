"""A scheme as the engine's cache has it."""

from __future__ import annotations

from core.errors import UserError
from core.kv.scheme import CacheScheme
from kernels.kv import CACHE_FORMATS
from kernels.program import CacheLayout, CacheScales, Program, with_cache

MOST_TURNED = 1024  # values in a run that the engine rotates


def cache_layout(
    layers: tuple[tuple[int, int], ...],
    capacity: int,
    sequences: int,
    scheme: CacheScheme,
    scales: CacheScales = (),
) -> CacheLayout:
    """layers: (kv_heads, head_dim) of each. scales: that are given, (): 1. Raises UserError for heads that the engine
    can not rotate."""
    if (scheme.rotate_keys or scheme.rotate_values) and any(dim & -dim > MOST_TURNED for _, dim in layers):
        raise UserError(f"Heads of more than {MOST_TURNED} values are not rotated.", "Leave rotate out of the scheme.")
    count = len(layers)
    kept = frozenset(i for i in range(count) if i < scheme.keep_first or i >= count - scheme.keep_last)
    return CacheLayout(
        layers,
        capacity,
        sequences,
        scheme.dtype,
        scheme.window,
        scheme.sinks,
        scheme.rotate_keys,
        scheme.rotate_values,
        kept,
        scales,
    )


def with_scheme(
    program: Program, capacity: int, sequences: int, scheme: CacheScheme, scales: CacheScales = ()
) -> Program:
    """The program with its cache in a scheme. Raises UserError for a scheme that can not be kept with it."""
    layout = cache_layout(program.cache.layers, capacity, sequences, scheme, scales)
    try:
        return with_cache(program, layout, scheme.before_rope)
    except ValueError:
        raise UserError(
            "This model's keys are not kept before their rotary step.", "Leave before-rope out of the scheme."
        ) from None


def is_coded(scheme: CacheScheme) -> bool:
    """Whether keys or values are kept as anything but floats."""
    return not (CACHE_FORMATS[scheme.keys].is_float and CACHE_FORMATS[scheme.values].is_float)
