"""Search for types whose values are d · L · q; the numpy of kernels/cpu/encode/search_symmetric.h.

d: float16, L: an integer sub-scale, q: a code's value. B super-blocks have B · s sub-blocks, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ONE, clamp, inverse, rint
from kernels.reference.search import (
    LARGEST_SUM,
    MORE_THAN_ROUNDING,
    Normalised,
    StoredScale,
    largest_sub,
    split,
    store_scale,
    total,
    weigh,
)

# Values already divided by the scale → the values of the nearest codes, float32.
Codes = Callable[[np.ndarray], np.ndarray]


def integer_codes(half: int) -> Codes:
    """The integers −half … half − 1."""
    return lambda scaled: rint(clamp(scaled, -half, half - 1))


@dataclass(frozen=True)
class SymmetricSearch:
    """How far to look. Without `neighbours` the nearest L is taken as it is."""

    reaches: tuple[float, ...]  # scaled values that the value of largest magnitude is tried at
    refits: int  # of a sub-block's scale to its codes
    lowest: float  # range of L; the largest sub-scale is stored near `lowest`
    highest: float
    d_steps: int  # candidates of d (and dmin), see largest_sub
    d_refits: int  # of d to all codes
    neighbours: bool  # whether L ± 1 are tried


def scale_sums(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, inverse_scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·x·q and Σ w·q² for the codes that x · inverse_scale gives."""
    xq, qq = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        q = codes(x[:, i] * inverse_scale)
        wq = weigh(w, i, q)
        xq, qq = xq + wq * x[:, i], qq + wq * q
    return xq, qq


def squared_error(codes: Codes, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray) -> np.ndarray:
    """Σ w·(x − scale·q)² for the nearest codes."""
    inverse_scale, error = inverse(scale), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        e = x[:, i] - scale * codes(x[:, i] * inverse_scale)
        error = error + weigh(w, i, e) * e
    return error


def widest_value(x: np.ndarray) -> np.ndarray:
    """The value of largest magnitude of each row, the first of several."""
    widest = x[:, 0]
    for i in range(1, x.shape[1]):
        widest = np.where(np.abs(widest) < np.abs(x[:, i]), x[:, i], widest)
    return widest


def fit_scale(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, search: SymmetricSearch
) -> tuple[np.ndarray, np.ndarray]:
    """The sums of the best real-valued scale, which is their quotient.

    Map the value of largest magnitude to each of `reaches`, fit a scale by least squares to the codes that gives, keep
    the one that explains most: the largest (Σ w·x·q)² / Σ w·q².
    """
    inverse_widest = inverse(widest_value(x))
    best_xq, best_qq = np.zeros(len(x), np.float32), np.full(len(x), ONE)
    for k in range(len(search.reaches) + search.refits):
        if k < len(search.reaches):
            inverse_scale = inverse_widest * np.float32(search.reaches[k])
        else:
            inverse_scale = inverse(best_xq / best_qq)
        xq, qq = scale_sums(codes, x, w, inverse_scale)
        better = best_xq * best_xq * qq * MORE_THAN_ROUNDING < xq * xq * best_qq
        best_xq, best_qq = np.where(better, xq, best_xq), np.where(better, qq, best_qq)
    return best_xq, best_qq


@dataclass(frozen=True)
class SymmetricScales:
    """d of each super-block; sub: L, integers as float32 [B, s]; error: Σ w·(x − decoded)², [B]."""

    d: StoredScale
    sub: np.ndarray
    error: np.ndarray

    def sub_scales(self) -> np.ndarray:
        """d · L of every sub-block, [B · s]."""
        return (self.d.value[:, None] * self.sub).reshape(-1)


def _choose_d(block: Normalised, search: SymmetricSearch, scale: np.ndarray, qq: np.ndarray) -> SymmetricScales:
    """d and every L from the sub-blocks' own scales, [B, s].

    With codes fixed, missing a scale by δ costs δ² · Σ w·q², so trying many d takes no pass over the values.
    """
    widest = np.zeros(len(scale), np.float32)
    for j in range(scale.shape[1]):
        widest = np.where(np.abs(widest) < np.abs(scale[:, j]), scale[:, j], widest)

    def nearest(d: StoredScale) -> np.ndarray:
        return rint(clamp(scale * inverse(d.value)[:, None], search.lowest, search.highest))

    least = np.full(len(scale), LARGEST_SUM)
    best = StoredScale(np.zeros(len(scale), np.uint16), np.zeros(len(scale), np.float32))
    for k in range(search.d_steps):
        d = store_scale(widest / largest_sub(search.lowest, k), block)
        missed = scale - d.value[:, None] * nearest(d)
        cost = total(qq * missed * missed)
        better = cost < least
        least, best = np.where(better, cost, least), best.where(better, d)
    return SymmetricScales(best, nearest(best), least)


def _settle(codes: Codes, block: Normalised, search: SymmetricSearch, scales: SymmetricScales) -> SymmetricScales:
    """Moves each L to a neighbour where that lowers the error."""
    count = scales.sub.shape[1]
    x, w = split(block.x, count), None if block.w is None else split(block.w, count)
    best, least = scales.sub, np.full(scales.sub.shape, LARGEST_SUM)
    for step in (0.0, -1.0, 1.0):
        sub = clamp(scales.sub + np.float32(step), search.lowest, search.highest)
        error = squared_error(codes, x, w, (scales.d.value[:, None] * sub).reshape(-1)).reshape(sub.shape)
        better = error < least
        best, least = np.where(better, sub, best), np.where(better, error, least)
    return SymmetricScales(scales.d, best, total(least))


def _fit_d(codes: Codes, block: Normalised, scales: SymmetricScales) -> np.ndarray:
    """d fitted by least squares to all codes."""
    sub = scales.sub
    x, w = split(block.x, sub.shape[1]), None if block.w is None else split(block.w, sub.shape[1])
    xq, qq = (sums.reshape(sub.shape) for sums in scale_sums(codes, x, w, inverse(scales.sub_scales())))
    return total(sub * xq) * inverse(total(sub * sub * qq))


def search_symmetric(codes: Codes, block: Normalised, sub_blocks: int, search: SymmetricSearch) -> SymmetricScales:
    """d and every L of super-blocks x [B, n] with `sub_blocks` sub-blocks each."""
    x, w = split(block.x, sub_blocks), None if block.w is None else split(block.w, sub_blocks)
    xq, qq = fit_scale(codes, x, w, search)
    best = _choose_d(block, search, (xq / qq).reshape(-1, sub_blocks), qq.reshape(-1, sub_blocks))
    if not search.neighbours:
        return best
    best = _settle(codes, block, search, best)
    for _ in range(search.d_refits):
        d = store_scale(_fit_d(codes, block, best), block)
        now = _settle(codes, block, search, SymmetricScales(d, best.sub, best.error))
        better = now.error < best.error
        best = SymmetricScales(
            best.d.where(better, now.d),
            np.where(better[:, None], now.sub, best.sub),
            np.where(better, now.error, best.error),
        )
    return best


def scaled_values(block: Normalised, scales: SymmetricScales) -> np.ndarray:
    """x divided by d · L, or 0 where that is 0: [B, n]."""
    inverse_scale = inverse(scales.sub_scales())
    return (split(block.x, scales.sub.shape[1]) * inverse_scale[:, None]).reshape(block.x.shape)
