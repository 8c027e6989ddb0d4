// What the searches of all super-block types share: a normalised batch and the rounding of its float16 scales.
//
// The searches minimise Σ w·(x − decoded)², w the importance or 1, in the values a reader will decode: scales are taken
// as stored. One lane holds one super-block (IQ4_NL: one block), so each lane runs a plain scalar search of its own.
#pragma once
#include "../transpose.h"

// For loops over values: the lanes of one value are already independent work, more copies only grow the code.
#if defined(__GNUC__)
#define BITSMITH_UNROLL_VALUES _Pragma("GCC unroll 4")
#else
#define BITSMITH_UNROLL_VALUES
#endif

namespace bitsmith {
namespace BITSMITH_NS {

constexpr float kLargestSum = 3.0e38f;
// Of equally good scales the first is kept, so that sub-blocks agree and share a grid: a gain below this share of
// Σ w·x² does not count.
constexpr float kGain = 1.0f / (1 << 20);

template <int kCount>
constexpr int count_of(const float (&)[kCount]) {
    return kCount;
}

// Values and importance divided by powers of two that bring the largest of each block into [1, 2): nothing overflows
// or underflows on the way, whatever the unit of the weights, and the division itself is exact.
template <int kValues, bool kWeighted>
struct Normalised {
    static constexpr bool weighted = kWeighted;
    F x[kValues];
    F w[kWeighted ? kValues : 1];
    F unit;     // true value = x · unit
    F inverse;  // 1 / unit, exact
    F largest;  // max |x|
};

constexpr float kTwoPow60 = 1152921504606846976.0f;

// Scales may be fitted to a few columns of great importance, but no value may end further from its source than the
// formats promise (core/formats/ggml.py), a share of the block's largest magnitude. Fits keep to this part of it, so
// that the rounding of scales has room.
constexpr float kFitShare = 0.97f;
// So long a step that all codes are 0: stands for a scale of 0, which nothing can be divided by. A power of two.
constexpr float kNoStep = 1 << 20;
// Added to the error of what breaks that promise.
constexpr float kBroken = 1.0e30f;

// The power of two at or below a, for normal a > 0.
BITSMITH_INLINE I exponent_bits(const F& a) {
    return bits(a) & splat(0x7F800000);
}

// Importance of the block's columns, the largest in [1, 2). Columns of none keep a trace: no sum of weights is zero.
constexpr float kTrace = 1.0f / 16777216.0f;
// As ggml weighs them.
BITSMITH_INLINE F without_trace(const F& w) {
    return select(less(splat(kTrace), w), w, splat(0.0f));
}
BITSMITH_INLINE void load_weights(const float* const weight[kLanes], int n, F* w) {
    load_transposed(weight, 0, n, w);
    F largest = splat(0.0f);
    for (int i = 0; i < n; ++i) largest = max(largest, w[i]);
    const F scale = as_float(splat(0x7F000000) - exponent_bits(largest));
    for (int i = 0; i < n; ++i) w[i] = max(w[i] * scale, splat(kTrace));
}

template <int kValues, bool kWeighted>
BITSMITH_INLINE void load_normalised(const Batch& batch, Normalised<kValues, kWeighted>& block) {
    load_transposed(batch.x, 0, kValues, block.x);
    F largest = splat(0.0f);
    for (int i = 0; i < kValues; ++i) largest = max(largest, abs(block.x[i]));
    // Outside 2^±60 every type stores nothing but zeros or its largest value.
    const I exponent = exponent_bits(clamp(largest, 1.0f / kTwoPow60, kTwoPow60));
    block.unit = as_float(exponent);
    block.inverse = as_float(splat(0x7F000000) - exponent);
    for (int i = 0; i < kValues; ++i) block.x[i] = clamp(block.x[i] * block.inverse, -2.0f, 2.0f);
    block.largest = min(largest * block.inverse, splat(2.0f));
    if constexpr (kWeighted) load_weights(batch.weight, kValues, block.w);
}

struct StoredScale {
    I bits;   // float16
    F value;  // the same, normalised
};
// So many candidates of a super-block's scale, where its rounding is all that is left of the error. Where a few columns
// count and the others do not, it is their number that finds a good one.
constexpr int kManySteps = 272;

// The float16 nearest to scale: never Inf, and never 0 unless scale is.
template <class Block>
BITSMITH_INLINE StoredScale store_scale(const F& scale, const Block& block) {
    const I half = to_f16(abs(scale) * block.unit);
    const I smallest = select(equal(scale, splat(0.0f)), splat(0), splat(1));
    const I sign = (bits(scale) >> 16) & splat(0x8000);
    const I stored = max(min(half, splat(0x7BFF)), smallest) | sign;
    return {stored, from_f16(stored) * block.inverse};
}

// The float16 that is k steps further from zero.
template <class Block>
BITSMITH_INLINE StoredScale neighbour(const StoredScale& scale, int k, const Block& block) {
    const I size = max(min((scale.bits & splat(0x7FFF)) + splat(k), splat(0x7BFF)), splat(1));
    const I stored = size | (scale.bits & splat(0x8000));
    return {stored, from_f16(stored) * block.inverse};
}

// What candidate k of a super-block's scale stores the largest sub-scale as, in units of the largest it can be: half
// integers downwards, and the 16th two thirds, for float16 so small that the nearest to all others would be cut off.
BITSMITH_INLINE float largest_sub(float limit, int k) {
    if (k > 15) return limit * (1.0f - float(k - 15) * (1.0f / 512.0f));  // see kManySteps
    return k == 15 ? limit * (2.0f / 3.0f) : limit < 0.0f ? limit + 0.5f * float(k) : limit - 0.5f * float(k);
}

template <int kValues>
BITSMITH_INLINE F mean_square(const F* x) {
    F sum = splat(0.0f);
    for (int i = 0; i < kValues; ++i) sum = sum + x[i] * x[i];
    return sum * splat(1.0f / kValues);
}

// How ggml rounds the scales of sub-blocks, target ≥ 0, without importance: the largest becomes kHighest.
template <int kHighest, int kSubBlocks>
inline F top_step(const F target[kSubBlocks], F sub[kSubBlocks]) {
    F widest = splat(0.0f);
    for (int j = 0; j < kSubBlocks; ++j) widest = max(widest, target[j]);
    const F inverse_step = splat(float(kHighest)) * inverse(widest);
    for (int j = 0; j < kSubBlocks; ++j) sub[j] = rint(target[j] * inverse_step);
    return widest * splat(1.0f / kHighest);
}

// And with: the best of nine steps, then fitted while single codes move.
template <int kHighest, int kSubBlocks>
inline F ggml_step(const F target[kSubBlocks], const F weight[kSubBlocks], F sub[kSubBlocks]) {
    const F zero = splat(0.0f), highest = splat(float(kHighest));
    F widest = zero;
    for (int j = 0; j < kSubBlocks; ++j) widest = max(widest, target[j]);
    const F inverse_widest = inverse(widest);
    F inverse_step = zero, least = splat(kLargestSum);
    for (int k = 0; k < 9; ++k) {
        const float top = float(kHighest) + (k == 0 ? 0.0f : 0.1f * float(k < 5 ? k - 5 : k - 4));
        const F now = inverse_widest * splat(top), step = widest * splat(1.0f / top);
        F error = zero;
        for (int j = 0; j < kSubBlocks; ++j) {
            const F e = target[j] - step * min(rint(target[j] * now), highest);
            error = error + weight[j] * e * e;
        }
        const M better = less(error, least);
        least = select(better, error, least);
        inverse_step = select(better, now, inverse_step);
    }
    F xq = zero, qq = zero;
    for (int j = 0; j < kSubBlocks; ++j) {
        sub[j] = min(rint(target[j] * inverse_step), highest);
        xq = xq + weight[j] * target[j] * sub[j];
        qq = qq + weight[j] * sub[j] * sub[j];
    }
    for (int k = 0; k < 5; ++k) {
        M moved = less(zero, zero);
        for (int j = 0; j < kSubBlocks; ++j) {
            const F other_xq = xq - weight[j] * target[j] * sub[j], other_qq = qq - weight[j] * sub[j] * sub[j];
            const F code = rint(min(target[j] * other_qq * inverse(other_xq), highest));
            const F new_xq = other_xq + weight[j] * target[j] * code, new_qq = other_qq + weight[j] * code * code;
            const M better = less(zero, other_xq) & less(zero, other_qq) & less(xq * xq * new_qq, new_xq * new_xq * qq);
            moved = moved | better;
            sub[j] = select(better, code, sub[j]);
            xq = select(better, new_xq, xq);
            qq = select(better, new_qq, qq);
        }
        if (!any(moved)) break;
    }
    return xq * inverse(qq);
}

// w·a, where w is 1 when there is no importance.
template <bool kWeighted>
BITSMITH_INLINE F weigh(const F* w, int i, const F& a) {
    if constexpr (kWeighted) {
        return w[i] * a;
    } else {
        return a;
    }
}

// In some super-blocks nearly all importance is in at most two columns of each sub-block. What the fits above compare
// is then nothing but rounding; instead every L (and M) is tried on these columns alone. All others together have less
// than this share of the importance.
constexpr float kRest = 1.0f / (1 << 12);
template <int kSubBlocks>
inline M few_count(const F w[256]) {
    constexpr int kValues = 256 / kSubBlocks;
    F all = splat(0.0f), rest = all;
    for (int j = 0; j < kSubBlocks; ++j) {
        F first = splat(0.0f), second = first, sum = first;
        BITSMITH_UNROLL_VALUES for (int i = j * kValues; i < (j + 1) * kValues; ++i) {
            second = max(second, min(first, w[i]));
            first = max(first, w[i]);
            sum = sum + w[i];
        }
        all = all + sum;
        rest = rest + (sum - first - second);
        // Importance is below 2, so that this is more than the share of any sum. Mostly the first sub-block shows it.
        if (!any(less(rest, splat(2.0f * 256.0f * kRest)))) return less(rest, splat(0.0f));
    }
    return less(rest, all * splat(kRest));
}
// The two values of greatest importance, the first of equals.
struct Few {
    F x[2], w[2];
};
template <int kValues>
inline Few few_values(const F* x, const F* w) {
    const F zero = splat(0.0f);
    Few few = {{zero, zero}, {zero, zero}};
    for (int i = 0; i < kValues; ++i) {
        const M first = less(few.w[0], w[i]), second = less(few.w[1], w[i]);
        few.x[1] = select(first, few.x[0], select(second, x[i], few.x[1]));
        few.w[1] = select(first, few.w[0], select(second, w[i], few.w[1]));
        few.x[0] = select(first, x[i], few.x[0]);
        few.w[0] = select(first, w[i], few.w[0]);
    }
    return few;
}

// Σ w·e² with a scale (and minimum) as stored, and the largest |e| where it is asked for.
struct Errors {
    F squares, furthest;
};

}  // namespace BITSMITH_NS
}  // namespace bitsmith
