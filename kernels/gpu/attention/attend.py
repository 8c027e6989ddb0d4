"""Launches attention over the cache: of prompts, and of single tokens of many sequences; and fills the cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.gpu.attention import caches, softmax
from kernels.gpu.configurations import attention_configuration
from kernels.gpu.launcher import card_of, launch, power_above
from kernels.gpu.steps.apply import FLOATS

WIDEST_HEAD = 256
MOST_TOKENS = 65535  # that a grid has in its third dimension
EVERYTHING = 1 << 30  # the window of a token that sees all before it
# Kind of cache → its reader and writer in `caches`.
KINDS: dict[str, tuple[Any, Any]] = {"floats": (caches.read_floats, caches.write_floats)}


@dataclass(frozen=True)
class Cache:
    """Keys and values of one layer. kind: of `KINDS`.

    keys, values: [sequences, key heads, capacity, D], contiguous, float16, bfloat16 or float32. key_scales,
    value_scales: of kinds that have codes, with a scale for `group` values.
    """

    keys: torch.Tensor
    values: torch.Tensor
    kind: str = "floats"
    key_scales: torch.Tensor | None = None
    value_scales: torch.Tensor | None = None
    group: int = 0

    @property
    def planes(self) -> tuple[torch.Tensor, ...]:
        keys = self.keys if self.key_scales is None else self.key_scales
        return self.keys, keys, self.values, self.values if self.value_scales is None else self.value_scales


def make_cache(sequences: int, heads: int, capacity: int, width: int, dtype: torch.dtype, device: str) -> Cache:
    """An empty cache of floats for one layer."""
    if dtype not in FLOATS:
        raise ValueError(f"a cache is of 16-bit floats or float32, not {dtype}")
    shape = (sequences, heads, capacity, width)
    return Cache(*(torch.zeros(shape, dtype=dtype, device=device) for _ in range(2)))


def store_cache(
    k: torch.Tensor, v: torch.Tensor, cache: Cache, sequences: torch.Tensor, positions: torch.Tensor
) -> None:
    """k, v floats [M, key heads, D] into the cache: token m at positions[m] of slot sequences[m], int32 [M].

    A slot or position that the cache has not is left out, silently: nothing waits for the device.
    """
    count, heads, capacity, width = _check_cache(cache)
    for tensor in (k, v):
        if tensor.ndim != 3 or tensor.shape[1:] != (heads, width) or tensor.shape != k.shape or tensor.stride(2) != 1:
            raise ValueError(f"keys and values are [M, {heads}, {width}], not {list(tensor.shape)}")
    _check_numbers(sequences, len(k), "sequences")
    _check_numbers(positions, len(k), "positions")
    block = power_above(width)
    rows = max(min(power_above(heads), 2048 // block), 1)
    launch(
        softmax.store_cache,
        (len(k), -(-heads // rows)),
        *(k, v, *cache.planes, sequences, positions, k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
        *(heads, capacity, count),
        WRITE=KINDS[cache.kind][1],
        WIDTH=width,
        GROUP=cache.group,
        BLOCK=block,
        ROWS=rows,
    )


def attend_prompt(
    q: torch.Tensor,
    cache: Cache,
    starts: torch.Tensor,
    sequences: torch.Tensor,
    positions: torch.Tensor,
    longest: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Queries [M, heads, D] of prompts, or of pieces of them → [M, heads, D]; their keys are in the cache already.

    Rows starts[s] … starts[s + 1] (int32 [S + 1]) are tokens of slot sequences[s], from positions[s] on (int32 [S]).
    longest: of these runs, at least. Where q or the cache has not what these say, nothing is read, and results are NaN;
    nothing waits for the device to see it. A token sees the last `window` positions, itself included; 0: all. softcap:
    scores become softcap · tanh(score / softcap); 0: off. Query head h uses key head h · key heads // heads.
    """
    how, share, out = _prepare(q, cache, out, "prompt")
    count = len(sequences)
    _check_numbers(starts, count + 1, "starts")
    _check_numbers(sequences, count, "sequences")
    _check_numbers(positions, count, "positions")
    slots, heads, capacity, width = cache.keys.shape
    _check_masks(window, softcap, count)
    if not len(q) or not count or longest < 1:
        return out
    launch(
        softmax.attend_prompt,
        (-(-longest // how.rows), q.shape[1], count),
        *(q, *cache.planes, starts, sequences, positions, out),
        *(len(q), q.stride(0), q.stride(1), out.stride(0), out.stride(1), slots, heads, capacity),
        *(float(scale), window or EVERYTHING, float(softcap)),
        READ=KINDS[cache.kind][0],
        CAPPED=softcap > 0,
        SHARE=share,
        WIDTH=width,
        GROUP=cache.group,
        BLOCK=power_above(width),
        ROWS=how.rows,
        POSITIONS=how.positions,
        STAGES=how.stages,
        VECTOR=how.vector,
        warps=how.warps,
        stages=how.stages,
    )
    return out


def attend_tokens(
    q: torch.Tensor,
    cache: Cache,
    sequences: torch.Tensor,
    positions: torch.Tensor,
    longest: int,
    scale: float,
    window: int = 0,
    softcap: float = 0.0,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """As `attend_prompt`, for tokens of any sequences, one row each: token m at positions[m] of slot sequences[m].

    longest: what any of them has behind it, at least; the past is cut in parts by it, so that a captured graph stays
    valid up to there. Parts are added in a fixed order.
    """
    how, share, out = _prepare(q, cache, out, "token")
    tokens, heads = q.shape[:2]
    _check_numbers(sequences, tokens, "sequences")
    _check_numbers(positions, tokens, "positions")
    slots, key_heads, capacity, width = cache.keys.shape
    _check_masks(window, softcap, tokens)
    if not tokens:
        return out
    longest = min(longest, capacity)
    split = how.split(tokens * key_heads, min(longest, window or longest), share)
    parts, sizes = out, out
    strides = (out.stride(0), out.stride(1))
    if split > 1:
        parts = torch.empty((tokens, heads, split, width), dtype=torch.float32, device=q.device)
        sizes = torch.empty((tokens, heads, split), dtype=torch.float32, device=q.device)
        strides = (parts.stride(0), parts.stride(1))
    block = power_above(width)
    launch(
        softmax.attend_token,
        (split, key_heads, tokens),
        *(q, *cache.planes, sequences, positions, parts, sizes, q.stride(0), q.stride(1), *strides),
        *(slots, key_heads, capacity, float(scale), window or EVERYTHING, float(softcap)),
        READ=KINDS[cache.kind][0],
        CAPPED=softcap > 0,
        SHARE=share,
        WIDTH=width,
        GROUP=cache.group,
        BLOCK=block,
        ROWS=power_above(share, 1 if how.vector else 16),
        POSITIONS=how.positions,
        SPLIT=split,
        STAGES=how.stages,
        VECTOR=how.vector,
        warps=how.warps,
        stages=how.stages,
    )
    if split > 1:
        launch(
            softmax.combine_parts,
            (heads, tokens),
            *(parts, sizes, out, out.stride(0), out.stride(1), heads),
            SPLIT=split,
            PARTS=power_above(split),
            WIDTH=width,
            BLOCK=block,
        )
    return out


def _prepare(q: torch.Tensor, cache: Cache, out: torch.Tensor | None, kind: str) -> tuple[Any, int, torch.Tensor]:
    _, key_heads, _, width = _check_cache(cache)
    if q.ndim != 3 or q.shape[2] != width or q.stride(2) != 1 or q.dtype not in FLOATS:
        raise ValueError(
            f"queries are floats [M, heads, {width}], each head in one piece, not {q.dtype} {list(q.shape)}"
        )
    if q.shape[1] % key_heads:
        raise ValueError(f"{q.shape[1]} query heads do not share {key_heads} key heads evenly")
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
    if out.shape != q.shape or out.stride(2) != 1:
        raise ValueError(f"the result has the shape of the queries, {list(q.shape)}, not {list(out.shape)}")
    if kind == "prompt" and max(q.stride(1), out.stride(1)) * q.shape[1] >= 1 << 31:
        raise ValueError("heads of a token lie further apart than 32 bits reach")
    how = attention_configuration(card_of(q), kind, power_above(width), q.element_size())
    return how, q.shape[1] // key_heads, out


def _check_masks(window: int, softcap: float, programs: int) -> None:
    if window < 0 or not 0 <= softcap < float("inf"):
        raise ValueError(f"a window of {window} and a soft cap of {softcap} are not positive, or 0 for none")
    if programs > MOST_TOKENS:
        raise ValueError(f"{programs} tokens or sequences are more than {MOST_TOKENS}, which one call takes")


def _check_cache(cache: Cache) -> tuple[int, int, int, int]:
    if cache.kind not in KINDS:
        raise ValueError(f"caches are of {', '.join(KINDS)}, not {cache.kind}")
    for plane in (cache.keys, cache.values):
        if plane.ndim != 4 or plane.shape != cache.keys.shape or not plane.is_contiguous():
            raise ValueError(f"a cache is [sequences, key heads, capacity, D], not {list(plane.shape)}")
    sequences, heads, capacity, width = cache.keys.shape
    if not 16 <= width <= WIDEST_HEAD:
        raise ValueError(f"heads have 16 to {WIDEST_HEAD} values, not {width}")
    return sequences, heads, capacity, width


def _check_numbers(numbers: torch.Tensor, count: int, what: str) -> None:
    if numbers.dtype != torch.int32 or numbers.shape != (count,) or not numbers.is_contiguous():
        raise ValueError(f"{what} are int32 [{count}], not {numbers.dtype} {list(numbers.shape)}")
