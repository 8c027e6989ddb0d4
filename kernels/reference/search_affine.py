"""Search for types whose values are d · L · q − dmin · M; the numpy of kernels/cpu/encode/search_affine.h.

d, dmin: float16; L, M: integer sub-scales; q ≥ 0: codes. B super-blocks have B · s sub-blocks, one after another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields

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
    ggml_step,
    largest_sub,
    mean_square,
    neighbour,
    split,
    store_scale,
    top_step,
    total,
    without_trace,
)

_SHORT_COST = 64.0
# With importance, blocks that leave a smaller share of Σ w·x² than this are polished.
_POLISHED = np.float32(2.0**-16)
# Below this share of the product of its diagonal, a determinant is nothing but rounding.
_SINGULAR = np.float32(1e-5)


@dataclass(frozen=True)
class LineFits:
    """Stretches of the range that a line is fitted to, see fit_affine."""

    margins: tuple[float, ...]
    refits: int  # of the best line to its codes
    gain: float = GAIN  # that counts, see there


@dataclass(frozen=True)
class GgmlFits:
    """The same of ggml's encoder, margins at equal distance."""

    first: float
    step: float
    count: int


@dataclass(frozen=True)
class AffineSearch:
    """How far to look, and the type's ranges."""

    levels: int  # the highest code
    highest: int  # of L and M
    own: LineFits
    ggml: GgmlFits | None
    d_steps: int  # candidates of d (and dmin), see largest_sub
    d_refits: int  # of d and dmin to all codes
    error_bound: float  # of any value, as a share of the block's largest magnitude
    neighbours: bool  # whether L ± 1 and M ± 1 are tried


def position(x: np.ndarray, inverse_scale: np.ndarray, offset: np.ndarray, levels: int) -> np.ndarray:
    """The code before it is made an integer: 0 … levels."""
    return clamp(x * inverse_scale + offset, 0, levels)


def affine_sums(
    x: np.ndarray, w: np.ndarray | None, inverse_scale: np.ndarray, low: np.ndarray, levels: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Σ w·q, Σ w·q² and Σ w·x·q for the codes that a scale and a minimum give."""
    offset = -(low * inverse_scale)
    sum_q = sum_qq = sum_xq = np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        q = rint(position(x[:, i], inverse_scale, offset, levels))
        wq = weigh(w, i, q)
        sum_q, sum_qq, sum_xq = sum_q + wq, sum_qq + wq * q, sum_xq + wq * x[:, i]
    return sum_q, sum_qq, sum_xq


def affine_errors(
    x: np.ndarray, w: np.ndarray | None, scale: np.ndarray, low: np.ndarray, levels: int
) -> tuple[np.ndarray, np.ndarray]:
    """Σ w·(x − (scale·q + low))² for the nearest codes, and the largest error. Errors are taken in steps."""
    step = np.where(scale == ZERO, NO_STEP, scale)
    inverse_step = ONE / step
    offset = -(low * inverse_step)
    squares, furthest = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    for i in range(x.shape[1]):
        scaled = x[:, i] * inverse_step + offset
        e = scaled - rint(clamp(scaled, 0, levels))
        squares, furthest = squares + weigh(w, i, e) * e, maximum(furthest, np.abs(e))
    return squares * (step * step), furthest * step


@dataclass(frozen=True)
class AffineLine:
    """x ≈ scale · q + minimum, minimum ≤ 0 as the format wants; the sums of its codes, and those of x. [B, s] each."""

    scale: np.ndarray
    minimum: np.ndarray
    q: np.ndarray  # Σ w·q
    qq: np.ndarray  # Σ w·q²
    w: np.ndarray  # Σ w
    x: np.ndarray  # Σ w·x
    xx: np.ndarray  # Σ w·x²
    low: np.ndarray  # the range of x and 0
    high: np.ndarray

    def by_block(self, sub_blocks: int) -> AffineLine:
        """[B · s] → [B, s]."""
        return AffineLine(*(getattr(self, f.name).reshape(-1, sub_blocks) for f in dataclass_fields(self)))

    def minimum_for(self, scale: np.ndarray) -> np.ndarray:
        """The minimum that suits another scale, with codes fixed: it keeps the mean in place."""
        return self.minimum + (self.scale - scale) * (self.q * inverse(self.w))


def fit_affine(x: np.ndarray, w: np.ndarray | None, levels: int, search: LineFits) -> AffineLine:
    """The best real-valued lines, [rows of x].

    Stretch the range of x over levels + each of `margins` steps (a negative margin leaves room, a positive one clips
    the top), fit by least squares to the codes, keep the line that leaves least.
    """
    low, high = np.zeros(len(x), np.float32), x[:, 0]
    sum_x, squares = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    sum_w = np.full(len(x), np.float32(x.shape[1] if w is None else 0))
    for i in range(x.shape[1]):
        low, high = minimum(low, x[:, i]), maximum(high, x[:, i])
        wx = weigh(w, i, x[:, i])
        sum_x, squares = sum_x + wx, squares + wx * x[:, i]
        if w is not None:
            sum_w = sum_w + w[:, i]
    span = high - low
    inverse_span, gain = inverse(span), squares * np.float32(search.gain)
    best_scale, best_low = span * (ONE / np.float32(levels)), low
    best_q = best_qq = np.zeros(len(x), np.float32)
    least = np.full(len(x), LARGEST_SUM)
    for k in range(len(search.margins) + search.refits):
        if k < len(search.margins):
            inverse_scale = inverse_span * (np.float32(levels) + np.float32(search.margins[k]))
            start = low
        else:
            inverse_scale, start = inverse(best_scale), best_low
        step, offset = inverse(inverse_scale), -(start * inverse_scale)
        # For the errors e in steps: Σ w·e, Σ w·e², Σ w·e·q.
        sum_e, ee, eq, q, qq = (np.zeros(len(x), np.float32) for _ in range(5))
        for i in range(x.shape[1]):
            scaled = x[:, i] * inverse_scale + offset
            code = rint(clamp(scaled, 0, levels))
            e = scaled - code
            we, wq = weigh(w, i, e), weigh(w, i, code)
            sum_e, ee, eq = sum_e + we, ee + we * e, eq + we * code
            q, qq = q + wq, qq + wq * code
        determinant = sum_w * qq - q * q
        solvable = _SINGULAR * sum_w * qq < determinant
        moved = np.where(solvable, (qq * sum_e - q * eq) * inverse(determinant), ZERO)
        new_low = minimum(start + step * moved, ZERO)
        # The best scale for this minimum, and what both leave of Σ w·e².
        shift = (new_low - start) * inverse_scale
        covered = eq - shift * q
        change = covered * inverse(qq)
        left = (ee + shift * (shift * sum_w - (sum_e + sum_e)) - change * covered) * (step * step)
        better = left + gain < least
        least = np.where(better, left, least)
        best_scale, best_low = np.where(better, step + step * change, best_scale), np.where(better, new_low, best_low)
        best_q, best_qq = np.where(better, q, best_q), np.where(better, qq, best_qq)
    return AffineLine(best_scale, best_low, best_q, best_qq, sum_w, sum_x, squares, low, high)


def limit_line(line: AffineLine, allowed: np.ndarray, levels: int) -> AffineLine:
    """Holds a line to where no value is cut off by more than allowed. Its upper end never moves down."""
    inside = allowed * FIT_SHARE
    low = minimum(line.minimum, line.low + inside)
    top = maximum(line.high - inside, line.minimum + line.scale * np.float32(levels))
    scale = maximum(line.scale, (top - low) * (ONE / np.float32(levels)))
    return replace(line, scale=scale, minimum=low)


def ggml_line(
    x: np.ndarray, w: np.ndarray, low: np.ndarray, high: np.ndarray, levels: int, fits: GgmlFits, absolute: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A sub-block's line as ggml finds it: scale, minimum, and Σ w.

    The range is stretched over levels + margin steps, from the minimum of the best line so far. Judged by Σ w·e², or
    Σ w·|e| if `absolute`.
    """
    best_scale, best_low = (high - low) * (ONE / np.float32(levels)), low
    sum_w, least = total(w), np.full(len(x), LARGEST_SUM)
    for k in range(-1, fits.count):
        steps = np.float32(levels) + (ZERO if k < 0 else np.float32(fits.first) + np.float32(fits.step) * np.float32(k))
        start = best_low
        step = (high - start) * (ONE / steps)
        inverse_scale = inverse(step)
        offset = -(start * inverse_scale)
        sum_e, ee, eq, q, qq = (np.zeros(len(x), np.float32) for _ in range(5))
        codes = np.empty_like(x)
        for i in range(x.shape[1]):
            scaled = x[:, i] * inverse_scale + offset
            code = codes[:, i] = rint(clamp(scaled, 0, levels))
            e = scaled - code
            we, wq = w[:, i] * e, w[:, i] * code
            sum_e, ee, eq = sum_e + we, ee + we * e, eq + we * code
            q, qq = q + wq, qq + wq * code
        scale, new_low, left, better = step, start, ee * (step * step), np.ones(len(x), bool)
        if k >= 0:
            determinant = sum_w * qq - q * q
            better = determinant > ZERO
            new_low = minimum(start + step * ((qq * sum_e - q * eq) / determinant), ZERO)
            shift = (new_low - start) * inverse_scale
            covered = eq - shift * q
            change = covered / qq
            scale = step + step * change
            left = (ee + shift * (shift * sum_w - (sum_e + sum_e)) - change * covered) * (step * step)
        if absolute:
            left = np.zeros(len(x), np.float32)
            for i in range(x.shape[1]):
                left = left + w[:, i] * np.abs(x[:, i] - (scale * codes[:, i] + new_low))
        better = better & (left < least)
        least = np.where(better, left, least)
        best_scale, best_low = np.where(better, scale, best_scale), np.where(better, new_low, best_low)
    return best_scale, best_low, sum_w


@dataclass(frozen=True)
class AffineScales:
    """d and dmin of each super-block; sub, sub_min: L and M, integers as float32 [B, s]; error [B]."""

    d: StoredScale
    dmin: StoredScale
    sub: np.ndarray
    sub_min: np.ndarray
    error: np.ndarray

    def or_better(self, now: AffineScales) -> AffineScales:
        """`now` in the blocks where its error is smaller."""
        better = now.error < self.error
        return AffineScales(
            self.d.where(better, now.d),
            self.dmin.where(better, now.dmin),
            np.where(better[:, None], now.sub, self.sub),
            np.where(better[:, None], now.sub_min, self.sub_min),
            np.where(better, now.error, self.error),
        )

    def scales(self) -> np.ndarray:
        """d · L, [B, s]."""
        return self.d.value[:, None] * self.sub

    def minima(self) -> np.ndarray:
        """−dmin · M, [B, s]."""
        return -(self.dmin.value[:, None] * self.sub_min)


def _nearest(scale: np.ndarray, d: StoredScale, search: AffineSearch) -> np.ndarray:
    return rint(clamp(scale * inverse(d.value)[:, None], 0, search.highest))


def _choose_step(
    block: Normalised, search: AffineSearch, steps: int, target: np.ndarray, weight: np.ndarray, short_cost: float = 1.0
) -> StoredScale:
    """The float16 whose multiples 0 … highest come nearest to `target` ≥ 0 [B, s], in squares weighted by `weight`.

    Those of what is too short are also weighted by short_cost.
    """
    widest = np.zeros(len(target), np.float32)
    for j in range(target.shape[1]):
        widest = maximum(widest, target[:, j])
    least = np.full(len(target), LARGEST_SUM)
    best = StoredScale(np.zeros(len(target), np.uint16), np.zeros(len(target), np.float32))
    for k in range(steps):
        d = store_scale(widest / largest_sub(search.highest, k), block)
        missed = target - d.value[:, None] * _nearest(target, d, search)
        squared = weight * missed * missed
        cost = total(np.where(missed > ZERO, squared * np.float32(short_cost), squared))
        better = cost < least
        least, best = np.where(better, cost, least), best.where(better, d)
    return best


def _choose_d(
    block: Normalised, search: AffineSearch, steps: int, line: AffineLine, moves: bool = True
) -> tuple[StoredScale, StoredScale]:
    """d and dmin from the sub-blocks' own lines.

    With codes fixed, missing a scale by δ, the minimum moved to suit, costs δ² · (Σ w·q² − (Σ w·q)² / Σ w), and missing
    that minimum by δ costs δ² · Σ w: no pass over the values is needed. moves: whether the minimum can be moved; if it
    can not, a scale costs δ² · Σ w·q², and should rather be too long, which a minimum below 0 makes good.
    """
    cost = maximum(line.qq - line.q * line.q * inverse(line.w), ZERO) if moves else line.qq
    d = _choose_step(block, search, steps, line.scale, cost, 1.0 if moves else _SHORT_COST)
    low = line.minimum_for(d.value[:, None] * _nearest(line.scale, d, search))
    return d, _choose_step(block, search, steps, maximum(-low, ZERO), line.w)


def _settle(
    block: Normalised, search: AffineSearch, line: AffineLine, d: StoredScale, dmin: StoredScale
) -> AffineScales:
    """For each sub-block the L nearest to its line, or a neighbour, with its M, then that M or a neighbour."""
    shape = line.scale.shape
    x, w = split(block.x, shape[1]), None if block.w is None else split(block.w, shape[1])
    nearest = _nearest(line.scale, d, search)
    best, least = np.zeros(shape, np.float32), np.full(shape, LARGEST_SUM)
    best_min = best
    allowed = (block.largest * np.float32(search.error_bound))[:, None]
    # With few codes, those of a sub-block of two values can lie 2 or 3 apart.
    tries = 7 if search.levels == 3 and w is not None else 5
    for k, step in enumerate((0.0, -1.0, 1.0, -1.0, 1.0, 1.5, 2.0 / 3.0)[: tries if search.neighbours else 1]):
        sub, sub_min = best, best_min
        if k < 3:
            sub = clamp(nearest + np.float32(step), 0, search.highest)
            sub_min = _nearest(-line.minimum_for(d.value[:, None] * sub), dmin, search)
        elif k < 5:
            sub_min = clamp(best_min + np.float32(step), 0, search.highest)
        else:
            sub = rint(clamp(nearest * np.float32(step), 0, search.highest))
        scale, low = d.value[:, None] * sub, -(dmin.value[:, None] * sub_min)
        broken = (line.low + allowed < low) | (scale * np.float32(search.levels) + low < line.high - allowed)
        squares, _ = affine_errors(x, w, scale.reshape(-1), low.reshape(-1), search.levels)
        error = squares.reshape(shape) + np.where(broken, BROKEN, ZERO)
        better = error < least
        best, best_min = np.where(better, sub, best), np.where(better, sub_min, best_min)
        least = np.where(better, error, least)
    return AffineScales(d, dmin, best, best_min, total(least))


def _refit(
    block: Normalised, search: AffineSearch, scales: AffineScales, line: AffineLine
) -> tuple[StoredScale, StoredScale, AffineLine]:
    """d and dmin fitted by least squares to all codes, and the lines that are stored now."""
    sub, sub_min = scales.sub, scales.sub_min
    x, w = split(block.x, sub.shape[1]), None if block.w is None else split(block.w, sub.shape[1])
    scale, low = scales.scales(), scales.minima()
    sums = affine_sums(x, w, inverse(scale.reshape(-1)), low.reshape(-1), search.levels)
    q, qq, xq = (s.reshape(sub.shape) for s in sums)
    ll, lm, mm = total(sub * sub * qq), total(sub * sub_min * q), total(sub_min * sub_min * line.w)
    xl, xm = total(sub * xq), total(sub_min * line.x)
    determinant = ll * mm - lm * lm
    solvable = _SINGULAR * ll * mm < determinant
    fitted = maximum((lm * xl - ll * xm) * inverse(determinant), ZERO)
    dmin = np.where(solvable, fitted, scales.dmin.value)
    d = maximum((xl + dmin * lm) * inverse(ll), ZERO)
    return store_scale(d, block), store_scale(dmin, block), replace(line, scale=scale, minimum=low, q=q, qq=qq)


def _ggml_choice(block: Normalised, search: AffineSearch, line: AffineLine) -> AffineScales:
    """ggml's own choice of d, dmin, L and M.

    Every sub-block's line is fitted with weights that grow with |x|, and then all are rounded at once.
    """
    assert search.ggml is not None
    sub_blocks = line.scale.shape[1]
    x, w = split(block.x, sub_blocks), None if block.w is None else split(block.w, sub_blocks)
    short = x.shape[1] == 16
    if w is None:
        base = np.zeros(len(x), np.float32) if short else np.sqrt(mean_square(x))
        v = base[:, None] + np.abs(x)
    else:
        square = np.repeat(mean_square(block.x) * np.float32(1 if short else 2), sub_blocks)
        v = without_trace(w) * np.sqrt(square[:, None] + x * x)
    ends = line.low.reshape(-1), line.high.reshape(-1)
    scale, low, weight = ggml_line(x, v, *ends, search.levels, search.ggml, absolute=short and w is None)
    steps = []
    for target in (maximum(scale, ZERO), -low):
        target = target.reshape(line.scale.shape)
        if w is None:
            steps.append(top_step(target, search.highest))
        else:
            steps.append(ggml_step(target, weight.reshape(target.shape), search.highest))
    (d, sub), (dmin, sub_min) = ((store_scale(step, block), sub) for step, sub in steps)
    now = AffineScales(d, dmin, sub, sub_min, np.zeros(len(sub), np.float32))
    # Its values are measured: a line may be too long and yet cut nothing off.
    squares, furthest = affine_errors(x, w, now.scales().reshape(-1), now.minima().reshape(-1), search.levels)
    allowed = np.repeat(block.largest * np.float32(search.error_bound), sub_blocks)
    error = squares + np.where(allowed < furthest, BROKEN, ZERO)
    return replace(now, error=total(error.reshape(sub.shape)))


def _settle_few(
    block: Normalised, search: AffineSearch, line: AffineLine, d: StoredScale, dmin: StoredScale
) -> AffineScales:
    """Where two values of each sub-block count: the L and M that suit them best, if all values together agree."""
    settled = _settle(block, search, line, d, dmin)
    shape = line.scale.shape
    assert block.w is not None
    x, w = split(block.x, shape[1]), split(block.w, shape[1])
    few_x, few_w = few_values(x, w)
    allowed = (block.largest * np.float32(search.error_bound))[:, None]
    per_block = np.repeat(np.arange(shape[0]), shape[1])
    low_limit, high_limit = (line.low + allowed).reshape(-1), (line.high - allowed).reshape(-1)
    low = -(dmin.value[per_block, None] * np.arange(search.highest + 1, dtype=np.float32))  # [B · s, M]
    sub, sub_min = np.zeros(len(x), np.float32), np.zeros(len(x), np.float32)
    least = np.full(len(x), LARGEST_SUM)
    for candidate in range(search.highest + 1):
        scale = (d.value[per_block] * np.float32(candidate))[:, None]
        step = np.where(scale == ZERO, NO_STEP, scale)
        inverse_step = ONE / step
        offset = -(low * inverse_step)
        error = np.zeros_like(low)
        for k in range(2):
            scaled = few_x[:, k, None] * inverse_step + offset
            e = scaled - rint(clamp(scaled, 0, search.levels))
            error = error + few_w[:, k, None] * e * e
        broken = (low_limit[:, None] < low) | (scale * np.float32(search.levels) + low < high_limit[:, None])
        error = error * (step * step) + np.where(broken, BROKEN, ZERO)
        at = error.argmin(axis=1)
        error = error[np.arange(len(x)), at]
        better = error < least
        least, sub = np.where(better, error, least), np.where(better, np.float32(candidate), sub)
        sub_min = np.where(better, at.astype(np.float32), sub_min)

    def errors(sub: np.ndarray, sub_min: np.ndarray) -> np.ndarray:
        scale, low = d.value[:, None] * sub, -(dmin.value[:, None] * sub_min)
        broken = (line.low + allowed < low) | (scale * np.float32(search.levels) + low < line.high - allowed)
        squares, _ = affine_errors(x, w, scale.reshape(-1), low.reshape(-1), search.levels)
        return squares.reshape(shape) + np.where(broken, BROKEN, ZERO)

    few_sub, few_min = sub.reshape(shape), sub_min.reshape(shape)
    tried, kept = errors(few_sub, few_min), errors(settled.sub, settled.sub_min)
    better = tried < kept
    best, best_min = np.where(better, few_sub, settled.sub), np.where(better, few_min, settled.sub_min)
    return AffineScales(d, dmin, best, best_min, total(np.where(better, tried, kept)))


def _search_few(block: Normalised, search: AffineSearch, line: AffineLine, best: AffineScales) -> AffineScales:
    """Every L and M where few columns count, with d, its neighbours, and a fit to the codes."""
    assert block.w is not None
    few = few_count(block.w, best.sub.shape[1])
    if not few.any():
        return best
    middle, steps = best.d, 8 if search.highest < 63 else 1  # the fewer L and M, the more d
    for k in range(-steps, steps + 2):
        if k <= steps:
            d, dmin = neighbour(middle, k, block), best.dmin
        else:
            d, dmin, line = _refit(block, search, best, line)
        now = _settle_few(block, search, line, d, dmin)
        best = best.or_better(replace(now, error=np.where(few, now.error, LARGEST_SUM)))
    return best


def search_affine(block: Normalised, sub_blocks: int, search: AffineSearch) -> AffineScales:
    """d, dmin and every L, M of super-blocks x [B, n] with `sub_blocks` sub-blocks each."""
    x, w = split(block.x, sub_blocks), None if block.w is None else split(block.w, sub_blocks)
    allowed = np.repeat(block.largest * np.float32(search.error_bound), sub_blocks)
    line = limit_line(fit_affine(x, w, search.levels, search.own), allowed, search.levels).by_block(sub_blocks)
    own = line
    best = _settle(block, search, line, *_choose_d(block, search, search.d_steps, line))
    if search.ggml is not None:
        best = best.or_better(_ggml_choice(block, search, line))
    for _ in range(search.d_refits):
        d, dmin, line = _refit(block, search, best, line)
        best = best.or_better(_settle(block, search, line, d, dmin))
    if w is None or search.d_refits == 0:
        return best
    # Where hardly an error is left, the rounding of d and dmin is most of it: more of them are tried.
    polished = best.error < total(own.xx) * _POLISHED
    for moves in True, False:
        now = _settle(block, search, own, *_choose_d(block, search, MANY_STEPS, own, moves))
        best = best.or_better(replace(now, error=np.where(polished, now.error, LARGEST_SUM)))
    return _search_few(block, search, own, best)


def affine_codes(block: Normalised, scales: AffineScales, levels: int) -> np.ndarray:
    """Codes 0 … levels as float32 [B, n]."""
    inverse_scale = inverse(scales.scales().reshape(-1))
    offset = -(scales.minima().reshape(-1) * inverse_scale)
    x = split(block.x, scales.sub.shape[1])
    return rint(position(x, inverse_scale[:, None], offset[:, None], levels)).reshape(block.x.shape)
