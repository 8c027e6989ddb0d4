// Search for types whose values are d · L · q: a float16 d, an integer sub-scale L, a code's value q.
#pragma once
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

// A set of codes. kShortEnd: how far the side goes that ends first; kHalfGap: how far a value inside can be from its
// code's. value: the nearest code's value, code: its stored number. This one: the integers −kHalf … kHalf − 1.
template <int kHalf>
struct IntegerCodes {
    static constexpr float kShortEnd = kHalf - 1, kHalfGap = 0.5f;
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
    float error_bound;      // of any value, as a share of the block's largest magnitude
    bool neighbours;        // whether L ± 1 are tried
    float gain = kGain;     // that counts, see there
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

// The best real-valued scale: map the value of largest magnitude to each of `reaches`, fit a scale by least squares to
// the codes that gives, keep the one that explains most: the largest (Σ w·x·q)² / Σ w·q².
template <class Codes, int kValues, bool kWeighted>
inline SubScale fit_scale(const F* x, const F* w, const F& allowed, const SymmetricSearch& search) {
    const F widest = widest_value<kValues>(x);
    const F inverse_widest = inverse(widest);
    ScaleSums best = {splat(0.0f), splat(1.0f)};
    for (int k = 0; k < search.count + search.refits; ++k) {
        const F inverse_scale =
            k < search.count ? inverse_widest * splat(search.reaches[k]) : inverse(best.xq / best.qq);
        const ScaleSums sums = scale_sums<Codes, kValues, kWeighted>(x, w, inverse_scale);
        const M better = less(best.xq * best.xq * sums.qq * splat(1.0f + search.gain), sums.xq * sums.xq * best.qq);
        best.xq = select(better, sums.xq, best.xq);
        best.qq = select(better, sums.qq, best.qq);
    }
    return limit_scale<Codes>(best, abs(widest), allowed);
}

template <int kSubBlocks>
struct SymmetricScales {
    StoredScale d;
    F sub[kSubBlocks];  // L, integers
    F error;            // Σ w·(x − decoded)²
};

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
            const F scale = scales.d.value * sub, size = abs(scale);
            const F error = squared_error<Codes, kValues, kWeighted>(x, w, scale) +
                            select(less(size, own[j].least) | less(own[j].most, size), splat(kBroken), splat(0.0f));
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
inline void choose_d(const Block& block, const SymmetricSearch& search, const SubScale* own,
                     SymmetricScales<kSubBlocks>& scales) {
    F widest = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) widest = select(less(abs(widest), abs(own[j].scale)), own[j].scale, widest);
    F least = splat(kLargestSum);
    for (int k = 0; k < search.d_steps; ++k) {
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

// d and every L of a super-block of 256 values.
template <class Codes, int kSubBlocks, bool kWeighted>
inline SymmetricScales<kSubBlocks> search_symmetric(const Normalised<256, kWeighted>& block,
                                                    const SymmetricSearch& search) {
    constexpr int kValues = 256 / kSubBlocks;
    SubScale own[kSubBlocks];
    const F allowed = block.largest * splat(search.error_bound);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        own[j] = fit_scale<Codes, kValues, kWeighted>(block.x + j * kValues, w, allowed, search);
    }
    SymmetricScales<kSubBlocks> best;
    best.d.bits = splat(0);
    best.d.value = splat(0.0f);
    choose_d(block, search, own, best);
    if (!search.neighbours) return best;
    settle<Codes, kSubBlocks, kWeighted>(block, search, own, best);
    for (int k = 0; k < search.d_refits; ++k) {
        SymmetricScales<kSubBlocks> now = best;
        now.d = store_scale(fit_d<Codes, kSubBlocks, kWeighted>(block, best), block);
        settle<Codes, kSubBlocks, kWeighted>(block, search, own, now);
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
