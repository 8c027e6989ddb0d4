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

// Integers as codes where no value can pass the lower end.
template <int kHigh>
struct Below {
    static BITSMITH_INLINE F value(const F& scaled) { return rint(min(scaled, splat(float(kHigh)))); }
};

// The integers kLow … kHigh as codes. kLowEnd, kHighEnd: how far they go below and above 0. kHalfGap: how far a value
// inside can be from its code's. value: that of the nearest code. kInside, kNotBelow: up to this magnitude of the
// widest value no other can pass either end, or the lower; Inside and NotBelow then need not look.
template <int kLow, int kHigh>
struct CodeRange {
    static constexpr float kLowEnd = -kLow, kHighEnd = kHigh, kHalfGap = 0.5f;
    static constexpr float kInside = kHigh + 0.49f, kNotBelow = -kLow + 0.49f;
    struct Inside {
        static BITSMITH_INLINE F value(const F& scaled) { return rint(scaled); }
    };
    using NotBelow = Below<kHigh>;
    static BITSMITH_INLINE F value(const F& scaled) { return rint(clamp(scaled, float(kLow), float(kHigh))); }
    static BITSMITH_INLINE I integer(const F& scaled) { return rint_to_int(clamp(scaled, float(kLow), float(kHigh))); }
};

// Of fits that differ by no more than the rounding of their sums the first is kept.
constexpr float kMoreThanSummation = 1.0f + 1.0f / (1 << 16);

// Σ w·x·q and Σ w·q².
struct ProductSums {
    F xq, qq;
};
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE ProductSums product_sums(const F* x, const F* w, const F& inverse_scale) {
    ProductSums sums = {splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F q = Codes::value(x[i] * inverse_scale), wq = weigh<kWeighted>(w, i, q);
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
        const M better = less(best_gain * sums.qq * splat(kMoreThanSummation), gain * best.qq);
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

// First codes to fit a line to: y · (highest + steps) + offset, for y in 0 … 1.
struct Spread {
    float steps, offset;
};

// y ≈ d·q + m for the codes with these sums.
struct Line {
    F m, q, yq, qq;  // Σ q, Σ y·q, Σ q²
};

// The best line for 32 y in 0 … 1 and codes 0 … kHighest: the one that explains most of Σ y².
template <int kHighest, int kSpreads>
BITSMITH_INLINE Line fit_line_to_spreads(const F y[32], const Spread (&spreads)[kSpreads]) {
    const F count = splat(32.0f);
    F sum = splat(0.0f), best = splat(-1.0f);
    Line line = {};
    for (int k = 0; k < kSpreads; ++k) {
        const F steps = splat(float(kHighest) + spreads[k].steps), offset = splat(spreads[k].offset);
        // Whether no first code can pass either end.
        const bool inside = spreads[k].offset > -0.49f && spreads[k].steps + spreads[k].offset < 0.49f;
        Line now = {};
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            const F scaled = y[i] * steps + offset;
            const F q = inside ? rint(scaled) : CodeRange<0, kHighest>::value(scaled);
            if (k == 0) sum = sum + y[i];
            now.q = now.q + q;
            now.yq = now.yq + q * y[i];
            now.qq = now.qq + q * q;
        }
        const F d = (count * now.yq - sum * now.q) * inverse(count * now.qq - now.q * now.q);
        now.m = (sum - d * now.q) * splat(1.0f / 32.0f);
        const F explained = d * now.yq + now.m * sum;
        const M better = less(best, explained);
        best = select(better, explained, best);
        line.m = select(better, now.m, line.m);
        line.q = select(better, now.q, line.q);
        line.yq = select(better, now.yq, line.yq);
        line.qq = select(better, now.qq, line.qq);
    }
    return line;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
