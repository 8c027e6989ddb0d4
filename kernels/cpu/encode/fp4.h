// MXFP4 (32 values, a power-of-two scale) and NVFP4 (16 values, an E4M3 scale, one more scale for the whole tensor).
// Elements are E2M1: 0, ½, 1, 1½, 2, 3, 4, 6 and their negatives.
#pragma once
#include "legacy.h"

namespace bitsmith {
namespace BITSMITH_NS {

// The nearest level of a ≥ 0, ties to the even code: rounding to steps of ½ below 2, of 1 below 4, of 2 above.
BITSMITH_INLINE F e2m1_level(const F& a) {
    const F power = as_float(bits(max(a, splat(1.0f))) & splat(0x7F800000));
    const F magic = power * splat(0.5f * kRoundMagic);  // its last mantissa bit is worth power / 2
    return min((a + magic) - magic, splat(6.0f));
}
BITSMITH_INLINE I e2m1_code(const F& level, const F& x) {
    const I small = rint_to_int(level + level), large = (bits(level) >> 22) - splat(252);
    const I code = select(less(level, splat(1.0f)), small, large);
    const I sign = (bits(x) >> 28) & splat(8);
    return select(equal(code, splat(0)), code, code | sign);  // no −0
}
// The nearest level's code, ties to the lower one, as ggml breaks them.
BITSMITH_INLINE I e2m1_code_half_down(const F& x) {
    constexpr float kMidpoints[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const F a = abs(x);
    const I zero = splat(0);
    I code = zero;
    for (int k = 0; k < 7; ++k) code = code + select(less(splat(kMidpoints[k]), a), splat(1), zero);
    return select(equal(code, zero), code, code | ((bits(x) >> 28) & splat(8)));
}

// Σ w·(x − scale·level)².
template <int kValues, bool kWeighted>
BITSMITH_INLINE F e2m1_error(const F* x, const F* w, const F& scale) {
    const F inverse_scale = inverse(scale);
    F error = splat(0.0f);
    BITSMITH_UNROLL_VALUES for (int i = 0; i < kValues; ++i) {
        const F a = abs(x[i]);
        const F e = a - scale * e2m1_level(a * inverse_scale);
        error = error + weigh<kWeighted>(w, i, e) * e;
    }
    return error;
}

// Whether one more than ggml's exponent, floor(log2 amax) − 2, has the smaller error: nothing is clipped then.
template <bool kWeighted>
BITSMITH_INLINE M next_exponent_is_better(const Batch& batch, const F x[32]) {
    F w[kWeighted ? 32 : 1];
    if constexpr (kWeighted) load_weights(batch.weight, 32, w);
    return less(e2m1_error<32, kWeighted>(x, w, splat(0.5f)), e2m1_error<32, kWeighted>(x, w, splat(0.25f)));
}

inline void encode_mxfp4(const Batch& batch) {
    F x[32], largest = splat(0.0f);
    load_transposed(batch.x, 0, 32, x);
    for (int i = 0; i < 32; ++i) largest = max(largest, abs(x[i]));
    // Brought into [1, 2) by an exact power of two; 2^127 has no normal inverse, so it goes in two steps.
    const I exponent = exponent_bits(clamp(largest, 0x1p-124f, 0x1p126f));
    const F normalise = as_float(splat(0x7F000000) - exponent);
    const M huge = less(splat(0x1.fffffep126f), largest);
    const F fold = select(huge, splat(0.5f), splat(1.0f));
    for (int i = 0; i < 32; ++i) x[i] = x[i] * normalise * fold;
    I e = (exponent >> 23) - select(huge, splat(1), splat(2)), code[32];
    if (batch.search) {
        const M next =
            batch.weighted ? next_exponent_is_better<true>(batch, x) : next_exponent_is_better<false>(batch, x);
        const F factor = select(next, splat(2.0f), splat(4.0f));
        e = e + select(next, splat(1), splat(0));
        for (int i = 0; i < 32; ++i) code[i] = e2m1_code(e2m1_level(abs(x[i]) * factor), x[i]);
    } else {
        for (int i = 0; i < 32; ++i) code[i] = e2m1_code_half_down(x[i] * splat(4.0f));
    }
    e = select(equal(largest, splat(0.0f)), splat(0), e);
    store_u8(batch.out, 0, e);
    store_nibbles(batch.out, 1, code);
}

// float32 ≥ 0 → unsigned E4M3, nearest, ties to even, at most 448 (0x7E).
BITSMITH_INLINE I to_e4m3(const F& a) {
    const F limited = min(a, splat(448.0f));
    const I word = bits(limited);
    const I normal = ((word + splat(0x7FFFF) + ((word >> 20) & splat(1))) >> 20) - splat(120 << 3);
    return select(less(limited, splat(0.015625f)), rint_to_int(limited * splat(512.0f)), normal);
}
BITSMITH_INLINE F from_e4m3(const I& code) {
    const F normal = as_float((code << 20) + splat(120 << 23)), subnormal = to_float(code) * splat(1.0f / 512.0f);
    return select(less(code, splat(8)), subnormal, normal);
}

// Scale codes tried around the one that maps the largest value to 6: a step is ⅛ octave, and six up map it to 4.
constexpr int kFirstStep = -2, kLastStep = 6;

template <bool kWeighted>
BITSMITH_INLINE I search_e4m3(const F x[16], const F* w, const I& start) {
    I best = start;
    F best_error = e2m1_error<16, kWeighted>(x, w, from_e4m3(start));
    for (int step = kFirstStep; step <= kLastStep; ++step) {
        if (step == 0) continue;
        const I code = min(max(start + splat(step), splat(0)), splat(0x7E));
        const F error = e2m1_error<16, kWeighted>(x, w, from_e4m3(code));
        const M better = less(error, best_error);
        best = select(better, code, best);
        best_error = select(better, error, best_error);
    }
    return best;
}

template <bool kWeighted>
BITSMITH_INLINE void encode_nvfp4_groups(const Batch& batch) {
    F x[64], w[kWeighted ? 64 : 1];
    load_transposed(batch.x, 0, 64, x);
    if constexpr (kWeighted) load_weights(batch.weight, 64, w);
    const F tensor_scale = splat(batch.tensor_scale);
    I scales[4];
    for (int group = 0; group < 4; ++group) {
        F* y = x + 16 * group;
        F largest = splat(0.0f);
        for (int i = 0; i < 16; ++i) {
            y[i] = clamp(y[i] / tensor_scale, -1e6f, 1e6f);
            largest = max(largest, abs(y[i]));
        }
        scales[group] = to_e4m3(largest / splat(6.0f));
        if (batch.search) scales[group] = search_e4m3<kWeighted>(y, kWeighted ? w + 16 * group : w, scales[group]);
        const F inverse_scale = inverse(from_e4m3(scales[group]));
        I words[2];
        for (int word = 0; word < 2; ++word) {
            I byte[4];
            for (int k = 0; k < 4; ++k) {
                const F low = y[4 * word + k], high = y[4 * word + k + 8];
                byte[k] = e2m1_code(e2m1_level(abs(low) * inverse_scale), low) |
                          (e2m1_code(e2m1_level(abs(high) * inverse_scale), high) << 4);
            }
            words[word] = pack_bytes(byte[0], byte[1], byte[2], byte[3]);
        }
        store_words(batch.out, 4 + 8 * group, words, 2);
    }
    const I header = pack_bytes(scales[0], scales[1], scales[2], scales[3]);
    store_words(batch.out, 0, &header, 1);
}
inline void encode_nvfp4(const Batch& batch) {
    if (batch.weighted && batch.search) {
        encode_nvfp4_groups<true>(batch);
    } else {
        encode_nvfp4_groups<false>(batch);
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
