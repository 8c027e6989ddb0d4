"""Exact sizes of caches: by hand, by what runtimes state, and against the cache that is the definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from core import memory
from core.contract import ByteCount
from core.errors import UserError
from core.kv.scheme import CacheScheme
from core.kv.size import bytes_per_token, effective_bits, head_bytes, reserved_bytes, scheme_bytes
from core.models.shape import ModelShape
from kernels.kv import CACHE_FORMATS, kinds
from kernels.reference.kv_cache import HeadCache

LLAMA3_70B = ModelShape("llama", 80, 8192, 64, 8, 128, 28672, 128256, 8192)
LLAMA3_8B = ModelShape("llama", 32, 4096, 32, 8, 128, 14336, 128256, 8192)
GEMMA = ModelShape("gemma3", 18, 640, 4, 1, 256, 2048, 262144, 32768, tied=True, window=512, window_layers=15)
DEEPSEEK = ModelShape("deepseek2", 60, 5120, 128, 128, 128, 1536, 102400, 4096, latent_rank=512, latent_rope=64)
PHI = ModelShape("phi2", 32, 2560, 32, 32, 80, 10240, 51200, 2048)


def parse(text: str) -> CacheScheme:
    return CacheScheme.parse(text)


def test_worked_examples() -> None:
    """Llama-3-70B: 163 840 values a token are 320 KiB in BF16; 35 GB hold 106 811 tokens in BF16, 213 623 in FP8."""
    bf16, fp8 = parse("bf16"), parse("fp8")
    assert memory.kv_bytes_per_token(LLAMA3_70B, bf16) == 320 * 1024
    assert memory.kv_bytes(LLAMA3_70B, 8192, 1, bf16) == 5 * 2**29
    assert memory.tokens_that_fit(LLAMA3_70B, 35 * 10**9, bf16) == 106_811
    assert memory.tokens_that_fit(LLAMA3_70B, 35 * 10**9, fp8) == 213_623
    assert memory.sequences_that_fit(LLAMA3_70B, 35 * 10**9, 8192, bf16) == 13
    assert memory.sequences_that_fit(LLAMA3_70B, 35 * 10**9, 8192, fp8) == 26


# llama.cpp states bytes an element; KIVI 3 bits for 2 with a scale and a minimum of 16 bits for 32 values.
@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("f16", 16),
        ("fp8", 8),
        ("q8_0", 8 * 1.0625),
        ("q5_1", 6),
        ("q5_0", 8 * 0.6875),
        ("q4_1", 8 * 0.625),
        ("q4_0", 8 * 0.5625),
        ("iq4_nl", 8 * 0.5625),
        ("u4-g64", 4.5),
        ("kivi2", 3),
        ("kivi4", 5),
        ("int8", 8 + 16 / 128),
        ("int4", 4 + 16 / 128),
        ("lm3,rotate", 3 + 16 / 128),
    ],
)
def test_bits_a_value(name: str, bits: float) -> None:
    scheme = parse(name)
    assert bytes_per_token(LLAMA3_8B, scheme) == 2 * 8 * 128 * 32 * bits / 8
    assert effective_bits(LLAMA3_8B, scheme, 1 << 20) == pytest.approx(bits, abs=1e-4)


def test_heads_that_blocks_do_not_divide() -> None:
    """80 values are two and a half blocks of 32, and take three."""
    assert CACHE_FORMATS["Q4_0"].bits_per_value(80) == 3 * 18 * 8 / 80
    assert scheme_bytes(PHI, parse("q4_0"), 10) == 2 * 32 * 32 * 10 * 54
    assert scheme_bytes(PHI, parse("lm3,rotate"), 10) == 2 * 32 * 32 * 10 * 32


def test_scales_that_are_given_count_once() -> None:
    values = 2 * 8 * 128 * 32
    assert scheme_bytes(LLAMA3_8B, parse("fp8"), 100, batch=3) == 300 * values + 2 * 4 * 32
    assert scheme_bytes(LLAMA3_8B, parse("fp8-head"), 100, batch=3) == 300 * values + 2 * 4 * 8 * 32
    assert scheme_bytes(LLAMA3_8B, parse("fp8-head/q8_0"), 0) == 4 * 8 * 32


def test_window_is_amortised_over_the_context() -> None:
    """Up to the window all is in 16 bits; at 1024 tokens, an eighth."""
    scheme = parse("int4,window=128")
    assert effective_bits(LLAMA3_8B, scheme, 128) == 16
    assert effective_bits(LLAMA3_8B, scheme, 1024) == (128 * 16 + 896 * 4.125) / 1024
    sinks = replace(scheme, sinks=4)
    assert effective_bits(LLAMA3_8B, sinks, 1024) == (132 * 16 + 892 * 4.125) / 1024


def test_kept_layers_stay_in_16_bits() -> None:
    scheme = parse("q8_0,first=2,last=2")
    assert scheme_bytes(LLAMA3_8B, scheme, 64) == 64 * 2 * 8 * (28 * 136 + 4 * 256)
    assert scheme_bytes(LLAMA3_8B, parse("q8_0,first=40"), 64) == memory.kv_bytes(LLAMA3_8B, 64)
    # The three layers that see everything are taken for the kept ones.
    sliding = parse("q4_0,first=4")
    assert scheme_bytes(GEMMA, sliding, 4096) == 2 * (3 * 4096 * 512 + 512 * 512 + 14 * 512 * 144)


def test_sliding_layers_are_capped_and_latent_vectors_are_one() -> None:
    assert scheme_bytes(GEMMA, parse("q8_0"), 4096) == (3 * 4096 + 15 * 512) * 2 * 272
    assert scheme_bytes(DEEPSEEK, parse("q8_0"), 10) == 60 * 10 * 18 * 34
    assert scheme_bytes(DEEPSEEK, parse("fp8"), 10) == 60 * (10 * 576 + 4)


@pytest.mark.parametrize("name", list(CACHE_FORMATS))
@pytest.mark.parametrize(("window", "sinks"), [(0, 0), (20, 3), (64, 0), (0, 33)])
def test_sizes_are_those_of_the_cache_itself(name: str, window: int, sinks: int) -> None:
    form, dim = CACHE_FORMATS[name], 80
    held = HeadCache(name, dim, window, sinks)
    most = 0
    for tokens in range(1, 140):
        held.append(np.ones((1, dim), np.float32))
        most = max(most, held.nbytes)
        if name != "F32":  # that cache counts what waits, which is everything here, in 16 bits
            assert head_bytes(form, dim, tokens, window, sinks) == held.nbytes
            assert reserved_bytes(form, dim, tokens, window, sinks) == most


@pytest.mark.parametrize("shape", [LLAMA3_8B, GEMMA, DEEPSEEK, PHI])
@pytest.mark.parametrize("text", ["q8_0/q4_0", "kivi2,window=128,sinks=4", "lm4,rotate,first=1", "fp8-e5m2"])
@pytest.mark.parametrize("free", [0, 1_000_000, 777_777_777])
def test_tokens_that_fit_is_the_longest_context(shape: ModelShape, text: str, free: int) -> None:
    scheme = parse(text)
    tokens = memory.tokens_that_fit(shape, free, scheme)
    assert tokens is not None
    assert tokens == 0 or memory.kv_bytes(shape, tokens, 1, scheme) <= free
    assert memory.kv_bytes(shape, tokens + 1, 1, scheme) > free


def test_memory_bar_takes_a_scheme() -> None:
    weights = ByteCount(payload=10**9)
    plain, half = (
        memory.estimate(weights, 0, GEMMA, 8192, cache=cache, capacity=4 * 10**9, bandwidth=1e11)
        for cache in (16, parse("q8_0"))
    )
    assert half.bytes_of("kv") == pytest.approx(plain.bytes_of("kv") * 8.5 / 16)
    assert half.tokens_that_fit is not None
    assert plain.tokens_that_fit is not None
    assert half.tokens_that_fit > 1.8 * plain.tokens_that_fit
    assert half.decode is not None
    assert plain.decode is not None
    assert half.decode.bytes_per_step < plain.decode.bytes_per_step
    assert half.kv_bytes_per_token == 18 * 2 * 272
    same = memory.estimate(weights, 0, GEMMA, 8192, cache=parse("f16"), capacity=4 * 10**9, bandwidth=1e11)
    assert same == plain


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("Q8_0", "Q8_0"),
        ("q8_0/q4_0", "Q8_0/Q4_0"),
        ("f16/F16", "F16"),
        ("kivi2, window=128", "U2-t32/U2-g32,window=128"),
        ("lm4,rotate-values,rotate-keys,last=2", "LM4,last=2,rotate"),
        ("int4,rotate-keys,before-rope,sinks=4", "INT4,sinks=4,rotate-keys,before-rope"),
        ("fp8-e4m3", "FP8"),
    ],
)
def test_schemes_as_text(text: str, written: str) -> None:
    assert parse(text).text == written
    assert parse(written) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "q9_0",
        "q8_0/",
        "u2-t32",
        "f16/u4-t32",
        "lm2",
        "lm2/f16,rotate-values",
        "q8_0,window",
        "q8_0,rotate=1",
        "q8_0,window=-1",
        "q8_0,window=999999999",
        "q8_0,window=9999999999999",
        "q8_0,what",
    ],
)
def test_schemes_without_a_meaning_are_refused(text: str) -> None:
    with pytest.raises(UserError) as error:
        parse(text)
    assert error.value.hint


def test_names_of_a_layout() -> None:
    assert kinds("Q8_0") == ("Q8_0", "Q8_0")
    assert kinds("Q8_0/F16") == ("Q8_0", "F16")
    for wrong in ("", "q8_0", "F16/Q9"):
        with pytest.raises(ValueError, match="no format"):
            kinds(wrong)
