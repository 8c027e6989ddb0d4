// Vectors of small integers: what reading codes out of the cache takes. Bytes are in memory's order.
#pragma once
#include "vec.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

// 2 · W values of 16 bits; each two neighbours are one lane of a VI.
#if !defined(__GNUC__)
struct Pairs {
    int16_t values[2];
};
#else
typedef int16_t Pairs __attribute__((vector_size(4 * W)));
#endif

BITSMITH_OP int32_t pair_of(const int16_t* from) {
    int32_t both;
    memcpy(&both, from, 4);
    return both;
}

// Signed bytes.
BITSMITH_OP Pairs load_pairs(const uint8_t* from) {
#if defined(__AVX512BW__)
    return (Pairs)_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__)
    return (Pairs)_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from));
#elif defined(__ARM_NEON) && defined(__aarch64__) && defined(__GNUC__)
    return (Pairs)vmovl_s8(vld1_s8((const int8_t*)from));
#else
    int16_t part[2 * W];
    for (int i = 0; i < 2 * W; ++i) part[i] = (int8_t)from[i];
    Pairs r;
    memcpy(&r, part, sizeof r);
    return r;
#endif
}

// The low and the high halves of bytes.
BITSMITH_OP void load_nibble_pairs(const uint8_t* from, Pairs& low, Pairs& high) {
#if defined(__AVX512BW__)
    const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const __m256i*)from));
    low = (Pairs)_mm512_and_si512(bytes, _mm512_set1_epi16(15));
    high = (Pairs)_mm512_srli_epi16(bytes, 4);
#elif defined(__AVX2__)
    const __m256i bytes = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i*)from));
    low = (Pairs)_mm256_and_si256(bytes, _mm256_set1_epi16(15));
    high = (Pairs)_mm256_srli_epi16(bytes, 4);
#elif defined(__ARM_NEON) && defined(__aarch64__) && defined(__GNUC__)
    const uint16x8_t bytes = vmovl_u8(vld1_u8(from));
    low = (Pairs)vandq_u16(bytes, vdupq_n_u16(15));
    high = (Pairs)vshrq_n_u16(bytes, 4);
#else
    int16_t part[2][2 * W];
    for (int i = 0; i < 2 * W; ++i) {
        part[0][i] = from[i] & 15;
        part[1][i] = from[i] >> 4;
    }
    memcpy(&low, part[0], sizeof low);
    memcpy(&high, part[1], sizeof high);
#endif
}

// sum + the products of each two neighbours.
BITSMITH_OP VI add_products(VI sum, Pairs a, VI b) {
#if defined(__AVX512VNNI__)
    return (VI)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif defined(__AVXVNNI__)
    return (VI)_mm256_dpwssd_avx_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__AVX2__)
    return sum + (VI)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__ARM_NEON) && defined(__aarch64__) && defined(__GNUC__)
    const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    return sum + (VI)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
    int16_t x[2 * W], y[2 * W];
    int32_t part[W];
    memcpy(x, &a, sizeof x);
    memcpy(y, &b, sizeof y);
    memcpy(part, &sum, sizeof part);
    for (int i = 0; i < W; ++i) part[i] += x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
    memcpy(&sum, part, sizeof part);
    return sum;
#endif
}

BITSMITH_OP V to_float(VI x) {
#if defined(__AVX512F__)
    return (V)_mm512_cvtepi32_ps((__m512i)x);
#elif defined(__AVX2__)
    return (V)_mm256_cvtepi32_ps((__m256i)x);
#elif defined(__GNUC__)
    return __builtin_convertvector(x, V);
#else
    return (float)x;
#endif
}

// W signed bytes.
BITSMITH_OP V load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return to_float((VI)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#elif defined(__AVX2__)
    return to_float((VI)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
#else
    int32_t part[W];
    for (int i = 0; i < W; ++i) part[i] = (int8_t)from[i];
    VI wide;
    memcpy(&wide, part, sizeof wide);
    return to_float(wide);
#endif
}

// The low and the high halves of W bytes.
BITSMITH_OP void load_nibbles(const uint8_t* from, V& low, V& high) {
#if defined(__AVX512F__)
    const VI bytes = (VI)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
    const VI bytes = (VI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    int32_t part[W];
    for (int i = 0; i < W; ++i) part[i] = from[i];
    VI bytes;
    memcpy(&bytes, part, sizeof bytes);
#endif
    low = to_float(bytes & splat_int(15));
    high = to_float(bytes >> 4);
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
