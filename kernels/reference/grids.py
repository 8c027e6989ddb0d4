"""Encoders of the types whose codes are points of a grid, IQ2_XXS … IQ3_S, in numpy: the definition, slow and plain.

A value is d · L · level · sign. d: float16 of 256 values. L: an odd integer 1 … 31 of a sub-block. A point of the grid
gives 8 or 4 neighbours their levels; signs are a bit each, but where seven are stored for eight values their number is
even, so that one value in some groups gets the wrong sign: the one where that costs least.

For a given scale d · L the best points and signs are found exactly, by trying every point of the grid. What has to be
searched for are the scales. Sums are float32 and in the order of kernels/cpu/encode/grids.h.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

import numpy as np

from kernels.layouts import GRIDS, Grid
from kernels.reference.arithmetic import ONE, ZERO, clamp, column_bytes, inverse, maximum, minimum, rint
from kernels.reference.search import BROKEN, LARGEST_SUM, Normalised, StoredScale, normalise, store_scale, total

# Scales of a sub-block that are tried: multiples of its root mean square, each this much longer than the one before.
# The first would put all values on the highest level; the last, most on the lowest.
_FIRST_REACH = {8: np.float32(0.18), 4: np.float32(0.066)}
_REACH_RATIO = {8: np.float32(1.12), 4: np.float32(1.13)}
_REACHES = {8: 16, 4: 18}
_REFITS = 2  # of a sub-block's scale, and of d
_D_STEPS = 32  # candidates of d: they store the largest scale as L = 31, 30.5, …
# No value decodes to more than this multiple of the block's largest magnitude; own scales stay below the first.
_OWN_REACH, _FURTHEST = np.float32(2), np.float32(2.5)
# Below the smallest float16 nothing is stored: no level is zero.
_VANISHES = np.float32(2.0**-24)
_BLOCKS = 32  # that are worked on at once: a matter of memory


@cache
def points(kind: str) -> np.ndarray:
    """The grid of a type, as numbers of levels: uint8 [points, values]. Source: the `gguf` package's tables."""
    from gguf import quants  # here, as it takes a while

    table = getattr(quants, kind)
    table.init_grid()
    grid = table.grid.reshape(table.grid_shape)
    return np.searchsorted(np.array(table.grid_map, np.float32), grid).astype(np.uint8)


def _pairs(cost: np.ndarray) -> np.ndarray:
    """[n, 2, levels] → sums for every pair of levels, the first counting fastest: [n, levels²]."""
    return (cost[:, 1, :, None] + cost[:, 0, None, :]).reshape(len(cost), -1)


def _half_costs(cost: np.ndarray) -> np.ndarray:
    """Costs of the values of half a point, [n, 4 or 2, levels] → of every combination of their levels."""
    if cost.shape[1] == 2:
        return _pairs(cost)
    low, high = _pairs(cost[:, :2]), _pairs(cost[:, 2:])
    return (high[:, :, None] + low[:, None, :]).reshape(len(cost), -1)


def _half_flips(penalty: np.ndarray) -> np.ndarray:
    """The least of the values' penalties, for every combination of their levels."""
    if penalty.shape[1] == 2:
        return minimum(penalty[:, 0, None, :], penalty[:, 1, :, None]).reshape(len(penalty), -1)
    low, high = _half_flips(penalty[:, :2]), _half_flips(penalty[:, 2:])
    return minimum(low[:, None, :], high[:, :, None]).reshape(len(penalty), -1)


def _halves(codes: np.ndarray, levels: int) -> tuple[np.ndarray, np.ndarray]:
    """Which combination of levels the halves of each point are."""
    half = codes.shape[1] // 2
    places = levels ** np.arange(half)
    return codes[:, :half] @ places, codes[:, half:] @ places


@dataclass(frozen=True)
class Fit:
    """Of sub-blocks with given scales. cost: Σ w·(x − decoded)², [S]; point: [S, points]; q: decoded / scale."""

    cost: np.ndarray
    point: np.ndarray
    q: np.ndarray


def best_points(grid: Grid, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray) -> Fit:
    """The best points and signs for x [S, n] with a scale each, [S]."""
    codes, levels, n = points(grid.kind), np.array(grid.levels, np.float32), grid.values
    low, high = _halves(codes, len(levels))
    size, negative = np.abs(x).reshape(-1, n), np.signbit(x).reshape(-1, n)
    step = np.repeat(scale, x.shape[1] // n)[:, None]
    e = size[:, :, None] - (step * levels)[:, None, :]
    we = e if w is None else w.reshape(-1, n)[:, :, None] * e
    cost = we * e
    even = _half_costs(cost[:, : n // 2]), _half_costs(cost[:, n // 2 :])
    straight = even[0][:, low] + even[1][:, high]
    point, least = straight.argmin(axis=1), straight.min(axis=1)
    if grid.even_signs:
        weighted = size if w is None else w.reshape(-1, n) * size
        penalty = (weighted * step * np.float32(4))[:, :, None] * levels  # of the wrong sign: 4·w·|x|·scale·level
        odd = even[0] + _half_flips(penalty[:, : n // 2]), even[1] + _half_flips(penalty[:, n // 2 :])
        flipped = minimum(even[0][:, low] + odd[1][:, high], odd[0][:, low] + even[1][:, high])
        flips = _where_to_flip(negative, least, flipped.min(axis=1))
        point, least = np.where(flips, flipped.argmin(axis=1), point), np.where(flips, flipped.min(axis=1), least)
        at = np.take_along_axis(penalty, codes[point][:, :, None], axis=2)[:, :, 0].argmin(axis=1)
        negative[flips, at[flips]] ^= True
    if n == 4:
        least = least[0::2] + least[1::2]
    q = np.where(negative, -levels[codes[point]], levels[codes[point]])
    count = len(x)
    return Fit(total(least.reshape(count, -1)), point.reshape(count, -1), q.reshape(x.shape))


def _where_to_flip(negative: np.ndarray, least: np.ndarray, flipped: np.ndarray) -> np.ndarray:
    """Which points get a wrong sign: one in every eight values of which an odd number is negative. bool [points]."""
    odd = negative.reshape(-1, 8).sum(axis=1) % 2 == 1
    if negative.shape[1] == 8:
        return odd
    first = flipped[0::2] + least[1::2] < least[0::2] + flipped[1::2]
    return np.stack([odd & first, odd & ~first], axis=1).reshape(-1)


def _sums(x: np.ndarray, w: np.ndarray | None, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·x·q and Σ w·q² of each row."""
    wq = q if w is None else w * q
    return total(wq * x), total(wq * q)


@dataclass(frozen=True)
class _SubBlocks:
    """x, w: [S, n]. cap: the longest scale, [S]."""

    grid: Grid
    x: np.ndarray
    w: np.ndarray | None
    cap: np.ndarray

    def own_scales(self, search: bool) -> tuple[np.ndarray, np.ndarray]:
        """The best real-valued scale of each, and Σ w·q² of its codes."""
        grid, x, w = self.grid, self.x, self.w
        if not search:
            widest = np.zeros(len(x), np.float32)
            for i in range(x.shape[1]):
                widest = maximum(widest, np.abs(x[:, i]))
            return widest * (ONE / np.float32(grid.levels[-1])), np.ones(len(x), np.float32)
        squares, weights = self._mean_square()
        reach = np.sqrt(squares * inverse(weights)) * _FIRST_REACH[grid.values]
        best, qq, least = (np.full(len(x), v, np.float32) for v in (0, 1, LARGEST_SUM))
        for _ in range(_REACHES[grid.values]):
            scale = minimum(reach, self.cap)
            cost = best_points(grid, x, w, scale).cost
            better = cost < least
            best, least = np.where(better, scale, best), np.where(better, cost, least)
            reach = reach * _REACH_RATIO[grid.values]
        for _ in range(_REFITS):
            xq, qq = _sums(x, w, best_points(grid, x, w, best).q)
            best = minimum(maximum(xq * inverse(qq), ZERO), self.cap)
        return best, qq

    def _mean_square(self) -> tuple[np.ndarray, np.ndarray]:
        x, w = self.x, self.w
        if w is None:
            return total(x * x), np.full(len(x), np.float32(x.shape[1]))
        return total(w * x * x), total(w)


@dataclass(frozen=True)
class _Scales:
    """d, [B]; sub: L, float32 [B, s]; cost: [B]."""

    d: StoredScale
    sub: np.ndarray
    cost: np.ndarray


def _nearest_sub(scale: np.ndarray, d: StoredScale) -> np.ndarray:
    """The L whose d · L is nearest to scale [B, s]."""
    half = rint(clamp((scale * inverse(d.value)[:, None] - ONE) * np.float32(0.5), 0.0, 15.0))
    return half + half + ONE


def _choose_d(own: np.ndarray, qq: np.ndarray, block: Normalised, steps: int) -> _Scales:
    """d and every L from the sub-blocks' own scales: with codes fixed, missing a scale by δ costs δ² · Σ w·q²."""
    widest = np.zeros(len(own), np.float32)
    for j in range(own.shape[1]):
        widest = maximum(widest, own[:, j])
    none = np.zeros(len(own), np.float32)
    best, least = StoredScale(none.astype(np.uint16), none), np.full(len(own), LARGEST_SUM)
    for k in range(steps):
        d = store_scale(widest * (ONE / np.float32(31 - 0.5 * k)), block)
        missed = own - d.value[:, None] * _nearest_sub(own, d)
        cost = total(qq * missed * missed)
        better = cost < least
        best, least = best.where(better, d), np.where(better, cost, least)
    return _Scales(best, _nearest_sub(own, best), least)


def _settle(parts: _SubBlocks, d: StoredScale, sub: np.ndarray, steps: Iterable[float]) -> _Scales:
    """The best of L + step for each sub-block, by its error."""
    best, least = sub, np.full(sub.shape, LARGEST_SUM)
    limit = parts.cap * (_FURTHEST / _OWN_REACH)
    for step in steps:
        tried = clamp(sub + np.float32(step), 1.0, 31.0)
        scale = (d.value[:, None] * tried).reshape(-1)
        cost = best_points(parts.grid, parts.x, parts.w, scale).cost + np.where(limit < scale, BROKEN, ZERO)
        cost = cost.reshape(sub.shape)
        better = cost < least
        best, least = np.where(better, tried, best), np.where(better, cost, least)
    return _Scales(d, best, total(least))


def _fit_d(parts: _SubBlocks, scales: _Scales) -> np.ndarray:
    """d by least squares, the codes of all sub-blocks given."""
    sub = scales.sub
    q = best_points(parts.grid, parts.x, parts.w, (scales.d.value[:, None] * sub).reshape(-1)).q
    xq, qq = (a.reshape(sub.shape) for a in _sums(parts.x, parts.w, q))
    return maximum(total(sub * xq) * inverse(total(sub * sub * qq)), ZERO)


def _search(grid: Grid, block: Normalised, search: bool) -> tuple[_SubBlocks, _Scales]:
    """Scales of B blocks."""
    count = 256 // grid.sub_block
    x = block.x.reshape(-1, grid.sub_block)
    w = None if block.w is None else block.w.reshape(-1, grid.sub_block)
    cap = np.repeat(block.largest * (_OWN_REACH / np.float32(grid.levels[-1])), count)
    parts = _SubBlocks(grid, x, w, cap)
    own, qq = (a.reshape(-1, count) for a in parts.own_scales(search))
    best = _choose_d(own, qq, block, _D_STEPS if search else 1)
    if not search:
        return parts, best
    best = _settle(parts, best.d, best.sub, (0.0, -2.0, 2.0))
    for attempt in range(_REFITS):
        d = store_scale(_fit_d(parts, best), block)
        now = _settle(parts, d, best.sub, (0.0, -2.0, 2.0) if attempt == 0 else (0.0,))
        better = now.cost < best.cost
        best = _Scales(
            best.d.where(better, now.d),
            np.where(better[:, None], now.sub, best.sub),
            np.where(better, now.cost, best.cost),
        )
    return parts, best


@dataclass(frozen=True)
class Chosen:
    """What is stored of B blocks. d: float16 as uint16 [B]; sub: (L − 1) / 2, uint8 [B, s]; point: uint16 [B, points];
    signs: one bit a value, set for negative ones, uint8 [B, 32]."""

    d: np.ndarray
    sub: np.ndarray
    point: np.ndarray
    signs: np.ndarray


def _choose(grid: Grid, x: np.ndarray, weights: np.ndarray | None, search: bool) -> Chosen:
    block = normalise(x, weights)
    parts, scales = _search(grid, block, search)
    fit = best_points(grid, parts.x, parts.w, (scales.d.value[:, None] * scales.sub).reshape(-1))
    d = np.where(block.largest * block.unit < _VANISHES, np.uint16(0), scales.d.bits)
    signs = np.packbits(fit.q.reshape(len(x), -1) < 0, axis=1, bitorder="little")
    sub = ((scales.sub - 1) / 2).astype(np.uint8)
    return Chosen(d, sub, fit.point.reshape(len(x), -1).astype(np.uint16), signs)


def _fields(values: np.ndarray, count: int, bits: int) -> np.ndarray:
    """Every `count` values [B, n] in one byte, `bits` bits apart, the first lowest."""
    parts = values.reshape(len(values), -1, count).astype(np.uint8)
    out = np.zeros(parts.shape[:2], np.uint8)
    for field in range(count):
        out |= parts[:, :, field] << (field * bits)
    return out


def _signs_and_scales(chosen: Chosen) -> np.ndarray:
    """A word for 32 values: the signs of seven of every eight, seven bits apart, and (L − 1) / 2 in the top four."""
    seven = (chosen.signs & 127).reshape(len(chosen.signs), -1, 4).astype(np.uint32)
    word = chosen.sub.astype(np.uint32) << 28
    for k in range(4):
        word |= seven[:, :, k] << (7 * k)
    return word


def _pack(kind: str, chosen: Chosen) -> np.ndarray:
    """uint8 [B, bytes]; fields in the order of ggml-common.h."""
    d, low = column_bytes(chosen.d), chosen.point.astype(np.uint8)
    count = len(d)
    if kind == "IQ2_XXS":
        words = np.stack([low.view("<u4"), _signs_and_scales(chosen)], axis=2)
        return np.hstack([d, words.reshape(count, -1).view(np.uint8)])
    if kind == "IQ3_XXS":
        return np.hstack([d, low, _signs_and_scales(chosen).view(np.uint8)])
    nibbles = _fields(chosen.sub, 2, 4)
    if kind == "IQ2_XS":
        codes = chosen.point | (chosen.signs & 127).astype(np.uint16) << 9
        return np.hstack([d, codes.view(np.uint8), nibbles])
    if kind == "IQ2_S":
        return np.hstack([d, low, chosen.signs, _fields(chosen.point >> 8, 4, 2), nibbles])
    return np.hstack([d, low, _fields(chosen.point >> 8, 8, 1), chosen.signs, nibbles])


def encode_grid(kind: str, x: np.ndarray, weights: np.ndarray | None, search: bool) -> np.ndarray:
    """x float32 [B, 256], weights [B, 256] or None → uint8 [B, bytes of the type]."""
    out = []
    with np.errstate(all="ignore"):
        for first in range(0, len(x), _BLOCKS):
            some = slice(first, first + _BLOCKS)
            out.append(_pack(kind, _choose(GRIDS[kind], x[some], None if weights is None else weights[some], search)))
    return np.concatenate(out)
