// Sixteen lanes of float32 or int32, for code that runs one scalar algorithm on sixteen blocks at once.
//
// All arithmetic is single IEEE operations in the order written (-ffp-contract=off), so every instruction set, and the
// numpy reference, gives the same bits. Each translation unit compiles this file in its own namespace BITSMITH_NS with
// its own flags; nothing here uses the standard library, whose inline functions would be shared between them.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "table.h"
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__SSE4_1__)
#include <smmintrin.h>
#elif defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define BITSMITH_INLINE inline __attribute__((always_inline))
#define BITSMITH_UNROLL _Pragma("GCC unroll 16")
#else
#define BITSMITH_INLINE inline
#define BITSMITH_UNROLL
#endif
#define BITSMITH_PARTS BITSMITH_UNROLL for (int p = 0; p < kParts; ++p)

namespace bitsmith {
namespace BITSMITH_NS {

#if defined(__GNUC__)
#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif
typedef float NativeF __attribute__((vector_size(kWidth * 4)));
typedef int32_t NativeI __attribute__((vector_size(kWidth * 4)));
typedef uint32_t NativeU __attribute__((vector_size(kWidth * 4)));
#else  // no vector types: plain arrays, which the compiler may vectorise
constexpr int kWidth = 1;
typedef float NativeF;
typedef int32_t NativeI;
typedef uint32_t NativeU;
#endif
constexpr int kParts = kLanes / kWidth;

struct F {
    NativeF part[kParts];
};
struct I {
    NativeI part[kParts];
};
// A lane is all ones or zero, except with AVX-512, which has mask registers.
struct M {
#if defined(__AVX512F__)
    __mmask16 part[kParts];
#else
    NativeI part[kParts];
#endif
};

// The same bits as another type. Copies go part by part: a copy of the whole would be cut into pieces that a wide load
// then has to wait for.
BITSMITH_INLINE I bits(const F& a) {
    I r;
    BITSMITH_PARTS memcpy(&r.part[p], &a.part[p], sizeof(NativeI));
    return r;
}
BITSMITH_INLINE F as_float(const I& a) {
    F r;
    BITSMITH_PARTS memcpy(&r.part[p], &a.part[p], sizeof(NativeF));
    return r;
}

BITSMITH_INLINE F splat(float value) {
    F r;
#if defined(__GNUC__)
    BITSMITH_PARTS r.part[p] = value - NativeF{};  // x − 0 is x, also for −0
#else
    BITSMITH_PARTS r.part[p] = value;
#endif
    return r;
}
BITSMITH_INLINE I splat(int32_t value) {
    I r;
#if defined(__GNUC__)
    BITSMITH_PARTS r.part[p] = value - NativeI{};
#else
    BITSMITH_PARTS r.part[p] = value;
#endif
    return r;
}
BITSMITH_INLINE F load(const float* from) {
    F r;
    BITSMITH_PARTS memcpy(&r.part[p], from + p * kWidth, sizeof(NativeF));
    return r;
}
BITSMITH_INLINE void store(float* to, const F& a) {
    BITSMITH_PARTS memcpy(to + p * kWidth, &a.part[p], sizeof(NativeF));
}
BITSMITH_INLINE I load(const int32_t* from) {
    I r;
    BITSMITH_PARTS memcpy(&r.part[p], from + p * kWidth, sizeof(NativeI));
    return r;
}
// Sixteen unsigned 16-bit numbers. (Through an array they would be stored by halves, which a wide load has to wait
// for.)
BITSMITH_INLINE I load(const uint16_t* from) {
    I r;
#if defined(__AVX512F__)
    __m256i raw;
    memcpy(&raw, from, sizeof raw);
    r.part[0] = (NativeI)_mm512_cvtepu16_epi32(raw);
#elif defined(__AVX2__)
    BITSMITH_PARTS {
        __m128i raw;
        memcpy(&raw, from + p * kWidth, sizeof raw);
        r.part[p] = (NativeI)_mm256_cvtepu16_epi32(raw);
    }
#else
    BITSMITH_PARTS {
        int32_t lanes[kWidth];
        for (int i = 0; i < kWidth; ++i) lanes[i] = from[p * kWidth + i];
        memcpy(&r.part[p], lanes, sizeof(NativeI));
    }
#endif
    return r;
}
BITSMITH_INLINE void store(int32_t* to, const I& a) {
    BITSMITH_PARTS memcpy(to + p * kWidth, &a.part[p], sizeof(NativeI));
}

#define BITSMITH_OPERATOR(T, op)                            \
    BITSMITH_INLINE T operator op(const T& a, const T& b) { \
        T r;                                                \
        BITSMITH_PARTS r.part[p] = a.part[p] op b.part[p];  \
        return r;                                           \
    }
BITSMITH_OPERATOR(F, +)
BITSMITH_OPERATOR(F, -)
BITSMITH_OPERATOR(F, *)
BITSMITH_OPERATOR(F, /)
BITSMITH_OPERATOR(I, +)
BITSMITH_OPERATOR(I, -)
BITSMITH_OPERATOR(I, *)
BITSMITH_OPERATOR(I, &)
BITSMITH_OPERATOR(I, |)
BITSMITH_OPERATOR(I, ^)
BITSMITH_OPERATOR(M, &)
BITSMITH_OPERATOR(M, |)
#undef BITSMITH_OPERATOR

BITSMITH_INLINE I operator<<(const I& a, int n) {
    I r;
    BITSMITH_PARTS r.part[p] = (NativeI)((NativeU)a.part[p] << n);
    return r;
}
// Logical: zeros come in at the top.
BITSMITH_INLINE I operator>>(const I& a, int n) {
    I r;
    BITSMITH_PARTS r.part[p] = (NativeI)((NativeU)a.part[p] >> n);
    return r;
}

#if defined(__AVX512F__)
#define BITSMITH_COMPARE(name, op, flag, integer_flag)                                           \
    BITSMITH_INLINE M name(const F& a, const F& b) {                                             \
        return M{{_mm512_cmp_ps_mask((__m512)a.part[0], (__m512)b.part[0], flag)}};              \
    }                                                                                            \
    BITSMITH_INLINE M name(const I& a, const I& b) {                                             \
        return M{{_mm512_cmp_epi32_mask((__m512i)a.part[0], (__m512i)b.part[0], integer_flag)}}; \
    }
#elif defined(__GNUC__)
#define BITSMITH_COMPARE(name, op, flag, integer_flag)     \
    BITSMITH_INLINE M name(const F& a, const F& b) {       \
        M r;                                               \
        BITSMITH_PARTS r.part[p] = a.part[p] op b.part[p]; \
        return r;                                          \
    }                                                      \
    BITSMITH_INLINE M name(const I& a, const I& b) {       \
        M r;                                               \
        BITSMITH_PARTS r.part[p] = a.part[p] op b.part[p]; \
        return r;                                          \
    }
#else
#define BITSMITH_COMPARE(name, op, flag, integer_flag)        \
    BITSMITH_INLINE M name(const F& a, const F& b) {          \
        M r;                                                  \
        BITSMITH_PARTS r.part[p] = -(a.part[p] op b.part[p]); \
        return r;                                             \
    }                                                         \
    BITSMITH_INLINE M name(const I& a, const I& b) {          \
        M r;                                                  \
        BITSMITH_PARTS r.part[p] = -(a.part[p] op b.part[p]); \
        return r;                                             \
    }
#endif
BITSMITH_COMPARE(less, <, _CMP_LT_OQ, _MM_CMPINT_LT)
BITSMITH_COMPARE(equal, ==, _CMP_EQ_OQ, _MM_CMPINT_EQ)
#undef BITSMITH_COMPARE

// mask ? a : b
BITSMITH_INLINE F select(const M& mask, const F& a, const F& b) {
    F r;
#if defined(__AVX512F__)
    r.part[0] = (NativeF)_mm512_mask_blend_ps(mask.part[0], (__m512)b.part[0], (__m512)a.part[0]);
#else
    BITSMITH_PARTS r.part[p] = mask.part[p] ? a.part[p] : b.part[p];
#endif
    return r;
}
BITSMITH_INLINE I select(const M& mask, const I& a, const I& b) {
    I r;
#if defined(__AVX512F__)
    r.part[0] = (NativeI)_mm512_mask_blend_epi32(mask.part[0], (__m512i)b.part[0], (__m512i)a.part[0]);
#else
    BITSMITH_PARTS r.part[p] = mask.part[p] ? a.part[p] : b.part[p];
#endif
    return r;
}
BITSMITH_INLINE bool any(const M& mask) {
#if defined(__AVX512F__)
    return mask.part[0] != 0;
#else
    NativeI all = mask.part[0];
    for (int p = 1; p < kParts; ++p) all |= mask.part[p];
    int32_t lanes[kWidth], any_lane = 0;
    memcpy(lanes, &all, sizeof all);
    for (int i = 0; i < kWidth; ++i) any_lane |= lanes[i];
    return any_lane != 0;
#endif
}

// a < b ? a : b and a > b ? a : b, exactly: of equal values (±0), and when one is NaN, the second is taken.
BITSMITH_INLINE F min(const F& a, const F& b) {
#if defined(__AVX512F__)
    return F{{(NativeF)_mm512_min_ps((__m512)a.part[0], (__m512)b.part[0])}};
#elif defined(__AVX2__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm256_min_ps((__m256)a.part[p], (__m256)b.part[p]);
    return r;
#elif defined(__GNUC__) && defined(__SSE2__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm_min_ps((__m128)a.part[p], (__m128)b.part[p]);
    return r;
#else
    return select(less(a, b), a, b);
#endif
}
BITSMITH_INLINE F max(const F& a, const F& b) {
#if defined(__AVX512F__)
    return F{{(NativeF)_mm512_max_ps((__m512)a.part[0], (__m512)b.part[0])}};
#elif defined(__AVX2__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm256_max_ps((__m256)a.part[p], (__m256)b.part[p]);
    return r;
#elif defined(__GNUC__) && defined(__SSE2__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm_max_ps((__m128)a.part[p], (__m128)b.part[p]);
    return r;
#else
    return select(less(b, a), a, b);
#endif
}
BITSMITH_INLINE I min(const I& a, const I& b) {
    return select(less(a, b), a, b);
}
BITSMITH_INLINE I max(const I& a, const I& b) {
    return select(less(b, a), a, b);
}
BITSMITH_INLINE F clamp(const F& a, float low, float high) {
    return min(max(a, splat(low)), splat(high));
}

// Correctly rounded, for a ≥ 0.
BITSMITH_INLINE F sqrt(const F& a) {
#if defined(__AVX512F__)
    return F{{(NativeF)_mm512_sqrt_ps((__m512)a.part[0])}};
#elif defined(__AVX2__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm256_sqrt_ps((__m256)a.part[p]);
    return r;
#elif defined(__GNUC__) && defined(__SSE2__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm_sqrt_ps((__m128)a.part[p]);
    return r;
#else
    float lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < kLanes; ++i) lanes[i] = sqrtf(lanes[i]);
    return load(lanes);
#endif
}

// The largest lane. Of a lane that is NaN, and of zeros that differ in sign, it may be either.
BITSMITH_INLINE float largest_lane(const F& a) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)a.part[0]);
#else
    F half = a;
    for (int parts = kParts / 2; parts > 0; parts /= 2)
        for (int p = 0; p < parts; ++p) {
            const NativeF x = half.part[p], y = half.part[p + parts];
            half.part[p] = x > y ? x : y;
        }
    float lanes[kWidth];
    memcpy(lanes, &half.part[0], sizeof lanes);
    for (int width = kWidth / 2; width > 0; width /= 2)
        for (int i = 0; i < width; ++i) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
#endif
}

BITSMITH_INLINE F abs(const F& a) {
    return as_float(bits(a) & splat(0x7fffffff));
}
BITSMITH_INLINE F negate(const F& a) {
    return as_float(bits(a) ^ splat(INT32_MIN));
}

// Nearest integer, ties to even, for |a| < 2^22. A zero may have either sign.
constexpr float kRoundMagic = 12582912.0f;  // 1.5 · 2^23: its last mantissa bit is worth 1
BITSMITH_INLINE F rint(const F& a) {
#if defined(__AVX512F__)
    return F{{(NativeF)_mm512_roundscale_ps((__m512)a.part[0], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}};
#elif defined(__AVX2__)
    F r;
    BITSMITH_PARTS r.part[p] =
        (NativeF)_mm256_round_ps((__m256)a.part[p], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return r;
#elif defined(__GNUC__) && defined(__SSE4_1__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)_mm_round_ps((__m128)a.part[p], _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    return r;
#elif defined(__GNUC__) && defined(__ARM_NEON) && defined(__aarch64__)
    F r;
    BITSMITH_PARTS r.part[p] = (NativeF)vrndnq_f32((float32x4_t)a.part[p]);
    return r;
#else
    return (a + splat(kRoundMagic)) - splat(kRoundMagic);
#endif
}
BITSMITH_INLINE I rint_to_int(const F& a) {
#if defined(__AVX512F__)
    return I{{(NativeI)_mm512_cvtps_epi32((__m512)a.part[0])}};
#elif defined(__AVX2__)
    I r;
    BITSMITH_PARTS r.part[p] = (NativeI)_mm256_cvtps_epi32((__m256)a.part[p]);
    return r;
#elif defined(__GNUC__) && defined(__SSE2__)
    I r;
    BITSMITH_PARTS r.part[p] = (NativeI)_mm_cvtps_epi32((__m128)a.part[p]);
    return r;
#else
    return bits(a + splat(kRoundMagic)) - splat(0x4B400000);
#endif
}
// Toward zero, for |a| < 2^31.
BITSMITH_INLINE I to_int(const F& a) {
    I r;
#if defined(__GNUC__)
    BITSMITH_PARTS r.part[p] = __builtin_convertvector(a.part[p], NativeI);
#else
    BITSMITH_PARTS r.part[p] = (int32_t)a.part[p];
#endif
    return r;
}
BITSMITH_INLINE F to_float(const I& a) {
    F r;
#if defined(__GNUC__)
    BITSMITH_PARTS r.part[p] = __builtin_convertvector(a.part[p], NativeF);
#else
    BITSMITH_PARTS r.part[p] = (float)a.part[p];
#endif
    return r;
}
// 1 / a, or 0 where a is 0, and never infinite: a scale that small is stored as 0 in any 16-bit type.
BITSMITH_INLINE F inverse(const F& a) {
    const F r = clamp(splat(1.0f) / a, -3.4028234663852886e38f, 3.4028234663852886e38f);
    return select(equal(a, splat(0.0f)), splat(0.0f), r);
}

// float32 → float16 in the low 16 bits: nearest, ties to even, subnormals kept, overflow to Inf, NaN made quiet.
BITSMITH_INLINE I to_f16(const F& a) {
#if defined(__AVX512F__)
    return I{{(NativeI)_mm512_cvtepu16_epi32(_mm512_cvtps_ph((__m512)a.part[0], _MM_FROUND_TO_NEAREST_INT))}};
#elif defined(__F16C__)
    I r;
    BITSMITH_PARTS r.part[p] =
        (NativeI)_mm256_cvtepu16_epi32(_mm256_cvtps_ph((__m256)a.part[p], _MM_FROUND_TO_NEAREST_INT));
    return r;
#else
    const I sign = bits(a) & splat(INT32_MIN);
    const I magnitude = bits(a) ^ sign;
    // The exponent's bias changes from 127 to 15, and 13 mantissa bits are rounded away.
    const I normal = (magnitude + splat((int32_t)0xC8000FFF) + ((magnitude >> 13) & splat(1))) >> 13;
    // Adding 1/2 leaves the subnormal's integer in the low mantissa bits, rounded by the adder itself.
    const I subnormal = bits(as_float(magnitude) + splat(0.5f)) - splat(0x3F000000);
    const I nan = splat(0x7E00) | ((magnitude >> 13) & splat(0x3FF));
    I r = select(less(magnitude, splat(0x38800000)), subnormal, normal);
    r = select(less(magnitude, splat(0x477FF000)), r, splat(0x7C00));  // 65520 and above
    r = select(less(splat(0x7F800000), magnitude), nan, r);
    return r | (sign >> 16);
#endif
}
// float16 in the low 16 bits → float32, exactly.
BITSMITH_INLINE F from_f16(const I& a) {
#if defined(__AVX512F__)
    return F{{(NativeF)_mm512_cvtph_ps(_mm512_cvtepi32_epi16((__m512i)a.part[0]))}};
#else
    const I exponent = (a & splat(0x7C00)) << 13;
    const I shifted = (a & splat(0x7FFF)) << 13;
    const F normal = as_float(shifted + splat(112 << 23));
    const F subnormal = as_float(shifted + splat(113 << 23)) - as_float(splat(113 << 23));
    const I quiet = select(less(splat(0x7C00), a & splat(0x7FFF)), splat(0x00400000), splat(0));
    const F special = as_float(shifted | splat(0x7F800000) | quiet);
    F r = select(equal(exponent, splat(0)), subnormal, normal);
    r = select(equal(exponent, splat(0x7C00 << 13)), special, r);
    return as_float(bits(r) | ((a & splat(0x8000)) << 16));
#endif
}
BITSMITH_INLINE F round_f16(const F& a) {
    return from_f16(to_f16(a));
}
// float32 → bfloat16 in the low 16 bits: nearest, ties to even, NaN made quiet.
BITSMITH_INLINE I to_bf16(const F& a) {
    const I b = bits(a);
    const I rounded = (b + splat(0x7FFF) + ((b >> 16) & splat(1))) >> 16;
    return select(less(splat(0x7F800000), b & splat(0x7fffffff)), (b >> 16) | splat(0x40), rounded);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
