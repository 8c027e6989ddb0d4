"""The self-tests of caches in codes: what is written, bit by bit, and attention over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from kernels.gpu import operations
from kernels.gpu.attention.sides import Side, stored_rows
from kernels.gpu.runtime.held import Held
from kernels.gpu.selftest.tools import close, numbers, register, same
from kernels.kv import CACHE_FORMATS, kinds
from kernels.program import CacheLayout
from kernels.reference.arithmetic import round_f16
from kernels.reference.attention import rotate
from kernels.reference.kv import encode_group, encode_rows, hadamard
from kernels.reference.scheme_cache import SchemeCache

Watch = Callable[[operations.Cache, torch.Tensor, torch.Tensor], None]


class DrivenLayer:
    """A layer's cache as the executor drives it, beside the reference's.

    rope: frequencies, and whether neighbours turn together, of keys that are kept before their rotary step.
    """

    def __init__(
        self, layout: CacheLayout, rope: tuple[np.ndarray, bool] | None = None, device: str = "cpu",
        queries: torch.dtype = torch.float32,
    ) -> None:  # fmt: skip
        self.cache = operations.layer_cache(layout, 0, device)
        self.known, self.held = SchemeCache(layout), Held(layout)
        self._rope, self._device, self._queries = rope, device, queries
        self._turning: operations.Turning | None = None
        if rope is not None:
            angles = np.arange(layout.capacity)[:, None] * rope[0].astype(np.float64)
            cos, sin = (torch.from_numpy(f(angles).astype(np.float32)).to(device) for f in (np.cos, np.sin))
            self._turning = operations.Turning(cos, sin, rope[1])

    def step(
        self, runs: Sequence[tuple[int, int, int]], q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float,
        window: int = 0, softcap: float = 0.0, watch: Watch | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Runs of (slot, first position, tokens), each of a slot of its own, whose rows are q [M, heads, D] and k, v
        [M, key heads, D] → what the GPU's attention finds, and the reference's, float32.

        watch: is shown what attention reads and writes before it does.
        """
        cache, device = self.cache, self._device
        slots = np.concatenate([np.full(n, slot) for slot, _, n in runs])
        places = np.concatenate([np.arange(first, first + n) for _, first, n in runs])
        starts = numbers(np.cumsum([0, *(n for _, _, n in runs)]), device)
        tokens = numbers(slots, device), numbers(places, device)
        firsts = numbers([run[0] for run in runs], device), numbers([run[1] for run in runs], device)
        keys, values, queries = (torch.from_numpy(x).to(device) for x in (k, v, q))
        longest, waiting, begun = max(n for _, _, n in runs), None, None
        if cache.waits:
            begun = self.held.begin(*(np.array(part) for part in zip(*runs, strict=True)))
            for side, cut in begun.cuts:
                operations.reopen_tokens((cache.keys, cache.values)[side], numbers(cut, device))
            own = (operations.waiting_rows(x, side) for x, side in ((keys, cache.keys), (values, cache.values)))
            waiting = operations.Waiting(*own, *(numbers(done, device) for done in begun.done))
            operations.close_tokens(cache, waiting, starts, *firsts, longest)
        direct = (
            operations.turn(x, torch.float32) if side.turned and not side.waits else x
            for x, side in ((keys, cache.keys), (values, cache.values))
        )
        k_rows, v_rows = direct
        operations.store_cache(k_rows, v_rows, cache, *tokens)
        turned = cache.keys.turned and self._turning is None
        queries = operations.turn(queries, self._queries) if turned else queries.to(self._queries)
        out = torch.full(queries.shape, 7.0, device=device)
        if watch is not None:
            watch(cache, queries, out)
        how: Any = (scale, window, softcap, out, waiting, self._turning)
        if longest == 1:
            out = operations.attend_tokens(queries, cache, *tokens, int(places.max()) + 1, *how)
        else:
            out = operations.attend_prompt(queries, cache, starts, *firsts, longest, *how)
        if waiting is not None and begun is not None:
            ends = np.concatenate([np.full(n, first + n) for _, first, n in runs])
            operations.keep_tokens(cache, waiting, *tokens, numbers(ends, device))
            self.held.end(begun)
        out = operations.turn(out, torch.float32) if cache.values.turned else out
        wanted = []
        for m, (slot, place) in enumerate(zip(slots.tolist(), places.tolist(), strict=True)):
            self.known.store(slot, place, k[m].reshape(-1), v[m].reshape(-1))
            turn = self._turned if self._rope is not None else None
            wanted.append(self.known.attend(q[m], slot, place, scale, window, softcap, turn))
        return out.cpu().numpy(), np.array(wanted)

    def _turned(self, k: np.ndarray) -> np.ndarray:
        """Keys [tokens, D], from position 0 on, after their rotary step."""
        assert self._rope is not None
        return rotate(k[:, None], np.arange(len(k)), self._rope[0], 1.0, self._rope[1])[:, 0]


def wrong_bytes(side: Side, x: np.ndarray, scale: float, slot: int, head: int, count: int) -> tuple[int, int]:
    """Of the codes and scales of one head with `count` tokens x [count, D], those that are not the reference's, and how
    many there are. Every token that is old enough is a code.
    """
    name, waits = side.form.name, side.form.waits
    x = round_f16(hadamard(x) if side.turned else x) if side.waits else hadamard(x) if side.turned else x
    part = x[side.first : side.first + count]
    if side.form.channels:
        expected = np.array([encode_group(name, part[at : at + waits]) for at in range(0, count, waits)])
    else:
        expected = encode_rows(name, part, scale)
    found = stored_rows(side, slot, head, count)
    return int((found != expected.reshape(found.shape)).sum()), expected.size


def _layout(width: int, kind: str, capacity: int) -> tuple[CacheLayout, tuple[np.ndarray, bool] | None]:
    """Of a class as `runtime.needed.cache_class` writes it."""
    dtype, *words = kind.split(", ")
    scales = []
    for name in kinds(dtype):
        given = CACHE_FORMATS[name].given
        scales.append((0.06, 0.05) if given == "head" else (0.055,) if given else ())
    rope = None
    if "before the rotary step" in words:
        turned = width // 4
        rope = (10000.0 ** -(np.arange(turned) / turned)).astype(np.float32), False
    window, sinks = (20, 3) if "waiting" in words else (0, 0)
    layout = CacheLayout(((2, width),), capacity, 2, dtype, window, sinks, scales=((scales[0], scales[1]),))
    return layout, rope


def _rows(width: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((count, n, width)).astype(np.float32) for n in (8, 2, 2))
    k[:, :, :: max(width // 3, 1)] *= 4
    return q * np.float32(0.25), k, v


def written(device: str, width: int, kind: str) -> str:
    """A prompt, and tokens after it."""
    layout, rope = _layout(width, kind, 100)
    layer, (q, k, v) = DrivenLayer(layout, rope, device), _rows(width, 92, width)
    for first, last in ((0, 90), (90, 91), (91, 92)):
        layer.step([(1, first, last - first)], q[first:last], k[first:last], v[first:last], 0.1)
    for side, x, scales in ((layer.cache.keys, k, layout.scales[0][0]), (layer.cache.values, v, layout.scales[0][1])):
        if side.form.is_float:
            expected = torch.from_numpy(x.transpose(1, 0, 2).copy()).to(side.codes.dtype)
            if wrong := same(side.codes[1, :, :92].cpu().view(torch.uint8), expected.view(torch.uint8).numpy(), "rows"):
                return wrong
            continue
        waits = side.form.waits
        count = (92 - layout.window) // waits * waits - side.first if side.waits else 92
        for head in range(2):
            scale = scales[head if len(scales) > 1 else 0] if scales else 1.0
            wrong_count, size = wrong_bytes(side, x[:, head], scale, 1, head, max(count, 0))
            if wrong_count:
                return f"{wrong_count} of {size} bytes of {side.form.name} are not the reference's"
    return ""


def attended(prompt: bool, device: str, width: int, name: str, capped: bool, kind: str) -> str:
    layout, rope = _layout(width, kind, 100)
    softcap = 30.0 if capped else 0.0
    layer = DrivenLayer(layout, rope, device, getattr(torch, name))
    q, k, v = _rows(width, 130, width + 1)
    layer.step([(0, 0, 88), (1, 0, 31)], q[:119], k[:119], v[:119], width**-0.5)
    for window, first in ((0, 88), (33, 89)):
        runs = [(0, first, 7), (1, 31, 2)] if prompt else [(0, first, 1), (1, first - 57, 1)]
        rows = slice(119, 119 + sum(run[2] for run in runs))
        found, wanted = layer.step(runs, q[rows], k[rows], v[rows], width**-0.5, window, softcap)
        expected = wanted.reshape(len(wanted), -1).astype(np.float64)
        # Keys, and shares of values, are rounded to the type on their way to a product.
        if wrong := close(torch.from_numpy(found).reshape(len(found), -1), expected, name, 12, each=False):
            return wrong
    return ""


def _turn(device: str, width: int) -> str:
    x = np.random.default_rng(width).standard_normal((5, 3, width)).astype(np.float32)
    return same(operations.turn(torch.from_numpy(x).to(device), torch.float32), hadamard(x), "turned heads")


COMMON = ("Q8_0", "Q4_0", "FP8", "INT4, waiting", "U2-t32/U2-g32, waiting")
register("turn heads", _turn, (128,))
