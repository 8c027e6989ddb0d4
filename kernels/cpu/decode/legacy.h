// Q8_0, Q4_0, Q4_1, Q5_0, Q5_1: see encode/legacy.h for the layouts.
#pragma once
#include "values.h"

namespace bitsmith {
namespace BITSMITH_NS {

inline void decode_q8_0(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 34, out += 32) {
        const float d = half_at(in);
        int8_t codes[32];
        memcpy(codes, in + 2, 32);
        for (int i = 0; i < 32; ++i) out[i] = float(codes[i]) * d;
    }
}

// Codes of 4 or 5 bits; centred ones are d·(q − half), the others d·q + m.
template <int kBits, bool kCentred>
inline void decode_nibbles(const uint8_t* in, int64_t blocks, float* out, float) {
    constexpr int kHead = kCentred ? 2 : 4, kHigh = kBits == 5 ? 4 : 0;
    for (; blocks > 0; --blocks, in += kHead + kHigh + 16, out += 32) {
        const float d = half_at(in), m = kCentred ? 0.0f : half_at(in + 2);
        uint8_t nibbles[16];
        memcpy(nibbles, in + kHead + kHigh, 16);
        int32_t code[32];
        for (int i = 0; i < 16; ++i) {
            code[i] = nibbles[i] & 15;
            code[i + 16] = nibbles[i] >> 4;
        }
        if (kBits == 5) {
            uint32_t high;
            memcpy(&high, in + kHead, 4);
            for (int i = 0; i < 32; ++i) code[i] |= int32_t(high >> i & 1) << 4;
        }
        if (kCentred) {
            for (int i = 0; i < 32; ++i) out[i] = d * float(code[i] - (1 << (kBits - 1)));
        } else {
            for (int i = 0; i < 32; ++i) out[i] = d * float(code[i]) + m;
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
