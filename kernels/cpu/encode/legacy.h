// Q4_0, Q5_0, Q8_0 (d·q) and Q4_1, Q5_1 (d·q + m): 32 values a block, float16 scales.
//
// Without search, the bytes of ggml's plain encoders, which choose codes by the scale before it is rounded to float16.
// With search, few tries where nothing is known of the columns' importance (these types are written at several 10^8
// values a second), many where it is.
#pragma once
#include "codes.h"
#include "search_block.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Where the value of largest magnitude may go. The quick ones can not lead below the lowest code. The long lists are
// dense around the lowest code, which is what values far from zero ask for; their ends clip as far as is allowed.
constexpr float kQuickTargets4[] = {-8.0f, 7.4f};
constexpr float kQuickTargets5[] = {-16.0f, -15.4f, 15.0f};
constexpr float kReaches4[] = {-8.0f, -9.0f, -8.9f, -8.8f, -8.7f, -8.6f, -8.5f, -8.4f, -8.3f,  -8.2f,  -8.1f, -7.9f,
                               -7.8f, -7.7f, -7.6f, -7.5f, -7.4f, -7.3f, -7.2f, -7.1f, -11.2f, -10.4f, -9.8f, -9.4f,
                               -6.8f, -6.4f, -6.0f, -5.6f, 9.2f,  8.5f,  7.9f,  7.6f,  7.3f,   7.0f,   6.7f,  6.4f};
constexpr float kReaches5[] = {-16.0f, -17.2f, -17.1f, -17.0f, -16.9f, -16.8f, -16.7f, -16.6f, -16.5f, -16.4f, -16.3f,
                               -16.2f, -16.1f, -15.9f, -15.8f, -15.7f, -15.6f, -15.5f, -15.4f, -15.3f, -15.2f, -15.1f,
                               -15.0f, -14.9f, -14.8f, -19.4f, -18.5f, -17.7f, -14.5f, -14.2f, -13.8f, -13.4f, -12.8f,
                               17.0f,  16.2f,  15.6f,  15.3f,  15.0f,  14.7f,  14.4f,  14.0f,  13.4f};
constexpr float kReaches8[] = {127.0f, 126.3f, 125.6f, 124.9f, 124.2f},
                kQuickReaches8[] = {127.0f, 126.5f, 126.0f, 125.5f};
constexpr int kRefits = 2;
// What the formats promise of a value's error (core/formats/ggml.py), less room for the rounding of scales.
constexpr float kBound4 = 0.349f, kBound5 = 0.199f, kBound8 = 0.0055f;
constexpr ScaleLimits kLimits4 = {0.0953f, 0.6f}, kLimits5 = {0.0541f, 0.38f};

// The value of largest magnitude, with its sign; of equals the first.
template <int kValues>
BITSMITH_INLINE F extreme_value(const F* x) {
    F extreme = splat(0.0f);
    for (int i = 0; i < kValues; ++i) extreme = select(less(abs(extreme), abs(x[i])), x[i], extreme);
    return extreme;
}
// The same for a search, which may take either of equals, in fewer steps.
BITSMITH_INLINE F either_extreme(const F x[32]) {
    F low = splat(0.0f), high = splat(0.0f);
    for (int i = 0; i < 32; ++i) {
        low = min(low, x[i]);
        high = max(high, x[i]);
    }
    return select(less(high, negate(low)), low, high);
}
template <int kValues>
BITSMITH_INLINE F largest_magnitude(const F* x) {
    F largest = splat(0.0f);
    for (int i = 0; i < kValues; ++i) largest = max(largest, abs(x[i]));
    return largest;
}

template <int kBits, int kQuick>
BITSMITH_INLINE void encode_centred(const Batch& batch, const float (&quick)[kQuick], const ScaleLimits& limits,
                                    const ScaleSearch& search) {
    constexpr int kHalf = 1 << (kBits - 1);
    F x[32];
    I code[32], stored;
    load_transposed(batch.x, 0, 32, x);
    if (batch.search) {
        if (batch.weighted) {
            Normalised<32, true> block;
            load_normalised(batch, block);
            stored = search_scale<CodeRange<-kHalf, kHalf - 1>>(block, search).bits;
        } else {
            const F extreme = either_extreme(x);
            const F scale = fit_scale_to_targets<Below<kHalf - 1>, 32, false>(x, nullptr, extreme, quick, 0);
            stored = scale_to_f16(limit_scale(scale, abs(extreme), limits));
        }
        const F inverse_scale = inverse(from_f16(stored));
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            code[i] = CodeRange<-kHalf, kHalf - 1>::integer(x[i] * inverse_scale) + splat(kHalf);
        }
    } else {
        const F scale = extreme_value<32>(x) / splat(-float(kHalf)), inverse_scale = inverse(scale);
        stored = to_f16(scale);
        const I highest = splat(2 * kHalf - 1);
        for (int i = 0; i < 32; ++i) code[i] = min(to_int(x[i] * inverse_scale + splat(kHalf + 0.5f)), highest);
    }
    store_u16(batch.out, 0, stored);
    store_codes<kBits>(batch.out, 2, code);
}
inline void encode_q4_0(const Batch& batch) {
    encode_centred<4>(batch, kQuickTargets4, kLimits4, {kReaches4, count_of(kReaches4), kRefits, kBound4});
}
inline void encode_q5_0(const Batch& batch) {
    encode_centred<5>(batch, kQuickTargets5, kLimits5, {kReaches5, count_of(kReaches5), kRefits, kBound5});
}

// Nearest integer, ties away from zero, for 0 ≤ a < 2^22.
BITSMITH_INLINE F round_half_up(const F& a) {
    const F r = rint(a);
    return select(equal(a - r, splat(0.5f)), r + splat(1.0f), r);
}

// No block has a larger error than ggml's, whose scale is the first candidate.
template <bool kWeighted>
BITSMITH_INLINE I search_q8_0(const Batch& batch, I code[32]) {
    Normalised<32, kWeighted> block;
    load_normalised(batch, block);
    const ScaleSearch search = kWeighted ? ScaleSearch{kReaches8, count_of(kReaches8), 0, kBound8}
                                         : ScaleSearch{kQuickReaches8, count_of(kQuickReaches8), 0, kBound8};
    const StoredScale best = search_scale<CodeRange<-127, 127>>(block, search);
    const F inverse_scale = inverse(best.value);
    BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
        code[i] = CodeRange<-127, 127>::integer(block.x[i] * inverse_scale);
    }
    return best.bits;
}

// Codes are −127…127: −128 is left out, as some readers negate codes in 8 bits.
inline void encode_q8_0(const Batch& batch) {
    I code[32], stored;
    if (batch.search) {
        stored = batch.weighted ? search_q8_0<true>(batch, code) : search_q8_0<false>(batch, code);
    } else {
        F x[32];
        load_transposed(batch.x, 0, 32, x);
        const F scale = largest_magnitude<32>(x) / splat(127.0f), inverse_scale = inverse(scale);
        stored = to_f16(scale);
        for (int i = 0; i < 32; ++i) {
            const F scaled = x[i] * inverse_scale, magnitude = round_half_up(abs(scaled));
            code[i] = rint_to_int(select(less(scaled, splat(0.0f)), negate(magnitude), magnitude));
        }
    }
    store_u16(batch.out, 0, stored);
    store_signed_bytes(batch.out, 2, code);
}

// Blocks with so many neighbours alike have few values.
constexpr int kAlike = 2;
BITSMITH_INLINE M has_few_values(const F x[32]) {
    I alike = splat(0);
    for (int i = 1; i < 32; ++i) alike = alike + select(equal(x[i - 1], x[i]), splat(1), splat(0));
    return less(splat(kAlike - 1), alike);
}
// Σ (x − d·q − m)² · unit² with the nearest codes.
template <int kHighest>
BITSMITH_INLINE F stored_line_error(const F x[32], const F& d, const F& m, const F& unit) {
    const F inverse_d = inverse(d);
    F error = splat(0.0f);
    BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
        const F scaled = (x[i] - m) * inverse_d, e = scaled - CodeRange<0, kHighest>::value(scaled);
        error = error + e * e;
    }
    return error * ((d * unit) * (d * unit));
}

constexpr Spread kQuickSpread4[] = {{0.3f, -0.15f}}, kQuickSpreads5[] = {{0.0f, 0.0f}, {1.0f, -0.5f}};
// Room at either end, then the lattice of the plain encoder, then clipping at both ends, then at one.
constexpr LineStart kStarts[] = {
    {0.0f, 0.0f},    {0.0f, -3.0f},   {3.0f, 0.0f},   {0.0f, -2.0f}, {1.0f, -1.0f},  {2.0f, 0.0f},    {0.0f, -1.0f},
    {1.0f, 0.0f},    {0.25f, -0.25f}, {-0.3f, -0.3f}, {0.0f, 0.0f},  {0.3f, 0.3f},   {-0.65f, 0.05f}, {-0.35f, 0.35f},
    {-0.05f, 0.65f}, {-1.0f, 0.4f},   {-0.7f, 0.7f},  {-0.4f, 1.0f}, {-1.4f, 0.7f},  {-1.05f, 1.05f}, {-0.7f, 1.4f},
    {0.0f, 0.7f},    {-0.7f, 0.0f},   {0.3f, 3.5f},   {0.3f, 6.0f},  {-3.5f, -0.3f}, {-6.0f, -0.3f},  {-0.15f, 0.15f}};
constexpr int kStartCount = sizeof kStarts / sizeof *kStarts;

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
        if (batch.weighted) {
            Normalised<32, true> block;
            load_normalised(batch, block);
            const LineSearch search = kBits == 4 ? LineSearch{kStarts, kStartCount, kRefits, kBound4, 1}
                                                 : LineSearch{kStarts, kStartCount, kRefits, kBound5, 30};
            const StoredLine line = search_line<kHighest>(block, search);
            stored = line.scale.bits;
            stored_minimum = line.minimum.bits;
        } else {
            // The line is fitted to 0 … 1, whatever the offset, so that sums of squares lose nothing.
            const F range = min(high - low, splat(1e30f)), unit = inverse(range);
            F y[32];
            BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) y[i] = (x[i] - low) * unit;
            Line line;
            if constexpr (kBits == 4) {
                line = fit_line_to_spreads<kHighest>(y, kQuickSpread4);
            } else {
                line = fit_line_to_spreads<kHighest>(y, kQuickSpreads5);
            }
            // Neither end is clipped by more than kSlack, and no step is longer than twice that. What the minimum's
            // rounding moves, the scale makes good.
            stored_minimum = to_f16(clamp(min(line.m, splat(kSlack)) * range + low, -65504.0f, 65504.0f));
            const F moved = (from_f16(stored_minimum) - low) * unit;
            const F d = (line.yq - moved * line.q) * inverse(line.qq);
            const F shortest = (splat(1.0f - kSlack) - moved) * splat(1.0f / kHighest);
            stored = scale_to_f16(clamp(max(d, shortest), 0.0f, 2.0f * kSlack) * range);
            // With few values ggml's line, from the lowest to the highest, may be better.
            const M few = has_few_values(x);
            if (any(few)) {
                const I plain = scale_to_f16((high - low) * splat(1.0f / kHighest)), plain_minimum = to_f16(low);
                const F own = stored_line_error<kHighest>(x, from_f16(stored), from_f16(stored_minimum), unit);
                const F theirs = stored_line_error<kHighest>(x, from_f16(plain), from_f16(plain_minimum), unit);
                const M better = few & less(theirs, own);
                stored = select(better, plain, stored);
                stored_minimum = select(better, plain_minimum, stored_minimum);
            }
        }
        const F m = from_f16(stored_minimum), inverse_scale = inverse(from_f16(stored));
        BITSMITH_UNROLL_VALUES for (int i = 0; i < 32; ++i) {
            code[i] = CodeRange<0, kHighest>::integer((x[i] - m) * inverse_scale);
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
