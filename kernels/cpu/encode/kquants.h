// Q2_K, Q3_K, Q4_K, Q5_K, Q6_K: super-blocks of 256 values. The searches choose scales and codes, this file packs them.
#pragma once
#include "search_affine.h"
#include "search_symmetric.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Word i of 32 bytes, of which byte b is made of the fields of code[b], code[32 + b], … at kBits bits' distance. A
// field is the code's kBits bits from kFrom upwards.
template <int kFields, int kBits, int kFrom>
BITSMITH_INLINE I word_of_fields(const I* code, int i) {
    const I mask = splat((1 << kBits) - 1);
    I byte[4];
    for (int b = 0; b < 4; ++b) {
        byte[b] = (code[4 * i + b] >> kFrom) & mask;
        for (int field = 1; field < kFields; ++field) {
            byte[b] = byte[b] | (((code[32 * field + 4 * i + b] >> kFrom) & mask) << (field * kBits));
        }
    }
    return pack_bytes(byte[0], byte[1], byte[2], byte[3]);
}
// 32 bytes for each 32 · kFields values.
template <int kFields, int kBits, int kFrom = 0>
BITSMITH_INLINE void store_fields(uint8_t* const out[kLanes], int at, const I code[256]) {
    for (int chunk = 0; chunk < 8 / kFields; ++chunk) {
        I words[8];
        for (int i = 0; i < 8; ++i) words[i] = word_of_fields<kFields, kBits, kFrom>(code + 32 * kFields * chunk, i);
        store_words(out, at + 32 * chunk, words, 8);
    }
}

// The margins that ggml tries with importance.
constexpr GgmlFits kFine = {-0.9f, 0.05f, 37};

// Q2_K: 16 × (L, M nibbles), 2-bit codes[64], d, dmin.
template <bool kWeighted>
inline void encode_q2_k_lanes(const Batch& batch) {
    static constexpr float kMargins[] = {0.0f, -0.9f, -0.4f, 0.1f, 0.6f};
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    AffineSearch search = {
        {kMargins, 5, 1, kGain}, kWeighted ? kFine : GgmlFits{-0.5f, 0.1f, 16}, 16, kWeighted ? 2 : 1, 0.999f, true};
    if (!batch.search) search = {{kMargins, 1, 0, kGain}, {}, 1, 0, 0.999f, false};
    const AffineScales<16> scales = search_affine<3, 15, 16>(block, search);
    I code[256], byte[16], words[4];
    affine_codes<3, 16>(block, scales, code);
    for (int j = 0; j < 16; ++j) byte[j] = rint_to_int(scales.sub[j]) | (rint_to_int(scales.sub_min[j]) << 4);
    for (int i = 0; i < 4; ++i) words[i] = pack_bytes(byte[4 * i], byte[4 * i + 1], byte[4 * i + 2], byte[4 * i + 3]);
    store_words(batch.out, 0, words, 4);
    store_fields<4, 2>(batch.out, 16, code);
    store_u16(batch.out, 80, scales.d.bits);
    store_u16(batch.out, 82, scales.dmin.bits);
}

// Q3_K: high bits[32], low 2 bits[64], 16 six-bit L + 32 [12], d.
template <bool kWeighted>
inline void encode_q3_k_lanes(const Batch& batch) {
    // The gain of the longer list is in weighted data; without weights its time is not worth it.
    static constexpr float kReaches[] = {-4.0f, -4.8f, -4.33f, -3.67f, 3.5f, 3.1f, 2.7f};
    static constexpr float kWeightedReaches[] = {-5.2f, -5.0f, -3.0f, -2.8f, 3.8f, 3.6f,
                                                 3.4f,  3.2f,  3.0f,  2.8f,  2.6f, 2.4f};
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    // Without importance ggml's choice takes longer to find than all of ours, and fitting d to all codes does as well.
    SymmetricSearch search = {kReaches, count_of(kReaches), 0, -32.0f, 31.0f, 16, 1, 0.799f, true, kGain, {}, 0.0f};
    if (kWeighted) {
        const GgmlScales ggml = {-4.0f, -3.1f, -0.1f, 19, true};
        search = {kWeightedReaches, count_of(kWeightedReaches), 1, -32.0f, 31.0f, 16, 1, 0.799f, true, kGain, ggml,
                  1.0f / 512.0f};
    }
    if (!batch.search) search = {kReaches, 1, 0, -32.0f, 31.0f, 1, 0, 0.799f, false, kGain, {}, 0.0f};
    const SymmetricScales<16> scales = search_symmetric<IntegerCodes<4>, 16, true>(block, search);
    I code[256], sub[16], words[3];
    symmetric_codes<IntegerCodes<4>, 16>(block, scales, code);
    store_fields<8, 1, 2>(batch.out, 0, code);
    store_fields<4, 2>(batch.out, 32, code);
    for (int j = 0; j < 16; ++j) sub[j] = rint_to_int(scales.sub[j]) + splat(32);
    // Byte j < 8: low nibbles of sub-blocks j and j + 8. Byte 8 + j: the top bit pairs of j, j + 4, j + 8, j + 12.
    I low[8], top[4];
    for (int j = 0; j < 8; ++j) low[j] = (sub[j] & splat(15)) | ((sub[j + 8] & splat(15)) << 4);
    for (int j = 0; j < 4; ++j) {
        top[j] = ((sub[j] >> 4) | ((sub[j + 4] >> 4) << 2)) | (((sub[j + 8] >> 4) << 4) | ((sub[j + 12] >> 4) << 6));
    }
    words[0] = pack_bytes(low[0], low[1], low[2], low[3]);
    words[1] = pack_bytes(low[4], low[5], low[6], low[7]);
    words[2] = pack_bytes(top[0], top[1], top[2], top[3]);
    store_words(batch.out, 96, words, 3);
    store_u16(batch.out, 108, scales.d.bits);
}

// d, dmin, then eight six-bit L and M in 12 bytes: byte j < 4 has L_j and above it the top two bits of L_{j+4}, byte
// 4 + j the same of M, byte 8 + j the low nibbles of L_{j+4} and M_{j+4}.
inline void store_affine_scales(uint8_t* const out[kLanes], const AffineScales<8>& scales) {
    I l[8], m[8], words[3];
    for (int j = 0; j < 8; ++j) {
        l[j] = rint_to_int(scales.sub[j]);
        m[j] = rint_to_int(scales.sub_min[j]);
    }
    I byte[12];
    for (int j = 0; j < 4; ++j) {
        byte[j] = l[j] | ((l[j + 4] >> 4) << 6);
        byte[4 + j] = m[j] | ((m[j + 4] >> 4) << 6);
        byte[8 + j] = (l[j + 4] & splat(15)) | ((m[j + 4] & splat(15)) << 4);
    }
    for (int i = 0; i < 3; ++i) words[i] = pack_bytes(byte[4 * i], byte[4 * i + 1], byte[4 * i + 2], byte[4 * i + 3]);
    store_u16(out, 0, scales.d.bits);
    store_u16(out, 2, scales.dmin.bits);
    store_words(out, 4, words, 3);
}

// Q4_K: d, dmin, scales[12], nibbles[128].
template <bool kWeighted>
inline void encode_q4_k_lanes(const Batch& batch) {
    static constexpr float kMargins[] = {0.0f, -0.9f, -0.56f, -0.22f, 0.12f, 0.46f,
                                         0.8f, 1.14f, 1.48f,  1.82f,  2.16f, 2.5f};
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    AffineSearch search = {
        {kMargins, 12, 2, 0.125f * kGain}, kWeighted ? kFine : GgmlFits{-1.0f, 0.1f, 21}, 16, 2, 0.499f, true};
    if (!batch.search) search = {{kMargins, 1, 0, kGain}, {}, 1, 0, 0.499f, false};
    const AffineScales<8> scales = search_affine<15, 63, 8>(block, search);
    I code[256];
    affine_codes<15, 8>(block, scales, code);
    store_affine_scales(batch.out, scales);
    store_fields<2, 4>(batch.out, 16, code);
}

// Q5_K: d, dmin, scales[12], high bits[32], low nibbles[128].
template <bool kWeighted>
inline void encode_q5_k_lanes(const Batch& batch) {
    static constexpr float kMargins[] = {0.0f, -0.9f, -0.42f, 0.07f, 0.55f, 1.03f, 1.52f, 2.0f};
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    AffineSearch search = {
        {kMargins, 8, 2, 0.125f * kGain}, kWeighted ? kFine : GgmlFits{-0.5f, 0.1f, 16}, 16, 2, 0.299f, true};
    if (!batch.search) search = {{kMargins, 1, 0, kGain}, {}, 1, 0, 0.299f, false};
    const AffineScales<8> scales = search_affine<31, 63, 8>(block, search);
    I code[256];
    affine_codes<31, 8>(block, scales, code);
    store_affine_scales(batch.out, scales);
    store_fields<8, 1, 4>(batch.out, 16, code);
    store_fields<2, 4>(batch.out, 48, code);
}

// Q6_K: low nibbles[128], high bit pairs[64], int8 L[16], d. A half of 128 values has its low nibbles in 64 bytes,
// value i beside value 64 + i.
template <bool kWeighted>
inline void encode_q6_k_lanes(const Batch& batch) {
    static constexpr float kReaches[] = {-32.0f, -30.4f, -29.3f, -28.1f, -26.9f, 31.0f,
                                         30.1f,  29.2f,  28.3f,  27.3f,  26.3f,  -25.6f};
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    const GgmlScales ggml = {-32.0f, -31.1f, -0.1f, 19, false};
    SymmetricSearch search = {kReaches + 1,
                              count_of(kReaches) - (kWeighted ? 3 : 1),
                              0,
                              -128.0f,
                              127.0f,
                              16,
                              kWeighted ? 1 : 0,
                              0.149f,
                              true,
                              4.0f * kGain,
                              ggml,
                              0.0f};
    if (!batch.search) search = {kReaches, 1, 0, -128.0f, 127.0f, 1, 0, 0.149f, false, kGain, {}, 0.0f};
    const SymmetricScales<16> scales = search_symmetric<IntegerCodes<32>, 16, false>(block, search);
    I code[256], words[32];
    symmetric_codes<IntegerCodes<32>, 16>(block, scales, code);
    for (int i = 0; i < 32; ++i) {
        const I* from = code + 128 * (i / 16) + 4 * (i % 16);
        I byte[4];
        for (int b = 0; b < 4; ++b) byte[b] = (from[b] & splat(15)) | ((from[64 + b] & splat(15)) << 4);
        words[i] = pack_bytes(byte[0], byte[1], byte[2], byte[3]);
    }
    store_words(batch.out, 0, words, 32);
    store_fields<4, 2, 4>(batch.out, 128, code);
    I sub[16];
    for (int j = 0; j < 16; ++j) sub[j] = rint_to_int(scales.sub[j]) & splat(255);
    for (int i = 0; i < 4; ++i) words[i] = pack_bytes(sub[4 * i], sub[4 * i + 1], sub[4 * i + 2], sub[4 * i + 3]);
    store_words(batch.out, 192, words, 4);
    store_u16(batch.out, 208, scales.d.bits);
}

#define BITSMITH_ENCODER(name)                      \
    inline void encode_##name(const Batch& batch) { \
        if (batch.weighted) {                       \
            encode_##name##_lanes<true>(batch);     \
        } else {                                    \
            encode_##name##_lanes<false>(batch);    \
        }                                           \
    }
BITSMITH_ENCODER(q2_k)
BITSMITH_ENCODER(q3_k)
BITSMITH_ENCODER(q4_k)
BITSMITH_ENCODER(q5_k)
BITSMITH_ENCODER(q6_k)
#undef BITSMITH_ENCODER

}  // namespace BITSMITH_NS
}  // namespace bitsmith
