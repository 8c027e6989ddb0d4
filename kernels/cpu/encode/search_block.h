// Search for blocks whose float16 scale (and minimum) stands on its own.
//
// Every candidate is judged with its scale rounded to float16, as a reader will see it. Where few distinct values leave
// no other error than that rounding, it is the number of candidates that finds a good one.
#pragma once
#include "fit.h"

namespace bitsmith {
namespace BITSMITH_NS {

// For the errors e of values divided by a scale: Σ w·e², Σ w·e·q, Σ w·q². It is all that is needed for the best scale
// for these codes, and for the error with any other.
constexpr float kAnywhere = 1.0e30f;  // a reach that is not known
struct StepSums {
    F ee, eq, qq;
};
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE StepSums step_sums(const F* x, const F* w, const F& inverse_scale) {
    StepSums sums = {splat(0.0f), splat(0.0f), splat(0.0f)};
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F scaled = x[i] * inverse_scale, q = Codes::value(scaled), e = scaled - q;
        const F we = weigh<kWeighted>(w, i, e);
        sums.ee = sums.ee + we * e;
        sums.eq = sums.eq + we * q;
        sums.qq = sums.qq + weigh<kWeighted>(w, i, q) * q;
    }
    return sums;
}
// The same where `reach` is what the value of largest magnitude becomes.
template <class Codes, int kValues, bool kWeighted>
BITSMITH_INLINE StepSums step_sums_within(const F* x, const F* w, const F& inverse_scale, float reach) {
    const float magnitude = reach < 0.0f ? -reach : reach;
    if (magnitude < Codes::kInside) return step_sums<typename Codes::Inside, kValues, kWeighted>(x, w, inverse_scale);
    if (magnitude < Codes::kNotBelow)
        return step_sums<typename Codes::NotBelow, kValues, kWeighted>(x, w, inverse_scale);
    return step_sums<Codes, kValues, kWeighted>(x, w, inverse_scale);
}
// Of Σ w·e², what is left after a fit when nothing is.
constexpr float kSumRounding = 1.0f / (1 << 20);

struct StepFit {
    F scale, inverse_scale;  // that the codes were chosen by
    F change;                // the best scale for them is scale · (1 + change)
    F left, qq;              // with it, Σ w·e² in steps
};
BITSMITH_INLINE StepFit fit_step(const StepSums& sums, const F& scale, const F& inverse_scale) {
    const F change = sums.eq * inverse(sums.qq), left = sums.ee - change * sums.eq;
    const M nothing = less(left, sums.ee * splat(kSumRounding));
    return {scale, inverse_scale, change, select(nothing, splat(0.0f), left), sums.qq};
}
BITSMITH_INLINE F fitted_scale(const StepFit& fit) {
    return fit.scale + fit.scale * fit.change;
}
// Σ w·(x − stored·q)²
BITSMITH_INLINE F error_when_stored(const StepFit& fit, const F& stored) {
    const F missed = stored * fit.inverse_scale - splat(1.0f) - fit.change;
    return (fit.left + fit.qq * missed * missed) * (fit.scale * fit.scale);
}

// Scaled values that the value of largest magnitude is tried at; the first is the plain encoder's.
struct ScaleSearch {
    const float* reaches;
    int count;
    int refits;         // of the best scale to its codes
    float error_bound;  // of any value, as a share of the largest magnitude
};

// The scale held to where no value is cut off or rounded by more than `allowed`. low, high: of the block and 0.
template <class Codes>
BITSMITH_INLINE F within_bound(const F& scale, const F& low, const F& high, const F& allowed) {
    const M turned = less(scale, splat(0.0f));
    const F up = select(turned, negate(low), high), down = select(turned, high, negate(low));
    const F least =
        max((up - allowed) * splat(1.0f / Codes::kHighEnd), (down - allowed) * splat(1.0f / Codes::kLowEnd));
    const F size = min(max(abs(scale), least), allowed * splat(1.0f / Codes::kHalfGap));
    return as_float(bits(size) | (bits(scale) & splat(INT32_MIN)));
}

// x ≈ scale · q.
template <class Codes, int kValues, bool kWeighted>
inline StoredScale search_scale(const Normalised<kValues, kWeighted>& block, const ScaleSearch& search) {
    F low = splat(0.0f), high = splat(0.0f);
    for (int i = 0; i < kValues; ++i) {
        low = min(low, block.x[i]);
        high = max(high, block.x[i]);
    }
    const F inverse_widest = inverse(select(less(high, negate(low)), low, high));
    const F allowed = block.largest * splat(search.error_bound);
    StoredScale best = {splat(0), splat(0.0f)};
    F least = splat(kLargestSum);
    for (int k = 0; k < search.count + search.refits; ++k) {
        const bool reaches = k < search.count;
        const F inverse_scale = reaches ? inverse_widest * splat(search.reaches[k]) : inverse(best.value);
        const F scale = inverse(inverse_scale);
        const StepSums sums = step_sums_within<Codes, kValues, kWeighted>(block.x, block.w, inverse_scale,
                                                                          reaches ? search.reaches[k] : kAnywhere);
        const StepFit fit = fit_step(sums, scale, inverse_scale);
        for (int fitted = k == 0 ? 0 : 1; fitted < 2; ++fitted) {
            const F wanted = fitted ? fitted_scale(fit) : scale;
            const StoredScale now = store_scale(within_bound<Codes>(wanted, low, high, allowed), block);
            const F error = error_when_stored(fit, now.value);
            const M better = less(error, least);
            least = select(better, error, least);
            best.bits = select(better, now.bits, best.bits);
            best.value = select(better, now.value, best.value);
        }
    }
    return best;
}

// First codes of a line, as numbers before rounding: those of the lowest value, and of the highest less kHighest.
struct LineStart {
    float low, high;
};
// The first start is the plain encoder's: a minimum at or below the lowest value, the scale to reach the highest.
struct LineSearch {
    const LineStart* starts;
    int count;
    int refits;         // of the best line to its codes
    float error_bound;  // of any value, as a share of the block's largest magnitude
    // In blocks that come out nearly exact every pair of codes is tried for the ends, the higher one from here on: with
    // few values many lines are exact but for the rounding to float16, and it is chance which is the best.
    int lowest_top;
};
constexpr float kNearlyExact = 1.0f / (1 << 20);  // of the weighted squares of the range
struct StoredLine {
    StoredScale scale, minimum;
};

template <class Block>
BITSMITH_INLINE StoredScale store_minimum(const F& minimum, const Block& block) {
    const I half = to_f16(clamp(minimum * block.unit, -65504.0f, 65504.0f));
    return {half, from_f16(half) * block.inverse};
}
// The float16 at or below minimum.
template <class Block>
BITSMITH_INLINE StoredScale store_minimum_below(const F& minimum, const Block& block) {
    const StoredScale nearest = store_minimum(minimum, block);
    const I zero = splat(0), one = splat(1), magnitude = nearest.bits & splat(0x7FFF);
    const M falls = equal(nearest.bits & splat(0x8000), zero);  // with its magnitude
    I below = select(falls, nearest.bits - one, nearest.bits + one);
    below = select(equal(magnitude, zero), splat(0x8001), below);
    below = select(less(minimum, nearest.value) & less(magnitude, splat(0x7BFF)), below, nearest.bits);
    return {below, from_f16(below) * block.inverse};
}

// x ≈ scale · q + minimum for q in 0 … kHighest: a line is fitted to each start's codes, then, once its minimum is
// rounded, the scale to the codes that go with it.
template <int kHighest>
inline StoredLine search_line(const Normalised<32, true>& block, const LineSearch& search) {
    const F *x = block.x, *w = block.w, zero = splat(0.0f), step = splat(1.0f / kHighest);
    F low = x[0], high = x[0];
    for (int i = 1; i < 32; ++i) {
        low = min(low, x[i]);
        high = max(high, x[i]);
    }
    F above[32], sum_w = zero, sum_y = zero;  // y: x − low, so that nothing is lost far from zero
    for (int i = 0; i < 32; ++i) {
        sum_w = sum_w + w[i];
        sum_y = sum_y + w[i] * (x[i] - low);
    }
    const F range = high - low, inverse_range = inverse(range), inverse_w = inverse(sum_w), mean_y = sum_y * inverse_w;
    const F allowed = block.largest * splat(search.error_bound), most = allowed + allowed;
    const F finest = block.largest * splat(1.0f / (1 << 20));  // for blocks of one value: float16 can do no better
    StoredLine best = {{splat(0), zero}, {splat(0), zero}};
    F least = splat(kLargestSum);
    M tried = less(zero, splat(1.0f));  // in which blocks
    int bottom = 0, top = 0;            // codes of the ends, once all of them are tried
    for (int k = 0;; ++k) {
        if (k >= search.count + search.refits) {
            if (k == search.count + search.refits) {
                tried = less(least, sum_w * (range * range) * splat(kNearlyExact));
                top = search.lowest_top;
            } else if (++bottom == top) {
                ++top;
                bottom = 0;
            }
            if (top > kHighest || !any(tried)) break;
        }
        F scale, minimum, inverse_scale, offset;
        if (top > 0) {
            const float steps = float(top - bottom);
            scale = range * splat(1.0f / steps);
            inverse_scale = inverse_range * splat(steps);
            offset = splat(float(bottom));
        } else if (k < search.count) {
            const float steps = float(kHighest) + search.starts[k].high - search.starts[k].low;
            scale = range * splat(1.0f / steps);
            inverse_scale = inverse_range * splat(steps);
            offset = splat(search.starts[k].low);
        } else {
            scale = best.scale.value;
            inverse_scale = inverse(scale);
            offset = (low - best.minimum.value) * inverse_scale;
        }
        F sum_q = zero, yq = zero, qq = zero;
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            const F y = x[i] - low, q = CodeRange<0, kHighest>::value(y * inverse_scale + offset), wq = w[i] * q;
            sum_q = sum_q + wq;
            yq = yq + wq * y;
            qq = qq + wq * q;
        }
        const F mean_q = sum_q * inverse_w, variance = qq - mean_q * sum_q;
        const M solvable = less(splat(1e-5f) * qq, variance);
        scale = select(solvable, (yq - mean_q * sum_y) * inverse(variance), scale);
        minimum = min(low + (mean_y - scale * mean_q), low + allowed);
        StoredLine now;
        now.minimum = store_minimum(minimum, block);
        if (k == 0) {
            now.minimum = store_minimum_below(low, block);
            scale = (high - now.minimum.value) * step;
        }
        // The top may be cut off by no more than is allowed.
        const F shortest = max((high - allowed - now.minimum.value) * step, zero);
        scale = min(max(scale, max(shortest, finest)), most);
        inverse_scale = inverse(scale);
        for (int i = 0; i < 32; ++i) above[i] = x[i] - now.minimum.value;
        const StepSums sums = step_sums<CodeRange<0, kHighest>, 32, true>(above, w, inverse_scale);
        const StepFit fit = fit_step(sums, scale, inverse_scale);
        for (int fitted = 0; fitted < 2; ++fitted) {
            now.scale = store_scale(fitted ? min(max(fitted_scale(fit), shortest), most) : scale, block);
            const F error = error_when_stored(fit, now.scale.value);
            const M better = less(error, least) & tried;
            least = select(better, error, least);
            best.scale.bits = select(better, now.scale.bits, best.scale.bits);
            best.scale.value = select(better, now.scale.value, best.scale.value);
            best.minimum.bits = select(better, now.minimum.bits, best.minimum.bits);
            best.minimum.value = select(better, now.minimum.value, best.minimum.value);
        }
    }
    return best;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
