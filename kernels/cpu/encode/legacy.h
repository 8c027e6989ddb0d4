// Q4_0, Q5_0, Q8_0 (d·q) and Q4_1, Q5_1 (d·q + m): 32 values a block, float16 scales.
//
// Without search, the bytes of ggml's plain encoders, which choose codes by the scale before it is rounded to float16.
// With search, few tries where nothing is known of the columns' importance (these types are written at several 10^8
// values a second), many where it is.
#pragma once
#include "codes.h"
#include "fit.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Where the value of largest magnitude may go. The quick ones can not lead below the lowest code.
constexpr float kQuickTargets4[] = {-8.0f, 7.4f};
constexpr float kQuickTargets5[] = {-16.0f, -15.4f, 15.0f};
constexpr float kQuickTargets8[] = {127.0f, 126.5f, 126.0f, 125.5f};
constexpr float kTargets4[] = {-8.0f, -9.6f, -9.2f, -8.8f, -8.4f, -7.6f, -7.2f,
                               -6.8f, -6.4f, -6.0f, -5.6f, 7.8f,  7.4f,  7.0f};
constexpr float kTargets5[] = {-16.0f, -17.6f, -17.0f, -16.5f, -15.5f, -15.0f, -14.5f,
                               -14.0f, -13.5f, -12.5f, 15.5f,  15.0f,  14.5f,  14.0f};
constexpr float kTargets8[] = {127.0f, 126.6f, 126.2f, 125.8f, 125.4f, 125.0f, 124.6f, 124.2f, 123.8f, 123.4f};
constexpr int kRefits = 2;
constexpr ScaleLimits kLimits4 = {0.0953f, 0.6f}, kLimits5 = {0.0541f, 0.38f}, kLimits8 = {0.00785f, 0.011f};

// The value of largest magnitude, with its sign; of equals the first.
template <int kValues>
BITSMITH_INLINE F extreme_value(const F* x) {
    F extreme = splat(0.0f);
    for (int i = 0; i < kValues; ++i) extreme = select(less(abs(extreme), abs(x[i])), x[i], extreme);
    return extreme;
}
template <int kValues>
BITSMITH_INLINE F largest_magnitude(const F* x) {
    F largest = splat(0.0f);
    for (int i = 0; i < kValues; ++i) largest = max(largest, abs(x[i]));
    return largest;
}

template <int kBits, int kQuick, int kThorough>
BITSMITH_INLINE void encode_centred(const Batch& batch, const float (&quick)[kQuick],
                                    const float (&thorough)[kThorough], const ScaleLimits& limits) {
    constexpr int kHalf = 1 << (kBits - 1);
    F x[32];
    I code[32], stored;
    load_transposed(batch.x, 0, 32, x);
    const F extreme = extreme_value<32>(x);
    if (batch.search) {
        F scale;
        if (batch.weighted) {
            F w[32];
            load_weights(batch.weight, 32, w);
            scale = fit_scale_to_targets<Within<-kHalf, kHalf - 1>, 32, true>(x, w, extreme, thorough, kRefits);
        } else {
            scale = fit_scale_to_targets<Below<kHalf - 1>, 32, false>(x, nullptr, extreme, quick, 0);
        }
        stored = scale_to_f16(limit_scale(scale, abs(extreme), limits));
        const F inverse_scale = inverse(from_f16(stored));
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            code[i] = Within<-kHalf, kHalf - 1>::integer(x[i] * inverse_scale) + splat(kHalf);
        }
    } else {
        const F scale = extreme / splat(-float(kHalf)), inverse_scale = inverse(scale);
        stored = to_f16(scale);
        const I highest = splat(2 * kHalf - 1);
        for (int i = 0; i < 32; ++i) code[i] = min(to_int(x[i] * inverse_scale + splat(kHalf + 0.5f)), highest);
    }
    store_u16(batch.out, 0, stored);
    store_codes<kBits>(batch.out, 2, code);
}
inline void encode_q4_0(const Batch& batch) {
    encode_centred<4>(batch, kQuickTargets4, kTargets4, kLimits4);
}
inline void encode_q5_0(const Batch& batch) {
    encode_centred<5>(batch, kQuickTargets5, kTargets5, kLimits5);
}

// Nearest integer, ties away from zero, for 0 ≤ a < 2^22.
BITSMITH_INLINE F round_half_up(const F& a) {
    const F r = rint(a);
    return select(equal(a - r, splat(0.5f)), r + splat(1.0f), r);
}

// Codes are −127…127: −128 is left out, as some readers negate codes in 8 bits.
inline void encode_q8_0(const Batch& batch) {
    F x[32];
    I code[32], stored;
    load_transposed(batch.x, 0, 32, x);
    const F largest = largest_magnitude<32>(x);
    if (batch.search) {
        F scale;
        if (batch.weighted) {
            F w[32];
            load_weights(batch.weight, 32, w);
            scale = fit_scale_to_targets<Unlimited, 32, true>(x, w, largest, kTargets8, 0);
        } else {
            scale = fit_scale_to_targets<Unlimited, 32, false>(x, nullptr, largest, kQuickTargets8, 0);
        }
        stored = scale_to_f16(limit_scale(scale, largest, kLimits8));
        const F inverse_scale = inverse(from_f16(stored));
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) code[i] = Within<-127, 127>::integer(x[i] * inverse_scale);
    } else {
        const F scale = largest / splat(127.0f), inverse_scale = inverse(scale);
        stored = to_f16(scale);
        for (int i = 0; i < 32; ++i) {
            const F scaled = x[i] * inverse_scale, magnitude = round_half_up(abs(scaled));
            code[i] = rint_to_int(select(less(scaled, splat(0.0f)), negate(magnitude), magnitude));
        }
    }
    store_u16(batch.out, 0, stored);
    store_signed_bytes(batch.out, 2, code);
}

// In units of a step; see fit_line_to_spreads.
constexpr Spread kQuickSpread4[] = {{0.3f, -0.15f}}, kQuickSpreads5[] = {{0.0f, 0.0f}, {1.0f, -0.5f}};
constexpr Spread kSpreads[] = {{-0.8f, 0.1f}, {-0.8f, 0.4f},  {-0.8f, 0.7f},  {0.0f, -0.3f},  {0.0f, 0.0f},
                               {0.0f, 0.3f},  {0.7f, -0.65f}, {0.7f, -0.35f}, {0.7f, -0.05f}, {1.4f, -1.0f},
                               {1.4f, -0.7f}, {1.4f, -0.4f},  {2.1f, -1.4f},  {2.1f, -1.05f}, {2.1f, -0.7f}};

template <int kBits>
BITSMITH_INLINE void encode_affine(const Batch& batch) {
    constexpr int kHighest = (1 << kBits) - 1;
    constexpr float kSlack = kBits == 4 ? 0.15f : 0.085f;
    F x[32];
    I code[32], stored, stored_minimum;
    load_transposed(batch.x, 0, 32, x);
    F low = x[0], high = x[0];
    for (int i = 1; i < 32; ++i) {
        low = min(low, x[i]);
        high = max(high, x[i]);
    }
    if (batch.search) {
        // The line is fitted to 0 … 1, whatever the offset, so that sums of squares lose nothing.
        const F range = min(high - low, splat(1e30f)), unit = inverse(range);
        F y[32];
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) y[i] = (x[i] - low) * unit;
        Line line;
        if (batch.weighted) {
            F w[32];
            load_weights(batch.weight, 32, w);
            line = fit_line_to_spreads<kHighest, true>(y, w, kSpreads, kRefits, kSlack);
        } else {
            if constexpr (kBits == 4) {
                line = fit_line_to_spreads<kHighest, false>(y, nullptr, kQuickSpread4, 0, kSlack);
            } else {
                line = fit_line_to_spreads<kHighest, false>(y, nullptr, kQuickSpreads5, 0, kSlack);
            }
        }
        stored = scale_to_f16(line.d * range);
        stored_minimum = to_f16(clamp(line.m * range + low, -65504.0f, 65504.0f));
        const F m = from_f16(stored_minimum), inverse_scale = inverse(from_f16(stored));
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            code[i] = Within<0, kHighest>::integer((x[i] - m) * inverse_scale);
        }
    } else {
        const F scale = (high - low) / splat(float(kHighest)), inverse_scale = inverse(scale);
        stored = to_f16(scale);
        stored_minimum = to_f16(low);
        const I highest = splat(kHighest);
        for (int i = 0; i < 32; ++i) code[i] = min(to_int((x[i] - low) * inverse_scale + splat(0.5f)), highest);
    }
    store_u16(batch.out, 0, stored);
    store_u16(batch.out, 2, stored_minimum);
    store_codes<kBits>(batch.out, 4, code);
}
inline void encode_q4_1(const Batch& batch) {
    encode_affine<4>(batch);
}
inline void encode_q5_1(const Batch& batch) {
    encode_affine<5>(batch);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
