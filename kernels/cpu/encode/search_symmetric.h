// Search for types whose values are d · L · q: a float16 d, an integer sub-scale L, a code's value q.
#pragma once
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

// A set of codes. kShortEnd: how far the side goes that ends first; kHalfGap: how far a value inside can be from its
// code's. value: the nearest code's value, code: its stored number. This one: the integers −kHalf … kHalf − 1.
// kInside, kNotBelow: up to this magnitude of the widest value no other can pass either end, or the lower; Inside and
// NotBelow then need not look.
template <int kHalf>
struct IntegerCodes {
    static constexpr bool kHasZero = true;
    static constexpr float kShortEnd = kHalf - 1, kHalfGap = 0.5f, kInside = kHalf - 0.51f, kNotBelow = kHalf + 0.49f;
    struct Inside {
        static BITSMITH_INLINE F value(const F& scaled) { return rint(scaled); }
    };
    struct NotBelow {
        static BITSMITH_INLINE F value(const F& scaled) { return rint(min(scaled, splat(float(kHalf - 1)))); }
    };
    static BITSMITH_INLINE F value(const F& scaled) { return rint(clamp(scaled, -float(kHalf), float(kHalf - 1))); }
    static BITSMITH_INLINE I code(const F& scaled) {
        return rint_to_int(clamp(scaled, -float(kHalf), float(kHalf - 1))) + splat(kHalf);
    }
};

// Σ w·x·q and Σ w·q² for the codes that x · inverse_scale gives: all that least squares needs to fit a scale.
struct ScaleSums {
    F xq, qq;
};
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE ScaleSums scale_sums(const F* x, const F* w, const F& inverse_scale) {
    ScaleSums sums = {splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F q = Codes::value(x[i] * inverse_scale);
        const F wq = weigh<kWeighted>(w, i, q);
        sums.xq = sums.xq + wq * x[i];
        sums.qq = sums.qq + wq * q;
    }
    return sums;
}
// The same where `reach` is what the value of largest magnitude becomes.
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE ScaleSums scale_sums_within(const F* x, const F* w, const F& inverse_scale, float reach) {
    const float magnitude = reach < 0.0f ? -reach : reach;
    if (magnitude < Codes::kInside) return scale_sums<typename Codes::Inside, kValues, kWeighted>(x, w, inverse_scale);
    if (magnitude < Codes::kNotBelow)
        return scale_sums<typename Codes::NotBelow, kValues, kWeighted>(x, w, inverse_scale);
    return scale_sums<Codes, kValues, kWeighted>(x, w, inverse_scale);
}

template <class Codes, int kValues, bool kWeighted, bool kFurthest>
BITSMITH_INLINE Errors scale_errors(const F* x, const F* w, const F& scale) {
    // Errors are taken in steps, which is one operation less. Without a step all codes are 0 if one is so long.
    const F step = Codes::kHasZero ? select(equal(scale, splat(0.0f)), splat(kNoStep), scale) : splat(1.0f);
    const F inverse_scale = Codes::kHasZero ? splat(1.0f) / step : inverse(scale);
    Errors errors = {splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F scaled = x[i] * inverse_scale, q = Codes::value(scaled);
        const F e = Codes::kHasZero ? scaled - q : x[i] - scale * q;
        errors.squares = errors.squares + weigh<kWeighted>(w, i, e) * e;
        if constexpr (kFurthest) errors.furthest = max(errors.furthest, abs(e));
    }
    if constexpr (Codes::kHasZero) errors = {errors.squares * (step * step), errors.furthest * abs(step)};
    return errors;
}

// The value of largest magnitude, the first of several.
template <int kValues>
BITSMITH_INLINE F widest_value(const F* x) {
    F widest = x[0];
    for (int i = 1; i < kValues; ++i) widest = select(less(abs(widest), abs(x[i])), x[i], widest);
    return widest;
}

// What ggml's encoder tries. Without importance its weights are x², with it importance, with kRms times
// sqrt(mean + x²).
struct GgmlScales {
    float first, from, step;  // reaches: the first, then `count` more at equal distance
    int count;                // 0: its choice is not looked at
    bool fits_d;              // whether d is the best of such reaches too

    BITSMITH_INLINE float reach(int k) const { return k < 0 ? first : from + step * float(k); }  // k: −1 … count − 1
};

struct SymmetricSearch {
    const float* reaches;  // scaled values that the value of largest magnitude is tried at, see fit_scale
    int count;
    int refits;             // of a sub-block's scale to its codes
    float lowest, highest;  // range of L
    int d_steps;            // candidates of d, see largest_sub
    int d_refits;           // of d to all codes
    float error_bound;      // of any value, as a share of the block's largest magnitude
    bool neighbours;        // whether L ± 1 are tried
    float gain;             // that counts, see kGain
    GgmlScales ggml;
    float polished;  // blocks that leave a smaller share of Σ w·x² than this are polished, with importance
};

// A sub-block's own scale, Σ w·q² of its codes, and how small and large it may become: smaller, it would cut values
// off, larger, be too coarse.
struct SubScale {
    F scale, qq, least, most;
};
// allowed: the error that a value may have.
template <class Codes>
BITSMITH_INLINE SubScale limit_scale(const ScaleSums& sums, const F& largest, const F& allowed) {
    const F inside = allowed * splat(kFitShare);
    const F scale = sums.xq / sums.qq;
    F size = max(abs(scale), (largest - inside) * splat(1.0f / Codes::kShortEnd));
    size = min(size, inside * splat(1.0f / Codes::kHalfGap));
    return {as_float(bits(size) | (bits(scale) & splat(INT32_MIN))), sums.qq,
            (largest - allowed) * splat(1.0f / Codes::kShortEnd), allowed * splat(1.0f / Codes::kHalfGap)};
}

// The best fit so far: the largest (Σ w·x·q)² / Σ w·q², and what divided x to get its codes.
struct BestFit {
    ScaleSums sums = {splat(0.0f), splat(1.0f)};
    F inverse_scale = splat(0.0f);

    BITSMITH_INLINE void consider(const ScaleSums& now, const F& tried, float gain) {
        const M better = less(sums.xq * sums.xq * now.qq * splat(1.0f + gain), now.xq * now.xq * sums.qq);
        sums.xq = select(better, now.xq, sums.xq);
        sums.qq = select(better, now.qq, sums.qq);
        inverse_scale = select(better, tried, inverse_scale);
    }
};

// The best real-valued scale: map the value of largest magnitude to each of `reaches`, fit a scale by least squares to
// the codes that gives, keep the one that explains most.
template <class Codes, int kValues, bool kWeighted>
inline SubScale fit_scale(const F* x, const F* w, const F& allowed, const SymmetricSearch& search, BestFit best) {
    const F widest = widest_value<kValues>(x);
    const F inverse_widest = inverse(widest);
    for (int k = 0; k < search.count; ++k) {
        const F inverse_scale = inverse_widest * splat(search.reaches[k]);
        const ScaleSums sums = scale_sums_within<Codes, kValues, kWeighted>(x, w, inverse_scale, search.reaches[k]);
        best.consider(sums, inverse_scale, search.gain);
    }
    for (int k = 0; k < search.refits; ++k) {
        const F inverse_scale = inverse(best.sums.xq / best.sums.qq);
        best.consider(scale_sums<Codes, kValues, kWeighted>(x, w, inverse_scale), inverse_scale, search.gain);
    }
    return limit_scale<Codes>(best.sums, abs(widest), allowed);
}

// A scale as ggml finds it, with its own weights v, and the best for w among what it tries. kSame: v is w.
struct GgmlFit {
    BestFit theirs, ours;
};
// They lie close together: for w it is enough to look at one in three.
constexpr int kOurShare = 3;
template <class Codes, int kValues, bool kWeighted, bool kSame>
inline GgmlFit ggml_scale(const F* x, const F* v, const F* w, const GgmlScales& ggml, float gain) {
    const F inverse_widest = inverse(widest_value<kValues>(x));
    GgmlFit fit;
    for (int k = -1; k < ggml.count; ++k) {
        const F inverse_scale = inverse_widest * splat(ggml.reach(k));
        if (kSame || (k + 1) % kOurShare != 0) {
            const ScaleSums theirs = scale_sums_within<Codes, kValues, true>(x, v, inverse_scale, ggml.reach(k));
            fit.theirs.consider(theirs, inverse_scale, 0.0f);
            if constexpr (kSame) fit.ours.consider(theirs, inverse_scale, gain);
            continue;
        }
        ScaleSums theirs = {splat(0.0f), splat(0.0f)}, ours = theirs;
        BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
            const F q = Codes::value(x[i] * inverse_scale), vq = v[i] * q, wq = weigh<kWeighted>(w, i, q);
            theirs.xq = theirs.xq + vq * x[i];
            theirs.qq = theirs.qq + vq * q;
            ours.xq = ours.xq + wq * x[i];
            ours.qq = ours.qq + wq * q;
        }
        fit.theirs.consider(theirs, inverse_scale, 0.0f);
        fit.ours.consider(ours, inverse_scale, gain);
    }
    return fit;
}

template <int kSubBlocks>
struct SymmetricScales {
    StoredScale d;
    F sub[kSubBlocks];  // L, integers
    F error;            // Σ w·(x − decoded)²
};

// Σ w·e² with a scale as it is stored, and kBroken where a value is further off than allowed.
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE F stored_error(const F* x, const F* w, const F& scale, const SubScale& own) {
    const F size = abs(scale);
    return scale_errors<Codes, kValues, kWeighted, false>(x, w, scale).squares +
           select(less(size, own.least) | less(own.most, size), splat(kBroken), splat(0.0f));
}

// Moves each L to a neighbour where that lowers the error.
template <class Codes, int kSubBlocks, bool kWeighted>
inline void settle(const Normalised<256, kWeighted>& block, const SymmetricSearch& search, const SubScale* own,
                   SymmetricScales<kSubBlocks>& scales) {
    constexpr int kValues = 256 / kSubBlocks;
    scales.error = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* x = block.x + j * kValues;
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        const F middle = scales.sub[j];
        F sub_error = splat(kLargestSum);
        for (int k = 0; k < 3; ++k) {
            const F sub = clamp(middle + splat(k == 0 ? 0.0f : k == 1 ? -1.0f : 1.0f), search.lowest, search.highest);
            const F error = stored_error<Codes, kValues, kWeighted>(x, w, scales.d.value * sub, own[j]);
            const M better = less(error, sub_error);
            scales.sub[j] = select(better, sub, scales.sub[j]);
            sub_error = select(better, error, sub_error);
        }
        scales.error = scales.error + sub_error;
    }
}

// d fitted by least squares to all codes.
template <class Codes, int kSubBlocks, bool kWeighted>
inline F fit_d(const Normalised<256, kWeighted>& block, const SymmetricScales<kSubBlocks>& scales) {
    constexpr int kValues = 256 / kSubBlocks;
    ScaleSums fit = {splat(0.0f), splat(0.0f)};
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        const F sub = scales.sub[j];
        const ScaleSums sums =
            scale_sums<Codes, kValues, kWeighted>(block.x + j * kValues, w, inverse(scales.d.value * sub));
        fit.xq = fit.xq + sub * sums.xq;
        fit.qq = fit.qq + sub * sub * sums.qq;
    }
    return fit.xq * inverse(fit.qq);
}

// d and every L from the sub-blocks' own scales. With codes fixed, missing a scale by δ costs δ² · Σ w·q², so trying
// many d takes no pass over the values.
template <int kSubBlocks, class Block>
inline void choose_d(const Block& block, const SymmetricSearch& search, int steps, const SubScale* own,
                     SymmetricScales<kSubBlocks>& scales) {
    F widest = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) widest = select(less(abs(widest), abs(own[j].scale)), own[j].scale, widest);
    F least = splat(kLargestSum);
    for (int k = 0; k < steps; ++k) {
        const StoredScale d = store_scale(widest / splat(largest_sub(search.lowest, k)), block);
        const F inverse_d = inverse(d.value);
        F cost = splat(0.0f);
        for (int j = 0; j < kSubBlocks; ++j) {
            const F sub = rint(clamp(own[j].scale * inverse_d, search.lowest, search.highest));
            const F missed = own[j].scale - d.value * sub;
            cost = cost + own[j].qq * missed * missed;
        }
        const M better = less(cost, least);
        least = select(better, cost, least);
        scales.d.bits = select(better, d.bits, scales.d.bits);
        scales.d.value = select(better, d.value, scales.d.value);
    }
    const F inverse_d = inverse(scales.d.value);
    for (int j = 0; j < kSubBlocks; ++j)
        scales.sub[j] = rint(clamp(own[j].scale * inverse_d, search.lowest, search.highest));
}

template <int kSubBlocks>
BITSMITH_INLINE void keep_better(SymmetricScales<kSubBlocks>& best, const SymmetricScales<kSubBlocks>& now) {
    const M better = less(now.error, best.error);
    best.error = select(better, now.error, best.error);
    best.d.bits = select(better, now.d.bits, best.d.bits);
    best.d.value = select(better, now.d.value, best.d.value);
    for (int j = 0; j < kSubBlocks; ++j) best.sub[j] = select(better, now.sub[j], best.sub[j]);
}

// Where few values or few columns leave hardly an error, the rounding of d and L is most of it: more of them are tried,
// L also far from the nearest, which other codes may suit as well.
template <class Codes, int kSubBlocks>
inline void polish(const Normalised<256, true>& block, const SymmetricSearch& search, const SubScale* own,
                   SymmetricScales<kSubBlocks>& best) {
    constexpr int kValues = 256 / kSubBlocks;
    constexpr float kMultiples[] = {2.0f, 0.5f, 1.5f, 2.0f / 3.0f, 3.0f, 1.0f / 3.0f};
    F squares = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) squares = squares + own[j].qq * own[j].scale * own[j].scale;
    const M polished = less(best.error, squares * splat(search.polished));
    if (!any(polished)) return;
    for (int attempt = 0; attempt < 2; ++attempt) {
        SymmetricScales<kSubBlocks> now = best;
        if (attempt == 0) choose_d(block, search, kManySteps, own, now);
        settle<Codes, kSubBlocks, true>(block, search, own, now);
        now.error = splat(0.0f);
        for (int j = 0; j < kSubBlocks; ++j) {
            const F *x = block.x + j * kValues, *w = block.w + j * kValues;
            const F middle = now.sub[j];
            F sub_error = stored_error<Codes, kValues, true>(x, w, now.d.value * middle, own[j]);
            for (int k = 0; k < count_of(kMultiples); ++k) {
                const F sub = rint(clamp(middle * splat(kMultiples[k]), search.lowest, search.highest));
                const F error = stored_error<Codes, kValues, true>(x, w, now.d.value * sub, own[j]);
                const M better = less(error, sub_error);
                now.sub[j] = select(better, sub, now.sub[j]);
                sub_error = select(better, error, sub_error);
            }
            now.error = now.error + sub_error;
        }
        now.error = select(polished, now.error, splat(kLargestSum));
        keep_better(best, now);
    }
}

// Where two values of each sub-block count: the L that suits them best, if all values together agree.
template <class Codes, int kSubBlocks>
inline void settle_few(const Normalised<256, true>& block, const SymmetricSearch& search, const SubScale* own,
                       SymmetricScales<kSubBlocks>& scales) {
    constexpr int kValues = 256 / kSubBlocks;
    settle<Codes, kSubBlocks, true>(block, search, own, scales);
    scales.error = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F *x = block.x + j * kValues, *w = block.w + j * kValues;
        const Few few = few_values<kValues>(x, w);
        F sub = splat(0.0f), least = splat(kLargestSum);
        for (float l = search.lowest; l <= search.highest; ++l) {
            const F error = stored_error<Codes, 2, true>(few.x, few.w, scales.d.value * splat(l), own[j]);
            const M better = less(error, least);
            least = select(better, error, least);
            sub = select(better, splat(l), sub);
        }
        const F error = stored_error<Codes, kValues, true>(x, w, scales.d.value * sub, own[j]);
        const F settled = stored_error<Codes, kValues, true>(x, w, scales.d.value * scales.sub[j], own[j]);
        const M better = less(error, settled);
        scales.sub[j] = select(better, sub, scales.sub[j]);
        scales.error = scales.error + select(better, error, settled);
    }
}
// Tries d over all that the limits of scales allow, since the codes of few values are met by many, then the neighbours
// of the best, each time with a fit to the codes at the end.
constexpr int kFewGrid = 48, kFewSteps = 8;
constexpr float kFewRatio = 1.1f;
template <class Codes, int kSubBlocks>
inline void search_few(const Normalised<256, true>& block, const SymmetricSearch& search, const SubScale* own,
                       SymmetricScales<kSubBlocks>& best) {
    const M few = few_count<kSubBlocks>(block.w);
    if (!any(few)) return;
    const auto consider = [&](const StoredScale& d) {
        SymmetricScales<kSubBlocks> now;
        now.d = d;
        const F inverse_d = inverse(d.value);
        for (int j = 0; j < kSubBlocks; ++j)
            now.sub[j] = rint(clamp(own[j].scale * inverse_d, search.lowest, search.highest));
        settle_few<Codes, kSubBlocks>(block, search, own, now);
        now.error = select(few, now.error, splat(kLargestSum));
        keep_better(best, now);
    };
    F least = own[0].least;
    for (int j = 1; j < kSubBlocks; ++j) least = max(least, own[j].least);
    F d = least * splat(-1.0f / search.lowest);
    for (int k = 0; k < kFewGrid; ++k) {
        consider(store_scale(d, block));
        d = d * splat(kFewRatio);
    }
    consider(store_scale(fit_d<Codes, kSubBlocks, true>(block, best), block));
    const StoredScale middle = best.d;
    for (int k = -kFewSteps; k <= kFewSteps; ++k) consider(neighbour(middle, k, block));
    consider(store_scale(fit_d<Codes, kSubBlocks, true>(block, best), block));
}

// ggml's weights for a sub-block.
template <int kValues, bool kWeighted>
BITSMITH_INLINE void ggml_weights(const F* x, const F* w, const F& square, F v[kValues]) {
    for (int i = 0; i < kValues; ++i) {
        v[i] = x[i] * x[i];
        if constexpr (kWeighted) v[i] = without_trace(w[i]) * sqrt(square + v[i]);
    }
}

// Σ w·e² with a scale as it is stored, and kBroken where a value is further off than allowed: of those there are.
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE F measured_error(const F* x, const F* w, const F& scale, const F& allowed) {
    const Errors errors = scale_errors<Codes, kValues, kWeighted, true>(x, w, scale);
    return errors.squares + select(less(allowed, errors.furthest), splat(kBroken), splat(0.0f));
}

// How ggml's Q3_K finds d, with importance.
constexpr GgmlScales kGgmlD = {-32.0f, -31.1f, -0.1f, 19, false};

// ggml's own choice of d and L, from the scales that it finds for sub-blocks: all are rounded at once. weight: Σ of its
// weights.
template <class Codes, int kSubBlocks, bool kWeighted>
inline SymmetricScales<kSubBlocks> ggml_symmetric(const Normalised<256, kWeighted>& block,
                                                  const SymmetricSearch& search, const F* scale, const F* weight) {
    constexpr int kValues = 256 / kSubBlocks;
    const F allowed = block.largest * splat(search.error_bound);
    F d, inverse_d;
    if (kWeighted && search.ggml.fits_d) {
        const BestFit fit =
            ggml_scale<IntegerCodes<32>, kSubBlocks, true, true>(scale, weight, weight, kGgmlD, 0.0f).theirs;
        inverse_d = fit.inverse_scale;
        d = fit.sums.xq * inverse(fit.sums.qq);
    } else {
        const F widest = widest_value<kSubBlocks>(scale);
        inverse_d = splat(search.lowest) * inverse(widest);
        d = widest * splat(1.0f / search.lowest);
    }
    SymmetricScales<kSubBlocks> now;
    now.d = store_scale(d, block);
    now.error = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        now.sub[j] = rint(clamp(scale[j] * inverse_d, search.lowest, search.highest));
        const F stored = now.d.value * now.sub[j];
        now.error = now.error + measured_error<Codes, kValues, kWeighted>(block.x + j * kValues, w, stored, allowed);
    }
    return now;
}

// d and every L of a super-block of 256 values.
template <class Codes, int kSubBlocks, bool kRms, bool kWeighted>
inline SymmetricScales<kSubBlocks> search_symmetric(const Normalised<256, kWeighted>& block,
                                                    const SymmetricSearch& search) {
    constexpr int kValues = 256 / kSubBlocks;
    SubScale own[kSubBlocks];
    F scale[kSubBlocks], weight[kSubBlocks];  // ggml's
    const F allowed = block.largest * splat(search.error_bound);
    F square = splat(0.0f);
    if constexpr (kRms && kWeighted) square = mean_square<256>(block.x) * splat(2.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F *x = block.x + j * kValues, *w = kWeighted ? block.w + j * kValues : block.w;
        GgmlFit fit;
        if (search.ggml.count) {
            F v[kWeighted && !kRms ? 1 : kValues];
            if constexpr (!kWeighted || kRms) ggml_weights<kValues, kWeighted>(x, w, square, v);
            const F* theirs = kWeighted && !kRms ? w : v;
            weight[j] = splat(0.0f);
            for (int i = 0; i < kValues; ++i) weight[j] = weight[j] + theirs[i];
            fit = ggml_scale < Codes, kValues, kWeighted, kWeighted && !kRms > (x, theirs, w, search.ggml, search.gain);
            scale[j] = fit.theirs.sums.xq * inverse(fit.theirs.sums.qq);
        }
        own[j] = fit_scale<Codes, kValues, kWeighted>(x, w, allowed, search, fit.ours);
    }
    SymmetricScales<kSubBlocks> best;
    best.d.bits = splat(0);
    best.d.value = splat(0.0f);
    choose_d(block, search, search.d_steps, own, best);
    if (!search.neighbours) return best;
    settle<Codes, kSubBlocks, kWeighted>(block, search, own, best);
    if (search.ggml.count)
        keep_better(best, ggml_symmetric<Codes, kSubBlocks, kWeighted>(block, search, scale, weight));
    for (int k = 0; k < search.d_refits; ++k) {
        SymmetricScales<kSubBlocks> now = best;
        now.d = store_scale(fit_d<Codes, kSubBlocks, kWeighted>(block, best), block);
        settle<Codes, kSubBlocks, kWeighted>(block, search, own, now);
        keep_better(best, now);
    }
    if constexpr (kWeighted) {
        if (search.polished > 0.0f) polish<Codes, kSubBlocks>(block, search, own, best);
        search_few<Codes, kSubBlocks>(block, search, own, best);
    }
    return best;
}

template <class Codes, int kSubBlocks, bool kWeighted>
BITSMITH_INLINE void symmetric_codes(const Normalised<256, kWeighted>& block, const SymmetricScales<kSubBlocks>& scales,
                                     I code[256]) {
    constexpr int kValues = 256 / kSubBlocks;
    for (int j = 0; j < kSubBlocks; ++j) {
        const F inverse_scale = inverse(scales.d.value * scales.sub[j]);
        BITSMITH_UNROLL_VALUES for (int i = j * kValues; i < (j + 1) * kValues; ++i) {
            code[i] = Codes::code(block.x[i] * inverse_scale);
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
