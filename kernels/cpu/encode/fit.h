// Least-squares fits of a block's scale (and minimum) to codes, for blocks whose scale stands on its own.
//
// Values are taken as they are; only what is compared between tries is freed of their unit, so that nothing overflows
// below 10^36, where float16 scales have long been at their end. Importance is divided by a power of two.
#pragma once
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

// The float16 nearest to scale: never Inf, and never 0 unless scale is.
BITSMITH_INLINE I scale_to_f16(const F& scale) {
    const I smallest = select(equal(scale, splat(0.0f)), splat(0), splat(1));
    return max(min(to_f16(abs(scale)), splat(0x7BFF)), smallest) | ((bits(scale) >> 16) & splat(0x8000));
}

// How values divided by the scale become codes kLow … kHigh. Where a search can not pass an end, it need not look.
template <int kLow, int kHigh>
struct Within {
    static BITSMITH_INLINE F code(const F& scaled) { return rint(clamp(scaled, float(kLow), float(kHigh))); }
    static BITSMITH_INLINE I integer(const F& scaled) { return rint_to_int(clamp(scaled, float(kLow), float(kHigh))); }
};
template <int kHigh>
struct Below {
    static BITSMITH_INLINE F code(const F& scaled) { return rint(min(scaled, splat(float(kHigh)))); }
};
struct Unlimited {
    static BITSMITH_INLINE F code(const F& scaled) { return rint(scaled); }
};

// Σ w·x·q and Σ w·q².
struct ProductSums {
    F xq, qq;
};
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE ProductSums product_sums(const F* x, const F* w, const F& inverse_scale) {
    ProductSums sums = {splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F q = Codes::code(x[i] * inverse_scale), wq = weigh<kWeighted>(w, i, q);
        sums.xq = sums.xq + wq * x[i];
        sums.qq = sums.qq + wq * q;
    }
    return sums;
}

// The best real scale for x ≈ scale · q. Each of `targets` is where the value of largest magnitude, `extreme`, would
// go. The codes that this gives are fitted by least squares, and the fit that explains most is kept: the largest
// (Σ w·x·q)² / Σ w·q². It is then fitted `refits` times to the codes of its own.
template <class Codes, int kValues, bool kWeighted, int kTargets>
BITSMITH_INLINE F fit_scale_to_targets(const F* x, const F* w, const F& extreme, const float (&targets)[kTargets],
                                       int refits) {
    const F unit = inverse(extreme);
    ProductSums best = {splat(0.0f), splat(1.0f)};
    F best_gain = splat(0.0f);
    for (int k = 0; k < kTargets + refits; ++k) {
        const F inverse_scale = k < kTargets ? unit * splat(targets[k]) : inverse(best.xq / best.qq);
        const ProductSums sums = product_sums<Codes, kValues, kWeighted>(x, w, inverse_scale);
        const F gain = (sums.xq * unit) * (sums.xq * unit);
        const M better = less(best_gain * sums.qq, gain * best.qq);
        best_gain = select(better, gain, best_gain);
        best.xq = select(better, sums.xq, best.xq);
        best.qq = select(better, sums.qq, best.qq);
    }
    return best.xq / best.qq;
}

// A scale may be fitted to a few columns of great importance, but no value may end further from its source than the
// formats promise (core/formats). A scale of at least `least` times the largest magnitude does not clip too much, one
// of at most `most` times that is not too coarse.
struct ScaleLimits {
    float least, most;
};
BITSMITH_INLINE F limit_scale(const F& scale, const F& largest, const ScaleLimits& limits) {
    const F size = min(max(abs(scale), largest * splat(limits.least)), largest * splat(limits.most));
    return as_float(bits(size) | (bits(scale) & splat(INT32_MIN)));
}

// Σ w, Σ w·y, Σ w·q, Σ w·y·q, Σ w·q²: what the line y ≈ d·q + m is fitted to.
struct LineSums {
    F one, y, q, yq, qq;
};
struct Line {
    F d, m, explained;  // explained: how much of Σ w·y² the line accounts for
};
BITSMITH_INLINE Line fit_line(const LineSums& s) {
    const F d = (s.one * s.yq - s.y * s.q) * inverse(s.one * s.qq - s.q * s.q);
    const F m = (s.y - d * s.q) / s.one;
    return {d, m, d * s.yq + m * s.y};
}

// First codes to fit a line to: y · (highest + steps) + offset, for y in 0 … 1.
struct Spread {
    float steps, offset;
};

// The best line for y in 0 … 1 and codes 0 … kHighest, as in fit_scale_to_targets. Neither end of the range is clipped
// by more than `slack`, and no step is longer than 2 · slack.
template <int kHighest, bool kWeighted, int kSpreads>
BITSMITH_INLINE Line fit_line_to_spreads(const F y[32], const F* w, const Spread (&spreads)[kSpreads], int refits,
                                         float slack) {
    F one = splat(0.0f), sum = splat(0.0f);
    BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
        one = one + weigh<kWeighted>(w, i, splat(1.0f));
        sum = sum + weigh<kWeighted>(w, i, y[i]);
    }
    Line best = {splat(0.0f), splat(0.0f), splat(-1.0f)};
    for (int k = 0; k < kSpreads + refits; ++k) {
        F inverse_d = inverse(best.d), offset = negate(best.m) * inverse_d;
        if (k < kSpreads) {
            inverse_d = splat(float(kHighest) + spreads[k].steps);
            offset = splat(spreads[k].offset);
        }
        LineSums s = {one, sum, splat(0.0f), splat(0.0f), splat(0.0f)};
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            const F q = Within<0, kHighest>::code(y[i] * inverse_d + offset), wq = weigh<kWeighted>(w, i, q);
            s.q = s.q + wq;
            s.yq = s.yq + wq * y[i];
            s.qq = s.qq + wq * q;
        }
        const Line line = fit_line(s);
        const M better = less(best.explained, line.explained);
        best.d = select(better, line.d, best.d);
        best.m = select(better, line.m, best.m);
        best.explained = select(better, line.explained, best.explained);
    }
    best.m = min(best.m, splat(slack));
    best.d = clamp(max(best.d, (splat(1.0f - slack) - best.m) * splat(1.0f / kHighest)), 0.0f, 2.0f * slack);
    return best;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
