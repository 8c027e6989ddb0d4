"""Launches what brings keys and values into the cache, and turns heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kernels.gpu.attention import growth, turning
from kernels.gpu.attention.sides import FLOATS, Cache, Side
from kernels.gpu.launcher import launch, power_above

_VALUES = 2048  # that a program of a writer has in registers, about
_CLOSED = 32  # tokens of a program that makes codes of more than one


@dataclass(frozen=True)
class Waiting:
    """Of a batch, where some of the cache's tokens wait.

    keys, values: its rows as they wait, float16 [M, key heads, D], contiguous, of a side that does; key_done,
    value_done: up to where a run's sequence is codes before it, int32 [runs].
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_done: torch.Tensor
    value_done: torch.Tensor


def turn(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Heads […, D] turned by `kernels.reference.kv.hadamard` → alike, contiguous, of another type."""
    x = x.contiguous()
    size = x.shape[-1] & -x.shape[-1]
    runs = x.numel() // size
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    root = torch.full((1,), size**0.5, dtype=torch.float64, device=x.device)
    rows = max(_VALUES // size, 1)
    if runs:
        launch(turning.turn_heads, (-(-runs // rows),), x, out, runs, root, SIZE=size, ROWS=rows, fusion=False)
    return out


def waiting_rows(x: torch.Tensor, side: Side) -> torch.Tensor:
    """Heads [M, key heads, D] as they wait, and as they become codes: turned where the side is, in float16."""
    return turn(x, torch.float16) if side.turned else x.to(torch.float16).contiguous()


def store_cache(
    k: torch.Tensor, v: torch.Tensor, cache: Cache, sequences: torch.Tensor, positions: torch.Tensor
) -> None:
    """k, v floats [M, key heads, D] into the cache: token m at positions[m] of slot sequences[m], int32 [M].

    Of sides whose tokens wait, nothing is stored. A slot or position that the cache has not is left out, silently:
    nothing waits for the device.
    """
    heads, width, keys, values = cache.heads, cache.width, cache.keys, cache.values
    for tensor in (k, v):
        if tensor.ndim != 3 or tensor.shape[1:] != (heads, width) or tensor.shape != k.shape or tensor.stride(2) != 1:
            raise ValueError(f"keys and values are [M, {heads}, {width}], not {list(tensor.shape)}")
        if tensor.dtype not in FLOATS.values():
            raise ValueError(f"keys and values are floats, not {tensor.dtype}")
    check_numbers(sequences, len(k), "sequences")
    check_numbers(positions, len(k), "positions")
    if not len(k) or (keys.waits and values.waits):
        return
    block = power_above(max(keys.padded, values.padded))
    rows = max(min(power_above(heads), _VALUES // block), 1)
    launch(
        growth.store_cache,
        (len(k), -(-heads // rows)),
        *(k, v, *keys.planes, *values.planes, sequences, positions, k.stride(0), k.stride(1), v.stride(0), v.stride(1)),
        *(heads, cache.capacity, cache.sequences),
        WRITE_KEYS=keys.writer,
        WRITE_VALUES=values.writer,
        KEYS=not keys.waits,
        VALUES=not values.waits,
        KEY_BITS=keys.form.bits,
        KEY_GROUP=keys.group,
        VALUE_BITS=values.form.bits,
        VALUE_GROUP=values.group,
        WIDTH=width,
        BLOCK=block,
        ROWS=rows,
        fusion=False,
    )


def close_tokens(
    cache: Cache, waiting: Waiting, starts: torch.Tensor, sequences: torch.Tensor, positions: torch.Tensor, longest: int
) -> None:
    """What is old enough, once all of the batch are there, becomes codes. Runs as of `attend_prompt`."""
    count = len(sequences)
    for side, own, done in (
        (cache.keys, waiting.keys, waiting.key_done),
        (cache.values, waiting.values, waiting.value_done),
    ):
        if not side.waits or not count or not side.rows:
            continue
        check_numbers(done, count, "ends of codes")
        block = power_above(side.padded)
        rows = side.form.waits
        if rows == 1:
            rows = min(power_above(longest), _CLOSED, max(2 * _VALUES // block, 1))
        # A step of `longest` tokens makes codes of that many at most, and of one group more.
        programs = -(-longest // rows) + (rows > 1)
        launch(
            growth.close_tokens,
            (programs, cache.heads, count),
            *(own, side.near, *side.planes, starts, sequences, positions, done),
            *(cache.sequences, cache.capacity, cache.heads, side.first, side.ring, side.rows, cache.window),
            WRITE=side.writer,
            WAITS=side.form.waits,
            BITS=side.form.bits,
            GROUP=side.group,
            WIDTH=side.width,
            BLOCK=block,
            ROWS=rows,
            fusion=False,
        )


def keep_tokens(
    cache: Cache, waiting: Waiting, sequences: torch.Tensor, positions: torch.Tensor, ends: torch.Tensor
) -> None:
    """The batch's own rows to where they wait, once it has attended. ends: tokens of its sequence then, int32 [M]."""
    for side, own in ((cache.keys, waiting.keys), (cache.values, waiting.values)):
        if not side.waits or not len(own):
            continue
        check_numbers(ends, len(own), "ends")
        block = power_above(side.width)
        rows = max(min(power_above(cache.heads), _VALUES // block), 1)
        launch(
            growth.keep_tokens,
            (len(own), -(-cache.heads // rows)),
            *(own, side.near, sequences, positions, ends),
            *(cache.sequences, cache.capacity, cache.heads, side.first, side.ring),
            WIDTH=side.width,
            BLOCK=block,
            ROWS=rows,
        )


def reopen_tokens(side: Side, cut: torch.Tensor) -> None:
    """Tokens that are codes wait again, as what they had become: a slot and a range from the begin of a group on, as
    cut int32 [3].
    """
    assert side.near is not None
    launch(
        growth.reopen_tokens,
        (side.codes.shape[1],),
        *(side.near, *side.planes, cut, side.codes.shape[1], side.first, side.ring, side.rows),
        READ=side.reader,
        BITS=side.form.bits,
        GROUP=side.group,
        WIDTH=side.width,
        BLOCK=power_above(side.padded),
        ROWS=side.form.waits,
        fusion=False,
    )


def check_numbers(numbers: torch.Tensor, count: int, what: str) -> None:
    """Raises ValueError for what is not `count` numbers as kernels take them."""
    if numbers.dtype != torch.int32 or numbers.shape != (count,) or not numbers.is_contiguous():
        raise ValueError(f"{what} are int32 [{count}], not {numbers.dtype} {list(numbers.shape)}")
