"""What schemes of a cache cost: the same tokens through one model, with its cache in 16 bits and in each scheme.

All schemes read the text side by side, a piece at a time, so that the logits of no more than a piece are held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from core.errors import UserError
from core.kv.layout import with_scheme
from core.kv.scheme import CacheScheme
from core.metrics.divergence import SourceRows, TokenFigures, compact, compare
from core.progress import CancelToken
from core.runtime.model import Model
from core.runtime.steps import Watch, step
from core.threads import worker_count
from core.units import format_count
from kernels.engine import Engine

PIECE = 32  # tokens whose logits are held at once, of two schemes
BLOCK = 64  # tokens whose mean counts once in a standard error: those of one place in the text depend on each other
FIRST_SPAN = 64  # tokens; each span after it ends at twice as many
BASE = CacheScheme()  # what the others are compared with


@dataclass(frozen=True)
class Span:
    """Tokens [start, stop) of the text. kl: mean KL of 16 bits from the scheme in nats; perplexity: the scheme's."""

    start: int
    stop: int
    kl: float
    perplexity: float


@dataclass(frozen=True)
class SchemeCost:
    """bytes: of the cache that held the text. bits: of a value, by those bytes. kl, perplexity: as of `Span`, over
    the whole text; same_top: share of tokens after which both hold the same one for the likeliest. spans: by position.
    blocks: mean KL of each `BLOCK` tokens.
    """

    scheme: CacheScheme
    bytes: int
    bits: float
    kl: float
    perplexity: float
    same_top: float
    spans: tuple[Span, ...]
    blocks: tuple[float, ...] = ()

    @property
    def kl_error(self) -> float | None:
        """Standard error of kl: of the blocks' means. None with fewer than two."""
        return mean_error(self.blocks)


def mean_error(values: Sequence[float]) -> float | None:
    """Standard error of their mean; None with fewer than two."""
    if len(values) < 2:
        return None
    return float(np.std(values, ddof=1)) / math.sqrt(len(values))


@dataclass(frozen=True)
class Held:
    """An engine of one scheme; the weights are the model's."""

    engine: Engine


def window_exercise(window: int = 128) -> tuple[CacheScheme, ...]:
    """INT8 and INT4 per token and head for both, for keys and for values alone; each without a window and with one."""
    pairs = [(a, b) for form in ("INT8", "INT4") for a, b in ((form, form), (form, "F16"), ("F16", form))]
    return tuple(CacheScheme(keys, values, window=kept) for keys, values in pairs for kept in (0, window))


def compare_schemes(
    model: Model,
    tokens: Sequence[int],
    schemes: Sequence[CacheScheme],
    *,
    progress: Callable[[float], None] | None = None,
    token: CancelToken | None = None,
    threads: int | None = None,
) -> tuple[SchemeCost, ...]:
    """One row a scheme, in their order. Each token counts but the last, which nothing follows.

    progress: told the share that is done, 0 to 1. The model's own cache is left as it is. threads: of each engine;
    None: the physical cores. Raises UserError for a model that the processor's engine does not run, a text of fewer
    than two tokens or more than the model's capacity, and schemes that can not be kept with it; Cancelled.
    """
    token = token or CancelToken()
    if not isinstance(model.engine, Engine):
        raise UserError("Caches are compared on the processor's engine.", "Load the model there (cpu).")
    if not 2 <= len(tokens) <= model.capacity:
        raise UserError(
            f"{format_count(len(tokens))} tokens can not be read by a model that holds {format_count(model.capacity)}.",
            "Give 2 or more, and not more than it holds.",
        )
    ids = np.array(tokens, np.int32)
    layers = model.program.cache.layers
    programs = [
        with_scheme(model.program, len(ids) - 1, 1, scheme, model.file_scales.of(scheme)) for scheme in (BASE, *schemes)
    ]
    with ExitStack() as stack:
        engines = (Engine(program, threads or worker_count()) for program in programs)
        held = [Held(stack.enter_context(closing(engine))) for engine in engines]
        stack.enter_context(Watch(held, token))
        figures = _figures(held, ids, progress or (lambda _: None), token)
    return tuple(
        _cost(scheme, program.cache.nbytes, layers, found)
        for scheme, program, found in zip(schemes, programs[1:], figures, strict=True)
    )


def _figures(
    held: list[Held], ids: np.ndarray, progress: Callable[[float], None], token: CancelToken
) -> list[TokenFigures]:
    """Of all engines but the first, which the others are compared with."""
    parts: list[list[TokenFigures]] = [[] for _ in held[1:]]
    count = len(ids) - 1
    for start in range(0, count, PIECE):
        stop = min(start + PIECE, count)
        part, right = ids[start:stop], ids[start + 1 : stop + 1]
        rows = np.arange(len(part), dtype=np.int32)
        source: SourceRows | None = None
        for done, each in enumerate(held):
            token.check()
            logits = step(each, part, np.zeros_like(rows), rows + np.int32(start), rows, token)
            if source is None:
                source = compact(logits, right, token)
            else:
                parts[done - 1].append(compare(source, logits, right, token))
            progress((start + (stop - start) * (done + 1) / len(held)) / count)
    return [TokenFigures.joined(each) for each in parts]


def _cost(scheme: CacheScheme, nbytes: int, layers: tuple[tuple[int, int], ...], figures: TokenFigures) -> SchemeCost:
    count = len(figures.kl)
    edges = [0]
    while edges[-1] < count:
        edges.append(min(max(2 * edges[-1], FIRST_SPAN), count))
    spans = tuple(
        Span(a, b, float(figures.kl[a:b].mean()), math.exp(min(float(figures.nll[a:b].mean()), 700.0)))
        for a, b in pairwise(edges)
    )
    values = 2 * count * sum(heads * dim for heads, dim in layers)
    return SchemeCost(
        scheme,
        nbytes,
        8 * nbytes / values,
        float(figures.kl.mean()),
        math.exp(min(float(figures.nll.mean()), 700.0)),
        float(figures.same_top.mean()),
        spans,
        tuple(float(figures.kl[at : at + BLOCK].mean()) for at in range(0, count - BLOCK + 1, BLOCK)),
    )
