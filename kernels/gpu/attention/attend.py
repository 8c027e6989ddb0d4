"""Launches attention over the cache: of prompts, and of single tokens of many sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from kernels.gpu.attention import caches, softmax
from kernels.gpu.attention.grow import Waiting, check_numbers
from kernels.gpu.attention.sides import FLOATS, Cache
from kernels.gpu.configurations import attention_configuration
from kernels.gpu.launcher import card_of, launch, power_above

WIDEST_HEAD = 256
MOST_TOKENS = 65535  # that a grid has in its third dimension
EVERYTHING = 1 << 30  # the window of a token that sees all before it


@dataclass(frozen=True)
class Turning:
    """The rotary step of keys that are kept before it: tables and pairs as `operations.rotate` has them."""

    cos: torch.Tensor
    sin: torch.Tensor
    pairs: bool


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
    waiting: Waiting | None = None,
    turning: Turning | None = None,
) -> torch.Tensor:
    """Queries [M, heads, D] of prompts, or of pieces of them → [M, heads, D]; their keys are in the cache already.

    Rows starts[s] … starts[s + 1] (int32 [S + 1]) are tokens of slot sequences[s], from positions[s] on (int32 [S]).
    longest: of these runs, at least. Where q or the cache has not what these say, nothing is read, and results are NaN;
    nothing waits for the device to see it. A token sees the last `window` positions, itself included; 0: all. softcap:
    scores become softcap · tanh(score / softcap); 0: off. Query head h uses key head h · key heads // heads. waiting:
    of this batch, where some of the cache's tokens wait. turning: of keys that are kept before their rotary step.
    """
    how, share, out = _prepare(q, cache, out, "prompt")
    count = len(sequences)
    check_numbers(starts, count + 1, "starts")
    check_numbers(sequences, count, "sequences")
    check_numbers(positions, count, "positions")
    _check_masks(window, softcap, count)
    _check_waiting(cache, waiting)
    if not len(q) or not count or longest < 1:
        return out
    launch(
        softmax.attend_prompt,
        (-(-longest // how.rows), q.shape[1], count),
        *(q, *_tensors(cache, positions, waiting, turning), starts, sequences, positions, out),
        *(len(q), q.stride(0), q.stride(1), out.stride(0), out.stride(1), *_sizes(cache, turning)),
        *(float(scale), window or EVERYTHING, float(softcap)),
        **_constants(cache, turning),
        CAPPED=softcap > 0,
        SHARE=share,
        ROWS=how.rows,
        POSITIONS=how.positions,
        STAGES=how.stages,
        VECTOR=how.vector,
        warps=how.warps,
        stages=how.stages,
        registers=how.registers,
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
    waiting: Waiting | None = None,
    turning: Turning | None = None,
) -> torch.Tensor:
    """As `attend_prompt`, for tokens of any sequences, one row each: token m at positions[m] of slot sequences[m].

    longest: what any of them has behind it, at least; the past is cut in parts by it, so that a captured graph stays
    valid up to there. Parts are added in a fixed order.
    """
    how, share, out = _prepare(q, cache, out, "token")
    tokens, heads = q.shape[:2]
    check_numbers(sequences, tokens, "sequences")
    check_numbers(positions, tokens, "positions")
    key_heads, capacity, width = cache.heads, cache.capacity, cache.width
    _check_masks(window, softcap, tokens)
    _check_waiting(cache, waiting)
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
    launch(
        softmax.attend_token,
        (split, key_heads, tokens),
        *(q, *_tensors(cache, positions, waiting, turning), sequences, positions, parts, sizes),
        *(q.stride(0), q.stride(1), *strides, *_sizes(cache, turning)),
        *(float(scale), window or EVERYTHING, float(softcap)),
        **_constants(cache, turning),
        CAPPED=softcap > 0,
        SHARE=share,
        ROWS=power_above(share, 1 if how.vector else 16),
        POSITIONS=how.positions,
        SPLIT=split,
        STAGES=how.stages,
        VECTOR=how.vector,
        warps=how.warps,
        stages=how.stages,
        registers=how.registers,
    )
    if split > 1:
        launch(
            softmax.combine_parts,
            (heads, tokens),
            *(parts, sizes, out, out.stride(0), out.stride(1), heads),
            SPLIT=split,
            PARTS=power_above(split),
            WIDTH=width,
            BLOCK=power_above(width),
        )
    return out


def _tensors(
    cache: Cache, numbers: torch.Tensor, waiting: Waiting | None, turning: Turning | None
) -> tuple[torch.Tensor | float, ...]:
    """All that a kernel reads beside queries; what is not there is something of its kind that is not read."""
    keys, values = cache.keys, cache.values
    own, none = waiting or Waiting(keys.codes, values.codes, numbers, numbers), keys.table
    near = (side.codes if side.near is None else side.near for side in (keys, values))
    tables = (none, none) if turning is None else (turning.cos, turning.sin)
    root = float((cache.width & -cache.width) ** 0.5)
    return (*keys.planes, *values.planes, *near, own.keys, own.values, own.key_done, own.value_done, *tables, root)


def _sizes(cache: Cache, turning: Turning | None) -> tuple[int, ...]:
    keys, values = cache.keys, cache.values
    return (
        *(cache.sequences, cache.heads, cache.capacity, keys.rows, values.rows, keys.first, keys.ring),
        *(values.first, values.ring, cache.window, 0 if turning is None else turning.cos.shape[1]),
    )


def _constants(cache: Cache, turning: Turning | None) -> dict[str, Any]:
    keys, values = cache.keys, cache.values
    return {
        "READ_KEYS": keys.reader,
        "READ_VALUES": values.reader,
        "KEY_BITS": keys.form.bits,
        "KEY_GROUP": keys.group,
        "VALUE_BITS": values.form.bits,
        "VALUE_GROUP": values.group,
        "KEY_WAITS": keys.form.waits if keys.waits else 0,
        "VALUE_WAITS": values.form.waits if values.waits else 0,
        "ROPE": turning is not None,
        "PAIRS": turning is not None and turning.pairs,
        "UNTURN": cache.width & -cache.width if turning is not None and keys.turned else 0,
        "WIDTH": cache.width,
        "BLOCK": block_of(cache),
        "ALIGN": max(keys.form.waits, values.form.waits),
    }


def block_of(cache: Cache) -> int:
    """Values of a head in registers: with the last groups filled up, a power of two."""
    return power_above(max(cache.keys.padded, cache.values.padded))


def codes_of(cache: Cache) -> tuple[str, ...]:
    """Names of what makes some caches dearer to read than others; `configurations.json` has lines of them."""
    sides = (cache.keys, cache.values)
    if all(side.form.is_float for side in sides):
        return ()
    table = ("codes of a table",) if any(side.reader is caches.read_levels for side in sides) else ()
    return "codes", *table, *(("codes that wait",) if cache.waits else ())


def _prepare(q: torch.Tensor, cache: Cache, out: torch.Tensor | None, kind: str) -> tuple[Any, int, torch.Tensor]:
    check_cache(cache)
    key_heads, width = cache.heads, cache.width
    if q.ndim != 3 or q.shape[2] != width or q.stride(2) != 1 or q.dtype not in FLOATS.values():
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
    how = attention_configuration(card_of(q), kind, block_of(cache), q.element_size(), codes_of(cache))
    return how, q.shape[1] // key_heads, out


def _check_waiting(cache: Cache, waiting: Waiting | None) -> None:
    if cache.waits and waiting is None:
        raise ValueError("tokens of this cache wait, and where they do was not said")


def _check_masks(window: int, softcap: float, programs: int) -> None:
    if window < 0 or not 0 <= softcap < float("inf"):
        raise ValueError(f"a window of {window} and a soft cap of {softcap} are not positive, or 0 for none")
    if programs > MOST_TOKENS:
        raise ValueError(f"{programs} tokens or sequences are more than {MOST_TOKENS}, which one call takes")


def check_cache(cache: Cache) -> tuple[int, int]:
    """Key heads and the width of one. Raises ValueError for a cache that no kernel takes."""
    for side in (cache.keys, cache.values):
        codes = side.codes
        if codes.ndim != 4 or codes.shape[:2] != cache.keys.codes.shape[:2] or not codes.is_contiguous():
            raise ValueError(f"a cache is [sequences, key heads, capacity, D], not {list(codes.shape)}")
    if not 16 <= cache.width <= WIDEST_HEAD:
        raise ValueError(f"heads have 16 to {WIDEST_HEAD} values, not {cache.width}")
    return cache.heads, cache.width
