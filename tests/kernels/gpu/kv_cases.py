"""Caches in codes under Triton's interpreter against the reference, a JSON line a case.

`kv_cases.py rows` writes rows of every format and compares bytes; `attention` reads them inside attention, and `every`
has each format with each head and context; `waiting` has windows, sinks, groups of tokens, rotation and keys before
their rotary step; `sizes` what is allocated; `refused` what is not taken.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import numpy as np
import torch
from interpreted import Traffic, exact_dot, tell

from kernels.gpu import operations
from kernels.gpu.attention import attend
from kernels.gpu.attention.sides import Side, stored_rows
from kernels.gpu.configurations import AttentionConfiguration
from kernels.gpu.runtime.held import Held
from kernels.gpu.selftest.caches import DrivenLayer as Layer
from kernels.gpu.selftest.caches import wrong_bytes
from kernels.kv import CACHE_FORMATS, kinds
from kernels.program import CacheLayout
from kernels.reference.kv import encode_rows

WIDTHS, CONTEXTS = (64, 80, 96, 128, 256), (1, 31, 32, 33, 127, 128, 129)
CODED = [name for name, form in CACHE_FORMATS.items() if not form.is_float]
ROWS = [name for name in CODED if not CACHE_FORMATS[name].channels]


def numbers(values: Any) -> torch.Tensor:
    return torch.from_numpy(np.asarray(values, np.int32).copy())


def hard(count: int, width: int, seed: int) -> np.ndarray:
    """Rows with channels that stand out, tiny, huge and equal values, zeros of both signs, and no numbers."""
    x = np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32)
    x[:, :: max(width // 3, 1)] *= 8
    if count > 12:
        x[1], x[2] = 0, -0.0
        x[3] *= np.float32(1e-6)
        x[4] *= np.float32(1e4)
        x[5] = 1.5
        x[6, ::2] = -x[6, 1::2]
        x[7] = np.round(x[7] * 4) / 4
        x[8, :5] = 0
        x[9] *= np.float32(1e-12)
        x[10, 3] = np.inf
        x[11, width - 1] = np.nan
    return x


def written(name: str, width: int) -> None:
    """The bytes that a writer leaves are the reference's, of two heads of two slots, in one call and row after row."""
    form, count, heads = CACHE_FORMATS[name], 14, 2
    given = ((0.5, 0.03), (0.25, 2.0)) if form.given == "head" else ((0.02,), (1.5,)) if form.given else ((), ())
    cache = operations.make_cache(2, heads, count + 2, width, name, "cpu", scales=given)
    single = operations.make_cache(2, heads, count + 2, width, name, "cpu", scales=given)
    k, v = (hard(2 * count * heads, width, seed).reshape(2 * count, heads, width) for seed in (1, 2))
    sequences, positions = np.repeat([1, 0], count), np.tile(np.arange(count), 2)
    keys, values = torch.from_numpy(k), torch.from_numpy(v)
    operations.store_cache(keys, values, cache, numbers(sequences), numbers(positions))
    for m in range(2 * count) if width == 80 else ():
        at = slice(m, m + 1)
        operations.store_cache(keys[at], values[at], single, numbers(sequences[at]), numbers(positions[at]))
    wrong = total = apart = 0
    for side, other, x, scales in zip(*((c.keys, c.values) for c in (cache, single)), (k, v), given, strict=True):
        for slot in range(2):
            for head in range(heads):
                scale = scales[head if len(scales) > 1 else 0] if scales else 1.0
                expected = encode_rows(name, x[sequences == slot, head], scale)
                found = stored_rows(side, slot, head, count)
                wrong, total = wrong + int((found != expected).sum()), total + expected.size
                apart += int((found != stored_rows(other, slot, head, count)).sum()) if width == 80 else 0
    beside = sum(int(side.codes[:, :, count:].max()) for side in (cache.keys, cache.values))
    tell(case="rows", name=name, width=width, wrong=wrong, bytes=total, apart=apart, beside=beside)


class Parts(AttentionConfiguration):
    """As many parts as the test says."""

    def split(self, groups: int, longest: int, share: int) -> int:
        return self.programs


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    """Of the largest value."""
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def rows_of(width: int, count: int, heads: int, seed: int) -> tuple[np.ndarray, ...]:
    """Queries of twice the heads, keys and values; keys with channels that stand out."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((count, n, width)).astype(np.float32) for n in (2 * heads, heads, heads))
    k[:, :, :: max(width // 3, 1)] *= 4
    return q, k, v


def pair(name: str) -> str:
    """Formats with scales of channels are for keys."""
    form = CACHE_FORMATS[name]
    return f"{name}/U{form.bits}-g32" if form.channels else name


def given(dtype: str) -> tuple[Any, ...]:
    names = {"tensor": (0.055,), "head": (0.06, 0.05)}
    return (tuple(names.get(CACHE_FORMATS[name].given, ()) for name in kinds(dtype)),)


def coded(side: Side, count: int, window: int) -> int:
    """Tokens that are codes when `count` are there."""
    waits = side.form.waits
    return max((count - window) // waits * waits - side.first, 0) if side.waits else count


def cut(how: AttentionConfiguration) -> None:
    attend.attention_configuration = lambda *_: how


def watched(traffic: Traffic, cache: operations.Cache, q: torch.Tensor, out: torch.Tensor) -> None:
    named: dict[str, torch.Tensor | None] = {"q": q, "out": out}
    for name, side in (("keys", cache.keys), ("values", cache.values)):
        planes = {"codes": side.codes, "high": side.high, "scales": side.scales, "near": side.near}
        named |= {f"{name} {p}": plane for p, plane in planes.items() if p == "codes" or plane is not side.codes}
    traffic.start(named)


def attended(dtype: str, width: int, context: int, traffic: Traffic) -> None:
    """A prompt that leaves one token, and that one in parts; the past of another sequence is shorter."""
    layout = CacheLayout(((2, width),), context, 2, dtype, scales=given(dtype))
    layer, (q, k, v) = Layer(layout), rows_of(width, context, 2, context)
    errors = []
    cut(Parts(0, 32, 4, 1, 1 + context // 64))
    if context > 1:
        cut(AttentionConfiguration(32, 32, 4, 1, 0))
        n = context - 1
        errors.append(error(*layer.step([(0, 0, n)], q[:n], k[:n], v[:n], width**-0.5)))
        cut(Parts(0, 32, 4, 1, 1 + context // 64))
    found, wanted = layer.step(
        [(0, context - 1, 1)], *(x[-1:] for x in (q, k, v)), width**-0.5, watch=partial(watched, traffic)
    )
    errors.append(error(found, wanted))
    sides, share = (layer.cache.keys, layer.cache.values), None
    if not layer.cache.waits:
        least = sum(2 * side.form.row_bytes(width) * context for side in sides)
        read = sum(traffic.nbytes(f"{n} {p}") for n in ("keys", "values") for p in ("codes", "high", "scales"))
        share = (read + traffic.nbytes("q") + traffic.nbytes("out")) / (least + q[-1:].nbytes + found.nbytes)
    tell(case="attention", dtype=dtype, width=width, context=context, error=max(errors), share=share)


def waited(
    dtype: str, width: int, sizes: list[int], back: tuple[int, ...] = (), sliding: int = 0, softcap: float = 0.0,
    rope: tuple[int, bool] | None = None, tile: tuple[int, int] = (32, 32), **more: Any,
) -> None:  # fmt: skip
    """Pieces of a text one after another, then again from some positions on; beside it a text of another length."""
    count = sum(sizes) + 30
    layout = CacheLayout(((2, width),), count, 3, dtype, scales=given(dtype), **more)
    turns = None
    if rope is not None:
        turns = (10000.0 ** -(np.arange(rope[0]) / rope[0])).astype(np.float32), rope[1]
    layer, (q, k, v) = Layer(layout, turns), rows_of(width, 2 * count, 2, count)
    errors, at = [], 0
    for size in sizes:
        cut(AttentionConfiguration(tile[0], tile[1], 4, 1, 0) if size > 1 else Parts(0, tile[1], 4, 1, 2))
        runs, rows = [(0, at, size)], slice(at, at + size)
        if size > 1 and at == 0:
            runs.append((2, at, 5))
            rows = np.r_[at : at + size, count + at : count + at + 5]
        elif size == 1 and at % 2 and layer.held.count[2]:
            runs.append((2, int(layer.held.count[2]), 1))
            rows = np.r_[at : at + 1, count + at : count + at + 1]
        errors.append(error(*layer.step(runs, q[rows], k[rows], v[rows], width**-0.5, sliding, softcap)))
        at += size
    wrong = 0
    for side, x, scales in zip((layer.cache.keys, layer.cache.values), (k, v), layout.scales[0], strict=True):
        for head in range(0 if side.form.is_float else 2):
            scale = scales[head % len(scales)] if scales else 1.0
            wrong += wrong_bytes(side, x[:at, head], scale, 0, head, coded(side, at, layout.window))[0]
    for place in back:
        size = 7 if place % 2 else 1
        cut(AttentionConfiguration(tile[0], tile[1], 4, 1, 0) if size > 1 else Parts(0, tile[1], 4, 1, 2))
        rows = slice(count + place, count + place + size)
        errors.append(error(*layer.step([(0, place, size)], q[rows], k[rows], v[rows], width**-0.5, sliding, softcap)))
    tell(case="waiting", dtype=dtype, width=width, sizes=len(sizes), more=str(more), sliding=sliding, rope=rope,
         wrong=wrong, error=max(errors))  # fmt: skip


def every() -> None:
    traffic = Traffic(("q",))
    for name in CODED:
        for width in WIDTHS:
            for context in CONTEXTS:
                attended(pair(name), width, context, traffic)


def some() -> None:
    """Every format with one head and context, a few with every head and every context."""
    traffic = Traffic(("q",))
    for name in CODED:
        attended(pair(name), 80, 65, traffic)
    for width in WIDTHS:
        attended("Q4_0", width, 33, traffic)
    for name in ("Q8_0", "U4-t32"):
        for context in CONTEXTS:
            attended(pair(name), 64, context, traffic)
    for dtype in ("Q8_0/Q4_0", "F16/LM3", "INT4/BF16"):
        attended(dtype, 96, 70, traffic)


def waiting() -> None:
    both = {"rotate_keys": True, "rotate_values": True}
    for sizes in ([40], [1] * 40, [21, 1, 11, 7]):  # all at once, one by one, in pieces
        waited("Q4_0", 64, sizes, window=14, sinks=3)
    for sizes in ([92], [1] * 92, [31, 1, 41, 19]):
        waited("U2-t32/U2-g32", 64, sizes, window=20, sinks=3)
    waited("U4-t32/U4-g32", 80, [70, 1, 1, 20, 1], (77, 64, 41, 4), **both)
    waited("Q4_0", 64, [50, 1, 1, 40, 1], (77, 64, 12, 3), sinks=5, **both)
    waited("U4-t32/LM3", 64, [60, 1, 1, 40, 1], (97, 64, 41), sinks=5, window=20, rotate_values=True)
    waited("F16/Q5_1", 80, [50, 1, 1, 40, 1], (77, 64, 12, 3), sliding=40, softcap=20.0, sinks=5, window=20)
    waited("Q8_0", 80, [50, 1, 1, 40, 1], (77,), rope=(20, False), tile=(16, 64), window=20)
    waited("U2-t32/U2-g32", 64, [70, 1, 1, 20, 1], (77,), rope=(32, True), tile=(32, 16))
    waited("INT4", 96, [50, 1, 1, 40, 1], (77,), rope=(24, True), rotate_keys=True, window=10)
    waited("FP8-head", 128, [50, 1], (33,), rope=(64, False))


def refused() -> None:
    """What no kernel takes, in a clause, before anything is started."""
    held = Held(CacheLayout(((2, 64),), 64, 1, "Q4_0", 16))
    one, wait = numbers([0]), operations.make_cache(1, 2, 64, 64, "Q4_0", "cpu", window=16)
    q = torch.zeros((1, 4, 64))
    tries = {
        "format": lambda: operations.make_cache(1, 2, 64, 64, "Q9", "cpu"),
        "scales": lambda: operations.make_cache(1, 2, 64, 64, "FP8", "cpu", scales=((1.0, 1.0, 1.0), ())),
        "gap": lambda: held.begin(np.array([0]), np.array([3]), np.array([1])),
        "waiting": lambda: operations.attend_tokens(q, wait, one, one, 8, 1.0),
    }
    for what, start in tries.items():
        try:
            start()
        except ValueError as reason:
            tell(refused=what, reason=str(reason))


def sizes() -> None:
    """What is taken beside what is planned, with a context that people have; the given scales of FP8 apart."""
    for dtype, more in (
        *((pair(name), {}) for name in CODED),
        *((pair(name), {"window": 128, "sinks": 4}) for name in ("Q4_0", "INT8", "U2-t32", "LM2")),
    ):
        layout = CacheLayout(((2, 128), (2, 128)), 4096, 3, dtype, kept=frozenset([1]), **more)
        taken = sum(operations.layer_cache(layout, layer, "meta").nbytes for layer in range(2))
        tell(case="size", dtype=dtype, more=more, planned=layout.nbytes, taken=taken)


if __name__ == "__main__":
    exact_dot()
    work = {"attention": some, "every": every, "waiting": waiting, "refused": refused, "sizes": sizes}
    for asked in sys.argv[1:]:
        if asked == "rows":
            for name in ROWS:
                written(name, 64)
                written(name, 80)
        else:
            work[asked]()
