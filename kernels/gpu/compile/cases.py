"""What `kernels.gpu.compile` compiles beside weight-only products: launchers, called as a model would.

Sizes are those of a model of 8 billion parameters: 4096 values a token, 14336 between gate and down, 32 heads of 128
over 8 key heads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from kernels.gpu import operations
from kernels.gpu.configurations import VECTOR_BATCH
from kernels.gpu.launcher import Launch, recording
from kernels.gpu.products.scaled_ways import KINDS
from kernels.gpu.steps.apply import OUTLIER_BLOCK, aligned_bytes

WIDTH, INNER, HEADS, KEY_HEADS, HEAD = 4096, 14336, 32, 8, 128
CHANNELS = "U2-t32/U2-g32"


@dataclass(frozen=True)
class Case:
    """start: calls one launcher. kernels: of those that it starts, the ones that the report shows, by name.

    tensor(card): whether the card's tensor cores must be in it.
    """

    name: str
    start: Callable[[], object]
    kernels: tuple[str, ...]
    tensor: Callable[[str], bool] = lambda _card: False

    def launches(self, card: str) -> list[Launch]:
        with recording(card) as found:
            self.start()
        return [one for one in found if one.kernel.fn.__name__ in self.kernels][:1]


def _floats(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def _single(*shape: int) -> torch.Tensor:
    return _floats(*shape, dtype=torch.float32)


def _numbers(*shape: int) -> torch.Tensor:
    return _floats(*shape, dtype=torch.int32)


def _steps() -> list[Case]:
    def case(name: str, start: Callable[[], object], kernel: str = "token_step") -> Case:
        return Case(name, start, (kernel,))

    tables = _single(8192, HEAD // 2), _single(8192, HEAD // 2), _numbers(16)
    heads = _floats(16, HEADS, HEAD)
    gate = _floats(16, 2 * INNER)
    halves = gate[:, :INNER], gate[:, INNER:]
    x, gain = _floats(16, WIDTH), _single(WIDTH)
    return [
        case("RMSNorm", lambda: operations.rms_norm(x, gain, 1e-5)),
        case("RMSNorm of a sum", lambda: operations.rms_norm(x, gain, 1e-5, _floats(16, WIDTH))),
        case("RMSNorm to int8", lambda: operations.rms_norm_quantized(x, gain, 1e-5, "int8")),
        case("RMSNorm to e4m3", lambda: operations.rms_norm_quantized(x, gain, 1e-5, "e4m3")),
        case("RMSNorm to e4m3 g128", lambda: operations.rms_norm_quantized(x, gain, 1e-5, "e4m3", 128)),
        case("SiLU · mul", lambda: operations.activate_mul("silu", *halves)),
        case("GELU · mul", lambda: operations.activate_mul("gelu", *halves)),
        case("SiLU · mul to int8", lambda: operations.activate_mul_quantized("silu", *halves, codes="int8")),
        case("rotary, halves", lambda: operations.rotate(heads, *tables, pairs=False), "rotate"),
        case("rotary, pairs", lambda: operations.rotate(heads, *tables, pairs=True), "rotate"),
    ]


def _scaled() -> list[Case]:
    """One token, 16, and a prompt of 512 that is multiplied in larger tiles."""

    def product(kind: str, tokens: int, outliers: bool = False) -> None:
        shape = KINDS[kind]
        width, codes = aligned_bytes(WIDTH, shape.bits), torch.int8 if kind == "int8" else torch.uint8
        single = torch.float32 if shape.scale == "single" else torch.uint8
        groups = WIDTH // shape.group if shape.group else 1
        scales = _floats(-(-WIDTH // shape.scale_rows), groups, dtype=single)
        weights = operations.ScaledWeights(kind, WIDTH, WIDTH, _floats(WIDTH, width, dtype=codes), scales)
        x = operations.Tokens(
            *(
                shape.tokens,
                _floats(tokens, width, dtype=codes),
                _floats(tokens, groups, dtype=single),
                WIDTH,
                shape.group,
            )
        )
        apart = operations.Outliers(
            _floats(tokens, WIDTH), _floats(WIDTH, dtype=torch.int8), _numbers(WIDTH // OUTLIER_BLOCK)
        )
        operations.scaled_product(x, weights, _floats(tokens, WIDTH), apart if outliers else None)

    def tensor(tokens: int, card: str) -> bool:
        return tokens > VECTOR_BATCH and card != "sm_75"  # Triton has no matrix instructions for it

    def case(kind: str, tokens: int, outliers: bool = False) -> Case:
        name = f"{kind}, both{', outliers' if outliers else ''}, {tokens}"
        kernels = ("scaled_vector_product", "scaled_tile_product")
        return Case(name, partial(product, kind, tokens, outliers), kernels, partial(tensor, tokens))

    apart = Case("columns of outliers", lambda: operations.find_outliers(_floats(16, WIDTH), 6.0), ("outlier_columns",))
    return [
        *(case(kind, tokens) for kind in KINDS for tokens in (1, 16, 512)),
        *(case("int8", tokens, outliers=True) for tokens in (1, 16)),
        apart,
        *(
            Case(f"to {kind}", partial(operations.quantize, _floats(16, WIDTH), kind), ("token_step",))
            for kind in ("mxfp8", "mxfp4", "nvfp4")
        ),
    ]


def _attention() -> list[Case]:
    """Prompts of 4096 tokens, and 16 tokens with 4096 behind each; heads of every width that is common."""

    def start(kind: str, width: int, gemma: bool) -> None:
        heads, key_heads, window, softcap = (8, 4, 1024, 50.0) if gemma else (HEADS, KEY_HEADS, 0, 0.0)
        cache = operations.make_cache(16, key_heads, 4096, width, torch.float16, "meta")
        if kind == "prompt":
            q, one = _floats(4096, heads, width), _numbers(1)
            operations.attend_prompt(q, cache, _numbers(2), one, one, 4096, 0.1, window, softcap)
        else:
            q, each = _floats(16, heads, width), _numbers(16)
            operations.attend_tokens(q, cache, each, each, 4096, 0.1, window, softcap)

    def case(kind: str, width: int, gemma: bool = False) -> Case:
        name = f"attention, {kind}, heads of {width}{', window, soft cap' if gemma else ''}"
        return Case(name, partial(start, kind, width, gemma), (f"attend_{kind}",), lambda card: card != "sm_75")

    k = _floats(16, KEY_HEADS, HEAD)
    stored = operations.make_cache(16, KEY_HEADS, 4096, HEAD, torch.float16, "meta")
    return [
        *(case(kind, width) for kind in ("prompt", "token") for width in (64, 80, 96, 128, 256)),
        *(case(kind, 256, gemma=True) for kind in ("prompt", "token")),
        Case("attention, parts", partial(start, "token", HEAD, False), ("combine_parts",)),
        Case(
            "to the cache", lambda: operations.store_cache(k, k, stored, _numbers(16), _numbers(16)), ("store_cache",)
        ),
    ]


def _caches() -> list[Case]:
    """As `_attention`, of codes: every reader and writer, heads that registers are short for, and tokens that wait."""

    def make(kind: str, width: int, more: dict[str, Any]) -> tuple[operations.Cache, operations.Waiting | None]:
        cache = operations.make_cache(16, KEY_HEADS, 4096, width, kind, "meta", **more)
        own = _floats(16, KEY_HEADS, width)
        return cache, operations.Waiting(own, own, _numbers(16), _numbers(16)) if cache.waits else None

    def token(kind: str, width: int, more: dict[str, int]) -> None:
        cache, waiting = make(kind, width, more)
        each = _numbers(16)
        operations.attend_tokens(_floats(16, HEADS, width), cache, each, each, 4096, 0.1, waiting=waiting)

    def prompt(kind: str, width: int, more: dict[str, int]) -> None:
        cache, waiting = make(kind, width, more)
        q, one = _floats(4096, HEADS, width), _numbers(1)
        if waiting is not None:
            own = _floats(4096, KEY_HEADS, width)
            waiting = operations.Waiting(own, own, one, one)
        operations.attend_prompt(q, cache, _numbers(2), one, one, 4096, 0.1, waiting=waiting)

    def store(kind: str) -> None:
        cache, waiting = make(kind, HEAD, {})
        k = _single(16, KEY_HEADS, HEAD)
        operations.store_cache(k, k, cache, _numbers(16), _numbers(16))
        if waiting is not None:
            operations.close_tokens(cache, waiting, _numbers(17), _numbers(16), _numbers(16), 1)

    def case(what: str, kind: str, width: int = HEAD, **more: int) -> Case:
        words = "".join(f", {name} {count}" for name, count in more.items())
        start = partial(token if what == "token" else prompt, kind, width, more)
        name = f"attention over {kind}{words}, {what}, heads of {width}"
        return Case(name, start, (f"attend_{what}",), lambda card: card != "sm_75")

    written = ("Q8_0", "Q4_0", "Q5_1", "IQ4_NL", "FP8", "FP8-E5M2", "INT4", "INT8-g64", "INT4-g32", "U4-g32", "LM3")
    return [
        *(case("token", kind) for kind in (*written, CHANNELS)),
        *(case("token", kind, width) for kind in ("Q8_0", "Q4_0") for width in (64, 80, 256)),
        *(case("prompt", kind) for kind in ("Q8_0", "Q4_0", "FP8", "LM3", CHANNELS)),
        *(case("prompt", kind, 256) for kind in ("Q8_0", "Q4_0")),
        *(case(what, kind, window=128, sinks=4) for what in ("token", "prompt") for kind in ("Q4_0", CHANNELS)),
        *(Case(f"to a cache of {kind}", partial(store, kind), ("store_cache",)) for kind in written),
        Case(f"to a cache of {CHANNELS}", partial(store, CHANNELS), ("close_tokens",)),
        Case("turn heads", lambda: operations.turn(_floats(16, HEADS, HEAD), torch.float16), ("turn_heads",)),
    ]


def _encoders() -> list[Case]:
    """A matrix of 4096 × 4096."""
    x = _single(WIDTH, WIDTH)
    plain: list[tuple[str, Callable[[], object], str]] = [
        ("int4 g128", lambda: operations.encode_groups(x, 4, 128, True), "encode_groups"),
        ("int4 g32, zeros", lambda: operations.encode_groups(x, 4, 32, False), "encode_groups"),
        ("int8 per row", lambda: operations.encode_groups(x, 8, WIDTH, True), "encode_groups"),
        ("E4M3 128 × 128", lambda: operations.encode_float8(x, "F8_E4M3", _single(32, 32), 128, 128), "encode_float8"),
        ("E5M2 per row", lambda: operations.encode_float8(x, "F8_E5M2", _single(WIDTH, 1), 1, WIDTH), "encode_float8"),
        ("MXFP4", lambda: operations.encode_fp4(x, 32, "E8M0"), "encode_e2m1"),
        ("NVFP4", lambda: operations.encode_fp4(x, 16, "E4M3", 0.5), "encode_e2m1"),
        ("Q4_0", lambda: operations.encode_blocks("Q4_0", x), "encode_q4_0"),
        ("Q8_0", lambda: operations.encode_blocks("Q8_0", x), "encode_q8_0"),
    ]

    def feedback() -> None:
        """Its first two blocks of columns."""
        w = _single(WIDTH, 128)
        group = _numbers(128)
        operations.feedback(w, _single(128, 128), _single(WIDTH, 1), _single(WIDTH, 1), group, _single(16))

    return [
        *(Case(f"encode {name}", start, (kernel,)) for name, start, kernel in plain),
        Case("GPTQ, a block", feedback, ("feedback_block",)),
        Case("GPTQ, what follows", feedback, ("feedback_update",)),
    ]


def cases() -> dict[str, Case]:
    """Every case by name."""
    return {case.name: case for case in (*_steps(), *_scaled(), *_attention(), *_caches(), *_encoders())}
