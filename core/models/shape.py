"""The numbers of a decoder that memory arithmetic and mixes need, whatever container they came from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a decoder-only model. A field that a model does not have is 0.

    window: sliding-attention window in tokens; window_layers: how many layers use it (the others see everything).
    latent_rank, latent_rope: width of the compressed KV of multi-head latent attention (one cache for K and V).
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context: int
    tied: bool = False
    experts: int = 0
    experts_used: int = 0
    window: int = 0
    window_layers: int = 0
    latent_rank: int = 0
    latent_rope: int = 0
