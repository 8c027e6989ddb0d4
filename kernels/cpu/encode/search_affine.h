// Search for types whose values are d · L · q − dmin · M: two float16 scales, two sub-scales L and M, codes q ≥ 0.
#pragma once
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Sums over the codes that a scale and a minimum give: all that least squares needs to fit both.
struct LineSums {
    F q, qq, xq;  // Σ w·q, Σ w·q², Σ w·x·q
};
// The code before it is made an integer: 0 … kLevels.
template <int kLevels>
BITSMITH_INLINE F position(const F& x, const F& inverse_scale, const F& offset) {
    return clamp(x * inverse_scale + offset, 0.0f, float(kLevels));
}
template <int kLevels, int kValues, bool kWeighted>
BITSMITH_INLINE LineSums line_sums(const F* x, const F* w, const F& inverse_scale, const F& minimum) {
    const F offset = negate(minimum * inverse_scale);
    LineSums sums = {splat(0.0f), splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL for (int i = 0; i < kValues; ++i) {
        const F q = rint(position<kLevels>(x[i], inverse_scale, offset));
        const F wq = weigh<kWeighted>(w, i, q);
        sums.q = sums.q + wq;
        sums.qq = sums.qq + wq * q;
        sums.xq = sums.xq + wq * x[i];
    }
    return sums;
}
template <int kLevels, int kValues, bool kWeighted>
BITSMITH_INLINE F line_error(const F* x, const F* w, const F& scale, const F& inverse_scale, const F& minimum) {
    const F offset = negate(minimum * inverse_scale);
    F error = splat(0.0f);
    BITSMITH_UNROLL for (int i = 0; i < kValues; ++i) {
        const F q = rint(position<kLevels>(x[i], inverse_scale, offset));
        const F e = x[i] - (scale * q + minimum);
        error = error + weigh<kWeighted>(w, i, e) * e;
    }
    return error;
}

// x ≈ scale · q + minimum, with minimum ≤ 0 as the format wants, and the sums of x that do not depend on codes.
struct Line {
    F scale, minimum;
    F w, x;  // Σ w, Σ w·x
};

// The best real-valued line: stretch the range of x over kLevels + each of `margins` steps (a negative margin leaves
// room, a positive one clips the top), fit by least squares to the codes, keep the one that explains most.
template <int kLevels, int kValues, bool kWeighted>
BITSMITH_INLINE Line fit_line(const F* x, const F* w, const float* margins, int count) {
    F low = splat(0.0f), high = x[0];
    Line line = {splat(0.0f), splat(0.0f), splat(kWeighted ? 0.0f : float(kValues)), splat(0.0f)};
    for (int i = 0; i < kValues; ++i) {
        low = min(low, x[i]);
        high = max(high, x[i]);
        line.x = line.x + weigh<kWeighted>(w, i, x[i]);
        if constexpr (kWeighted) line.w = line.w + w[i];
    }
    const F range = high - low;
    const F inverse_range = inverse(range);
    line.scale = range * splat(1.0f / kLevels);
    line.minimum = low;
    F most = splat(-kLargestSum);
    for (int k = 0; k < count; ++k) {
        const F inverse_scale = inverse_range * splat(float(kLevels) + margins[k]);
        const LineSums sums = line_sums<kLevels, kValues, kWeighted>(x, w, inverse_scale, low);
        const F determinant = line.w * sums.qq - sums.q * sums.q;
        const F inverse_determinant = inverse(determinant);
        F scale = (line.w * sums.xq - line.x * sums.q) * inverse_determinant;
        F minimum = (sums.qq * line.x - sums.q * sums.xq) * inverse_determinant;
        const M above = less(splat(0.0f), minimum);
        scale = select(above, sums.xq * inverse(sums.qq), scale);
        minimum = select(above, splat(0.0f), minimum);
        const F explained = scale * sums.xq + minimum * line.x;
        const M better = less(most, explained) & less(splat(0.0f), determinant);
        most = select(better, explained, most);
        line.scale = select(better, scale, line.scale);
        line.minimum = select(better, minimum, line.minimum);
    }
    return line;
}

template <int kSubBlocks>
struct AffineScales {
    StoredScale d, dmin;
    F sub[kSubBlocks], sub_min[kSubBlocks];  // L and M, integers
};

struct AffineSearch {
    const float* margins;  // see fit_line; the first is used alone when there is no search
    int count;
    int rounds;       // how often d and dmin are fitted again
    bool neighbours;  // whether L ± 1 and M ± 1 are tried
};

// The sums of least squares for d and dmin, with the codes and sub-scales fixed.
struct AffineFit {
    F ll, lm, mm, xl, xm;
};

// d, dmin and every L, M (0 … kHighest) of a super-block of 256 values.
template <int kLevels, int kHighest, int kSubBlocks, bool kWeighted>
BITSMITH_INLINE AffineScales<kSubBlocks> search_affine(const Normalised<256, kWeighted>& block,
                                                       const AffineSearch& search) {
    constexpr int kValues = 256 / kSubBlocks;
    const F zero = splat(0.0f);
    AffineScales<kSubBlocks> now, best;
    Line line[kSubBlocks];
    F widest = zero, lowest = zero;
    for (int j = 0; j < kSubBlocks; ++j) {
        const F* w = kWeighted ? block.w + j * kValues : block.w;
        line[j] = fit_line<kLevels, kValues, kWeighted>(block.x + j * kValues, w, search.margins, search.count);
        widest = max(widest, line[j].scale);
        lowest = min(lowest, line[j].minimum);
    }
    now.d = store_scale(widest * splat(1.0f / kHighest), block);
    now.dmin = store_scale(abs(lowest) * splat(1.0f / kHighest), block);

    F best_error = splat(kLargestSum);
    for (int round = 0;; ++round) {
        const F inverse_d = inverse(now.d.value), inverse_dmin = inverse(now.dmin.value);
        F error = zero;
        AffineFit fit = {zero, zero, zero, zero, zero};
        for (int j = 0; j < kSubBlocks; ++j) {
            const F* x = block.x + j * kValues;
            const F* w = kWeighted ? block.w + j * kValues : block.w;
            const F nearest = round ? now.sub[j] : rint(clamp(line[j].scale * inverse_d, 0.0f, kHighest));
            const int reach = search.neighbours ? 1 : 0;
            F sub = zero, sub_min = zero, sub_error = splat(kLargestSum);
            for (int step = -reach; step <= reach; ++step) {
                const F l = clamp(nearest + splat(float(step)), 0.0f, kHighest);
                const F scale = now.d.value * l;
                const F inverse_scale = inverse(scale);
                // Another scale keeps the middle of the range in place.
                const F minimum = line[j].minimum + (line[j].scale - scale) * splat(0.5f * kLevels);
                const F middle = rint(clamp(negate(minimum) * inverse_dmin, 0.0f, kHighest));
                for (int min_step = -reach; min_step <= reach; ++min_step) {
                    const F m = clamp(middle + splat(float(min_step)), 0.0f, kHighest);
                    const F e = line_error<kLevels, kValues, kWeighted>(x, w, scale, inverse_scale,
                                                                        negate(now.dmin.value * m));
                    const M better = less(e, sub_error);
                    sub = select(better, l, sub);
                    sub_min = select(better, m, sub_min);
                    sub_error = select(better, e, sub_error);
                }
            }
            now.sub[j] = sub;
            now.sub_min[j] = sub_min;
            error = error + sub_error;
            if (round < search.rounds) {
                line[j].scale = now.d.value * sub;
                line[j].minimum = negate(now.dmin.value * sub_min);
                const LineSums sums = line_sums<kLevels, kValues, kWeighted>(x, w, inverse(line[j].scale),
                                                                             line[j].minimum);
                fit.ll = fit.ll + sub * sub * sums.qq;
                fit.lm = fit.lm + sub * sub_min * sums.q;
                fit.mm = fit.mm + sub_min * sub_min * line[j].w;
                fit.xl = fit.xl + sub * sums.xq;
                fit.xm = fit.xm + sub_min * line[j].x;
            }
        }
        const M better = less(error, best_error);
        best_error = select(better, error, best_error);
        best.d.bits = select(better, now.d.bits, best.d.bits);
        best.d.value = select(better, now.d.value, best.d.value);
        best.dmin.bits = select(better, now.dmin.bits, best.dmin.bits);
        best.dmin.value = select(better, now.dmin.value, best.dmin.value);
        for (int j = 0; j < kSubBlocks; ++j) {
            best.sub[j] = select(better, now.sub[j], best.sub[j]);
            best.sub_min[j] = select(better, now.sub_min[j], best.sub_min[j]);
        }
        if (round == search.rounds) return best;

        const F determinant = fit.ll * fit.mm - fit.lm * fit.lm;
        const F inverse_determinant = inverse(determinant);
        F d = (fit.mm * fit.xl - fit.lm * fit.xm) * inverse_determinant;
        F dmin = (fit.lm * fit.xl - fit.ll * fit.xm) * inverse_determinant;
        // Without a minimum (or with one of the wrong sign), d alone.
        const M alone = less(dmin, zero) | equal(determinant, zero);
        d = select(alone, fit.xl * inverse(fit.ll), d);
        dmin = select(alone, zero, dmin);
        now.d = store_scale(max(d, zero), block);
        now.dmin = store_scale(dmin, block);
    }
}

template <int kLevels, int kSubBlocks, bool kWeighted>
BITSMITH_INLINE void affine_codes(const Normalised<256, kWeighted>& block, const AffineScales<kSubBlocks>& scales,
                                  I code[256]) {
    constexpr int kValues = 256 / kSubBlocks;
    for (int j = 0; j < kSubBlocks; ++j) {
        const F inverse_scale = inverse(scales.d.value * scales.sub[j]);
        const F offset = negate(negate(scales.dmin.value * scales.sub_min[j]) * inverse_scale);
        BITSMITH_UNROLL for (int i = j * kValues; i < (j + 1) * kValues; ++i) {
            code[i] = rint_to_int(position<kLevels>(block.x[i], inverse_scale, offset));
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
