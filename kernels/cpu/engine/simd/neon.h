// NEON with dot products (Armv8.2), and mixed-sign ones where the compiler may use them (i8mm): four registers each.
#pragma once
#include <arm_neon.h>

namespace bitsmith::engine::BITSMITH_NS {

struct Bytes {
    uint8x16_t v[4];
};
struct Ints {
    int32x4_t v[4];
};
struct Floats {
    float32x4_t v[4];
};
constexpr int kSub = 4;
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int kByteBias = 0;
#else
constexpr int kByteBias = 128;  // both sides of a dot product are signed
#endif
constexpr bool kHolds = false;  // registers for all vectors of a step
constexpr bool kFused = true;
constexpr bool kSmallDotIsFaster = kByteBias != 0;

#define BITSMITH_FOUR(Type, expression)                                \
    Type r;                                                            \
    BITSMITH_UNROLL for (int i = 0; i < 4; ++i) r.v[i] = (expression); \
    return r

BITSMITH_INLINE Bytes load_bytes(const uint8_t* p) {
    BITSMITH_FOUR(Bytes, vld1q_u8(p + 16 * i));
}
BITSMITH_INLINE Bytes held(Bytes a) {  // avx512.h says what for
    return a;
}
BITSMITH_INLINE void store_bytes(uint8_t* p, Bytes a) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, a.v[i]);
}
BITSMITH_INLINE Bytes splat_byte(int value) {
    BITSMITH_FOUR(Bytes, vdupq_n_u8(uint8_t(value)));
}
BITSMITH_INLINE Bytes operator&(Bytes a, Bytes b) {
    BITSMITH_FOUR(Bytes, vandq_u8(a.v[i], b.v[i]));
}
BITSMITH_INLINE Bytes operator|(Bytes a, Bytes b) {
    BITSMITH_FOUR(Bytes, vorrq_u8(a.v[i], b.v[i]));
}
// (a & mask) | b
BITSMITH_INLINE Bytes merge(Bytes a, Bytes mask, Bytes b) {
    return (a & mask) | b;
}
template <int n>
BITSMITH_INLINE Bytes shift(Bytes a) {
    if constexpr (n > 0) {
        BITSMITH_FOUR(Bytes, vshlq_n_u8(a.v[i], n));
    } else if constexpr (n < 0) {
        BITSMITH_FOUR(Bytes, vshrq_n_u8(a.v[i], -n));
    } else {
        return a;
    }
}
struct Levels {
    uint8x16_t v;
};
BITSMITH_INLINE Levels load_levels(const uint8_t* p) {
    return {vld1q_u8(p)};
}
BITSMITH_INLINE Bytes lookup(Levels levels, Bytes index) {
    BITSMITH_FOUR(Bytes, vqtbl1q_u8(levels.v, index.v[i]));
}

BITSMITH_INLINE Ints zero_ints() {
    BITSMITH_FOUR(Ints, vdupq_n_s32(0));
}
BITSMITH_INLINE Ints splat(int32_t value) {
    BITSMITH_FOUR(Ints, vdupq_n_s32(value));
}
BITSMITH_INLINE Ints operator+(Ints a, Ints b) {
    BITSMITH_FOUR(Ints, vaddq_s32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints operator*(Ints a, Ints b) {
    BITSMITH_FOUR(Ints, vmulq_s32(a.v[i], b.v[i]));
}
template <int n>
BITSMITH_INLINE Ints shift_signed(Ints a) {
    BITSMITH_FOUR(Ints, vshrq_n_s32(a.v[i], n));
}
BITSMITH_INLINE void store(int32_t* p, Ints a) {
    for (int i = 0; i < 4; ++i) vst1q_s32(p + 4 * i, a.v[i]);
}
BITSMITH_INLINE Ints operator-(Ints a, Ints b) {
    BITSMITH_FOUR(Ints, vsubq_s32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints operator&(Ints a, Ints b) {
    BITSMITH_FOUR(Ints, vandq_s32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints operator|(Ints a, Ints b) {
    BITSMITH_FOUR(Ints, vorrq_s32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Ints max(Ints a, Ints b) {
    BITSMITH_FOUR(Ints, vmaxq_s32(a.v[i], b.v[i]));
}
template <bool kEightBits>
BITSMITH_INLINE Ints dot(Ints acc, Bytes w, const int8_t* x) {
    int32_t four;
    memcpy(&four, x, 4);
    const int8x16_t xs = vreinterpretq_s8_s32(vdupq_n_s32(four));
#if defined(__ARM_FEATURE_MATMUL_INT8)
    BITSMITH_FOUR(Ints, vusdotq_s32(acc.v[i], w.v[i], xs));
#else
    if constexpr (kEightBits)
        w = {{veorq_u8(w.v[0], vdupq_n_u8(128)), veorq_u8(w.v[1], vdupq_n_u8(128)), veorq_u8(w.v[2], vdupq_n_u8(128)),
              veorq_u8(w.v[3], vdupq_n_u8(128))}};
    BITSMITH_FOUR(Ints, vdotq_s32(acc.v[i], vreinterpretq_s8_u8(w.v[i]), xs));
#endif
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
#define BITSMITH_EIGHT_COLUMNS
struct RowPairs {
    int32x4_t v[8];  // [pair of rows][2 rows][2 tokens]
};
struct TwoTokens {
    int8x16_t v;  // eight columns each
};
BITSMITH_INLINE TwoTokens load_tokens(const int8_t* first, const int8_t* second) {
    return {vcombine_s8(vld1_s8(first), vld1_s8(second))};
}
// Two neighbouring quads, as [pair of rows][2 rows][8 columns].
BITSMITH_INLINE void store_pairs(uint8_t* p, Bytes a, Bytes b) {
    for (int i = 0; i < 4; ++i) {
        const uint32x4_t first = vreinterpretq_u32_u8(a.v[i]), second = vreinterpretq_u32_u8(b.v[i]);
        vst1q_u8(p + 32 * i, vreinterpretq_u8_u32(vzip1q_u32(first, second)));
        vst1q_u8(p + 32 * i + 16, vreinterpretq_u8_u32(vzip2q_u32(first, second)));
    }
}
// sums[n] += the dot products of sixteen rows with tokens[n].
template <int N>
BITSMITH_INLINE void dot_pairs(RowPairs* sums, const uint8_t* w, const TwoTokens* tokens) {
    BITSMITH_UNROLL for (int i = 0; i < 8; ++i) {
        const uint8x16_t rows = vld1q_u8(w + 16 * i);
        BITSMITH_UNROLL for (int n = 0; n < N; ++n) sums[n].v[i] = vusmmlaq_s32(sums[n].v[i], rows, tokens[n].v);
    }
}
BITSMITH_INLINE Ints first_token(const RowPairs& sums) {
    BITSMITH_FOUR(Ints, vuzp1q_s32(sums.v[2 * i], sums.v[2 * i + 1]));
}
BITSMITH_INLINE Ints second_token(const RowPairs& sums) {
    BITSMITH_FOUR(Ints, vuzp2q_s32(sums.v[2 * i], sums.v[2 * i + 1]));
}
#endif
BITSMITH_INLINE int32_t largest(Ints a) {
    return vmaxvq_s32(vmaxq_s32(vmaxq_s32(a.v[0], a.v[1]), vmaxq_s32(a.v[2], a.v[3])));
}
BITSMITH_INLINE int32_t total(Ints a) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3])));
}
BITSMITH_INLINE void store_int8(int8_t* p, Ints a) {
    const int16x8_t low = vcombine_s16(vqmovn_s32(a.v[0]), vqmovn_s32(a.v[1]));
    const int16x8_t high = vcombine_s16(vqmovn_s32(a.v[2]), vqmovn_s32(a.v[3]));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
}

BITSMITH_INLINE Floats zero_floats() {
    BITSMITH_FOUR(Floats, vdupq_n_f32(0.0f));
}
BITSMITH_INLINE Floats splat(float value) {
    BITSMITH_FOUR(Floats, vdupq_n_f32(value));
}
BITSMITH_INLINE Floats load(const float* p) {
    BITSMITH_FOUR(Floats, vld1q_f32(p + 4 * i));
}
BITSMITH_INLINE void store(float* p, Floats a) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, a.v[i]);
}
BITSMITH_INLINE Floats operator+(Floats a, Floats b) {
    BITSMITH_FOUR(Floats, vaddq_f32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Floats operator*(Floats a, Floats b) {
    BITSMITH_FOUR(Floats, vmulq_f32(a.v[i], b.v[i]));
}
BITSMITH_INLINE Floats fma(Floats a, Floats b, Floats c) {
    BITSMITH_FOUR(Floats, vfmaq_f32(c.v[i], a.v[i], b.v[i]));
}
BITSMITH_INLINE Floats to_float(Ints a) {
    BITSMITH_FOUR(Floats, vcvtq_f32_s32(a.v[i]));
}
BITSMITH_INLINE Ints nearest(Floats a) {
    BITSMITH_FOUR(Ints, vcvtnq_s32_f32(a.v[i]));
}
BITSMITH_INLINE Floats as_floats(Ints a) {
    BITSMITH_FOUR(Floats, vreinterpretq_f32_s32(a.v[i]));
}
BITSMITH_INLINE Ints as_ints(Floats a) {
    BITSMITH_FOUR(Ints, vreinterpretq_s32_f32(a.v[i]));
}
BITSMITH_INLINE Ints magnitude_bits(Floats a) {
    return as_ints(a) & splat(0x7fffffff);
}

BITSMITH_INLINE Ints widen_u16(const uint16_t* p) {
    BITSMITH_FOUR(Ints, vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p + 4 * i))));
}
BITSMITH_INLINE Ints widen_u8(const uint8_t* p) {
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return {{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(low))),
             vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
             vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(high)))}};
}
BITSMITH_INLINE Ints widen_s8(const uint8_t* p) {
    const int8x16_t bytes = vreinterpretq_s8_u8(vld1q_u8(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vmovl_s16(vget_low_s16(low)), vmovl_s16(vget_high_s16(low)), vmovl_s16(vget_low_s16(high)),
             vmovl_s16(vget_high_s16(high))}};
}
template <int n>
BITSMITH_INLINE Ints shift(Ints a) {
    if constexpr (n > 0) {
        BITSMITH_FOUR(Ints, vshlq_n_s32(a.v[i], n));
    } else if constexpr (n < 0) {
        BITSMITH_FOUR(Ints, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[i]), -n)));
    } else {
        return a;
    }
}
BITSMITH_INLINE Ints where_equal(Ints a, int32_t value, Ints b, Ints c) {
    BITSMITH_FOUR(Ints, vbslq_s32(vceqq_s32(a.v[i], vdupq_n_s32(value)), b.v[i], c.v[i]));
}
BITSMITH_INLINE Floats from_f16(Ints a) {
    BITSMITH_FOUR(Floats, vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(vreinterpretq_u32_s32(a.v[i])))));
}
BITSMITH_INLINE Floats load_f16(const uint16_t* p) {
    BITSMITH_FOUR(Floats, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
BITSMITH_INLINE Ints as_lanes(Bytes a) {
    BITSMITH_FOUR(Ints, vreinterpretq_s32_u8(a.v[i]));
}
struct FloatTable {
    uint8x16x4_t v;
};
BITSMITH_INLINE FloatTable load_table(const float* p) {
    FloatTable r;
    for (int i = 0; i < 4; ++i) r.v.val[i] = vreinterpretq_u8_f32(vld1q_f32(p + 4 * i));
    return r;
}
BITSMITH_INLINE Floats lookup(FloatTable table, Ints index) {
    // Bytes 4·i … 4·i + 3 of the table's 64.
    BITSMITH_FOUR(
        Floats,
        vreinterpretq_f32_u8(vqtbl4q_u8(
            table.v, vreinterpretq_u8_s32(vaddq_s32(vmulq_n_s32(vandq_s32(index.v[i], vdupq_n_s32(15)), 0x04040404),
                                                    vdupq_n_s32(0x03020100))))));
}

BITSMITH_INLINE Floats dot_bf16(Floats acc, const uint16_t* w, const uint16_t* x) {
    const Ints both = as_lanes(load_bytes(reinterpret_cast<const uint8_t*>(w)));
    acc = fma(as_floats(shift<16>(both)), as_floats(splat(int32_t(uint32_t(x[0]) << 16))), acc);
    return fma(as_floats(both & splat(int32_t(0xffff0000))), as_floats(splat(int32_t(uint32_t(x[1]) << 16))), acc);
}
BITSMITH_INLINE void store_first(float* p, Floats a, int count) {
    float all[16];
    store(all, a);
    for (int i = 0; i < count; ++i) p[i] = all[i];
}
BITSMITH_INLINE Floats load_first(const float* p, int count) {
    float all[16] = {};
    for (int i = 0; i < count; ++i) all[i] = p[i];
    return load(all);
}
BITSMITH_INLINE void prefetch(const uint8_t*) {}
#undef BITSMITH_FOUR

}  // namespace bitsmith::engine::BITSMITH_NS
