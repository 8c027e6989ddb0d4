"""Memory arithmetic: segments, cache, workspace, decode bound."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from core import memory
from core.contract import ByteCount
from core.models.shape import ModelShape

LLAMA3_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 8192)
GEMMA = ModelShape("gemma3", 18, 640, 4, 1, 256, 2048, 262144, 32768, tied=True, window=512, window_layers=15)
DEEPSEEK_V2 = ModelShape(
    "deepseek2",
    60,
    5120,
    128,
    128,
    128,
    1536,
    102400,
    163840,
    experts=160,
    experts_used=6,
    latent_rank=512,
    latent_rope=64,
)


def test_segments_add_up_to_capacity_and_stand_in_order() -> None:
    weights = ByteCount(payload=4_000_000_000, scales=500_000_000, zeros=1_000_000, padding=32, header=4096)
    result = memory.estimate(weights, 1_000_000_000, LLAMA3_8B, 8192, capacity=24_000_000_000, bandwidth=1e12)
    assert [s.key for s in result.segments] == ["payload", "scales", "padding", "kept", "kv", "workspace", "free"]
    assert sum(s.bytes for s in result.segments) == 24_000_000_000
    assert result.bytes_of("scales") == 501_000_000
    assert result.bytes_of("padding") == 4128
    assert result.bytes_of("kv") == 8192 * 131072
    assert (result.fits, result.shortfall) == (True, 0)
    assert result.used == 24_000_000_000 - result.bytes_of("free")


def test_shortfall_is_exactly_what_is_missing() -> None:
    weights = ByteCount(payload=10_000)
    tight = memory.estimate(weights, 500, capacity=10_500)
    assert (tight.fits, tight.shortfall, tight.bytes_of("free")) == (True, 0, 0)
    over = memory.estimate(weights, 501, capacity=10_500)
    assert (over.fits, over.shortfall, over.bytes_of("free")) == (False, 1, 0)


def test_unknown_capacity_and_bandwidth_stay_unknown() -> None:
    result = memory.estimate(ByteCount(payload=100))
    assert (result.fits, result.decode, result.tokens_that_fit) == (None, None, None)
    assert "free" not in [s.key for s in result.segments]


def test_window_layers_stop_growing_at_the_window() -> None:
    layer = 2 * 1 * 256 * 2
    assert memory.kv_bytes(GEMMA, 100) == 18 * 100 * layer
    assert memory.kv_bytes(GEMMA, 4096) == (3 * 4096 + 15 * 512) * layer
    assert memory.kv_bytes(GEMMA, 4096, batch=4) == 4 * memory.kv_bytes(GEMMA, 4096)


def test_latent_attention_keeps_one_vector_for_keys_and_values() -> None:
    assert memory.kv_bytes_per_token(DEEPSEEK_V2) == 60 * 576 * 2


def test_quantized_cache_counts_fractions_of_a_byte() -> None:
    assert memory.kv_bytes(LLAMA3_8B, 1, cache=8.5) == math.ceil(65536 * 8.5 / 8)


@pytest.mark.parametrize("shape", [LLAMA3_8B, GEMMA, DEEPSEEK_V2])
@pytest.mark.parametrize("free", [0, 1, 1_000_000, 123_456_789, 50_000_000_000])
@pytest.mark.parametrize("bits", [16, 8, 4.5])
def test_tokens_that_fit_is_the_longest_context(shape: ModelShape, free: int, bits: float) -> None:
    tokens = memory.tokens_that_fit(shape, free, bits)
    assert tokens is not None
    assert memory.kv_bytes(shape, tokens, 1, bits) <= free
    assert memory.kv_bytes(shape, tokens + 1, 1, bits) > free


def test_context_is_unlimited_when_every_layer_has_a_window_that_fits() -> None:
    shape = replace(GEMMA, window_layers=18)
    full = memory.kv_bytes(shape, shape.window)
    assert memory.tokens_that_fit(shape, full - 1) == shape.window - 1
    assert memory.tokens_that_fit(shape, full) is None


def test_sequences_share_what_weights_and_workspace_leave() -> None:
    weights = ByteCount(payload=8_000_000_000)
    result = memory.estimate(weights, 0, LLAMA3_8B, 8192, batch=2, capacity=24_000_000_000)
    left = 24_000_000_000 - 8_000_000_000 - memory.workspace_bytes(LLAMA3_8B, 8192, 2)
    assert result.sequences_that_fit == left // memory.kv_bytes(LLAMA3_8B, 8192)
    assert memory.estimate(weights, 0, LLAMA3_8B, 8192, capacity=1).sequences_that_fit == 0


# What llama.cpp reports: (context, block) → compute buffer in MiB, one sequence.
SMOLLM2 = ModelShape("llama", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied=True)
READINGS = [
    (SMOLLM2, 1024, 15.64),
    (SMOLLM2, 4096, 18.64),
    (SMOLLM2, 8192, 22.64),
    (GEMMA, 1024, 20.28),
    (GEMMA, 4096, 23.28),
    (GEMMA, 8192, 27.28),
]


@pytest.mark.parametrize(("shape", "context", "mib"), READINGS)
def test_workspace_agrees_with_what_a_runtime_reports(shape: ModelShape, context: int, mib: float) -> None:
    logits = shape.vocab * 4
    beyond_window = shape.window_layers * min(512, context - shape.window) * 2 * 256 * 2 if shape.window else 0
    compute = memory.workspace_bytes(shape, context) - logits - beyond_window
    assert compute / 2**20 == pytest.approx(mib, rel=0.01)


def test_cache_and_workspace_hold_all_that_a_sliding_window_needs() -> None:
    """llama.cpp reports 12 MiB for the 3 full layers and 15 MiB for the 15 window layers (1024 cells each)."""
    without = replace(GEMMA, window=0, window_layers=0)
    held = memory.kv_bytes(GEMMA, 4096) + memory.workspace_bytes(GEMMA, 4096)
    masks = 512 * 1024 * 2
    assert held - memory.workspace_bytes(without, 4096) - masks == 27 * 2**20


def test_workspace_follows_what_is_computed_together() -> None:
    one, many = (memory.workspace_bytes(LLAMA3_8B, 8192, batch) for batch in (1, 128))
    assert many - one == 127 * LLAMA3_8B.vocab * 4  # logits only: the prompt block is still the widest place
    assert memory.workspace_bytes(LLAMA3_8B, 16) < memory.workspace_bytes(LLAMA3_8B, 512)
    mixture = replace(LLAMA3_8B, experts=8, experts_used=2)
    assert memory.workspace_bytes(mixture, 8192) - one == 512 * 3 * 14336 * 4


def test_decode_leaves_out_an_embedding_that_is_only_looked_up() -> None:
    weights = ByteCount(payload=900, scales=100, padding=7, header=50)
    whole = memory.estimate(weights, 500, bandwidth=1000.0)
    assert whole.decode is not None
    assert whole.decode.bytes_per_step == 1500
    untied = memory.estimate(weights, 500, bandwidth=1000.0, embedding=250)
    assert untied.decode is not None
    assert untied.decode.bytes_per_step == 1250
    assert untied.decode.tokens_per_second == pytest.approx(0.8)


def test_a_step_reads_the_weights_once_for_the_whole_batch() -> None:
    one = memory.estimate(ByteCount(payload=10**9), bandwidth=1e9)
    many = memory.estimate(ByteCount(payload=10**9), batch=8, bandwidth=1e9)
    assert one.decode is not None
    assert many.decode is not None
    assert many.decode.seconds_per_step == one.decode.seconds_per_step == 1.0
    assert many.decode.tokens_per_second == 8.0


def test_a_mixture_reads_only_its_active_experts() -> None:
    assert memory.experts_read(8, 2, 1) == 0.25
    assert memory.experts_read(8, 2, 64) == pytest.approx(1.0, abs=1e-7)
    assert memory.experts_read(0, 0, 1) == 1.0
    shape = replace(LLAMA3_8B, experts=8, experts_used=2)
    result = memory.estimate(ByteCount(payload=1000), 100, shape, 0, bandwidth=1.0, experts=800)
    assert result.decode is not None
    assert result.decode.bytes_per_step == 1100 - 600


def test_bandwidth_must_be_positive() -> None:
    with pytest.raises(ValueError, match="positive"):
        memory.decode_bound(1, 0.0)
