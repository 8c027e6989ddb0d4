"""Made-up figures of caches, as an engine that runs all schemes would find them."""

from __future__ import annotations

from itertools import pairwise

from app.jobs.testing_cache import LENGTHS, CacheFound, CacheMeasure, CacheOrder
from core.kv.compare import SchemeCost, Span, window_exercise
from core.kv.contexts import CONTEXTS, ContextPoint, ContextSweep
from core.kv.needles import NeedleTable, SchemeNeedles
from core.kv.scheme import CacheScheme
from core.verdict.needle import DEPTHS

POSITIONS = ("Q8_0", "Q8_0/F16", "F16/Q8_0", "Q4_0", "Q4_0/F16", "F16/Q4_0", "INT4-g32,rotate", "INT8")
TIMED = ("F16", "Q8_0", "Q4_0")


def cache_example(order: CacheOrder) -> CacheFound:
    if order.measure is CacheMeasure.SPEED:
        contexts = [n for n in CONTEXTS if n <= order.tokens]
        points = tuple(_point(text, context) for context in contexts for text in TIMED)
        return CacheFound(order, contexts[-1], sweep=ContextSweep(points))
    if order.measure is CacheMeasure.NEEDLES:
        lengths = [n for n in LENGTHS if n <= order.tokens]
        places = tuple((length, depth) for length in lengths for depth in DEPTHS)
        rows = tuple(
            SchemeNeedles(CacheScheme.parse(text), tuple(9 - hard - n / 3 for n in range(len(places))))
            for text, hard in (("F16", 0), ("Q8_0", 0.1), ("Q4_0", 2), ("INT4-g32,rotate", 1), ("LM2,rotate", 7.5))
        )
        return CacheFound(order, lengths[-1], needles=NeedleTable(places, rows))
    window = order.measure is CacheMeasure.WINDOW
    schemes = window_exercise() if window else tuple(map(CacheScheme.parse, POSITIONS))
    return CacheFound(order, order.tokens, tuple(_cost(scheme, order.tokens) for scheme in schemes))


def _point(text: str, context: int) -> ContextPoint:
    weights = 0.006 + (0 if text == "F16" else 0.0004)
    attention = context * {"F16": 1.2e-6, "Q8_0": 0.9e-6, "Q4_0": 0.7e-6}[text]
    return ContextPoint(CacheScheme.parse(text), context, weights + attention, attention / (weights + attention))


def _cost(scheme: CacheScheme, tokens: int) -> SchemeCost:
    def side(name: str, weight: float) -> float:
        step = {"F16": 0.0, "Q8_0": 1e-4, "INT8": 1.3e-4, "Q4_0": 2e-2, "INT4": 3e-2, "INT4-g32": 2e-2}[name]
        return step * weight * (0.3 if scheme.window else 1.0)

    kl = (side(scheme.keys, 0.8) + side(scheme.values, 0.2)) * (0.4 if scheme.rotate_keys else 1.0)
    edges = [0, 64]
    while edges[-1] < tokens:
        edges.append(min(2 * edges[-1], tokens))
    spans = tuple(Span(a, b, kl * (0.4 + 0.2 * n), 14 * (1 + kl)) for n, (a, b) in enumerate(pairwise(edges)))
    bits = (scheme.key_format.bits_per_value(64) + scheme.value_format.bits_per_value(64)) / 2
    return SchemeCost(scheme, round(bits * tokens * 720), bits, kl, 14 * (1 + kl), 1 - 3 * kl**0.7 / 2, spans)
