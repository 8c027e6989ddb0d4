// TQ1_0 and TQ2_0: 256 codes of −1, 0, +1 and a float16 scale, which stands last. Without search, ggml's bytes.
#pragma once
#include "legacy.h"

namespace bitsmith {
namespace BITSMITH_NS {

// How many scales the value of largest magnitude is: 1 fits weights that are ternary already, 2 to 3 normal ones.
constexpr float kTernaryTargets[] = {1.0f, 1.6f, 2.1f, 2.7f, 3.5f};
constexpr int kTernaryRefits = 2;

template <bool kWeighted>
BITSMITH_INLINE F search_ternary(const Batch& batch, const F x[256], const F& largest) {
    F w[kWeighted ? 256 : 1];
    if constexpr (kWeighted) load_weights(batch.weight, 256, w);
    return fit_scale_to_targets<CodeRange<-1, 1>, 256, kWeighted>(x, w, largest, kTernaryTargets, kTernaryRefits);
}

// Codes 0, 1, 2, and the scale's float16 bits.
BITSMITH_INLINE void ternary_codes(const Batch& batch, I code[256], I& stored) {
    F x[256];
    load_transposed(batch.x, 0, 256, x);
    const F largest = largest_magnitude<256>(x);
    const I zero = splat(0), one = splat(1);
    if (batch.search) {
        stored = scale_to_f16(batch.weighted ? search_ternary<true>(batch, x, largest)
                                             : search_ternary<false>(batch, x, largest));
        const F inverse_scale = inverse(from_f16(stored));
        for (int i = 0; i < 256; ++i) code[i] = CodeRange<-1, 1>::integer(x[i] * inverse_scale) + one;
        return;
    }
    const F inverse_scale = inverse(largest), half = splat(0.5f);
    for (int i = 0; i < 256; ++i) {  // ties go away from zero
        const F scaled = x[i] * inverse_scale;
        const I up = select(less(scaled, half), zero, one), down = select(less(negate(half), scaled), zero, one);
        code[i] = one + up - down;
    }
    stored = to_f16(largest);
}

inline void encode_tq2_0(const Batch& batch) {
    I code[256], stored, words[16];
    ternary_codes(batch, code, stored);
    for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 8; ++i) {
            I byte[4];
            for (int k = 0; k < 4; ++k) {
                const I* c = code + half * 128 + 4 * i + k;
                byte[k] = (c[0] | (c[32] << 2)) | ((c[64] << 4) | (c[96] << 6));
            }
            words[half * 8 + i] = pack_bytes(byte[0], byte[1], byte[2], byte[3]);
        }
    }
    store_words(batch.out, 0, words, 16);
    store_u16(batch.out, 64, stored);
}

// Five (or four) codes, the first the most significant digit, as the byte ⌈256·n / 243⌉: multiplying such a byte by
// three pushes its digits out at the top, one after another.
template <int kDigits>
BITSMITH_INLINE I ternary_byte(const I* code, int stride) {
    I n = code[0];
    for (int k = 1; k < 5; ++k) {
        n = n + (n << 1);
        if (k < kDigits) n = n + code[k * stride];
    }
    // 34521 / 2^15 is a little over 256 / 243: exact for all of 0…242.
    return (n * splat(34521) + splat(32767)) >> 15;
}

inline void encode_tq1_0(const Batch& batch) {
    I code[256], stored, words[13];
    ternary_codes(batch, code, stored);
    for (int i = 0; i < 8; ++i) {
        const I* c = code + 4 * i;
        words[i] = pack_bytes(ternary_byte<5>(c, 32), ternary_byte<5>(c + 1, 32), ternary_byte<5>(c + 2, 32),
                              ternary_byte<5>(c + 3, 32));
    }
    for (int i = 0; i < 4; ++i) {
        const I* c = code + 160 + 4 * i;
        words[8 + i] = pack_bytes(ternary_byte<5>(c, 16), ternary_byte<5>(c + 1, 16), ternary_byte<5>(c + 2, 16),
                                  ternary_byte<5>(c + 3, 16));
    }
    const I* c = code + 240;
    words[12] = pack_bytes(ternary_byte<4>(c, 4), ternary_byte<4>(c + 1, 4), ternary_byte<4>(c + 2, 4),
                           ternary_byte<4>(c + 3, 4));
    store_words(batch.out, 0, words, 13);
    store_u16(batch.out, 52, stored);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
