"""Clipping search on the output's error: how much of each group's range is given up, so that what is left is finer.

AWQ (Lin et al., 2023) searches it group by group as if the others were exact. Here the groups of a row are gone through
one after the other, some times over, and each sees what the others leave of the output's error.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from core.formats.base import EncodeOptions, Method
from core.formats.codebook import Codebook
from core.formats.numbers import Codes, Numbers, joined
from core.methods.grid import quantized
from core.methods.problem import Problem
from core.progress import CancelToken
from core.threads import worker_count

_KEPT = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)  # shares of a group's range
_PASSES = 3
_VALUES = 1 << 20  # of a weight that are looked at at a time
_PRODUCTS = 1 << 32  # multiply-adds between two looks at the token
_SEARCH, _PRODUCT = 2e-7, 1e-10  # seconds of one core for a value, and for a value times a column; measured


class ClipSearch:
    """A solver that gives each group the clipped range with the least output error, never a larger one than rounding to
    the nearest has."""

    follows_full = False

    def why_not(self, numbers: Numbers) -> str:
        if numbers.tile != 1:
            return "rows share a scale"
        if isinstance(numbers, Codebook) and numbers.nested:
            return "its scales are quantized together"
        return ""

    def seconds_for(self, rows: int, columns: int) -> float:
        """CPU seconds of one core for one weight, about."""
        return rows * columns * (_SEARCH + columns * _PRODUCT)

    def solve(self, problem: Problem, token: CancelToken) -> Codes:
        weight, numbers = problem.weight, problem.numbers
        columns = weight.shape[1]
        amax = float(np.abs(weight).max(initial=0.0))
        importance = np.ascontiguousarray(np.diagonal(problem.gram)) if problem.gram.any() else None
        options = EncodeOptions(Method.SEARCH, importance=importance, amax=amax, threads=worker_count())
        if importance is None or (numbers.group and columns % numbers.group):
            return quantized(numbers, weight, options, token)
        step = max(1, min(_VALUES // columns, max(16, _PRODUCTS // columns**2)))
        pieces = []
        for start in range(0, len(weight), step):
            token.check()
            pieces.append(_best(weight[start : start + step], problem.gram, numbers, options, token))
        return joined(pieces)


def _best(weight: np.ndarray, gram: np.ndarray, numbers: Numbers, options: EncodeOptions, token: CancelToken) -> Codes:
    """Codes of some rows: of each group those of one of several ways to round it."""
    size = numbers.group or weight.shape[1]
    ways = _ways(weight, numbers, options, size, token)
    changes = np.empty((len(ways), *weight.shape), np.float32)
    for change, way in zip(changes, ways, strict=True):
        np.subtract(numbers.values(way), weight, out=change)
    count = weight.shape[1] // size
    alone = np.stack([_alone(changes, gram, g * size, size, token) for g in range(count)], axis=2)
    chosen = np.zeros((len(weight), count), np.int64)
    change = changes[0].copy()
    moved = change @ gram  # what the change of all groups does, float32 [N, K]
    rows = np.arange(len(weight))
    for _ in range(_PASSES):
        for g in range(count):
            token.check()
            part = slice(g * size, (g + 1) * size)
            own = change[:, part]
            others = moved[:, part] - own @ gram[part, part]
            lost = alone[:, :, g] + 2 * np.einsum("wnk,nk->wn", changes[:, :, part], others)
            best = np.argmin(lost, axis=0)
            differ = rows[best != chosen[:, g]]
            if not len(differ):
                continue
            new = changes[best[differ], differ, part]
            moved[differ] += (new - own[differ]) @ gram[part]
            change[differ, part] = new
            chosen[differ, g] = best[differ]
    return _mixed(ways, chosen, size)


def _alone(changes: np.ndarray, gram: np.ndarray, start: int, size: int, token: CancelToken) -> np.ndarray:
    """What each change [W, N, K] of one group of columns does by itself, float32 [W, N]."""
    token.check()
    some = changes[:, :, start : start + size]
    return np.einsum("wnk,wnk->wn", some @ gram[start : start + size, start : start + size], some)


def _ways(weight: np.ndarray, numbers: Numbers, options: EncodeOptions, size: int, token: CancelToken) -> list[Codes]:
    """Rounded to the nearest after clipping, from not at all on; and searched with each column's mean square."""
    groups = weight.reshape(len(weight), -1, size)
    low, high = np.minimum(groups.min(axis=2), 0)[:, :, None], np.maximum(groups.max(axis=2), 0)[:, :, None]
    plain = replace(options, method=Method.ROUND, importance=None)
    ways = []
    for share in _KEPT:
        token.check()
        ways.append(numbers.quantize(np.clip(groups, share * low, share * high).reshape(weight.shape), plain))
    return [*ways, numbers.quantize(weight, options)]


def _mixed(ways: list[Codes], chosen: np.ndarray, size: int) -> Codes:
    """Each group of the way that was chosen for it, int64 [N, G]."""

    def pick(arrays: list[np.ndarray], width: int) -> np.ndarray:
        shape = (*chosen.shape, width)
        stacked = np.stack([a.reshape(shape) for a in arrays])
        at = np.broadcast_to(chosen[:, :, None], shape)[None]
        return np.ascontiguousarray(np.take_along_axis(stacked, at, axis=0)[0].reshape(len(chosen), -1))

    first = ways[0]
    return replace(
        first,
        codes=pick([w.codes for w in ways], size),
        scales=pick([w.scales for w in ways], 1),
        zeros=None if first.zeros is None else pick([w.zeros for w in ways if w.zeros is not None], 1),
        offsets=None if first.offsets is None else pick([w.offsets for w in ways if w.offsets is not None], 1),
    )
