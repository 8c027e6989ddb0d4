"""What a model needs in memory and how fast it can answer at best. Pure arithmetic on sizes; bytes and seconds.

The memory bar shows `estimate(...)`. Sources of the formulas:

* KV cache: every layer keeps a key and a value vector of kv_heads × head_dim for each token; a sliding-window layer
  keeps its last `window` tokens; multi-head latent attention (DeepSeek-V2, section 2.1) keeps one vector of
  latent_rank + latent_rope instead of both. A cache is given as its bits a value, or as a scheme of `core.kv`, of which
  every scale, kept token and kept layer counts.
* Decode bound: producing a token reads every weight once, and the cache once; arithmetic is hidden behind it at small
  batch. Time per step ≥ bytes read ÷ bandwidth.
* Workspace: see `workspace_bytes`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from core.contract import ByteCount
from core.kv.scheme import CacheScheme
from core.kv.size import bytes_per_token, scheme_bytes
from core.models.shape import ModelShape

Cache = float | CacheScheme  # bits a value, or a scheme

PROMPT_BLOCK = 512  # tokens of a prompt that are computed together: llama.cpp's default physical batch (n_ubatch)
ACTIVATION_BYTES = 4  # activations and logits are held in 32-bit floats between operations
MASK_BYTES = 2  # attention masks are 16-bit
_ENDLESS = 1 << 50  # tokens


@dataclass(frozen=True)
class Segment:
    """One piece of the memory bar. key is stable; label is what a person reads."""

    key: str
    label: str
    bytes: int


@dataclass(frozen=True)
class DecodeBound:
    """The best that reading memory allows. A step produces `batch` tokens, one for each sequence."""

    bytes_per_step: int
    seconds_per_step: float
    tokens_per_second: float


@dataclass(frozen=True)
class MemoryEstimate:
    """Segments in the bar's order; they add up to max(used, capacity).

    capacity: bytes of the device, None when it is not known (then there is no free segment and `fits` is None).
    shortfall: bytes missing, 0 when it fits. tokens_that_fit: longest context of one sequence in what is left after
    weights and workspace; None when unknown or not limited by memory. sequences_that_fit: of the asked context.
    """

    segments: tuple[Segment, ...]
    used: int
    capacity: int | None
    fits: bool | None
    shortfall: int
    kv_bytes_per_token: int
    tokens_that_fit: int | None
    sequences_that_fit: int | None
    decode: DecodeBound | None

    def bytes_of(self, key: str) -> int:
        """Bytes of the segment with that key; 0 when the bar has none."""
        return next((s.bytes for s in self.segments if s.key == key), 0)


def kv_values_per_token(shape: ModelShape) -> int:
    """Values that one more token adds to the cache while no window is full, over all layers."""
    return shape.layers * _layer_values(shape)


def kv_bytes_per_token(shape: ModelShape, cache: Cache = 16) -> int:
    """Bytes that one more token adds to the cache while no window is full, over all layers."""
    if isinstance(cache, CacheScheme):
        return math.ceil(bytes_per_token(shape, cache))
    return _bytes(kv_values_per_token(shape), cache)


def kv_bytes(shape: ModelShape, context: int, batch: int = 1, cache: Cache = 16) -> int:
    """Bytes of the cache for `batch` sequences of `context` tokens; window layers hold at most their window."""
    if isinstance(cache, CacheScheme):
        return scheme_bytes(shape, cache, context, batch)
    windowed = min(context, shape.window) if shape.window else context
    tokens = (shape.layers - _window_layers(shape)) * context + _window_layers(shape) * windowed
    return batch * _bytes(tokens * _layer_values(shape), cache)


def tokens_that_fit(shape: ModelShape, free: int, cache: Cache = 16) -> int | None:
    """Longest context of one sequence whose cache takes at most `free` bytes; None when no context exceeds it."""
    if free < 0:
        return 0
    if kv_bytes(shape, _ENDLESS, 1, cache) <= free:
        return None
    low, high = 0, _ENDLESS  # the first fits (or nothing does), the second does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if kv_bytes(shape, middle, 1, cache) <= free else (low, middle)
    return low


def sequences_that_fit(shape: ModelShape, free: int, context: int, cache: Cache = 16) -> int | None:
    """How many sequences of `context` tokens the cache holds in `free` bytes; None when a sequence takes nothing."""
    each = kv_bytes(shape, context, 1, cache)
    return max(free, 0) // each if each else None


def workspace_bytes(shape: ModelShape, context: int, batch: int = 1, cache: Cache = 16) -> int:
    """Bytes that a step needs besides weights and cache, for attention that never stores the score matrix.

    A step computes n tokens together: a block of the prompt (at most PROMPT_BLOCK, at most the context) or one token
    a sequence, whichever is more. Buffers are reused from layer to layer, so the largest single place counts:

    * feed-forward: gate, up and their product, and five vectors of the residual's width (residual, norm, attention
      output, their copies), n × (3 × width + 5 × hidden); a mixture of experts has experts_used × width;
    * attention: residual, norm, queries, keys, values, output, n × (2 × hidden + 2 × (heads + kv_heads) × head_dim);
    * output head, only for the last token of each sequence: batch × (hidden + vocab).

    To that come the attention masks, n × context in 16 bits (once more, but for the window, where layers have one), the
    logits handed to the sampler, and what a sliding-window cache holds beyond the window while a block is computed.

    The feed-forward factors were found by fitting the compute buffers that llama.cpp (September 2026) reports for
    SmolLM2-135M and Gemma-3-270m at contexts of 1024 to 8192; the result is within 1 % of
    those readings. A GPU's own context (some hundred MB) is the driver's and is not included; a runtime without
    flash attention keeps n × context × heads × 4 bytes of scores more.
    """
    n = max(min(PROMPT_BLOCK, context), batch, 1)
    width = shape.intermediate * max(shape.experts_used, 1)
    feed_forward = n * (3 * width + 5 * shape.hidden)
    attention = n * (2 * shape.hidden + 2 * (shape.heads + shape.kv_heads) * shape.head_dim)
    head = batch * (shape.hidden + shape.vocab)
    activations = ACTIVATION_BYTES * (max(feed_forward, attention, head) + batch * shape.vocab)
    masks, beyond_window = n * context * MASK_BYTES, 0
    if _window_layers(shape):
        held = min(context, shape.window + n)
        masks += n * held * MASK_BYTES
        extra = max(held - shape.window, 0)
        bits = (
            8 * bytes_per_token(shape, cache) / kv_values_per_token(shape) if isinstance(cache, CacheScheme) else cache
        )
        beyond_window = batch * _bytes(_window_layers(shape) * extra * _layer_values(shape), bits)
    return activations + masks + beyond_window


def experts_read(experts: int, used: int, batch: int) -> float:
    """Share of a layer's experts that a step reads: 1 − (1 − used/experts)^batch.

    Exact for one sequence; for more it is the expectation when routing is even and sequences are independent.
    """
    if not experts or not used:
        return 1.0
    return 1.0 - (1.0 - used / experts) ** batch


def decode_bound(bytes_per_step: int, bandwidth: float, batch: int = 1) -> DecodeBound:
    """Bytes read in a step ÷ bandwidth in bytes/s. Raises ValueError unless the bandwidth is positive."""
    if not bandwidth > 0:
        raise ValueError("bandwidth must be positive")
    seconds = bytes_per_step / bandwidth
    return DecodeBound(bytes_per_step, seconds, batch / seconds if seconds else math.inf)


def estimate(
    weights: ByteCount,
    kept: int = 0,
    shape: ModelShape | None = None,
    context: int = 0,
    batch: int = 1,
    cache: Cache = 16,
    capacity: int | None = None,
    bandwidth: float | None = None,
    embedding: int = 0,
    experts: int = 0,
) -> MemoryEstimate:
    """Everything the memory bar shows.

    weights: quantized tensors; its header bytes are shown with the padding. kept: bytes of tensors left in 16 or 32
    bits. shape None: no cache and no workspace are counted. capacity in bytes, bandwidth in bytes/s, None: unknown.
    embedding: bytes, among weights and kept, of an embedding table that is not also the output head: decoding reads
    one row of it, which is left out (a tied table is read in full as the head, so pass 0). experts: bytes, among
    weights and kept, of routed experts, of which a step reads only `experts_read`.
    The decode bound takes the cache as full (`context` tokens a sequence): the slowest step.
    """
    kept_tokens = kv_bytes(shape, context, batch, cache) if shape else 0
    workspace = workspace_bytes(shape, context, batch, cache) if shape else 0
    segments = [
        Segment("payload", "weights", weights.payload),
        Segment("scales", "scales and zeros", weights.scales + weights.zeros),
        Segment("padding", "padding and headers", weights.padding + weights.header),
        Segment("kept", "kept tensors", kept),
        Segment("kv", "KV cache", kept_tokens),
        Segment("workspace", "workspace", workspace),
    ]
    used = sum(s.bytes for s in segments)
    fits, shortfall, tokens, sequences = None, 0, None, None
    if capacity is not None:
        fits, shortfall = used <= capacity, max(used - capacity, 0)
        segments.append(Segment("free", "free", max(capacity - used, 0)))
        if shape:
            left = capacity - weights.total - kept - workspace
            tokens = tokens_that_fit(shape, left, cache)
            sequences = sequences_that_fit(shape, left, context, cache)
    return MemoryEstimate(
        segments=tuple(segments),
        used=used,
        capacity=capacity,
        fits=fits,
        shortfall=shortfall,
        kv_bytes_per_token=kv_bytes_per_token(shape, cache) if shape else 0,
        tokens_that_fit=tokens,
        sequences_that_fit=sequences,
        decode=_decode(weights, kept, shape, kept_tokens, batch, bandwidth, embedding, experts),
    )


def _decode(
    weights: ByteCount,
    kept: int,
    shape: ModelShape | None,
    cache: int,
    batch: int,
    bandwidth: float | None,
    embedding: int,
    experts: int,
) -> DecodeBound | None:
    stored = weights.payload + weights.scales + weights.zeros + kept
    if not bandwidth or not stored:
        return None
    share = experts_read(shape.experts, shape.experts_used, batch) if shape else 1.0
    read = stored - min(embedding, stored) - round(experts * (1.0 - share))
    return decode_bound(max(read, 0) + cache, bandwidth, batch)


def _mean_bits(shape: ModelShape, cache: Cache) -> float:
    if isinstance(cache, CacheScheme):
        return 8 * bytes_per_token(shape, cache) / kv_values_per_token(shape)
    return cache


def _layer_values(shape: ModelShape) -> int:
    if shape.latent_rank:
        return shape.latent_rank + shape.latent_rope
    return 2 * shape.kv_heads * shape.head_dim


def _window_layers(shape: ModelShape) -> int:
    return min(shape.window_layers, shape.layers) if shape.window else 0


def _bytes(values: int, bits: float) -> int:
    return math.ceil(values * bits / 8)
