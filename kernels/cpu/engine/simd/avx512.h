// AVX-512 with VNNI: one register for each of the three types.
#pragma once
#include <immintrin.h>

namespace bitsmith::engine::BITSMITH_NS {

struct Bytes {
    __m512i v;
};
struct Ints {
    __m512i v;
};
struct Floats {
    __m512 v;
};
constexpr int kSub = 12;                   // tokens that a product keeps in registers
constexpr int kByteBias = 0;               // what `dot` subtracts from every weight of 8 bits
constexpr bool kHolds = true;              // registers for all vectors of a step
constexpr bool kFused = true;              // one to four tokens take codes straight from their planes
constexpr bool kSmallDotIsFaster = false;  // codes of at most 7 bits

BITSMITH_INLINE Bytes load_bytes(const uint8_t* p) {
    return {_mm512_loadu_si512(p)};
}
// Keeps what is used more than once in a register; the compiler would load it again for every use, and loads are
// scarce.
BITSMITH_INLINE Bytes held(Bytes a) {
#if defined(__GNUC__)
    __asm__("" : "+v"(a.v));
#endif
    return a;
}
BITSMITH_INLINE void store_bytes(uint8_t* p, Bytes a) {
    _mm512_storeu_si512(p, a.v);
}
BITSMITH_INLINE Bytes splat_byte(int value) {
    return {_mm512_set1_epi8(char(value))};
}
BITSMITH_INLINE Bytes operator&(Bytes a, Bytes b) {
    return {_mm512_and_si512(a.v, b.v)};
}
BITSMITH_INLINE Bytes operator|(Bytes a, Bytes b) {
    return {_mm512_or_si512(a.v, b.v)};
}
BITSMITH_INLINE Bytes operator-(Bytes a, Bytes b) {
    return {_mm512_sub_epi8(a.v, b.v)};
}
// (a & mask) | b
BITSMITH_INLINE Bytes merge(Bytes a, Bytes mask, Bytes b) {
    return {_mm512_ternarylogic_epi32(a.v, mask.v, b.v, 0xea)};
}
// Left by n bits, right by −n; bits cross bytes, so that a mask has to follow.
template <int n>
BITSMITH_INLINE Bytes shift(Bytes a) {
    if constexpr (n > 0) return {_mm512_slli_epi16(a.v, n)};
    if constexpr (n < 0) return {_mm512_srli_epi16(a.v, -n)};
    return a;
}
struct Levels {
    __m512i v;
};
BITSMITH_INLINE Levels load_levels(const uint8_t* p) {
    return {_mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BITSMITH_INLINE Bytes lookup(Levels levels, Bytes index) {
    return {_mm512_shuffle_epi8(levels.v, index.v)};
}

BITSMITH_INLINE Ints zero_ints() {
    return {_mm512_setzero_si512()};
}
BITSMITH_INLINE Ints splat(int32_t value) {
    return {_mm512_set1_epi32(value)};
}
BITSMITH_INLINE Ints operator+(Ints a, Ints b) {
    return {_mm512_add_epi32(a.v, b.v)};
}
BITSMITH_INLINE Ints operator*(Ints a, Ints b) {
    return {_mm512_mullo_epi32(a.v, b.v)};
}
// Right by n bits, with the sign.
template <int n>
BITSMITH_INLINE Ints shift_signed(Ints a) {
    return {_mm512_srai_epi32(a.v, n)};
}
BITSMITH_INLINE void store(int32_t* p, Ints a) {
    _mm512_storeu_si512(p, a.v);
}
BITSMITH_INLINE Ints operator-(Ints a, Ints b) {
    return {_mm512_sub_epi32(a.v, b.v)};
}
BITSMITH_INLINE Ints operator&(Ints a, Ints b) {
    return {_mm512_and_si512(a.v, b.v)};
}
BITSMITH_INLINE Ints max(Ints a, Ints b) {
    return {_mm512_max_epi32(a.v, b.v)};
}
// acc[row] += Σ of four columns w · x.
template <bool kEightBits>
BITSMITH_INLINE Ints dot(Ints acc, Bytes w, const int8_t* x) {
    int32_t four;
    memcpy(&four, x, 4);
    return {_mm512_dpbusd_epi32(acc.v, w.v, _mm512_set1_epi32(four))};
}
BITSMITH_INLINE int32_t largest(Ints a) {
    return _mm512_reduce_max_epi32(a.v);
}
BITSMITH_INLINE int32_t total(Ints a) {
    return _mm512_reduce_add_epi32(a.v);
}
BITSMITH_INLINE void store_int8(int8_t* p, Ints a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(a.v));
}

BITSMITH_INLINE Floats zero_floats() {
    return {_mm512_setzero_ps()};
}
BITSMITH_INLINE Floats splat(float value) {
    return {_mm512_set1_ps(value)};
}
BITSMITH_INLINE Floats load(const float* p) {
    return {_mm512_loadu_ps(p)};
}
BITSMITH_INLINE void store(float* p, Floats a) {
    _mm512_storeu_ps(p, a.v);
}
BITSMITH_INLINE Floats operator+(Floats a, Floats b) {
    return {_mm512_add_ps(a.v, b.v)};
}
BITSMITH_INLINE Floats operator*(Floats a, Floats b) {
    return {_mm512_mul_ps(a.v, b.v)};
}
BITSMITH_INLINE Floats fma(Floats a, Floats b, Floats c) {
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
BITSMITH_INLINE Floats to_float(Ints a) {
    return {_mm512_cvtepi32_ps(a.v)};
}
BITSMITH_INLINE Ints nearest(Floats a) {
    return {_mm512_cvtps_epi32(a.v)};
}
BITSMITH_INLINE Ints magnitude_bits(Floats a) {
    return {_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff))};
}

BITSMITH_INLINE Ints widen_u8(const uint8_t* p) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BITSMITH_INLINE Ints widen_s8(const uint8_t* p) {
    return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BITSMITH_INLINE Ints widen_u16(const uint16_t* p) {
    return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
template <int n>
BITSMITH_INLINE Ints shift(Ints a) {
    if constexpr (n > 0) return {_mm512_slli_epi32(a.v, n)};
    if constexpr (n < 0) return {_mm512_srli_epi32(a.v, -n)};
    return a;
}
BITSMITH_INLINE Ints operator|(Ints a, Ints b) {
    return {_mm512_or_si512(a.v, b.v)};
}
BITSMITH_INLINE Floats as_floats(Ints a) {
    return {_mm512_castsi512_ps(a.v)};
}
BITSMITH_INLINE Ints as_ints(Floats a) {
    return {_mm512_castps_si512(a.v)};
}
// a == value ? b : c
BITSMITH_INLINE Ints where_equal(Ints a, int32_t value, Ints b, Ints c) {
    return {_mm512_mask_blend_epi32(_mm512_cmpeq_epi32_mask(a.v, _mm512_set1_epi32(value)), c.v, b.v)};
}
// float16 in the low halves of the lanes.
BITSMITH_INLINE Floats from_f16(Ints a) {
    return {_mm512_cvtph_ps(_mm512_cvtepi32_epi16(a.v))};
}
BITSMITH_INLINE Floats load_f16(const uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
#define BITSMITH_OWN_FLOAT8
BITSMITH_INLINE __m256i widen_to_u16(const uint8_t* p) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
BITSMITH_INLINE Floats load_e5m2(const uint8_t* p) {
    return {_mm512_cvtph_ps(_mm256_slli_epi16(widen_to_u16(p), 8))};
}
BITSMITH_INLINE Floats load_e4m3_small(const uint8_t* p) {
    const __m256i code = widen_to_u16(p), shifted = _mm256_slli_epi16(code, 7), magnitude = _mm256_set1_epi16(0x3f80);
    const __m256i sign = _mm256_and_si256(_mm256_slli_epi16(code, 8), _mm256_set1_epi16(int16_t(0x8000)));
    const __m256i half = _mm256_ternarylogic_epi32(shifted, magnitude, sign, 0xea);  // (shifted & magnitude) | sign
    // NaN is all ones: its exponent is raised to float16's.
    const __mmask16 nan = _mm256_cmpeq_epi16_mask(_mm256_and_si256(shifted, magnitude), magnitude);
    return {_mm512_cvtph_ps(_mm256_mask_mov_epi16(half, nan, _mm256_set1_epi16(0x7e00)))};
}
// Four columns of sixteen rows at once: load_e4m3_small, or load_e5m2, of each.
#define BITSMITH_FOUR_FLOAT8
template <bool kE4M3>
BITSMITH_INLINE __m512i float8_to_f16(__m256i codes) {
    const __m512i code = _mm512_cvtepi8_epi16(codes);
    if constexpr (!kE4M3) return _mm512_slli_epi16(code, 8);
    return _mm512_and_si512(_mm512_slli_epi16(code, 7), _mm512_set1_epi16(int16_t(0xbf80)));  // less a copy of the sign
}
template <bool kE4M3>
BITSMITH_INLINE void load_four_float8(const uint8_t* p, Floats* out) {
    const __m512i codes = _mm512_loadu_si512(p), magnitude = _mm512_set1_epi8(0x7f);
    if (kE4M3 && _mm512_cmpeq_epi8_mask(_mm512_and_si512(codes, magnitude), magnitude)) {  // NaN
        for (int i = 0; i < 4; ++i) out[i] = load_e4m3_small(p + 16 * i);
        return;
    }
    const __m512i first = float8_to_f16<kE4M3>(_mm512_castsi512_si256(codes)),
                  second = float8_to_f16<kE4M3>(_mm512_extracti64x4_epi64(codes, 1));
    out[0] = {_mm512_cvtph_ps(_mm512_castsi512_si256(first))};
    out[1] = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(first, 1))};
    out[2] = {_mm512_cvtph_ps(_mm512_castsi512_si256(second))};
    out[3] = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(second, 1))};
}
BITSMITH_INLINE Ints as_lanes(Bytes a) {
    return {a.v};
}
struct FloatTable {
    __m512 v;
};
BITSMITH_INLINE FloatTable load_table(const float* p) {
    return {_mm512_loadu_ps(p)};
}
BITSMITH_INLINE Floats lookup(FloatTable table, Ints index) {
    return {_mm512_permutexvar_ps(index.v, table.v)};
}

// acc[row] += Σ of two columns of bfloat16 w[row] · x.
BITSMITH_INLINE Floats dot_bf16(Floats acc, const uint16_t* w, const uint16_t* x) {
    int32_t two;
    memcpy(&two, x, 4);
#if defined(__AVX512BF16__)
    return {_mm512_dpbf16_ps(acc.v, (__m512bh)_mm512_loadu_si512(w), (__m512bh)_mm512_set1_epi32(two))};
#else
    const __m512i both = _mm512_loadu_si512(w), high = _mm512_set1_epi32(int32_t(0xffff0000)),
                  xs = _mm512_set1_epi32(two);
    acc.v = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(both, 16)),
                            _mm512_castsi512_ps(_mm512_slli_epi32(xs, 16)), acc.v);
    return {_mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(both, high)),
                            _mm512_castsi512_ps(_mm512_and_si512(xs, high)), acc.v)};
#endif
}
BITSMITH_INLINE void store_first(float* p, Floats a, int count) {
    _mm512_mask_storeu_ps(p, __mmask16((1u << count) - 1), a.v);
}
BITSMITH_INLINE Floats load_first(const float* p, int count) {
    return {_mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), p)};
}
BITSMITH_INLINE void prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}

}  // namespace bitsmith::engine::BITSMITH_NS
