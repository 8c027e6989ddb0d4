// Rows of the cache (row_kinds.h) as floats: one small function a kind. What is read past a row's end, and written past
// `dim`, is at most kOverrun bytes and values; neither is used.
#pragma once
#include "codes.h"
#include "groups.h"
#include "row_kinds.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

BITSMITH_OP float half_at(const uint8_t* from) {
#if defined(__AVX2__) && defined(__F16C__)
    uint16_t bits;
    memcpy(&bits, from, 2);
    return _cvtsh_ss(bits);
#else
    F16 halves[W] = {};
    memcpy(halves, from, 2);
    return lane(load(halves), 0);
#endif
}

template <class T>
static void decode_floats(const uint8_t* from, int dim, float* out) {
    for (int i = 0; i < dim; i += W) store(out + i, load(reinterpret_cast<const T*>(from) + i));
}

// Nibbles 16 apart, with a fifth bit in a word of its own or none: code · d + m.
template <bool fifth>
static void decode_nibbles(const uint8_t* codes, uint32_t word, float d, float m, float* out) {
    for (int i = 0; i < 16; ++i) {
        int low = codes[i] & 15, high = codes[i] >> 4;
        if (fifth) {
            low |= (word >> i & 1) << 4;
            high |= (word >> (i + 16) & 1) << 4;
        }
        out[i] = (float)low * d + m;
        out[i + 16] = (float)high * d + m;
    }
}
template <int bits, bool minimum>
static void decode_block(const uint8_t* from, float* out) {
    const float d = half_at(from), m = minimum ? half_at(from + 2) : -d * (float)(1 << (bits - 1));
    from += minimum ? 4 : 2;
    uint32_t word = 0;
    if (bits == 5) {
        memcpy(&word, from, 4);
        from += 4;
    }
    decode_nibbles<bits == 5>(from, word, d, m, out);
}

// Codes one after the other: eight of them at a time.
template <int bits, class Value>
BITSMITH_OP void decode_sequence(const uint8_t* from, int count, float* out, const Value& value) {
    constexpr uint64_t mask = (1 << bits) - 1;
    for (int at = 0; at < count; at += 8, from += bits) {
        uint64_t word = 0;
        memcpy(&word, from, bits);
        for (int i = 0; i < 8; ++i) out[at + i] = value((int)(word >> (i * bits) & mask));
    }
}
template <int bits>
BITSMITH_OP void decode_group(const uint8_t* from, int count, float* out) {
    const float scale = half_at(from), minimum = half_at(from + 2);
    decode_sequence<bits>(from + 4, count, out, [&](int code) { return (float)code * scale + minimum; });
}
template <int bits, int group>
static void decode_groups(const uint8_t* from, int dim, float* out) {
    for (int at = 0; at < dim; at += group, from += 4 + group * bits / 8) decode_group<bits>(from, group, out + at);
}
// A scale, then codes in two's complement.
static void decode_bytes(const uint8_t* from, int count, float* out) {
    const V d = splat(half_at(from));
    for (int i = 0; i < count; i += W) store(out + i, load_bytes(from + 2 + i) * d);
}
static void decode_fours(const uint8_t* from, int count, float* out) {
    const float d = half_at(from);
    decode_sequence<4>(from + 2, count, out, [&](int code) { return (float)((code ^ 8) - 8) * d; });
}
template <int bits>
static void decode_levels(const uint8_t* from, int dim, float* out) {
    const float scale = half_at(from) * (1.0f / sqrtf((float)dim));
    const float* levels = normal_levels(bits);
    decode_sequence<bits>(from + 2, dim, out, [&](int code) { return levels[code] * scale; });
}

// The exponent is moved into place and set right by a product, also of subnormal numbers.
template <int shift>
static void decode_float8(const uint8_t* from, int dim, float scale, float* out) {
    const V adjust = splat(shift == 20 ? 0x1p120f : 0x1p112f), most = splat(shift == 20 ? 460.0f : 60000.0f);
    for (int i = 0; i < dim; i += W) {
        int32_t part[W];
        for (int j = 0; j < W; ++j) part[j] = from[i + j];
        VI code;
        memcpy(&code, part, sizeof code);
        const V size = as_float((code & splat_int(0x7f)) << shift) * adjust;
        const V known = select_less(most, size, as_float(splat_int(0x7fc00000)), size * splat(scale));
        store(out + i, as_float(as_int(known) | (code & splat_int(0x80)) << 24));
    }
}

constexpr int kOverrun = 64;

static void decode_row(Row row, const uint8_t* from, int dim, float scale, float* out) {
    const auto blocks = [&](int bytes, const auto& decode) {
        for (int at = 0; at < dim; at += kCodeBlock, from += bytes) decode(from, out + at);
    };
    switch (row) {
        case Row::kF16:
            return decode_floats<F16>(from, dim, out);
        case Row::kBF16:
            return decode_floats<BF16>(from, dim, out);
        case Row::kF32:
            return decode_floats<float>(from, dim, out);
        case Row::kQ8_0:
            return blocks(34, [](const uint8_t* block, float* to) {
                const V d = splat(half_at(block));
                for (int i = 0; i < kCodeBlock; i += W) store(to + i, load_bytes(block + 2 + i) * d);
            });
        case Row::kQ5_1:
            return blocks(24, decode_block<5, true>);
        case Row::kQ5_0:
            return blocks(22, decode_block<5, false>);
        case Row::kQ4_1:
            return blocks(20, decode_block<4, true>);
        case Row::kQ4_0:
            return blocks(18, decode_block<4, false>);
        case Row::kIQ4_NL:
            return blocks(18, [](const uint8_t* block, float* to) {
                const float d = half_at(block);
                for (int i = 0; i < 16; ++i) {
                    to[i] = kIQ4Levels[block[2 + i] & 15] * d;
                    to[i + 16] = kIQ4Levels[block[2 + i] >> 4] * d;
                }
            });
        case Row::kInt8:
            return decode_bytes(from, dim, out);
        case Row::kInt4:
            return decode_fours(from, dim, out);
        case Row::kInt8g64:
            for (int at = 0; at < dim; at += 64, from += 66) decode_bytes(from, 64, out + at);
            return;
        case Row::kInt4g64:
            for (int at = 0; at < dim; at += 64, from += 34) decode_fours(from, 64, out + at);
            return;
        case Row::kInt4g32:
            for (int at = 0; at < dim; at += 32, from += 18) decode_fours(from, 32, out + at);
            return;
        case Row::kE4M3:
            return decode_float8<20>(from, dim, scale, out);
        case Row::kE5M2:
            return decode_float8<21>(from, dim, scale, out);
        case Row::kU8g64:
            return decode_groups<8, 64>(from, dim, out);
        case Row::kU4g64:
            return decode_groups<4, 64>(from, dim, out);
        case Row::kU4g32:
            return decode_groups<4, 32>(from, dim, out);
        case Row::kU2g32:
            return decode_groups<2, 32>(from, dim, out);
        case Row::kLM4:
            return decode_levels<4>(from, dim, out);
        case Row::kLM3:
            return decode_levels<3>(from, dim, out);
        case Row::kLM2:
            return decode_levels<2>(from, dim, out);
        case Row::kU4t32:
        case Row::kU2t32:
            return;  // decode_tokens
    }
}

// Tokens [first, first + count) of a unit, multiples of 8, to out[token − first][stride].
template <int bits>
static void decode_channels(const uint8_t* unit, int first, int count, int dim, int stride, float* out) {
    constexpr int size = 4 + kUnit * bits / 8;
    for (int c = 0; c < dim; ++c, unit += size) {
        const float scale = half_at(unit), minimum = half_at(unit + 2);
        float values[kUnit];
        decode_sequence<bits>(unit + 4 + first * bits / 8, count, values,
                              [&](int code) { return (float)code * scale + minimum; });
        for (int t = 0; t < count; ++t) out[t * stride + c] = values[t];
    }
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
