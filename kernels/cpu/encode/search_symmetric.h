// Search for types whose values are d · L · q: a float16 d, an integer sub-scale L, a code's value q.
#pragma once
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Codes whose values are the integers −kHalf … kHalf − 1.
template <int kHalf>
struct IntegerCodes {
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

template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE F squared_error(const F* x, const F* w, const F& scale) {
    const F inverse_scale = inverse(scale);
    F error = splat(0.0f);
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F e = x[i] - scale * Codes::value(x[i] * inverse_scale);
        error = error + weigh<kWeighted>(w, i, e) * e;
    }
    return error;
}

// The value of largest magnitude, the first of several.
template <int kValues>
BITSMITH_INLINE F widest_value(const F* x) {
    F widest = x[0];
    for (int i = 1; i < kValues; ++i) widest = select(less(abs(widest), abs(x[i])), x[i], widest);
    return widest;
}

struct SymmetricSearch {
    const float* reaches;  // scaled values that the value of largest magnitude is tried at, see fit_scale
    int count;
    int refits;             // of a sub-block's scale to its codes
    float lowest, highest;  // range of L
    int d_steps;            // candidates of d, see largest_sub
    int d_refits;           // of d to all codes
    bool neighbours;        // whether L ± 1 are tried
};

// The best real-valued scale: map the value of largest magnitude to each of `reaches`, fit a scale by least squares to
// the codes that gives, keep the one that explains most: the largest (Σ w·x·q)² / Σ w·q².
template <class Codes, int kValues, bool kWeighted>
inline ScaleSums fit_scale(const F* x, const F* w, const SymmetricSearch& search) {
    const F inverse_widest = inverse(widest_value<kValues>(x));
    ScaleSums best = {splat(0.0f), splat(1.0f)};
    for (int k = 0; k < search.count + search.refits; ++k) {
        const F inverse_scale =
            k < search.count ? inverse_widest * splat(search.reaches[k]) : inverse(best.xq / best.qq);
        const ScaleSums sums = scale_sums<Codes, kValues, kWeighted>(x, w, inverse_scale);
        const M better = less(best.xq * best.xq * sums.qq * splat(kMoreThanRounding), sums.xq * sums.xq * best.qq);
        best.xq = select(better, sums.xq, best.xq);
        best.qq = select(better, sums.qq, best.qq);
    }
    return best;
}

template <int kSubBlocks>
struct SymmetricScales {
    StoredScale d;
    F sub[kSubBlocks];  // L, integers
    F error;            // Σ w·(x − decoded)²
};

// Moves each L to a neighbour where that lowers the error.
template <class Codes, int kSubBlocks, bool kWeighted>
inline void settle(const Normalised<256, kWeighted>& block, const SymmetricSearch& search,
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
            const F error = squared_error<Codes, kValues, kWeighted>(x, w, scales.d.value * sub);
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
inline void choose_d(const Block& block, const SymmetricSearch& search, const F* scale, const F* qq,
                     SymmetricScales<kSubBlocks>& scales) {
    F widest = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) widest = select(less(abs(widest), abs(scale[j])), scale[j], widest);
    F least = splat(kLargestSum);
    for (int k = 0; k < search.d_steps; ++k) {
        const StoredScale d = store_scale(widest / splat(largest_sub(search.lowest, k)), block);
        const F inverse_d = inverse(d.value);
        F cost = splat(0.0f);
        for (int j = 0; j < kSubBlocks; ++j) {
            const F sub = rint(clamp(scale[j] * inverse_d, search.lowest, search.highest));
            const F missed = scale[j] - d.value * sub;
            cost = cost + qq[j] * missed * missed;
        }
        const M better = less(cost, least);
        least = select(better, cost, least);
        scales.d.bits = select(better, d.bits, scales.d.bits);
        scales.d.value = select(better, d.value, scales.d.value);
    }
    const F inverse_d = inverse(scales.d.value);
    for (int j = 0; j < kSubBlocks; ++j)
        scales.sub[j] = rint(clamp(scale[j] * inverse_d, search.lowest, search.highest));
}

// d and every L of a super-block of 256 values.
template <class Codes, int kSubBlocks, bool kWeighted>
inline SymmetricScales<kSubBlocks> search_symmetric(const Normalised<256, kWeighted>& block,
                                                    const SymmetricSearch& search) {
    constexpr int kValues = 256 / kSubBlocks;
    F scale[kSubBlocks], qq[kSubBlocks];
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        const ScaleSums sums = fit_scale<Codes, kValues, kWeighted>(block.x + j * kValues, w, search);
        scale[j] = sums.xq / sums.qq;
        qq[j] = sums.qq;
    }
    SymmetricScales<kSubBlocks> best;
    best.d.bits = splat(0);
    best.d.value = splat(0.0f);
    choose_d(block, search, scale, qq, best);
    if (!search.neighbours) return best;
    settle<Codes, kSubBlocks, kWeighted>(block, search, best);
    for (int k = 0; k < search.d_refits; ++k) {
        SymmetricScales<kSubBlocks> now = best;
        now.d = store_scale(fit_d<Codes, kSubBlocks, kWeighted>(block, best), block);
        settle<Codes, kSubBlocks, kWeighted>(block, search, now);
        const M better = less(now.error, best.error);
        best.error = select(better, now.error, best.error);
        best.d.bits = select(better, now.d.bits, best.d.bits);
        best.d.value = select(better, now.d.value, best.d.value);
        for (int j = 0; j < kSubBlocks; ++j) best.sub[j] = select(better, now.sub[j], best.sub[j]);
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
