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
    BITSMITH_UNROLL for (int i = 0; i < kValues; ++i) {
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
    BITSMITH_UNROLL for (int i = 0; i < kValues; ++i) {
        const F e = x[i] - scale * Codes::value(x[i] * inverse_scale);
        error = error + weigh<kWeighted>(w, i, e) * e;
    }
    return error;
}

// The best real-valued scale: try scales that map the value of largest magnitude to each of `targets`, fit each by
// least squares to the codes it gives, keep the one that explains most: the largest (Σ w·x·q)² / Σ w·q².
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE F fit_scale(const F* x, const F* w, const float* targets, int count) {
    F extreme = x[0];
    for (int i = 1; i < kValues; ++i) extreme = select(less(abs(extreme), abs(x[i])), x[i], extreme);
    const F inverse_extreme = inverse(extreme);
    ScaleSums best = {splat(0.0f), splat(1.0f)};
    for (int k = 0; k < count; ++k) {
        const ScaleSums sums = scale_sums<Codes, kValues, kWeighted>(x, w, inverse_extreme * splat(targets[k]));
        const M better = less(best.xq * best.xq * sums.qq, sums.xq * sums.xq * best.qq);
        best.xq = select(better, sums.xq, best.xq);
        best.qq = select(better, sums.qq, best.qq);
    }
    return best.xq / best.qq;
}

template <int kSubBlocks>
struct SymmetricScales {
    StoredScale d;
    F sub[kSubBlocks];  // L, integers
};

struct SymmetricSearch {
    const float* targets;  // see fit_scale; the first is used alone when there is no search
    int count;
    float lowest, highest;  // range of L; the largest sub-scale is stored as `lowest`
    int rounds;             // how often d is fitted again
    bool neighbours;        // whether L ± 1 are tried
};

// d and every L of a super-block of 256 values.
template <class Codes, int kSubBlocks, bool kWeighted>
BITSMITH_INLINE SymmetricScales<kSubBlocks> search_symmetric(const Normalised<256, kWeighted>& block,
                                                             const SymmetricSearch& search) {
    constexpr int kValues = 256 / kSubBlocks;
    SymmetricScales<kSubBlocks> now, best;
    F scale[kSubBlocks];
    F widest = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        scale[j] = fit_scale<Codes, kValues, kWeighted>(block.x + j * kValues, w, search.targets, search.count);
        widest = select(less(abs(widest), abs(scale[j])), scale[j], widest);
    }
    now.d = store_scale(widest * splat(1.0f / search.lowest), block);
    const F inverse_d = inverse(now.d.value);
    for (int j = 0; j < kSubBlocks; ++j) now.sub[j] = rint(clamp(scale[j] * inverse_d, search.lowest, search.highest));
    if (!search.neighbours) return now;

    F best_error = splat(kLargestSum);
    for (int round = 0;; ++round) {
        F error = splat(0.0f);
        ScaleSums fit = {splat(0.0f), splat(0.0f)};
        for (int j = 0; j < kSubBlocks; ++j) {
            const F* x = block.x + j * kValues;
            const F* w = kWeighted ? block.w + j * kValues : block.w;
            F sub = now.sub[j];
            F sub_error = squared_error<Codes, kValues, kWeighted>(x, w, now.d.value * sub);
            for (int step = -1; step <= 1; step += 2) {
                const F other = clamp(now.sub[j] + splat(float(step)), search.lowest, search.highest);
                const F other_error = squared_error<Codes, kValues, kWeighted>(x, w, now.d.value * other);
                const M better = less(other_error, sub_error);
                sub = select(better, other, sub);
                sub_error = select(better, other_error, sub_error);
            }
            now.sub[j] = sub;
            error = error + sub_error;
            if (round < search.rounds) {
                const ScaleSums sums = scale_sums<Codes, kValues, kWeighted>(x, w, inverse(now.d.value * sub));
                fit.xq = fit.xq + sub * sums.xq;
                fit.qq = fit.qq + sub * sub * sums.qq;
            }
        }
        const M better = less(error, best_error);
        best_error = select(better, error, best_error);
        best.d.bits = select(better, now.d.bits, best.d.bits);
        best.d.value = select(better, now.d.value, best.d.value);
        for (int j = 0; j < kSubBlocks; ++j) best.sub[j] = select(better, now.sub[j], best.sub[j]);
        if (round == search.rounds) return best;
        now.d = store_scale(fit.xq * inverse(fit.qq), block);
    }
}

template <class Codes, int kSubBlocks, bool kWeighted>
BITSMITH_INLINE void symmetric_codes(const Normalised<256, kWeighted>& block, const SymmetricScales<kSubBlocks>& scales,
                                     I code[256]) {
    constexpr int kValues = 256 / kSubBlocks;
    for (int j = 0; j < kSubBlocks; ++j) {
        const F inverse_scale = inverse(scales.d.value * scales.sub[j]);
        BITSMITH_UNROLL for (int i = j * kValues; i < (j + 1) * kValues; ++i) {
            code[i] = Codes::code(block.x[i] * inverse_scale);
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
