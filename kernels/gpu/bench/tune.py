"""Searches how products are cut up on this card, and keeps the quickest in the user's cache folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kernels.gpu import configurations
from kernels.gpu.bench.clock import Clock, OutOfTime
from kernels.gpu.bench.peers import why
from kernels.gpu.bench.step import made_up
from kernels.gpu.configurations import VECTOR, Configuration
from kernels.gpu.launcher import card_of
from kernels.gpu.products import weight_only

if TYPE_CHECKING:
    from kernels.gpu.bench.run import Sizes

_BATCHES = (1, 2, 4, 16, 32, 64)


def candidates(first: Configuration, tiles: int, small: bool) -> Iterator[Configuration]:
    """Others than the table's, which is the first; one thing changes at a time, and then rows together with warps."""
    yield first
    splits = [split for split in (1, 2, 4, 8, 16) if split <= max(tiles // 2, 1)]
    yield from (replace(first, split=split) for split in splits)
    if small:
        return
    heights = (16, 32, 64) if first.regime == VECTOR else (32, 64, 128)
    for rows in heights:
        for warps in (2, 4, 8):
            yield from (replace(first, rows=rows, warps=warps, split=split) for split in splits)
    if first.regime != VECTOR:
        yield from (replace(first, stages=stages, unrolled=flag) for stages in (1, 2, 3, 4) for flag in (True, False))


def tune(clock: Clock, sizes: Sizes, seconds: float, say: Callable[[str], None]) -> int:
    """How many configurations are new for this card. A candidate that does not compile, or is wrong, is left out."""
    kept = 0
    batches = _BATCHES[:2] if sizes.small else _BATCHES
    work = [(name, shape, batch) for name in ("int4 g128", "Q4_K") for shape in sizes.shapes for batch in batches]
    for number, (name, (rows, columns), batch) in enumerate(work):
        try:
            with clock.section(seconds / len(work)):
                found = _best(clock, sizes, name, rows, columns, batch)
        except OutOfTime:
            continue
        if found is None:
            continue
        weights, before, best, gain = found
        if best != before:
            tiles = weights.form.tiles(columns)
            key = configurations.tuned_key(batch, rows, weights.form.words, tiles, weights.nbytes)
            configurations.keep_tuned(card_of(weights.low), key, best)
            kept += 1
        what = f"{name}, {rows} × {columns}, {batch} tokens"
        say(f"tuned {number + 1} of {len(work)}: {what}: {best.short}, {gain:.2f} × as quick")
    return kept


def _best(clock: Clock, sizes: Sizes, name: str, rows: int, columns: int, batch: int) -> Any:
    weights = made_up(name, rows, columns, clock.device)
    copies = [weights, *(made_up(name, rows, columns, clock.device) for _ in range(clock.copies(weights.nbytes) - 1))]
    x = torch.randn(batch, columns, device=clock.device).to(torch.float16)
    first = weight_only.chosen(weights, batch)
    expected = weight_only.product(x, weights, first).float()
    times: dict[Configuration, float] = {}
    for how in dict.fromkeys(candidates(first, weights.form.tiles(columns), sizes.small)):
        try:
            found = weight_only.product(x, weights, how).float()
            if (found - expected).abs().max() > 1e-4 * expected.abs().max():
                continue
            times[how] = clock.time([partial(weight_only.product, x, w, how) for w in copies]).seconds
        except OutOfTime:
            break
        except Exception as error:
            if "illegal" in why(error) or "lost" in why(error):
                raise
    if first not in times:
        return None
    best = min(times, key=times.__getitem__)
    return weights, first, best, times[first] / times[best]
