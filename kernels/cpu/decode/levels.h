// Types whose codes are numbers of a level: IQ4_NL, IQ4_XS, MXFP4, NVFP4; and the ternary TQ1_0, TQ2_0.
#pragma once
#include "values.h"

namespace bitsmith {
namespace BITSMITH_NS {

// kCount bytes of nibbles: the low ones are the first kCount values, the high ones the next.
template <int kCount>
BITSMITH_INLINE void decode_level_nibbles(const uint8_t* in, const int8_t levels[16], float scale, float* out) {
    for (int i = 0; i < kCount; ++i) {
        out[i] = scale * float(levels[in[i] & 15]);
        out[i + kCount] = scale * float(levels[in[i] >> 4]);
    }
}

inline void decode_iq4_nl(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 18, out += 32) decode_level_nibbles<16>(in + 2, kIq4Levels, half_at(in), out);
}

inline void decode_iq4_xs(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 136) {
        const float d = half_at(in);
        for (int sub = 0; sub < 8; ++sub, out += 32) {
            const int low = in[4 + sub / 2] >> (sub % 2 * 4) & 15, high = in[2 + sub / 4] >> (sub % 4 * 2) & 3;
            decode_level_nibbles<16>(in + 8 + sub * 16, kIq4Levels, d * float((low | high << 4) - 32), out);
        }
    }
}

// Half of 2^(e − 127), for the doubled levels.
BITSMITH_INLINE float half_power(int e) {
    const uint32_t word = e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23;
    float value;
    memcpy(&value, &word, 4);
    return value;
}
inline void decode_mxfp4(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 17, out += 32)
        decode_level_nibbles<16>(in + 1, kE2M1Doubled, half_power(in[0]), out);
}

// Unsigned E4M3, of which 0x7F (NaN) counts as 0.
BITSMITH_INLINE float unsigned_e4m3(int code) {
    const int exponent = code >> 3 & 15;
    if (code == 0x7F) return 0.0f;
    if (exponent == 0) return float(code & 7) * (1.0f / 512.0f);
    const uint32_t word = uint32_t(exponent + 120) << 23 | uint32_t(code & 7) << 20;
    float value;
    memcpy(&value, &word, 4);
    return value;
}
inline void decode_nvfp4(const uint8_t* in, int64_t blocks, float* out, float tensor_scale) {
    for (; blocks > 0; --blocks, in += 36) {
        for (int sub = 0; sub < 4; ++sub, out += 16) {
            decode_level_nibbles<8>(in + 4 + sub * 8, kE2M1Doubled, 0.5f * unsigned_e4m3(in[sub]), out);
            for (int i = 0; i < 16; ++i) out[i] = out[i] * tensor_scale;
        }
    }
}

// Digit k of a byte ⌈256·n/243⌉ is 3·(n·3^k mod 243 / 243), rounded down: three times the byte's fraction.
BITSMITH_INLINE int ternary_digit(uint8_t byte, int power) {
    return (uint8_t(byte * power) * 3) >> 8;
}

inline void decode_tq1_0(const uint8_t* in, int64_t blocks, float* out, float) {
    constexpr int kPowers[5] = {1, 3, 9, 27, 81};
    for (; blocks > 0; --blocks, in += 54) {
        const float d = half_at(in + 52);
        const struct {
            int at, bytes, digits;
        } parts[3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
        for (const auto& part : parts)
            for (int k = 0; k < part.digits; ++k, out += part.bytes)
                for (int i = 0; i < part.bytes; ++i) out[i] = d * float(ternary_digit(in[part.at + i], kPowers[k]) - 1);
    }
}

inline void decode_tq2_0(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 66) {
        const float d = half_at(in + 64);
        for (int half = 0; half < 2; ++half)
            for (int shift = 0; shift < 8; shift += 2, out += 32)
                for (int i = 0; i < 32; ++i) out[i] = d * float((in[half * 32 + i] >> shift & 3) - 1);
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
