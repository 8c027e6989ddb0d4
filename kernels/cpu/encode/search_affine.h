// Search for types whose values are d · L · q − dmin · M: two float16 scales, two sub-scales L and M, codes q ≥ 0.
#pragma once
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Below this share of the product of its diagonal, a determinant is nothing but rounding.
constexpr float kSingular = 1e-5f;

// Sums over the codes that a scale and a minimum give: all that least squares needs to fit both.
struct AffineSums {
    F q, qq, xq;  // Σ w·q, Σ w·q², Σ w·x·q
};
// The code before it is made an integer: 0 … kLevels.
template <int kLevels>
BITSMITH_INLINE F position(const F& x, const F& inverse_scale, const F& offset) {
    return clamp(x * inverse_scale + offset, 0.0f, float(kLevels));
}
template <int kLevels, int kValues, bool kWeighted>
BITSMITH_INLINE AffineSums affine_sums(const F* x, const F* w, const F& inverse_scale, const F& minimum) {
    const F offset = negate(minimum * inverse_scale);
    AffineSums sums = {splat(0.0f), splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F q = rint(position<kLevels>(x[i], inverse_scale, offset));
        const F wq = weigh<kWeighted>(w, i, q);
        sums.q = sums.q + wq;
        sums.qq = sums.qq + wq * q;
        sums.xq = sums.xq + wq * x[i];
    }
    return sums;
}
// Σ w·e², and the largest |e| if kFurthest.
template <int kLevels, int kValues, bool kWeighted, bool kFurthest>
BITSMITH_INLINE Errors affine_errors(const F* x, const F* w, const F& scale, const F& minimum) {
    const F step = select(equal(scale, splat(0.0f)), splat(kNoStep), scale), inverse_step = splat(1.0f) / step;
    const F offset = negate(minimum * inverse_step);
    Errors errors = {splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F scaled = x[i] * inverse_step + offset, e = scaled - rint(clamp(scaled, 0.0f, float(kLevels)));
        errors.squares = errors.squares + weigh<kWeighted>(w, i, e) * e;
        if constexpr (kFurthest) errors.furthest = max(errors.furthest, abs(e));
    }
    return {errors.squares * (step * step), errors.furthest * step};
}

// For the errors e in steps of a line: Σ w·e, Σ w·e², Σ w·e·q, Σ w·q, Σ w·q². As in StepSums it is all that is needed.
struct LineSums {
    F e, ee, eq, q, qq;
};
// kLower, kUpper: whether a value may lie beyond that end.
template <int kLevels, int kValues, bool kWeighted, bool kLower, bool kUpper>
BITSMITH_INLINE LineSums line_sums(const F* x, const F* w, const F& inverse_scale, const F& offset) {
    LineSums sums = {splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F scaled = x[i] * inverse_scale + offset;
        F held = scaled;
        if constexpr (kLower) held = max(held, splat(0.0f));
        if constexpr (kUpper) held = min(held, splat(float(kLevels)));
        const F q = rint(held), e = scaled - q, we = weigh<kWeighted>(w, i, e), wq = weigh<kWeighted>(w, i, q);
        sums.e = sums.e + we;
        sums.ee = sums.ee + we * e;
        sums.eq = sums.eq + we * q;
        sums.q = sums.q + wq;
        sums.qq = sums.qq + wq * q;
    }
    return sums;
}
// A range stretched over so much less than half a step more ends at the highest code.
constexpr float kInsideMargin = 0.49f;

// x ≈ scale · q + minimum, with minimum ≤ 0 as the format wants, and the sums of x that do not depend on codes.
struct AffineLine {
    F scale, minimum;
    F q, qq;      // Σ w·q, Σ w·q² of the codes it was fitted to
    F w, x, xx;   // Σ w, Σ w·x, Σ w·x²
    F low, high;  // the range of x and 0
};

// Stretches of the range that a line is fitted to, see fit_affine.
struct LineFits {
    const float* margins;
    int count;
    int refits;  // of the best line to its codes
    float gain;  // that counts, see kGain
};

// The same of ggml's encoder, margins at equal distance.
struct GgmlFits {
    float first, step;
    int count;
};

struct AffineSearch {
    LineFits own;
    GgmlFits ggml;
    int d_steps;        // candidates of d, and of dmin, see largest_sub
    int d_refits;       // of d and dmin to all codes
    float error_bound;  // of any value, as a share of the block's largest magnitude
    bool neighbours;    // whether L ± 1 and M ± 1 are tried
};
constexpr float kShortCost = 64.0f;
// With importance, blocks that leave a smaller share of Σ w·x² than this are polished.
constexpr float kPolished = 1.0f / (1 << 16);

// The best real-valued line: stretch the range of x over kLevels + each of `margins` steps (a negative margin leaves
// room, a positive one clips the top), fit by least squares to the codes, keep the one that leaves least.
template <int kLevels, int kValues, bool kWeighted>
inline AffineLine fit_affine(const F* x, const F* w, const LineFits& search) {
    F low = splat(0.0f), high = x[0], squares = splat(0.0f);
    AffineLine line = {};
    line.w = splat(kWeighted ? 0.0f : float(kValues));
    for (int i = 0; i < kValues; ++i) {
        low = min(low, x[i]);
        high = max(high, x[i]);
        const F wx = weigh<kWeighted>(w, i, x[i]);
        line.x = line.x + wx;
        squares = squares + wx * x[i];
        if constexpr (kWeighted) line.w = line.w + w[i];
    }
    const F range = high - low;
    const F inverse_range = inverse(range);
    line.scale = range * splat(1.0f / kLevels);
    line.minimum = low;
    const F gain = squares * splat(search.gain);
    F least = splat(kLargestSum);
    for (int k = 0; k < search.count + search.refits; ++k) {
        const F inverse_scale =
            k < search.count ? inverse_range * splat(float(kLevels) + search.margins[k]) : inverse(line.scale);
        const F start = k < search.count ? low : line.minimum;
        const F step = inverse(inverse_scale), offset = negate(start * inverse_scale);
        LineSums sums;
        if (k >= search.count) {
            sums = line_sums<kLevels, kValues, kWeighted, true, true>(x, w, inverse_scale, offset);
        } else if (search.margins[k] > kInsideMargin) {
            sums = line_sums<kLevels, kValues, kWeighted, false, true>(x, w, inverse_scale, offset);
        } else {
            sums = line_sums<kLevels, kValues, kWeighted, false, false>(x, w, inverse_scale, offset);
        }
        const auto& [e, ee, eq, sum_q, qq] = sums;
        const F determinant = line.w * qq - sum_q * sum_q;
        const M solvable = less(splat(kSingular) * line.w * qq, determinant);
        const F moved = select(solvable, (qq * e - sum_q * eq) * inverse(determinant), splat(0.0f));
        const F minimum = min(start + step * moved, splat(0.0f));
        // The best scale for this minimum, and what both leave of Σ w·e².
        const F shift = (minimum - start) * inverse_scale, covered = eq - shift * sum_q;
        const F change = covered * inverse(qq);
        const F left = (ee + shift * (shift * line.w - (e + e)) - change * covered) * (step * step);
        const M better = less(left + gain, least);
        least = select(better, left, least);
        line.scale = select(better, step + step * change, line.scale);
        line.minimum = select(better, minimum, line.minimum);
        line.q = select(better, sum_q, line.q);
        line.qq = select(better, qq, line.qq);
    }
    line.xx = squares;
    line.low = low;
    line.high = high;
    return line;
}

// Holds a line to where no value is cut off by more than allowed. Its upper end never moves down: a value of great
// importance may lie there.
template <int kLevels>
BITSMITH_INLINE void limit_line(AffineLine& line, const F& allowed) {
    const F inside = allowed * splat(kFitShare);
    const F top = max(line.high - inside, line.minimum + line.scale * splat(float(kLevels)));
    line.minimum = min(line.minimum, line.low + inside);
    line.scale = max(line.scale, (top - line.minimum) * splat(1.0f / kLevels));
}

template <int kSubBlocks>
struct AffineScales {
    StoredScale d, dmin;
    F sub[kSubBlocks], sub_min[kSubBlocks];  // L and M, integers
    F error;                                 // Σ w·(x − decoded)²
};

// The minimum that suits another scale than the line's, with codes fixed: it keeps the mean in place.
BITSMITH_INLINE F minimum_for(const AffineLine& line, const F& scale) {
    return line.minimum + (line.scale - scale) * (line.q * inverse(line.w));
}

// The float16 whose multiples 0 … kHighest come nearest to `target` ≥ 0, by squares weighted with `weight`, those of
// what is too short also with short_cost.
template <int kHighest, int kSubBlocks, class Block>
inline StoredScale choose_step(const Block& block, int steps, const F* target, const F* weight, float short_cost) {
    F widest = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) widest = max(widest, target[j]);
    F least = splat(kLargestSum);
    StoredScale best = {splat(0), splat(0.0f)};
    for (int k = 0; k < steps; ++k) {
        const StoredScale d = store_scale(widest / splat(largest_sub(float(kHighest), k)), block);
        const F inverse_d = inverse(d.value);
        F cost = splat(0.0f);
        for (int j = 0; j < kSubBlocks; ++j) {
            const F missed = target[j] - d.value * rint(clamp(target[j] * inverse_d, 0.0f, kHighest));
            const F squared = weight[j] * missed * missed;
            cost = cost + select(less(splat(0.0f), missed), squared * splat(short_cost), squared);
        }
        const M better = less(cost, least);
        least = select(better, cost, least);
        best.bits = select(better, d.bits, best.bits);
        best.value = select(better, d.value, best.value);
    }
    return best;
}

// d and dmin from the sub-blocks' own lines. With codes fixed, missing a scale by δ, the minimum moved to suit, costs
// δ² · (Σ w·q² − (Σ w·q)² / Σ w), and missing that minimum by δ costs δ² · Σ w: no pass over the values is needed.
// kMoves: whether the minimum can be moved to suit; if it can not, a scale costs δ² · Σ w·q², and should rather be too
// long, which a minimum below 0 makes good.
template <int kHighest, bool kMoves, int kSubBlocks, class Block>
inline void choose_d(const Block& block, int steps, const AffineLine line[kSubBlocks],
                     AffineScales<kSubBlocks>& scales) {
    F target[kSubBlocks], weight[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
        target[j] = line[j].scale;
        weight[j] = line[j].qq;
        if constexpr (kMoves) {
            weight[j] = max(weight[j] - line[j].q * line[j].q * inverse(line[j].w), splat(0.0f));
        }
    }
    scales.d = choose_step<kHighest, kSubBlocks>(block, steps, target, weight, kMoves ? 1.0f : kShortCost);
    const F inverse_d = inverse(scales.d.value);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F sub = rint(clamp(line[j].scale * inverse_d, 0.0f, kHighest));
        target[j] = max(negate(minimum_for(line[j], scales.d.value * sub)), splat(0.0f));
        weight[j] = line[j].w;
    }
    scales.dmin = choose_step<kHighest, kSubBlocks>(block, steps, target, weight, 1.0f);
}

// Σ w·e² with a line as it is stored, and kBroken where a value is cut off by more than allowed.
template <int kLevels, int kValues, bool kWeighted>
BITSMITH_INLINE F stored_error(const F* x, const F* w, const F& scale, const F& minimum, const AffineLine& line,
                               const F& allowed) {
    const M broken =
        less(line.low + allowed, minimum) | less(scale * splat(float(kLevels)) + minimum, line.high - allowed);
    return affine_errors<kLevels, kValues, kWeighted, false>(x, w, scale, minimum).squares +
           select(broken, splat(kBroken), splat(0.0f));
}

// For each sub-block the L nearest to its line, or a neighbour, with the M that suits it, then that M or a neighbour.
template <int kLevels, int kHighest, int kSubBlocks, bool kWeighted>
inline void settle(const Normalised<256, kWeighted>& block, const AffineSearch& search,
                   const AffineLine line[kSubBlocks], AffineScales<kSubBlocks>& scales) {
    constexpr int kValues = 256 / kSubBlocks;
    const F inverse_d = inverse(scales.d.value), inverse_dmin = inverse(scales.dmin.value);
    const F allowed = block.largest * splat(search.error_bound);
    scales.error = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* x = block.x + j * kValues;
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        const F nearest = rint(clamp(line[j].scale * inverse_d, 0.0f, kHighest));
        F best_error = splat(kLargestSum);
        for (int k = 0; k < (!search.neighbours ? 1 : kWeighted && kLevels == 3 ? 7 : 5); ++k) {
            const float step = k == 1 || k == 3 ? -1.0f : 1.0f;
            F sub = scales.sub[j], sub_min = scales.sub_min[j];
            if (k < 3) {
                sub = k == 0 ? nearest : clamp(nearest + splat(step), 0.0f, kHighest);
                sub_min =
                    rint(clamp(negate(minimum_for(line[j], scales.d.value * sub)) * inverse_dmin, 0.0f, kHighest));
            } else if (k < 5) {
                sub_min = clamp(sub_min + splat(step), 0.0f, kHighest);
            } else {
                sub = rint(clamp(nearest * splat(k == 5 ? 1.5f : 2.0f / 3.0f), 0.0f, kHighest));
            }
            const F scale = scales.d.value * sub, minimum = negate(scales.dmin.value * sub_min);
            const F error = stored_error<kLevels, kValues, kWeighted>(x, w, scale, minimum, line[j], allowed);
            const M better = less(error, best_error);
            scales.sub[j] = select(better, sub, scales.sub[j]);
            scales.sub_min[j] = select(better, sub_min, scales.sub_min[j]);
            best_error = select(better, error, best_error);
        }
        scales.error = scales.error + best_error;
    }
}

// Fits d and dmin by least squares to all codes, and sets the lines to what is stored now.
template <int kLevels, int kSubBlocks, bool kWeighted>
inline void refit(const Normalised<256, kWeighted>& block, AffineScales<kSubBlocks>& scales,
                  AffineLine line[kSubBlocks]) {
    constexpr int kValues = 256 / kSubBlocks;
    const F zero = splat(0.0f);
    F ll = zero, lm = zero, mm = zero, xl = zero, xm = zero;
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        const F sub = scales.sub[j], sub_min = scales.sub_min[j];
        line[j].scale = scales.d.value * sub;
        line[j].minimum = negate(scales.dmin.value * sub_min);
        const AffineSums sums =
            affine_sums<kLevels, kValues, kWeighted>(block.x + j * kValues, w, inverse(line[j].scale), line[j].minimum);
        line[j].q = sums.q;
        line[j].qq = sums.qq;
        ll = ll + sub * sub * sums.qq;
        lm = lm + sub * sub_min * sums.q;
        mm = mm + sub_min * sub_min * line[j].w;
        xl = xl + sub * sums.xq;
        xm = xm + sub_min * line[j].x;
    }
    const F determinant = ll * mm - lm * lm;
    const M solvable = less(splat(kSingular) * ll * mm, determinant);
    const F dmin = select(solvable, max((lm * xl - ll * xm) * inverse(determinant), zero), scales.dmin.value);
    scales.d = store_scale(max((xl + dmin * lm) * inverse(ll), zero), block);
    scales.dmin = store_scale(dmin, block);
}

template <int kSubBlocks>
BITSMITH_INLINE void keep_better(AffineScales<kSubBlocks>& best, const AffineScales<kSubBlocks>& now) {
    const M better = less(now.error, best.error);
    best.error = select(better, now.error, best.error);
    best.d.bits = select(better, now.d.bits, best.d.bits);
    best.d.value = select(better, now.d.value, best.d.value);
    best.dmin.bits = select(better, now.dmin.bits, best.dmin.bits);
    best.dmin.value = select(better, now.dmin.value, best.dmin.value);
    for (int j = 0; j < kSubBlocks; ++j) {
        best.sub[j] = select(better, now.sub[j], best.sub[j]);
        best.sub_min[j] = select(better, now.sub_min[j], best.sub_min[j]);
    }
}

// A sub-block's line as ggml finds it: the range stretched over kLevels + margin steps, from the minimum of the best
// line so far. Judged by Σ w·e², or Σ w·|e| if kAbsolute.
template <int kLevels, int kValues, bool kAbsolute>
inline AffineLine ggml_line(const F* x, const F* w, const F& low, const F& high, const GgmlFits& fits) {
    AffineLine line = {};
    line.scale = (high - low) * splat(1.0f / kLevels);
    line.minimum = low;
    for (int i = 0; i < kValues; ++i) line.w = line.w + w[i];
    F least = splat(kLargestSum);
    for (int k = -1; k < fits.count; ++k) {
        const float steps = float(kLevels) + (k < 0 ? 0.0f : fits.first + fits.step * float(k));
        const F start = line.minimum, range = high - start;
        const F step = range * splat(1.0f / steps), inverse_scale = inverse(step);
        const F offset = negate(start * inverse_scale);
        const bool beyond = steps > float(kLevels) + kInsideMargin;
        const LineSums sums = beyond ? line_sums<kLevels, kValues, true, true, true>(x, w, inverse_scale, offset)
                                     : line_sums<kLevels, kValues, true, true, false>(x, w, inverse_scale, offset);
        const auto& [e, ee, eq, sum_q, qq] = sums;
        F scale = step, minimum = start, left = ee * (step * step);
        M better = less(splat(0.0f), splat(1.0f));
        if (k >= 0) {
            const F determinant = line.w * qq - sum_q * sum_q;
            better = less(splat(0.0f), determinant);
            minimum = min(start + step * ((qq * e - sum_q * eq) / determinant), splat(0.0f));
            const F shift = (minimum - start) * inverse_scale, covered = eq - shift * sum_q;
            const F change = covered / qq;
            scale = step + step * change;
            left = (ee + shift * (shift * line.w - (e + e)) - change * covered) * (step * step);
        }
        if constexpr (kAbsolute) {
            left = splat(0.0f);
            BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
                const F q = rint(position<kLevels>(x[i], inverse_scale, offset));
                left = left + w[i] * abs(x[i] - (scale * q + minimum));
            }
        }
        better = better & less(left, least);
        least = select(better, left, least);
        line.scale = select(better, scale, line.scale);
        line.minimum = select(better, minimum, line.minimum);
    }
    return line;
}

// ggml's own choice of d, dmin, L and M: every sub-block's line is fitted with weights that grow with |x|, and then all
// are rounded at once.
template <int kLevels, int kHighest, int kSubBlocks, bool kWeighted>
inline AffineScales<kSubBlocks> ggml_affine(const Normalised<256, kWeighted>& block, const AffineSearch& search,
                                            const AffineLine line[kSubBlocks]) {
    constexpr int kValues = 256 / kSubBlocks;
    const F allowed = block.largest * splat(search.error_bound);
    F square = splat(0.0f);
    if constexpr (kWeighted) square = mean_square<256>(block.x) * splat(kValues == 16 ? 1.0f : 2.0f);
    F scale[kSubBlocks], low[kSubBlocks], weight[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* x = block.x + j * kValues;
        F w[kValues];
        if constexpr (kWeighted) {
            for (int i = 0; i < kValues; ++i)
                w[i] = without_trace(block.w[j * kValues + i]) * sqrt(square + x[i] * x[i]);
        } else {
            const F base = kValues == 16 ? splat(0.0f) : sqrt(mean_square<kValues>(x));
            for (int i = 0; i < kValues; ++i) w[i] = base + abs(x[i]);
        }
        const AffineLine theirs = ggml_line < kLevels, kValues,
                         kValues == 16 && !kWeighted > (x, w, line[j].low, line[j].high, search.ggml);
        scale[j] = max(theirs.scale, splat(0.0f));
        low[j] = negate(theirs.minimum);
        weight[j] = theirs.w;
    }
    AffineScales<kSubBlocks> now;
    if constexpr (kWeighted) {
        now.d = store_scale(ggml_step<kHighest, kSubBlocks>(scale, weight, now.sub), block);
        now.dmin = store_scale(ggml_step<kHighest, kSubBlocks>(low, weight, now.sub_min), block);
    } else {
        now.d = store_scale(top_step<kHighest, kSubBlocks>(scale, now.sub), block);
        now.dmin = store_scale(top_step<kHighest, kSubBlocks>(low, now.sub_min), block);
    }
    now.error = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F *x = block.x + j * kValues, *w = kWeighted ? block.w + j * kValues : block.w;
        const F stored = now.d.value * now.sub[j], minimum = negate(now.dmin.value * now.sub_min[j]);
        const Errors errors = affine_errors<kLevels, kValues, kWeighted, true>(x, w, stored, minimum);
        now.error = now.error + (errors.squares + select(less(allowed, errors.furthest), splat(kBroken), splat(0.0f)));
    }
    return now;
}

// Where hardly an error is left, the rounding of d and dmin is most of it: more of them are tried.
template <int kLevels, int kHighest, int kSubBlocks>
inline void polish(const Normalised<256, true>& block, const AffineSearch& search, const AffineLine line[kSubBlocks],
                   AffineScales<kSubBlocks>& best) {
    F squares = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) squares = squares + line[j].xx;
    const M polished = less(best.error, squares * splat(kPolished));
    if (!any(polished)) return;
    for (int attempt = 0; attempt < 2; ++attempt) {
        AffineScales<kSubBlocks> now = best;
        if (attempt == 0) {
            choose_d<kHighest, true>(block, kManySteps, line, now);
        } else {
            choose_d<kHighest, false>(block, kManySteps, line, now);
        }
        settle<kLevels, kHighest, kSubBlocks, true>(block, search, line, now);
        now.error = select(polished, now.error, splat(kLargestSum));
        keep_better(best, now);
    }
}

// Where two values of each sub-block count: the L and M that suit them best, if all values together agree.
template <int kLevels, int kHighest, int kSubBlocks>
inline void settle_few(const Normalised<256, true>& block, const AffineSearch& search, const AffineLine* line,
                       AffineScales<kSubBlocks>& scales) {
    constexpr int kValues = 256 / kSubBlocks;
    const F allowed = block.largest * splat(search.error_bound);
    settle<kLevels, kHighest, kSubBlocks, true>(block, search, line, scales);
    scales.error = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F *x = block.x + j * kValues, *w = block.w + j * kValues;
        const Few few = few_values<kValues>(x, w);
        F sub = splat(0.0f), sub_min = sub, least = splat(kLargestSum);
        for (int l = 0; l <= kHighest; ++l) {
            const F scale = scales.d.value * splat(float(l));
            const F step = select(equal(scale, splat(0.0f)), splat(kNoStep), scale), inverse_step = splat(1.0f) / step;
            const F square = step * step, top = scale * splat(float(kLevels));
            for (int m = 0; m <= kHighest; ++m) {
                const F minimum = negate(scales.dmin.value * splat(float(m)));
                const F offset = negate(minimum * inverse_step);
                F error = splat(0.0f);
                for (int k = 0; k < 2; ++k) {
                    const F scaled = few.x[k] * inverse_step + offset;
                    const F e = scaled - rint(clamp(scaled, 0.0f, float(kLevels)));
                    error = error + few.w[k] * e * e;
                }
                const M broken = less(line[j].low + allowed, minimum) | less(top + minimum, line[j].high - allowed);
                error = error * square + select(broken, splat(kBroken), splat(0.0f));
                const M better = less(error, least);
                least = select(better, error, least);
                sub = select(better, splat(float(l)), sub);
                sub_min = select(better, splat(float(m)), sub_min);
            }
        }
        const auto error_of = [&](const F& l, const F& m) {
            return stored_error<kLevels, kValues, true>(x, w, scales.d.value * l, negate(scales.dmin.value * m),
                                                        line[j], allowed);
        };
        const F error = error_of(sub, sub_min), settled = error_of(scales.sub[j], scales.sub_min[j]);
        const M better = less(error, settled);
        scales.sub[j] = select(better, sub, scales.sub[j]);
        scales.sub_min[j] = select(better, sub_min, scales.sub_min[j]);
        scales.error = scales.error + select(better, error, settled);
    }
}
template <int kLevels, int kHighest, int kSubBlocks>
inline void search_few(const Normalised<256, true>& block, const AffineSearch& search, AffineLine line[kSubBlocks],
                       AffineScales<kSubBlocks>& best) {
    const M few = few_count<kSubBlocks>(block.w);
    if (!any(few)) return;
    constexpr int kSteps = kHighest < 63 ? 8 : 1;  // the fewer L and M, the more d
    const StoredScale middle = best.d;
    for (int k = -kSteps; k <= kSteps + 1; ++k) {
        AffineScales<kSubBlocks> now = best;
        if (k <= kSteps) {
            now.d = neighbour(middle, k, block);
        } else {
            refit<kLevels, kSubBlocks, true>(block, now, line);
        }
        settle_few<kLevels, kHighest, kSubBlocks>(block, search, line, now);
        now.error = select(few, now.error, splat(kLargestSum));
        keep_better(best, now);
    }
}

// d, dmin and every L, M (0 … kHighest) of a super-block of 256 values.
template <int kLevels, int kHighest, int kSubBlocks, bool kWeighted>
inline AffineScales<kSubBlocks> search_affine(const Normalised<256, kWeighted>& block, const AffineSearch& search) {
    constexpr int kValues = 256 / kSubBlocks;
    AffineLine line[kSubBlocks];
    const F allowed = block.largest * splat(search.error_bound);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        line[j] = fit_affine<kLevels, kValues, kWeighted>(block.x + j * kValues, w, search.own);
        limit_line<kLevels>(line[j], allowed);
    }
    AffineScales<kSubBlocks> best = {};
    choose_d<kHighest, true>(block, search.d_steps, line, best);
    settle<kLevels, kHighest, kSubBlocks, kWeighted>(block, search, line, best);
    if (search.ggml.count)
        keep_better(best, ggml_affine<kLevels, kHighest, kSubBlocks, kWeighted>(block, search, line));
    AffineLine own[kWeighted ? kSubBlocks : 1];
    if constexpr (kWeighted) {
        for (int j = 0; j < kSubBlocks; ++j) own[j] = line[j];
    }
    for (int k = 0; k < search.d_refits; ++k) {
        AffineScales<kSubBlocks> now = best;
        refit<kLevels, kSubBlocks, kWeighted>(block, now, line);
        settle<kLevels, kHighest, kSubBlocks, kWeighted>(block, search, line, now);
        keep_better(best, now);
    }
    if constexpr (kWeighted) {
        if (search.d_refits > 0) {
            polish<kLevels, kHighest, kSubBlocks>(block, search, own, best);
            search_few<kLevels, kHighest, kSubBlocks>(block, search, own, best);
        }
    }
    return best;
}

template <int kLevels, int kSubBlocks, bool kWeighted>
BITSMITH_INLINE void affine_codes(const Normalised<256, kWeighted>& block, const AffineScales<kSubBlocks>& scales,
                                  I code[256]) {
    constexpr int kValues = 256 / kSubBlocks;
    for (int j = 0; j < kSubBlocks; ++j) {
        const F inverse_scale = inverse(scales.d.value * scales.sub[j]);
        const F offset = negate(negate(scales.dmin.value * scales.sub_min[j]) * inverse_scale);
        BITSMITH_UNROLL_VALUES for (int i = j * kValues; i < (j + 1) * kValues; ++i) {
            code[i] = rint_to_int(position<kLevels>(block.x[i], inverse_scale, offset));
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
