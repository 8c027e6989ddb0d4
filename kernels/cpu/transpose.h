// Between blocks in memory and one lane a block.
#pragma once
#include "lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Four rows × four values, as out[value] = {row 0, row 1, row 2, row 3}.
#if defined(__GNUC__) && defined(__has_builtin)
#if __has_builtin(__builtin_shufflevector)
#define BITSMITH_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#endif
#endif

#if defined(BITSMITH_SHUFFLE)
typedef float Quad __attribute__((vector_size(16)));

BITSMITH_INLINE void transpose_quads(const float* const* rows, int64_t at, float* out, int out_stride) {
    Quad r[4];
    for (int i = 0; i < 4; ++i) memcpy(&r[i], rows[i] + at, sizeof(Quad));
    const Quad low01 = BITSMITH_SHUFFLE(r[0], r[1], 0, 4, 1, 5), high01 = BITSMITH_SHUFFLE(r[0], r[1], 2, 6, 3, 7);
    const Quad low23 = BITSMITH_SHUFFLE(r[2], r[3], 0, 4, 1, 5), high23 = BITSMITH_SHUFFLE(r[2], r[3], 2, 6, 3, 7);
    const Quad t[4] = {BITSMITH_SHUFFLE(low01, low23, 0, 1, 4, 5), BITSMITH_SHUFFLE(low01, low23, 2, 3, 6, 7),
                       BITSMITH_SHUFFLE(high01, high23, 0, 1, 4, 5), BITSMITH_SHUFFLE(high01, high23, 2, 3, 6, 7)};
    for (int i = 0; i < 4; ++i) memcpy(out + i * out_stride, &t[i], sizeof(Quad));
}
#endif

#if defined(__AVX512F__)
// Sixteen rows × sixteen values in registers: 32-bit, then 64-bit, then 128-bit pieces change places.
BITSMITH_INLINE void transpose_16x16(const float* const* rows, int64_t at, F* out) {
    __m512 a[16], b[16];
    BITSMITH_UNROLL for (int i = 0; i < 16; ++i) a[i] = _mm512_loadu_ps(rows[i] + at);
    BITSMITH_UNROLL for (int i = 0; i < 16; i += 2) {
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
    BITSMITH_UNROLL for (int i = 0; i < 16; i += 4) {
        BITSMITH_UNROLL for (int k = 0; k < 2; ++k) {
            const __m512d low = _mm512_castps_pd(b[i + k]), high = _mm512_castps_pd(b[i + k + 2]);
            a[i + 2 * k] = _mm512_castpd_ps(_mm512_unpacklo_pd(low, high));
            a[i + 2 * k + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(low, high));
        }
    }
    // a[i + k] now holds values k, k + 4, k + 8, k + 12 of rows i … i + 3, one value a 128-bit piece.
    BITSMITH_UNROLL for (int k = 0; k < 4; ++k) {
        const __m512 even0 = _mm512_shuffle_f32x4(a[k], a[4 + k], 0x88),
                     odd0 = _mm512_shuffle_f32x4(a[k], a[4 + k], 0xDD);
        const __m512 even1 = _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0x88);
        const __m512 odd1 = _mm512_shuffle_f32x4(a[8 + k], a[12 + k], 0xDD);
        out[k].part[0] = (NativeF)_mm512_shuffle_f32x4(even0, even1, 0x88);
        out[k + 8].part[0] = (NativeF)_mm512_shuffle_f32x4(even0, even1, 0xDD);
        out[k + 4].part[0] = (NativeF)_mm512_shuffle_f32x4(odd0, odd1, 0x88);
        out[k + 12].part[0] = (NativeF)_mm512_shuffle_f32x4(odd0, odd1, 0xDD);
    }
}
#endif

#if defined(__AVX2__) && !defined(__AVX512F__)
// Eight rows × eight values in registers. (Quads would be stored by halves, which a wide load has to wait for.)
BITSMITH_INLINE void transpose_8x8(const float* const* rows, int64_t at, F* out, int part) {
    __m256 a[8], b[8];
    BITSMITH_UNROLL for (int i = 0; i < 8; ++i) a[i] = _mm256_loadu_ps(rows[i] + at);
    BITSMITH_UNROLL for (int i = 0; i < 8; i += 2) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
    BITSMITH_UNROLL for (int i = 0; i < 8; i += 4) {
        BITSMITH_UNROLL for (int k = 0; k < 2; ++k) {
            a[i + 2 * k] = _mm256_shuffle_ps(b[i + k], b[i + k + 2], 0x44);
            a[i + 2 * k + 1] = _mm256_shuffle_ps(b[i + k], b[i + k + 2], 0xEE);
        }
    }
    BITSMITH_UNROLL for (int k = 0; k < 4; ++k) {
        out[k].part[part] = (NativeF)_mm256_permute2f128_ps(a[k], a[4 + k], 0x20);
        out[k + 4].part[part] = (NativeF)_mm256_permute2f128_ps(a[k], a[4 + k], 0x31);
    }
}
#endif

// out[i] = {rows[0][at + i], …, rows[15][at + i]} for i < n.
BITSMITH_INLINE void load_transposed(const float* const rows[kLanes], int64_t at, int n, F* out) {
    int i = 0;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16) transpose_16x16(rows, at + i, out + i);
#elif defined(__AVX2__)
    for (; i + 8 <= n; i += 8) {
        for (int part = 0; part < kParts; ++part) transpose_8x8(rows + 8 * part, at + i, out + i, part);
    }
#endif
#if defined(BITSMITH_SHUFFLE)
    for (; i + 4 <= n; i += 4)
        for (int lane = 0; lane < kLanes; lane += 4)
            transpose_quads(rows + lane, at + i, reinterpret_cast<float*>(out + i) + lane, kLanes);
#endif
    for (; i < n; ++i) {
        float lanes[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = rows[lane][at + i];
        out[i] = load(lanes);
    }
}

// Four codes of 0…255 as the bytes of one word, the first lowest.
BITSMITH_INLINE I pack_bytes(const I& a, const I& b, const I& c, const I& d) {
    return (a | (b << 8)) | ((c << 16) | (d << 24));
}
// Each lane's n words, one after another from out[lane] + at.
BITSMITH_INLINE void store_words(uint8_t* const out[kLanes], int at, const I* words, int n) {
    int32_t lanes[kLanes];
    for (int i = 0; i < n; ++i) {
        store(lanes, words[i]);
        BITSMITH_UNROLL for (int lane = 0; lane < kLanes; ++lane) memcpy(out[lane] + at + 4 * i, &lanes[lane], 4);
    }
}
BITSMITH_INLINE void store_u16(uint8_t* const out[kLanes], int at, const I& values) {
    int32_t lanes[kLanes];
    store(lanes, values);
    BITSMITH_UNROLL for (int lane = 0; lane < kLanes; ++lane) memcpy(out[lane] + at, &lanes[lane], 2);
}
BITSMITH_INLINE void store_u8(uint8_t* const out[kLanes], int at, const I& values) {
    int32_t lanes[kLanes];
    store(lanes, values);
    BITSMITH_UNROLL for (int lane = 0; lane < kLanes; ++lane) memcpy(out[lane] + at, &lanes[lane], 1);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
