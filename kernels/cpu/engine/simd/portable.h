// Plain C++: loops over sixteen rows that a compiler may or may not vectorise.
#pragma once
#include <math.h>

namespace bitsmith::engine::BITSMITH_NS {

struct Bytes {
    uint8_t v[64];
};
struct Ints {
    int32_t v[16];
};
struct Floats {
    float v[16];
};
constexpr int kSub = 4;
constexpr int kByteBias = 0;
constexpr bool kHolds = false;  // registers for all vectors of a step
constexpr bool kFused = false;
constexpr bool kSmallDotIsFaster = false;

#define BITSMITH_EACH(Type, n, expression)           \
    Type r;                                          \
    for (int i = 0; i < n; ++i) r.v[i] = expression; \
    return r

BITSMITH_INLINE Bytes load_bytes(const uint8_t* p) {
    Bytes r;
    memcpy(r.v, p, 64);
    return r;
}
BITSMITH_INLINE Bytes held(const Bytes& a) {  // avx512.h says what for
    return a;
}
BITSMITH_INLINE void store_bytes(uint8_t* p, const Bytes& a) {
    memcpy(p, a.v, 64);
}
BITSMITH_INLINE Bytes splat_byte(int value) {
    BITSMITH_EACH(Bytes, 64, uint8_t(value));
}
BITSMITH_INLINE Bytes operator&(const Bytes& a, const Bytes& b) {
    BITSMITH_EACH(Bytes, 64, a.v[i] & b.v[i]);
}
BITSMITH_INLINE Bytes operator|(const Bytes& a, const Bytes& b) {
    BITSMITH_EACH(Bytes, 64, a.v[i] | b.v[i]);
}
// (a & mask) | b
BITSMITH_INLINE Bytes merge(const Bytes& a, const Bytes& mask, const Bytes& b) {
    return (a & mask) | b;
}
template <int n>
BITSMITH_INLINE Bytes shift(const Bytes& a) {
    BITSMITH_EACH(Bytes, 64, uint8_t(n >= 0 ? a.v[i] << (n & 7) : a.v[i] >> (-n & 7)));
}
struct Levels {
    uint8_t v[16];
};
BITSMITH_INLINE Levels load_levels(const uint8_t* p) {
    Levels r;
    memcpy(r.v, p, 16);
    return r;
}
BITSMITH_INLINE Bytes lookup(const Levels& levels, const Bytes& index) {
    BITSMITH_EACH(Bytes, 64, levels.v[index.v[i] & 15]);
}

BITSMITH_INLINE Ints zero_ints() {
    return Ints{};
}
BITSMITH_INLINE Ints splat(int32_t value) {
    BITSMITH_EACH(Ints, 16, value);
}
BITSMITH_INLINE Ints operator+(const Ints& a, const Ints& b) {
    BITSMITH_EACH(Ints, 16, a.v[i] + b.v[i]);
}
BITSMITH_INLINE Ints operator*(const Ints& a, const Ints& b) {
    BITSMITH_EACH(Ints, 16, int32_t(uint32_t(a.v[i]) * uint32_t(b.v[i])));
}
template <int n>
BITSMITH_INLINE Ints shift_signed(const Ints& a) {
    BITSMITH_EACH(Ints, 16, a.v[i] >> n);
}
BITSMITH_INLINE void store(int32_t* p, const Ints& a) {
    memcpy(p, a.v, 64);
}
BITSMITH_INLINE Ints operator-(const Ints& a, const Ints& b) {
    BITSMITH_EACH(Ints, 16, int32_t(uint32_t(a.v[i]) - uint32_t(b.v[i])));
}
BITSMITH_INLINE Ints operator&(const Ints& a, const Ints& b) {
    BITSMITH_EACH(Ints, 16, a.v[i] & b.v[i]);
}
BITSMITH_INLINE Ints operator|(const Ints& a, const Ints& b) {
    BITSMITH_EACH(Ints, 16, a.v[i] | b.v[i]);
}
BITSMITH_INLINE Ints max(const Ints& a, const Ints& b) {
    BITSMITH_EACH(Ints, 16, a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
template <bool kEightBits>
BITSMITH_INLINE Ints dot(Ints acc, const Bytes& w, const int8_t* x) {
    const int32_t a = x[0], b = x[1], c = x[2], d = x[3];
    for (int i = 0; i < 16; ++i)
        acc.v[i] += a * w.v[4 * i] + b * w.v[4 * i + 1] + c * w.v[4 * i + 2] + d * w.v[4 * i + 3];
    return acc;
}
BITSMITH_INLINE int32_t largest(const Ints& a) {
    int32_t r = a.v[0];
    for (int i = 1; i < 16; ++i) r = a.v[i] > r ? a.v[i] : r;
    return r;
}
BITSMITH_INLINE int32_t total(const Ints& a) {
    int32_t r = 0;
    for (int i = 0; i < 16; ++i) r += a.v[i];
    return r;
}
BITSMITH_INLINE void store_int8(int8_t* p, const Ints& a) {
    for (int i = 0; i < 16; ++i) p[i] = int8_t(a.v[i]);
}

BITSMITH_INLINE Floats zero_floats() {
    return Floats{};
}
BITSMITH_INLINE Floats splat(float value) {
    BITSMITH_EACH(Floats, 16, value);
}
BITSMITH_INLINE Floats load(const float* p) {
    Floats r;
    memcpy(r.v, p, 64);
    return r;
}
BITSMITH_INLINE void store(float* p, const Floats& a) {
    memcpy(p, a.v, 64);
}
BITSMITH_INLINE Floats operator+(const Floats& a, const Floats& b) {
    BITSMITH_EACH(Floats, 16, a.v[i] + b.v[i]);
}
BITSMITH_INLINE Floats operator*(const Floats& a, const Floats& b) {
    BITSMITH_EACH(Floats, 16, a.v[i] * b.v[i]);
}
BITSMITH_INLINE Floats fma(const Floats& a, const Floats& b, const Floats& c) {
    BITSMITH_EACH(Floats, 16, a.v[i] * b.v[i] + c.v[i]);
}
BITSMITH_INLINE Floats to_float(const Ints& a) {
    BITSMITH_EACH(Floats, 16, float(a.v[i]));
}
// Ties to even, for |a| < 2^22, which codes are.
BITSMITH_INLINE Ints nearest(const Floats& a) {
    Ints r;
    for (int i = 0; i < 16; ++i) {
        const float shifted = a.v[i] + 12582912.0f;  // 1.5 · 2^23: its last mantissa bit is worth 1
        memcpy(&r.v[i], &shifted, 4);
        r.v[i] -= 0x4B400000;
    }
    return r;
}
BITSMITH_INLINE Floats as_floats(const Ints& a) {
    Floats r;
    memcpy(r.v, a.v, 64);
    return r;
}
BITSMITH_INLINE Ints as_ints(const Floats& a) {
    Ints r;
    memcpy(r.v, a.v, 64);
    return r;
}
BITSMITH_INLINE Ints magnitude_bits(const Floats& a) {
    return as_ints(a) & splat(0x7fffffff);
}

BITSMITH_INLINE Ints widen_u8(const uint8_t* p) {
    BITSMITH_EACH(Ints, 16, p[i]);
}
BITSMITH_INLINE Ints widen_s8(const uint8_t* p) {
    BITSMITH_EACH(Ints, 16, int8_t(p[i]));
}
BITSMITH_INLINE Ints widen_u16(const uint16_t* p) {
    BITSMITH_EACH(Ints, 16, p[i]);
}
template <int n>
BITSMITH_INLINE Ints shift(const Ints& a) {
    BITSMITH_EACH(Ints, 16, int32_t(n >= 0 ? uint32_t(a.v[i]) << (n & 31) : uint32_t(a.v[i]) >> (-n & 31)));
}
BITSMITH_INLINE Ints where_equal(const Ints& a, int32_t value, const Ints& b, const Ints& c) {
    BITSMITH_EACH(Ints, 16, a.v[i] == value ? b.v[i] : c.v[i]);
}
BITSMITH_INLINE Floats from_f16(const Ints& a) {
    Ints r;
    for (int i = 0; i < 16; ++i) {
        const uint32_t exponent = a.v[i] & 0x7c00, shifted = uint32_t(a.v[i] & 0x7fff) << 13;
        const float subnormal = float(a.v[i] & 0x3ff) * (1.0f / 16777216.0f);
        uint32_t word = exponent == 0x7c00 ? shifted | 0x7f800000 : shifted + (112u << 23);
        if (exponent == 0) memcpy(&word, &subnormal, 4);
        r.v[i] = int32_t(word | uint32_t(a.v[i] & 0x8000) << 16);
    }
    return as_floats(r);
}
BITSMITH_INLINE Floats load_f16(const uint16_t* p) {
    return from_f16(widen_u16(p));
}
BITSMITH_INLINE Ints as_lanes(const Bytes& a) {
    Ints r;
    memcpy(r.v, a.v, 64);
    return r;
}
struct FloatTable {
    float v[16];
};
BITSMITH_INLINE FloatTable load_table(const float* p) {
    FloatTable r;
    memcpy(r.v, p, 64);
    return r;
}
BITSMITH_INLINE Floats lookup(const FloatTable& table, const Ints& index) {
    BITSMITH_EACH(Floats, 16, table.v[index.v[i] & 15]);
}

BITSMITH_INLINE Floats dot_bf16(const Floats& acc, const uint16_t* w, const uint16_t* x) {
    Ints both;
    memcpy(both.v, w, 64);
    const Floats sum = fma(as_floats(shift<16>(both)), as_floats(splat(int32_t(uint32_t(x[0]) << 16))), acc);
    return fma(as_floats(both & splat(int32_t(0xffff0000))), as_floats(splat(int32_t(uint32_t(x[1]) << 16))), sum);
}
BITSMITH_INLINE void store_first(float* p, const Floats& a, int count) {
    memcpy(p, a.v, size_t(count) * 4);
}
BITSMITH_INLINE Floats load_first(const float* p, int count) {
    Floats r = {};
    memcpy(r.v, p, size_t(count) * 4);
    return r;
}
BITSMITH_INLINE void prefetch(const uint8_t*) {}
#undef BITSMITH_EACH

}  // namespace bitsmith::engine::BITSMITH_NS
