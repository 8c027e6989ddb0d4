"""Search for types whose values are d · L · q; the numpy of kernels/cpu/encode/search_symmetric.h.

d: float16, L: an integer sub-scale, q: a code's value. B super-blocks have B · s sub-blocks, one after another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.reference.arithmetic import ONE, ZERO, clamp, inverse, maximum, minimum, rint
from kernels.reference.fit import weigh
from kernels.reference.search import (
    BROKEN,
    FIT_SHARE,
    GAIN,
    LARGEST_SUM,
    MANY_STEPS,
    NO_STEP,
    Normalised,
    StoredScale,
    few_count,
    few_values,
    largest_sub,
    mean_square,
    neighbour,
    split,
    store_scale,
    total,
    without_trace,
)


@dataclass(frozen=True)
class Codes:
    """A set of codes. nearest: values divided by the scale → the values of the nearest codes, float32."""

    nearest: Callable[[np.ndarray], np.ndarray]
    short_end: float  # how far the side goes that ends first
    half_gap: float  # how far a value inside can be from its code's
    has_zero: bool = True


def integer_codes(half: int) -> Codes:
    """The integers −half … half − 1."""
    return Codes(lambda scaled: rint(clamp(scaled, -half, half - 1)), half - 1, 0.5)


@dataclass(frozen=True)
class GgmlScales:
    """What ggml's encoder tries.

    Without importance its weights are x², with it importance, with `rms` times sqrt(mean + x²).
    """

    first: float  # reaches: the first, then `count` more at equal distance
    start: float
    step: float
    count: int
    rms: bool
    fits_d: bool  # whether d is the best of such reaches too

    def reach(self, k: int) -> np.float32:
        """k: −1 … count − 1."""
        if k < 0:
            return np.float32(self.first)
        return np.float32(self.start) + np.float32(self.step) * np.float32(k)


# How ggml's Q3_K finds d, with importance.
_GGML_D = GgmlScales(-32.0, -31.1, -0.1, 19, False, False)
# Of d where few columns count, see _search_few.
_FEW_GRID, _FEW_RATIO, _FEW_STEPS = 48, np.float32(1.1), 8
# ggml's reaches lie close together: for our weights it is enough to look at one in three.
_OUR_SHARE = 3


@dataclass(frozen=True)
class SymmetricSearch:
    """How far to look. Without `neighbours` the nearest L is taken as it is."""

    reaches: tuple[float, ...]  # scaled values that the value of largest magnitude is tried at
    refits: int  # of a sub-block's scale to its codes
    lowest: float  # range of L; the largest sub-scale is stored near `lowest`
    highest: float
    d_steps: int  # candidates of d (and dmin), see largest_sub
    d_refits: int  # of d to all codes
    error_bound: float  # of any value, as a share of the block's largest magnitude
    neighbours: bool  # whether L ± 1 are tried
    gain: float = GAIN  # that counts, see there
    ggml: GgmlScales | None = None
    polished: float = 0.0  # blocks that leave a smaller share of Σ w·x² than this are polished, with importance


def scale_sums(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, inverse_scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·x·q and Σ w·q² for the codes that x · inverse_scale gives."""
    xq, qq = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        q = codes.nearest(x[:, i] * inverse_scale)
        wq = weigh(w, i, q)
        xq, qq = xq + wq * x[:, i], qq + wq * q
    return xq, qq


def scale_errors(codes: Codes, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·(x − scale·q)² for the nearest codes, and the largest error.

    Errors are taken in steps, if 0 is a code. Without a step all codes are 0 if one is so long.
    """
    step = np.where(scale == ZERO, NO_STEP, scale) if codes.has_zero else np.full(len(x), ONE)
    inverse_scale = ONE / step if codes.has_zero else inverse(scale)
    squares, furthest = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        scaled = x[:, i] * inverse_scale
        q = codes.nearest(scaled)
        e = scaled - q if codes.has_zero else x[:, i] - scale * q
        squares, furthest = squares + weigh(w, i, e) * e, maximum(furthest, np.abs(e))
    return squares * (step * step), furthest * np.abs(step)


def widest_value(x: np.ndarray) -> np.ndarray:
    """The value of largest magnitude of each row, the first of several."""
    widest = x[:, 0]
    for i in range(1, x.shape[1]):
        widest = np.where(np.abs(widest) < np.abs(x[:, i]), x[:, i], widest)
    return widest


@dataclass(frozen=True)
class SubScale:
    """A sub-block's own scale, Σ w·q² of its codes, and how small and large it may become.

    Smaller, it would cut values off; larger, be too coarse.
    """

    scale: np.ndarray
    qq: np.ndarray
    least: np.ndarray
    most: np.ndarray

    def by_block(self, sub_blocks: int) -> SubScale:
        """[B · s] → [B, s]."""
        return SubScale(*(a.reshape(-1, sub_blocks) for a in (self.scale, self.qq, self.least, self.most)))


def limit_scale(codes: Codes, xq: np.ndarray, qq: np.ndarray, largest: np.ndarray, allowed: np.ndarray) -> SubScale:
    """The scale that the sums give, within its limits. allowed: the error that a value may have."""
    per_end, per_gap = ONE / np.float32(codes.short_end), ONE / np.float32(codes.half_gap)
    inside = allowed * FIT_SHARE
    scale = xq / qq
    size = minimum(maximum(np.abs(scale), (largest - inside) * per_end), inside * per_gap)
    return SubScale(np.copysign(size, scale), qq, (largest - allowed) * per_end, allowed * per_gap)


@dataclass(frozen=True)
class BestFit:
    """The best fit so far: the largest xq² / qq, and what x was multiplied with to get its codes."""

    xq: np.ndarray
    qq: np.ndarray
    inverse_scale: np.ndarray

    @staticmethod
    def none(count: int) -> BestFit:
        zero = np.zeros(count, np.float32)
        return BestFit(zero, np.full(count, ONE), zero)

    def consider(self, xq: np.ndarray, qq: np.ndarray, tried: np.ndarray, gain: float) -> BestFit:
        better = self.xq * self.xq * qq * (ONE + np.float32(gain)) < xq * xq * self.qq
        now = (xq, self.xq), (qq, self.qq), (tried, self.inverse_scale)
        return BestFit(*(np.where(better, a, b) for a, b in now))


def fit_scale(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, allowed: np.ndarray, search: SymmetricSearch, best: BestFit
) -> SubScale:
    """The best real-valued scale.

    Map the value of largest magnitude to each of `reaches`, fit a scale by least squares to the codes that gives, keep
    the one that explains most: the largest (Σ w·x·q)² / Σ w·q².
    """
    widest = widest_value(x)
    inverse_widest = inverse(widest)
    for k in range(len(search.reaches) + search.refits):
        if k < len(search.reaches):
            inverse_scale = inverse_widest * np.float32(search.reaches[k])
        else:
            inverse_scale = inverse(best.xq / best.qq)
        best = best.consider(*scale_sums(codes, x, w, inverse_scale), inverse_scale, search.gain)
    return limit_scale(codes, best.xq, best.qq, np.abs(widest), allowed)


def ggml_scale(
    codes: Codes, x: np.ndarray, v: np.ndarray, w: np.ndarray | None, ggml: GgmlScales, gain: float
) -> tuple[BestFit, BestFit]:
    """The scale that ggml finds with its own weights v, and the best for w among what it tries."""
    inverse_widest = inverse(widest_value(x))
    theirs = ours = BestFit.none(len(x))
    for k in range(-1, ggml.count):
        inverse_scale = inverse_widest * ggml.reach(k)
        theirs = theirs.consider(*scale_sums(codes, x, v, inverse_scale), inverse_scale, 0.0)
        if v is w or (k + 1) % _OUR_SHARE == 0:
            ours = ours.consider(*scale_sums(codes, x, w, inverse_scale), inverse_scale, gain)
    return theirs, ours


def ggml_weights(x: np.ndarray, w: np.ndarray | None, square: np.ndarray) -> np.ndarray:
    """With `rms`: of rows x [B, n], square [B]."""
    return x * x if w is None else without_trace(w) * np.sqrt(square[:, None] + x * x)


@dataclass(frozen=True)
class SymmetricScales:
    """d of each super-block; sub: L, integers as float32 [B, s]; error: Σ w·(x − decoded)², [B]."""

    d: StoredScale
    sub: np.ndarray
    error: np.ndarray

    def or_better(self, now: SymmetricScales) -> SymmetricScales:
        """`now` in the blocks where its error is smaller."""
        better = now.error < self.error
        return SymmetricScales(
            self.d.where(better, now.d),
            np.where(better[:, None], now.sub, self.sub),
            np.where(better, now.error, self.error),
        )

    def sub_scales(self) -> np.ndarray:
        """d · L of every sub-block, [B · s]."""
        return (self.d.value[:, None] * self.sub).reshape(-1)


def _choose_d(block: Normalised, search: SymmetricSearch, own: SubScale, steps: int) -> SymmetricScales:
    """d and every L from the sub-blocks' own scales, [B, s].

    With codes fixed, missing a scale by δ costs δ² · Σ w·q², so trying many d takes no pass over the values.
    """
    scale = own.scale
    widest = np.zeros(len(scale), np.float32)
    for j in range(scale.shape[1]):
        widest = np.where(np.abs(widest) < np.abs(scale[:, j]), scale[:, j], widest)

    def nearest(d: StoredScale) -> np.ndarray:
        return rint(clamp(scale * inverse(d.value)[:, None], search.lowest, search.highest))

    least = np.full(len(scale), LARGEST_SUM)
    best = StoredScale(np.zeros(len(scale), np.uint16), np.zeros(len(scale), np.float32))
    for k in range(steps):
        d = store_scale(widest / largest_sub(search.lowest, k), block)
        missed = scale - d.value[:, None] * nearest(d)
        cost = total(own.qq * missed * missed)
        better = cost < least
        least, best = np.where(better, cost, least), best.where(better, d)
    return SymmetricScales(best, nearest(best), least)


def _stored_errors(codes: Codes, block: Normalised, own: SubScale, scale: np.ndarray) -> np.ndarray:
    """Σ w·e² of sub-blocks with scales as they are stored, BROKEN where a value is further off than allowed: [B, s]."""
    count = scale.shape[1]
    x, w = split(block.x, count), None if block.w is None else split(block.w, count)
    squares, _ = scale_errors(codes, x, w, scale.reshape(-1))
    broken = (np.abs(scale) < own.least) | (own.most < np.abs(scale))
    return squares.reshape(scale.shape) + np.where(broken, BROKEN, ZERO)


def _settle(
    codes: Codes, block: Normalised, search: SymmetricSearch, own: SubScale, scales: SymmetricScales
) -> SymmetricScales:
    """Moves each L to a neighbour where that lowers the error."""
    best, least = scales.sub, np.full(scales.sub.shape, LARGEST_SUM)
    for step in (0.0, -1.0, 1.0):
        sub = clamp(scales.sub + np.float32(step), search.lowest, search.highest)
        error = _stored_errors(codes, block, own, scales.d.value[:, None] * sub)
        better = error < least
        best, least = np.where(better, sub, best), np.where(better, error, least)
    return SymmetricScales(scales.d, best, total(least))


def _polish(
    codes: Codes, block: Normalised, search: SymmetricSearch, own: SubScale, best: SymmetricScales
) -> SymmetricScales:
    """More candidates of d, and of L far from the nearest, where the rounding of both is most of the error."""
    polished = best.error < total(own.qq * own.scale * own.scale) * np.float32(search.polished)
    for attempt in range(2):
        now = _choose_d(block, search, own, MANY_STEPS) if attempt == 0 else best
        now = _settle(codes, block, search, own, now)
        sub, middle = now.sub, now.sub
        least = _stored_errors(codes, block, own, now.d.value[:, None] * middle)
        for multiple in (2.0, 0.5, 1.5, 2.0 / 3.0, 3.0, 1.0 / 3.0):
            tried = rint(clamp(middle * np.float32(multiple), search.lowest, search.highest))
            error = _stored_errors(codes, block, own, now.d.value[:, None] * tried)
            better = error < least
            sub, least = np.where(better, tried, sub), np.where(better, error, least)
        best = best.or_better(SymmetricScales(now.d, sub, np.where(polished, total(least), LARGEST_SUM)))
    return best


def _settle_few(
    codes: Codes, block: Normalised, search: SymmetricSearch, own: SubScale, scales: SymmetricScales
) -> SymmetricScales:
    """Where two values of each sub-block count: the L that suits them best, if all values together agree."""
    scales = _settle(codes, block, search, own, scales)
    assert block.w is not None
    shape = scales.sub.shape
    x, w = few_values(split(block.x, shape[1]), split(block.w, shape[1]))
    pair = Normalised(x.reshape(shape[0], -1), w.reshape(shape[0], -1), block.unit, block.inverse, block.largest)
    sub, least = np.zeros(shape, np.float32), np.full(shape, LARGEST_SUM)
    for candidate in np.arange(search.lowest, search.highest + 1, dtype=np.float32):
        tried = np.full(shape, candidate)
        error = _stored_errors(codes, pair, own, scales.d.value[:, None] * tried)
        better = error < least
        sub, least = np.where(better, tried, sub), np.where(better, error, least)
    error = _stored_errors(codes, block, own, scales.d.value[:, None] * sub)
    settled = _stored_errors(codes, block, own, scales.d.value[:, None] * scales.sub)
    better = error < settled
    return SymmetricScales(scales.d, np.where(better, sub, scales.sub), total(np.where(better, error, settled)))


def _search_few(
    codes: Codes, block: Normalised, search: SymmetricSearch, own: SubScale, best: SymmetricScales
) -> SymmetricScales:
    """Where few columns count: d over all that the limits of scales allow, since many meet the codes of few values.

    Then the neighbours of the best, each time with a fit to the codes at the end.
    """
    assert block.w is not None
    few = few_count(block.w, best.sub.shape[1])
    if not few.any():
        return best

    def consider(d: StoredScale) -> SymmetricScales:
        sub = rint(clamp(own.scale * inverse(d.value)[:, None], search.lowest, search.highest))
        now = _settle_few(codes, block, search, own, SymmetricScales(d, sub, best.error))
        return best.or_better(SymmetricScales(d, now.sub, np.where(few, now.error, LARGEST_SUM)))

    least = own.least[:, 0]
    for j in range(1, own.least.shape[1]):
        least = maximum(least, own.least[:, j])
    d = least * np.float32(-1 / search.lowest)
    for _ in range(_FEW_GRID):
        best = consider(store_scale(d, block))
        d = d * _FEW_RATIO
    best = consider(store_scale(_fit_d(codes, block, best), block))
    middle = best.d
    for k in range(-_FEW_STEPS, _FEW_STEPS + 1):
        best = consider(neighbour(middle, k, block))
    return consider(store_scale(_fit_d(codes, block, best), block))


def _fit_d(codes: Codes, block: Normalised, scales: SymmetricScales) -> np.ndarray:
    """d fitted by least squares to all codes."""
    sub = scales.sub
    x, w = split(block.x, sub.shape[1]), None if block.w is None else split(block.w, sub.shape[1])
    xq, qq = (sums.reshape(sub.shape) for sums in scale_sums(codes, x, w, inverse(scales.sub_scales())))
    return total(sub * xq) * inverse(total(sub * sub * qq))


def measured_error(
    codes: Codes, x: np.ndarray, w: np.ndarray | None, scale: np.ndarray, allowed: np.ndarray
) -> np.ndarray:
    """Σ w·e² with a scale as it is stored, and BROKEN where a value is further off than allowed: of those there are."""
    squares, furthest = scale_errors(codes, x, w, scale)
    return squares + np.where(allowed < furthest, BROKEN, ZERO)


def _ggml_choice(
    codes: Codes, block: Normalised, search: SymmetricSearch, scale: np.ndarray, weight: np.ndarray
) -> SymmetricScales:
    """ggml's own choice of d and L, from the scales that it finds for sub-blocks: all are rounded at once.

    scale, weight: [B, s], weight: Σ of its weights.
    """
    assert search.ggml is not None
    if block.w is not None and search.ggml.fits_d:
        fit, _ = ggml_scale(integer_codes(32), scale, weight, weight, _GGML_D, 0.0)
        d, inverse_d = fit.xq * inverse(fit.qq), fit.inverse_scale
    else:
        widest, lowest = widest_value(scale), np.float32(search.lowest)
        d, inverse_d = widest * (ONE / lowest), lowest * inverse(widest)
    stored, sub = store_scale(d, block), rint(clamp(scale * inverse_d[:, None], search.lowest, search.highest))
    count = sub.shape[1]
    x, w = split(block.x, count), None if block.w is None else split(block.w, count)
    allowed = np.repeat(block.largest * np.float32(search.error_bound), count)
    error = measured_error(codes, x, w, (stored.value[:, None] * sub).reshape(-1), allowed)
    return SymmetricScales(stored, sub, total(error.reshape(sub.shape)))


def search_symmetric(codes: Codes, block: Normalised, sub_blocks: int, search: SymmetricSearch) -> SymmetricScales:
    """d and every L of super-blocks x [B, n] with `sub_blocks` sub-blocks each."""
    x, w = split(block.x, sub_blocks), None if block.w is None else split(block.w, sub_blocks)
    allowed = np.repeat(block.largest * np.float32(search.error_bound), sub_blocks)
    tried = BestFit.none(len(x))
    scale = weight = np.zeros((0, sub_blocks), np.float32)
    if search.ggml is not None:
        square = np.repeat(mean_square(block.x) * np.float32(2), sub_blocks)
        v = w if w is not None and not search.ggml.rms else ggml_weights(x, w, square)
        theirs, tried = ggml_scale(codes, x, v, w, search.ggml, search.gain)
        scale = (theirs.xq * inverse(theirs.qq)).reshape(-1, sub_blocks)
        weight = total(v).reshape(-1, sub_blocks)
    own = fit_scale(codes, x, w, allowed, search, tried).by_block(sub_blocks)
    best = _choose_d(block, search, own, search.d_steps)
    if not search.neighbours:
        return best
    best = _settle(codes, block, search, own, best)
    if search.ggml is not None:
        best = best.or_better(_ggml_choice(codes, block, search, scale, weight))
    for _ in range(search.d_refits):
        d = store_scale(_fit_d(codes, block, best), block)
        best = best.or_better(_settle(codes, block, search, own, SymmetricScales(d, best.sub, best.error)))
    if block.w is None:
        return best
    if search.polished > 0:
        best = _polish(codes, block, search, own, best)
    return _search_few(codes, block, search, own, best)


def scaled_values(block: Normalised, scales: SymmetricScales) -> np.ndarray:
    """x divided by d · L, or 0 where that is 0: [B, n]."""
    inverse_scale = inverse(scales.sub_scales())
    return (split(block.x, scales.sub.shape[1]) * inverse_scale[:, None]).reshape(block.x.shape)
