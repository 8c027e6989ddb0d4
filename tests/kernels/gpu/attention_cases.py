"""Attention under Triton's interpreter against float64, a JSON line a case: all widths, contexts and batches."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from interpreted import Traffic, exact_dot, tell

from kernels.gpu import operations
from kernels.gpu.attention import attend
from kernels.gpu.configurations import AttentionConfiguration
from kernels.reference.attention import LayerCache

WIDTHS, CONTEXTS, BATCHES = (64, 80, 96, 128, 256), (1, 31, 32, 33, 127, 129, 4096), (1, 3, 16, 33)
LONG = 1000  # positions, from which on one token alone is tried
DTYPES = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}


def filled(
    slots: int, heads: int, capacity: int, width: int, dtype: str
) -> tuple[operations.Cache, LayerCache, np.random.Generator]:
    """Both caches with the same keys and values everywhere, through `store_cache`."""
    rng = np.random.default_rng(capacity * 1000 + width)
    cache = operations.make_cache(slots, heads, capacity, width, DTYPES[dtype], "cpu")
    known = LayerCache(slots, capacity, heads, width, dtype)
    k, v = rng.standard_normal((2, slots * capacity, heads, width)).astype(np.float32)
    sequences, positions = np.repeat(np.arange(slots), capacity), np.tile(np.arange(capacity), slots)
    known.store(sequences, positions, k.reshape(len(k), -1), v.reshape(len(v), -1))
    for side, stored in ((cache.keys, known.keys), (cache.values, known.values)):
        side.codes.copy_(torch.from_numpy(stored.transpose(0, 2, 1, 3).copy()).to(DTYPES[dtype]))
    return cache, known, rng


def numbers(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.int32).copy())


def expected(
    q: torch.Tensor, known: LayerCache, sequences: Any, positions: Any, scale: float, window: int, softcap: float
) -> np.ndarray:
    rows = q.to(torch.float32).numpy()
    return np.stack(
        [
            known.attend(rows[m], int(s), int(p), scale, window, softcap)
            for m, (s, p) in enumerate(zip(sequences, positions, strict=True))
        ]
    )


def error(found: torch.Tensor, wanted: np.ndarray) -> float:
    """Of the largest value."""
    return float(np.abs(found.to(torch.float32).numpy() - wanted).max() / np.abs(wanted).max())


def tokens(
    traffic: Traffic, batch: int, context: int, width: int, shape: tuple[int, int], dtype: str, split: int,
    window: int = 0, softcap: float = 0.0,
) -> None:  # fmt: skip
    """Single tokens of many sequences, each with a past of its own length; the last has all of `context`."""
    heads, key_heads = shape
    slots = min(batch, 4)
    cache, known, rng = filled(slots, key_heads, context, width, dtype)
    positions = rng.integers(0, context, batch)
    positions[-1] = context - 1
    sequences = rng.integers(0, slots, batch)
    q = torch.from_numpy(rng.standard_normal((batch, heads, width)).astype(np.float32)).to(DTYPES[dtype])
    scale = width**-0.5
    attend.attention_configuration = lambda *_: Parts(0, 32, 4, 2, split)
    out = torch.empty_like(q)
    traffic.start({"keys": cache.keys.codes, "values": cache.values.codes, "q": q, "out": out})
    found = operations.attend_tokens(
        q, cache, numbers(sequences), numbers(positions), context, scale, window, softcap, out
    )
    wanted = expected(q, known, sequences, positions, scale, window, softcap)
    past = np.minimum(positions + 1, window or context).sum()
    least = 2 * past * key_heads * width * q.element_size()
    tell(
        case="token", batch=batch, context=context, width=width, heads=shape, dtype=dtype, split=split, window=window,
        softcap=softcap, error=error(found, wanted),
        share=(sum(map(traffic.nbytes, ("keys", "values", "q", "out")))) / (least + q.nbytes + out.nbytes),
    )  # fmt: skip


class Parts(AttentionConfiguration):
    """As many parts as the test says."""

    def split(self, groups: int, longest: int, share: int) -> int:
        return self.programs


def prompt(
    runs: list[tuple[int, int, int]], width: int, shape: tuple[int, int], dtype: str, window: int = 0,
    softcap: float = 0.0, rows: int = 32,
) -> None:  # fmt: skip
    """Runs of (slot, first position, tokens) in one batch."""
    heads, key_heads = shape
    capacity = max(first + count for _, first, count in runs)
    cache, known, rng = filled(max(slot for slot, _, _ in runs) + 1, key_heads, capacity, width, dtype)
    sequences = np.concatenate([np.full(count, slot) for slot, _, count in runs])
    positions = np.concatenate([np.arange(first, first + count) for _, first, count in runs])
    whole = torch.from_numpy(rng.standard_normal((len(positions), heads + 2, width)).astype(np.float32))
    q = whole.to(DTYPES[dtype])[:, 1:-1]  # a part of a fused projection
    starts = np.cumsum([0, *(count for _, _, count in runs)])
    attend.attention_configuration = lambda *_: AttentionConfiguration(rows, 32, 4, 2, 0)
    found = operations.attend_prompt(
        q, cache, numbers(starts), numbers([slot for slot, _, _ in runs]), numbers([first for _, first, _ in runs]),
        max(count for _, _, count in runs), width**-0.5, window, softcap,
    )  # fmt: skip
    wanted = expected(q, known, sequences, positions, width**-0.5, window, softcap)
    tell(
        case="prompt", batch=len(runs), context=capacity, width=width, heads=shape, dtype=dtype, window=window,
        softcap=softcap, error=error(found, wanted),
    )  # fmt: skip


def storing() -> None:
    """What is outside of the cache is left out; all else is where it belongs, and nothing beside it is touched."""
    rng = np.random.default_rng(3)
    for dtype, width in (("F16", 80), ("BF16", 64), ("F32", 96)):
        cache = operations.make_cache(2, 3, 5, width, DTYPES[dtype], "cpu")
        k, v = (torch.from_numpy(rng.standard_normal((4, 3, width)).astype(np.float32)) for _ in range(2))
        sequences, positions = [1, 0, 2, 1], [4, 0, 1, 5]
        operations.store_cache(k, v, cache, numbers(sequences), numbers(positions))
        wanted = [torch.zeros_like(cache.keys.codes) for _ in range(2)]
        for plane, source in zip(wanted, (k, v), strict=True):
            plane[1, :, 4], plane[0, :, 0] = source[0].to(plane.dtype), source[1].to(plane.dtype)
        near = 2.0**-7 if dtype == "BF16" else 0  # the interpreter cuts bfloat16 off
        same = all(
            torch.allclose(side.codes.float(), one.float(), rtol=near, atol=0)
            for side, one in zip((cache.keys, cache.values), wanted, strict=True)
        )
        tell(case="store", dtype=dtype, same=same)


def refused() -> None:
    cache = operations.make_cache(1, 2, 8, 64, torch.float16, "cpu")
    one, q = numbers([0]), torch.zeros((1, 4, 64), dtype=torch.float16)
    tries = {
        "heads": lambda: operations.attend_tokens(torch.zeros((1, 3, 64)), cache, one, one, 8, 1.0),
        "width": lambda: operations.attend_tokens(torch.zeros((1, 4, 80)), cache, one, one, 8, 1.0),
        "wide": lambda: operations.attend_tokens(
            torch.zeros((1, 2, 512)), operations.make_cache(1, 2, 8, 512, torch.float16, "cpu"), one, one, 8, 1.0
        ),
        "numbers": lambda: operations.attend_tokens(q, cache, one.long(), one, 8, 1.0),
    }
    for what, start in tries.items():
        try:
            start()
        except ValueError as reason:
            tell(refused=what, reason=str(reason))


def main() -> None:
    traffic = Traffic(("q",))
    exact_dot()
    for width in WIDTHS:
        for context in CONTEXTS:
            for batch in BATCHES if context < LONG else (1,):
                tokens(traffic, batch, context, width, (2, 1), "F32", 1 + context // 100)
            prompt([(0, max(context - 70, 0), min(context, 70))], width, (2, 1), "F32")
    for batch, context, width, shape, dtype, split, window, softcap in (
        (1, 1, 64, (4, 4), "F32", 1, 0, 0.0), (3, 31, 80, (4, 2), "F32", 1, 0, 0.0),
        (16, 32, 96, (2, 1), "F32", 2, 0, 0.0), (33, 33, 64, (3, 1), "F32", 1, 0, 30.0),
        (3, 127, 128, (8, 2), "F32", 3, 50, 0.0), (1, 129, 256, (4, 2), "F32", 2, 0, 50.0),
        (3, 129, 64, (4, 4), "F16", 5, 0, 0.0), (3, 33, 256, (4, 2), "F16", 1, 0, 0.0),
        (16, 31, 128, (2, 2), "F16", 1, 0, 0.0), (1, 500, 80, (18, 1), "BF16", 4, 100, 20.0),
    ):  # fmt: skip
        tokens(traffic, batch, context, width, shape, dtype, split, window, softcap)
    for runs, width, shape, dtype, window, softcap in (
        ([(0, 0, 1)], 64, (4, 4), "F32", 0, 0.0),
        ([(0, 0, 33), (2, 5, 31), (1, 100, 3)], 80, (4, 2), "F32", 0, 0.0),
        ([(1, 0, 127)], 96, (2, 1), "F32", 40, 0.0),
        ([(0, 3, 16), (1, 0, 40)], 128, (2, 2), "F32", 0, 25.0),
        ([(0, 64, 65)], 256, (2, 1), "F32", 33, 50.0),
        ([(0, 0, 70)], 64, (4, 2), "F16", 0, 0.0),
        ([(0, 10, 20)], 80, (2, 1), "BF16", 0, 0.0),
    ):
        prompt(runs, width, shape, dtype, window, softcap)
    storing()
    refused()


if __name__ == "__main__":
    sys.exit(main())
