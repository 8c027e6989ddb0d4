// AVX2 with FMA and F16C, and VNNI where the compiler may use it: two registers for each of the three types.
#pragma once
#include <immintrin.h>

namespace bitsmith::engine::BITSMITH_NS {

struct Bytes {
    __m256i v[2];
};
struct Ints {
    __m256i v[2];
};
struct Floats {
    __m256 v[2];
};
constexpr int kSub = 4;
constexpr int kByteBias = 0;
constexpr bool kHolds = false;  // registers for all vectors of a step
constexpr bool kFused = true;
#if defined(__AVXVNNI__)
constexpr bool kSmallDotIsFaster = false;
#else
constexpr bool kSmallDotIsFaster = true;
#endif

#define BITSMITH_BOTH(Type, expression)                                \
    Type r;                                                            \
    BITSMITH_UNROLL for (int i = 0; i < 2; ++i) r.v[i] = (expression); \
    return r

BITSMITH_INLINE Bytes load_bytes(const uint8_t* p) {
    BITSMITH_BOTH(Bytes, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p) + i));
}
BITSMITH_INLINE Bytes held(Bytes a) {  // avx512.h says what for
    return a;
}
BITSMITH_INLINE void store_bytes(uint8_t* p, Bytes a) {
    for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + i, a.v[i]);
}
BITSMITH_INLINE Bytes splat_byte(int value) {
    BITSMITH_BOTH(Bytes, _mm256_set1_epi8(char(value)));
}
BITSMITH_INLINE Bytes operator&(Bytes a, Bytes b) {
    BITSMITH_BOTH(Bytes, _mm256_and_si256(a.v[i], b.v[i]));
}
BITSMITH_INLINE Bytes operator|(Bytes a, Bytes b) {
    BITSMITH_BOTH(Bytes, _mm256_or_si256(a.v[i], b.v[i]));
}
BITSMITH_INLINE Bytes operator-(Bytes a, Bytes b) {
    BITSMITH_BOTH(Bytes, _mm256_sub_epi8(a.v[i], b.v[i]));
}
// (a & mask) | b
BITSMITH_INLINE Bytes merge(Bytes a, Bytes mask, Bytes b) {
    return (a & mask) | b;
}
template <int n>
BITSMITH_INLINE Bytes shift(Bytes a) {
    if constexpr (n > 0) {
        BITSMITH_BOTH(Bytes, _mm256_slli_epi16(a.v[i], n));
    } else if constexpr (n < 0) {
        BITSMITH_BOTH(Bytes, _mm256_srli_epi16(a.v[i], -n));
    } else {
        return a;
    }
}
struct Levels {
    __m256i v;
};
BITSMITH_INLINE Levels load_levels(const uint8_t* p) {
    return {_mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BITSMITH_INLINE Bytes lookup(Levels levels, Bytes index) {
    BITSMITH_BOTH(Bytes, _mm256_shuffle_epi8(levels.v, index.v[i]));
}

BITSMITH_INLINE Ints zero_ints() {
    BITSMITH_BOTH(Ints, _mm256_setzero_si256());
}
BITSMITH_INLINE Ints splat(int32_t value) {
    BITSMITH_BOTH(Ints, _mm256_set1_epi32(value));
}
BITSMITH_INLINE Ints operator+(Ints a, Ints b) {
    BITSMITH_BOTH(Ints, _mm256_add_epi32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints operator*(Ints a, Ints b) {
    BITSMITH_BOTH(Ints, _mm256_mullo_epi32(a.v[i], b.v[i]));
}
template <int n>
BITSMITH_INLINE Ints shift_signed(Ints a) {
    BITSMITH_BOTH(Ints, _mm256_srai_epi32(a.v[i], n));
}
BITSMITH_INLINE void store(int32_t* p, Ints a) {
    for (int i = 0; i < 2; ++i) _mm256_storeu_si256(reinterpret_cast<__m256i*>(p) + i, a.v[i]);
}
BITSMITH_INLINE Ints operator-(Ints a, Ints b) {
    BITSMITH_BOTH(Ints, _mm256_sub_epi32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints operator&(Ints a, Ints b) {
    BITSMITH_BOTH(Ints, _mm256_and_si256(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints operator|(Ints a, Ints b) {
    BITSMITH_BOTH(Ints, _mm256_or_si256(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints max(Ints a, Ints b) {
    BITSMITH_BOTH(Ints, _mm256_max_epi32(a.v[i], b.v[i]));
}
template <bool kEightBits>
BITSMITH_INLINE Ints dot(Ints acc, Bytes w, const int8_t* x) {
    int32_t four;
    memcpy(&four, x, 4);
    const __m256i xs = _mm256_set1_epi32(four);
#if defined(__AVXVNNI__)
    BITSMITH_BOTH(Ints, _mm256_dpbusd_avx_epi32(acc.v[i], w.v[i], xs));
#elif defined(__AVX512VNNI__) && defined(__AVX512VL__)
    BITSMITH_BOTH(Ints, _mm256_dpbusd_epi32(acc.v[i], w.v[i], xs));
#else
    const __m256i ones = _mm256_set1_epi16(1);
    if constexpr (kEightBits) {
        // Two products of 255 · 127 do not fit into 16 bits, one does.
        const __m256i even = _mm256_and_si256(xs, _mm256_set1_epi16(0x00ff)),
                      odd = _mm256_andnot_si256(_mm256_set1_epi16(0x00ff), xs);
        BITSMITH_BOTH(Ints, _mm256_add_epi32(
                                _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(_mm256_maddubs_epi16(w.v[i], even), ones)),
                                _mm256_madd_epi16(_mm256_maddubs_epi16(w.v[i], odd), ones)));
    } else {
        BITSMITH_BOTH(Ints, _mm256_add_epi32(acc.v[i], _mm256_madd_epi16(_mm256_maddubs_epi16(w.v[i], xs), ones)));
    }
#endif
}
BITSMITH_INLINE int32_t largest(Ints a) {
    const __m256i both = _mm256_max_epi32(a.v[0], a.v[1]);
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}
BITSMITH_INLINE int32_t total(Ints a) {
    const __m256i both = _mm256_add_epi32(a.v[0], a.v[1]);
    __m128i m = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}
BITSMITH_INLINE void store_int8(int8_t* p, Ints a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.v[0], a.v[1]), 0xd8);
    const __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
}

BITSMITH_INLINE Floats zero_floats() {
    BITSMITH_BOTH(Floats, _mm256_setzero_ps());
}
BITSMITH_INLINE Floats splat(float value) {
    BITSMITH_BOTH(Floats, _mm256_set1_ps(value));
}
BITSMITH_INLINE Floats load(const float* p) {
    BITSMITH_BOTH(Floats, _mm256_loadu_ps(p + 8 * i));
}
BITSMITH_INLINE void store(float* p, Floats a) {
    for (int i = 0; i < 2; ++i) _mm256_storeu_ps(p + 8 * i, a.v[i]);
}
BITSMITH_INLINE Floats operator+(Floats a, Floats b) {
    BITSMITH_BOTH(Floats, _mm256_add_ps(a.v[i], b.v[i]));
}
BITSMITH_INLINE Floats operator*(Floats a, Floats b) {
    BITSMITH_BOTH(Floats, _mm256_mul_ps(a.v[i], b.v[i]));
}
BITSMITH_INLINE Floats fma(Floats a, Floats b, Floats c) {
    BITSMITH_BOTH(Floats, _mm256_fmadd_ps(a.v[i], b.v[i], c.v[i]));
}
BITSMITH_INLINE Floats to_float(Ints a) {
    BITSMITH_BOTH(Floats, _mm256_cvtepi32_ps(a.v[i]));
}
BITSMITH_INLINE Ints nearest(Floats a) {
    BITSMITH_BOTH(Ints, _mm256_cvtps_epi32(a.v[i]));
}
BITSMITH_INLINE Floats as_floats(Ints a) {
    BITSMITH_BOTH(Floats, _mm256_castsi256_ps(a.v[i]));
}
BITSMITH_INLINE Ints as_ints(Floats a) {
    BITSMITH_BOTH(Ints, _mm256_castps_si256(a.v[i]));
}
BITSMITH_INLINE Ints magnitude_bits(Floats a) {
    return as_ints(a) & splat(0x7fffffff);
}

BITSMITH_INLINE Ints widen_u8(const uint8_t* p) {
    BITSMITH_BOTH(Ints, _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i))));
}
BITSMITH_INLINE Ints widen_s8(const uint8_t* p) {
    BITSMITH_BOTH(Ints, _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8 * i))));
}
BITSMITH_INLINE Ints widen_u16(const uint16_t* p) {
    BITSMITH_BOTH(Ints, _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i))));
}
template <int n>
BITSMITH_INLINE Ints shift(Ints a) {
    if constexpr (n > 0) {
        BITSMITH_BOTH(Ints, _mm256_slli_epi32(a.v[i], n));
    } else if constexpr (n < 0) {
        BITSMITH_BOTH(Ints, _mm256_srli_epi32(a.v[i], -n));
    } else {
        return a;
    }
}
BITSMITH_INLINE Ints where_equal(Ints a, int32_t value, Ints b, Ints c) {
    BITSMITH_BOTH(Ints, _mm256_blendv_epi8(c.v[i], b.v[i], _mm256_cmpeq_epi32(a.v[i], _mm256_set1_epi32(value))));
}
BITSMITH_INLINE Floats from_f16(Ints a) {
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32(a.v[0], a.v[1]), 0xd8);
    return {{_mm256_cvtph_ps(_mm256_castsi256_si128(words)), _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))}};
}
BITSMITH_INLINE Floats load_f16(const uint16_t* p) {
    BITSMITH_BOTH(Floats, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8 * i))));
}
BITSMITH_INLINE Ints as_lanes(Bytes a) {
    BITSMITH_BOTH(Ints, a.v[i]);
}
struct FloatTable {
    __m256 v[2];
};
BITSMITH_INLINE FloatTable load_table(const float* p) {
    return {{_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}};
}
BITSMITH_INLINE Floats lookup(FloatTable table, Ints index) {
    BITSMITH_BOTH(Floats, _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.v[0], index.v[i]),
                                           _mm256_permutevar8x32_ps(table.v[1], index.v[i]),
                                           _mm256_castsi256_ps(_mm256_slli_epi32(index.v[i], 28))));
}

BITSMITH_INLINE Floats dot_bf16(Floats acc, const uint16_t* w, const uint16_t* x) {
    int32_t two;
    memcpy(&two, x, 4);
    const Ints both = as_lanes(load_bytes(reinterpret_cast<const uint8_t*>(w)));
    acc = fma(as_floats(shift<16>(both)), as_floats(splat(int32_t(uint32_t(two) << 16))), acc);
    return fma(as_floats(both & splat(int32_t(0xffff0000))), as_floats(splat(two & int32_t(0xffff0000))), acc);
}
BITSMITH_INLINE void store_first(float* p, Floats a, int count) {
    alignas(32) float all[16];
    store(all, a);
    for (int i = 0; i < count; ++i) p[i] = all[i];
}
BITSMITH_INLINE Floats load_first(const float* p, int count) {
    alignas(32) float all[16] = {};
    for (int i = 0; i < count; ++i) all[i] = p[i];
    return load(all);
}
BITSMITH_INLINE void prefetch(const uint8_t* p) {
    _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T0);
}
#undef BITSMITH_BOTH

}  // namespace bitsmith::engine::BITSMITH_NS
