// One native vector of float32, and what the operations need of it. Every translation unit compiles this in its own
// namespace BITSMITH_NS with its own flags; nothing here uses the standard library, whose inline functions would be
// shared between them.
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__GNUC__)
#define BITSMITH_OP inline __attribute__((always_inline))
#define BITSMITH_EACH _Pragma("GCC unroll 16")
#else
#define BITSMITH_OP inline
#define BITSMITH_EACH
#endif

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

#if !defined(__GNUC__)  // no vector types: one value at a time, which the compiler may vectorise
constexpr int W = 1;
typedef float V;
typedef int32_t VI;
#else
#if defined(__AVX512F__)
constexpr int W = 16;
#elif defined(__AVX2__)
constexpr int W = 8;
#else
constexpr int W = 4;
#endif
typedef float V __attribute__((vector_size(4 * W)));
typedef int32_t VI __attribute__((vector_size(4 * W)));
#endif

constexpr float kInfinity = HUGE_VALF;

BITSMITH_OP V splat(float x) {
    return x - V{};
}
BITSMITH_OP VI splat_int(int32_t x) {
    return x - VI{};
}
BITSMITH_OP V load(const float* from) {
    V r;
    memcpy(&r, from, sizeof r);
    return r;
}
BITSMITH_OP void store(float* to, V x) {
    memcpy(to, &x, sizeof x);
}
BITSMITH_OP V as_float(VI x) {
    V r;
    memcpy(&r, &x, sizeof r);
    return r;
}
BITSMITH_OP VI as_int(V x) {
    VI r;
    memcpy(&r, &x, sizeof r);
    return r;
}
// a · b + c, fused where the processor does it.
BITSMITH_OP V fma(V a, V b, V c) {
#if defined(__AVX512F__)
    return (V)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (V)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__aarch64__) && defined(__GNUC__)
    return (V)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}
BITSMITH_OP V select_less(V a, V b, V yes, V no) {
#if defined(__AVX512F__)
    return (V)_mm512_mask_blend_ps(_mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ), (__m512)no, (__m512)yes);
#else
    return a < b ? yes : no;
#endif
}
// As x86 has it: the second where one is not a number.
BITSMITH_OP V max(V a, V b) {
#if defined(__AVX512F__)
    return (V)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (V)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return a > b ? a : b;
#endif
}
BITSMITH_OP V min(V a, V b) {
#if defined(__AVX512F__)
    return (V)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined(__AVX2__)
    return (V)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return a < b ? a : b;
#endif
}
BITSMITH_OP V magnitude(V x) {
    return as_float(as_int(x) & splat_int(0x7fffffff));
}
BITSMITH_OP float lane(V x, int i) {
#if defined(__GNUC__)
    return x[i];
#else
    (void)i;
    return x;
#endif
}
BITSMITH_OP float sum(V x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_ps((__m512)x);
#else
    float part[W];
    store(part, x);
    BITSMITH_EACH for (int step = W / 2; step > 0; step /= 2) for (int i = 0; i < step; ++i) part[i] += part[i + step];
    return part[0];
#endif
}
BITSMITH_OP float largest(V x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#else
    float part[W];
    store(part, x);
    for (int step = W / 2; step > 0; step /= 2)
        for (int i = 0; i < step; ++i) part[i] = part[i] > part[i + step] ? part[i] : part[i + step];
    return part[0];
#endif
}

BITSMITH_OP bool any_at_least(V a, V b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ) != 0;
#elif defined(__AVX2__)
    return _mm256_movemask_ps(_mm256_cmp_ps((__m256)a, (__m256)b, _CMP_GE_OQ)) != 0;
#else
    float x[W], y[W];
    store(x, a);
    store(y, b);
    bool found = false;
    for (int i = 0; i < W; ++i) found |= x[i] >= y[i];
    return found;
#endif
}

// The first `count` of W values; the others are `fill`, and are not read or written.
BITSMITH_OP V load_some(const float* from, int64_t count, float fill = 0.0f) {
    float part[W];
    for (int i = 0; i < W; ++i) part[i] = i < count ? from[i] : fill;
    return load(part);
}
BITSMITH_OP void store_some(float* to, V x, int64_t count) {
    float part[W];
    store(part, x);
    for (int i = 0; i < W && i < count; ++i) to[i] = part[i];
}

// eˣ within 2 ulp; 0 below −87.3 (results would be denormal), infinity above 88.7.
// x = n·ln 2 + r; eʳ by its Taylor polynomial up to r⁷ on |r| ≤ 0.347, where the rest is below 2⁻²⁷.
BITSMITH_OP V exp(V x) {
    const V low = splat(-87.33654f), high = splat(88.72283f);
    const V clamped = min(high, max(low, x));  // in this order not-a-number stays
    const V magic = splat(12582912.0f);        // 1.5 · 2²³: adding it rounds to an integer, kept in the low bits
    const V shifted = fma(clamped, splat(1.44269504f), magic);
    const V n = shifted - magic;
    V r = fma(n, splat(-0.693145752f), clamped);  // ln 2 in two parts; the first has 15 bits, so n times it is exact
    r = fma(n, splat(-1.42860677e-6f), r);
    V p = splat(1.0f / 5040.0f);
    p = fma(p, r, splat(1.0f / 720.0f));
    p = fma(p, r, splat(1.0f / 120.0f));
    p = fma(p, r, splat(1.0f / 24.0f));
    p = fma(p, r, splat(1.0f / 6.0f));
    p = fma(p, r, splat(0.5f));
    p = fma(p, r, splat(1.0f));
    p = fma(p, r, splat(1.0f));
    // 2ⁿ in two factors, as n may be 128.
    const VI whole = as_int(shifted) - splat_int(0x4b400000), half = whole >> 1;
    const V first = as_float((half + 127) << 23), second = as_float((whole - half + 127) << 23);
    V result = p * first * second;
    result = select_less(x, low, splat(0.0f), result);
    return select_less(high, x, splat(kInfinity), result);
}

// tanh within 4 ulp: x · an odd series near zero, otherwise 1 − 2 / (e²ˣ + 1).
BITSMITH_OP V tanh(V x) {
    const V a = magnitude(x), square = x * x;
    // Least-squares fit of tanh(x)/x − 1 over x² in 0 … 0.4225, in float64.
    V p = splat(0.00205447f);
    p = fma(p, square, splat(-0.00807908f));
    p = fma(p, square, splat(0.02166026f));
    p = fma(p, square, splat(-0.05393925f));
    p = fma(p, square, splat(0.13333145f));
    p = fma(p, square, splat(-0.33333329f));
    const V near = fma(p * square, x, x);
    const V far = splat(1.0f) - splat(2.0f) / (exp(a + a) + splat(1.0f));
    const V signed_far = as_float(as_int(far) | (as_int(x) & splat_int(INT32_MIN)));
    return select_less(a, splat(0.65f), near, signed_far);
}

// 1 − erf(x) for x ≥ 0: e^(−x²) times a polynomial in 1 / (1 + x / 2), fitted in float64 for relative error.
BITSMITH_OP V erfc(V x) {
    const V t = splat(1.0f) / fma(x, splat(0.5f), splat(1.0f));
    V p = splat(-0.053924076f);
    p = fma(p, t, splat(0.2580008f));
    p = fma(p, t, splat(-0.42815745f));
    p = fma(p, t, splat(0.20423225f));
    p = fma(p, t, splat(0.030463092f));
    p = fma(p, t, splat(0.17447706f));
    p = fma(p, t, splat(0.2519843f));
    p = fma(p, t, splat(0.28066266f));
    p = fma(p, t, splat(0.28226966f));
    p = fma(p, t, splat(-8.277728e-06f));
    return p * exp(splat(0.0f) - x * x);
}

// 16-bit floats.
struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};

BITSMITH_OP V load(const BF16* from) {
#if defined(__AVX512F__)
    return (V)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16);
#elif defined(__AVX2__)
    return (V)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from)), 16);
#else
    int32_t part[W];
    for (int i = 0; i < W; ++i) part[i] = (int32_t)((uint32_t)from[i].bits << 16);
    VI wide;
    memcpy(&wide, part, sizeof wide);
    return as_float(wide);
#endif
}
BITSMITH_OP V load(const F16* from) {
#if defined(__AVX512F__)
    return (V)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from));
#elif defined(__AVX2__) && defined(__F16C__)
    return (V)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from));
#elif defined(__ARM_NEON) && defined(__aarch64__) && defined(__GNUC__)
    return (V)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t*)from)));
#else
    int32_t part[W];
    for (int i = 0; i < W; ++i) part[i] = from[i].bits;
    VI wide;
    memcpy(&wide, part, sizeof wide);
    // Exponent and mantissa moved into place, then 2¹¹² sets the bias right, also for denormals.
    const VI body = (wide & splat_int(0x7fff)) << 13, sign = (wide & splat_int(0x8000)) << 16;
    const V value = as_float(body) * splat(5.192296858534828e33f);
    const V special = as_float(body | splat_int(0x7f800000));  // infinity and not a number
    const V merged =
        select_less(splat(0x1.fffffep-97f), as_float(body), special, value);  // their patterns, seen as float32
    return as_float(as_int(merged) | sign);
#endif
}

// Round to nearest, ties to even.
BITSMITH_OP void put(float* to, float x) {
    *to = x;
}
BITSMITH_OP void put(BF16* to, float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000)
        to->bits = (uint16_t)(bits >> 16 | 0x40);
    else
        to->bits = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
BITSMITH_OP void put(F16* to, float x) {
#if defined(__AVX2__) && defined(__F16C__)
    to->bits = (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint32_t sign = bits >> 16 & 0x8000, body = bits & 0x7fffffff;
    if (body >= 0x7f800000) {
        to->bits = (uint16_t)(sign | 0x7c00 | (body > 0x7f800000 ? 0x200 | (body >> 13 & 0x3ff) : 0));
    } else if (body >= 0x477ff000) {  // 65520 rounds to infinity
        to->bits = (uint16_t)(sign | 0x7c00);
    } else if (body < 0x38800000) {  // below 2⁻¹⁴: adding 1/2 leaves the denormal's bits at the end
        float shifted;
        memcpy(&shifted, &body, 4);
        shifted += 0.5f;
        memcpy(&bits, &shifted, 4);
        to->bits = (uint16_t)(sign | (bits - 0x3f000000));
    } else {
        to->bits = (uint16_t)(sign | ((body - 0x38000000 + 0xfff + (body >> 13 & 1)) >> 13));
    }
#endif
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
