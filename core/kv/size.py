"""What a cache takes in a scheme: exact bytes and bits, for any shape of model."""

from __future__ import annotations

from core.kv.scheme import CacheScheme
from core.models.shape import ModelShape
from kernels.kv import CacheFormat, head_bytes, reserved_bytes

_KEPT = CacheScheme()  # of layers that are kept
_WIDE = CacheScheme("F32")  # 4 bytes a value


def layer_bytes(shape: ModelShape, scheme: CacheScheme, tokens: int, *, reserved: bool = True) -> int:
    """Of one layer and sequence with `tokens` tokens, without the scales that are given before.

    With latent attention one vector stands for keys and values, in the format of the keys.
    """
    size = reserved_bytes if reserved else head_bytes
    if shape.latent_rank:
        width = shape.latent_rank + shape.latent_rope
        return size(scheme.key_format, width, tokens, scheme.window, scheme.sinks)
    parts = (size(form, shape.head_dim, tokens, scheme.window, scheme.sinks) for form in _sides(shape, scheme))
    return shape.kv_heads * sum(parts)


def scale_bytes(shape: ModelShape, scheme: CacheScheme) -> int:
    """Of the scales that are given before, of all layers; sequences share them."""
    each = {"": 0, "tensor": 4, "head": 4 * max(shape.kv_heads, 1)}
    heads = sum(each[form.given] for form in _sides(shape, scheme))
    return heads * (shape.layers - kept_layers(shape, scheme))


def scheme_bytes(shape: ModelShape, scheme: CacheScheme, context: int, batch: int = 1, *, reserved: bool = True) -> int:
    """The whole cache for `batch` sequences of `context` tokens. Sliding layers hold at most their window.

    Kept layers count as layers without one, which is the most that they can take: a shape does not say which slide.
    reserved: with what groups need before they are closed; else what is there with exactly `context` tokens.
    """
    kept = kept_layers(shape, scheme)
    sliding = min(shape.window_layers, shape.layers) if shape.window else 0
    full = shape.layers - sliding
    kept_full = min(kept, full)
    near = min(context, shape.window) if sliding else 0

    def layer(form: CacheScheme, tokens: int) -> int:
        return layer_bytes(shape, form, tokens, reserved=reserved)

    total = kept_full * layer(_KEPT, context) + (full - kept_full) * layer(scheme, context)
    total += (kept - kept_full) * layer(_KEPT, near) + (sliding - kept + kept_full) * layer(scheme, near)
    return batch * total + scale_bytes(shape, scheme)


def kept_layers(shape: ModelShape, scheme: CacheScheme) -> int:
    return min(scheme.keep_first + scheme.keep_last, shape.layers)


def bytes_per_token(shape: ModelShape, scheme: CacheScheme) -> float:
    """That one more token adds in the long run, while no sliding window is full; groups of tokens are averaged."""
    kept = kept_layers(shape, scheme)
    if shape.latent_rank:
        width = shape.latent_rank + shape.latent_rope
        return kept * 2.0 * width + (shape.layers - kept) * _row(scheme.key_format, width)
    pair = sum(_row(form, shape.head_dim) for form in _sides(shape, scheme))
    return shape.kv_heads * (kept * 4.0 * shape.head_dim + (shape.layers - kept) * pair)


def effective_bits(shape: ModelShape, scheme: CacheScheme, context: int) -> float:
    """Bits a value with `context` tokens in the cache: metadata, kept tokens and layers, given scales and all."""
    values = scheme_bytes(shape, _WIDE, context) // 4
    return 8 * scheme_bytes(shape, scheme, context, reserved=False) / values if values else 0.0


def _row(form: CacheFormat, dim: int) -> float:
    return form.unit_bytes(dim) / form.waits


def _sides(shape: ModelShape, scheme: CacheScheme) -> tuple[CacheFormat, ...]:
    return (scheme.key_format,) if shape.latent_rank else (scheme.key_format, scheme.value_format)
