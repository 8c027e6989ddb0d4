"""How long a step takes with so many tokens in the cache, in each scheme, and how much of it attention takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np

from core.errors import UserError
from core.hardware.cpu import memory
from core.kv.compare import Held
from core.kv.layout import cache_layout
from core.kv.scheme import CacheScheme
from core.progress import CancelToken
from core.runtime.generate import PROMPT_BATCH
from core.runtime.model import Model
from core.runtime.steps import Watch, step
from core.threads import worker_count
from core.units import format_bytes, format_count
from kernels.engine import Engine

CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768)
ROUNDS = 5  # steps of each scheme at a context, in turn; the median counts
PROFILED = 3  # steps of which every part is timed
_ATTENTION = "Attention"  # the name of that step in an engine's times


@dataclass(frozen=True)
class ContextPoint:
    """seconds: of a step with `context` tokens in the cache. attention: share of it, 0 to 1."""

    scheme: CacheScheme
    context: int
    seconds: float
    attention: float

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return 1 / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Filling:
    """share: of all tokens that are written before the last measurement, 0 to 1. context: the one that comes next."""

    context: int
    share: float


@dataclass(frozen=True)
class ContextSweep:
    """points: context by context, each with every scheme."""

    points: tuple[ContextPoint, ...]

    def of(self, scheme: CacheScheme) -> tuple[ContextPoint, ...]:
        return tuple(p for p in self.points if p.scheme == scheme)

    def crossing(self, scheme: CacheScheme, base: CacheScheme) -> int | None:
        """The shortest context from which the scheme is faster than `base` at all longer ones; None: at none."""
        theirs = {p.context: p.seconds for p in self.of(base)}
        found = None
        for point in reversed(self.of(scheme)):
            if point.seconds >= theirs[point.context]:
                break
            found = point.context
        return found


def sweep_contexts(
    model: Model,
    schemes: Sequence[CacheScheme],
    contexts: Sequence[int] = CONTEXTS,
    *,
    token: CancelToken | None = None,
    threads: int | None = None,
) -> Generator[Filling | ContextPoint, None, ContextSweep]:
    """All schemes in turn, with the weights of one model. contexts: rising. threads: None: the physical cores.

    Raises UserError for a model that the processor's engine does not run, schemes that it can not keep, contexts past
    the model's, and caches that the free memory does not hold; Cancelled.
    """
    token = token or CancelToken()
    if not isinstance(model.engine, Engine):
        raise UserError("Caches are measured on the processor's engine.", "Load the model there (cpu).")
    last = contexts[-1] + 1
    layouts = [
        cache_layout(model.program.cache.layers, last, 1, scheme, model.file_scales.of(scheme)) for scheme in schemes
    ]
    need, free = sum(layout.nbytes for layout in layouts), memory()[1]
    if need > free // 2:
        raise UserError(
            f"{len(schemes)} caches of {format_count(last)} tokens take {format_bytes(need)}; {format_bytes(free)} are "
            "free.",
            "Choose a shorter context.",
        )
    points: list[ContextPoint] = []
    with ExitStack() as stack:
        made = (Engine(replace(model.program, cache=layout), threads or worker_count()) for layout in layouts)
        held = [Held(stack.enter_context(closing(engine))) for engine in made]
        stack.enter_context(Watch(held, token))
        filled = 0
        for context in contexts:
            for start in range(filled, context, PROMPT_BATCH):
                stop = min(start + PROMPT_BATCH, context)
                for each in held:
                    token.check()
                    _write(each, start, stop, token)
                yield Filling(context, stop / contexts[-1])
            filled = context
            for point in _measured(held, schemes, context, token):
                points.append(point)
                yield point
    return ContextSweep(tuple(points))


def _write(held: Held, start: int, stop: int, token: CancelToken) -> None:
    positions = np.arange(start, stop, dtype=np.int32)
    zeros = np.zeros_like(positions)
    step(held, zeros, zeros, positions, zeros[:0], token)


def _measured(
    held: Sequence[Held], schemes: Sequence[CacheScheme], context: int, token: CancelToken
) -> list[ContextPoint]:
    zero, place = np.zeros(1, np.int32), np.full(1, context, np.int32)
    seconds: list[list[float]] = [[] for _ in held]
    for round_ in range(ROUNDS + 1):  # the first of each is not counted
        for each, taken in zip(held, seconds, strict=True):
            token.check()
            begin = time.perf_counter()
            step(each, zero, zero, place, zero, token)
            if round_:
                taken.append(time.perf_counter() - begin)
    shares = [_attention(each, place, token) for each in held]
    return [
        ContextPoint(scheme, context, statistics.median(taken), share)
        for scheme, taken, share in zip(schemes, seconds, shares, strict=True)
    ]


def _attention(held: Held, place: np.ndarray, token: CancelToken) -> float:
    """Share of a step that attention takes, in the quickest of some: others were disturbed."""
    zero, found = np.zeros(1, np.int32), []
    for _ in range(PROFILED):
        held.engine.profile(True)
        step(held, zero, zero, place, zero, token)
        times = held.engine.times()
        found.append((sum(t.seconds for t in times), sum(t.seconds for t in times if t.op == _ATTENTION)))
    held.engine.profile(False)
    whole, attention = min(found)
    return attention / whole if whole else 0.0
