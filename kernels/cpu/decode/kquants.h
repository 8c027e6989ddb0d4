// Q2_K … Q6_K: super-blocks of 256 values whose 16 or 8 sub-blocks have small integer scales.
#pragma once
#include "values.h"

namespace bitsmith {
namespace BITSMITH_NS {

inline void decode_q2_k(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 84) {
        const float d = half_at(in + 80), dmin = half_at(in + 82);
        for (int sub = 0; sub < 16; ++sub, out += 16) {
            const float scale = d * float(in[sub] & 15), minimum = dmin * float(in[sub] >> 4);
            const uint8_t* codes = in + 16 + sub / 8 * 32 + sub % 2 * 16;
            const int shift = sub % 8 / 2 * 2;
            for (int i = 0; i < 16; ++i) out[i] = scale * float(codes[i] >> shift & 3) - minimum;
        }
    }
}

inline void decode_q3_k(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 110) {
        const uint8_t *high = in, *packed = in + 96;
        const float d = half_at(in + 108);
        for (int sub = 0; sub < 16; ++sub, out += 16) {
            const int low4 = packed[sub % 8] >> (sub / 8 * 4) & 15, top2 = packed[8 + sub % 4] >> (sub / 4 * 2) & 3;
            const float scale = d * float((low4 | top2 << 4) - 32);
            const uint8_t* codes = in + 32 + sub / 8 * 32 + sub % 2 * 16;
            const int shift = sub % 8 / 2 * 2, bit = sub / 2, first = sub % 2 * 16;
            for (int i = 0; i < 16; ++i) {
                const int code = (codes[i] >> shift & 3) + ((high[first + i] >> bit & 1) << 2) - 4;
                out[i] = scale * float(code);
            }
        }
    }
}

// The eight 6-bit scales and minimums that Q4_K and Q5_K pack into 12 bytes.
struct SixBits {
    int scale, minimum;
};
BITSMITH_INLINE SixBits six_bits(const uint8_t* packed, int sub) {
    if (sub < 4) return {packed[sub] & 63, packed[sub + 4] & 63};
    const int low = packed[sub + 4];
    return {(low & 15) | packed[sub - 4] >> 6 << 4, (low >> 4) | packed[sub] >> 6 << 4};
}

template <int kBits>
inline void decode_q45_k(const uint8_t* in, int64_t blocks, float* out, float) {
    constexpr int kHigh = kBits == 5 ? 32 : 0;
    for (; blocks > 0; --blocks, in += 144 + kHigh) {
        const float d = half_at(in), dmin = half_at(in + 2);
        for (int sub = 0; sub < 8; ++sub, out += 32) {
            const SixBits six = six_bits(in + 4, sub);
            const float scale = d * float(six.scale), minimum = dmin * float(six.minimum);
            const uint8_t *high = in + 16, *codes = in + 16 + kHigh + sub / 2 * 32;
            const int shift = sub % 2 * 4;
            for (int i = 0; i < 32; ++i) {
                int code = codes[i] >> shift & 15;
                if (kBits == 5) code |= (high[i] >> sub & 1) << 4;
                out[i] = scale * float(code) - minimum;
            }
        }
    }
}

inline void decode_q6_k(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 210) {
        const float d = half_at(in + 208);
        for (int sub = 0; sub < 16; ++sub, out += 16) {
            const float scale = d * float(int8_t(in[192 + sub]));
            // Within 128 values: nibbles of bytes 0…63 low, then high; two more bits from 32 bytes at shifts 0, 2,
            // 4, 6.
            const int half = sub / 8, within = sub % 8;
            const uint8_t* low = in + half * 64 + within % 4 * 16;
            const uint8_t* high = in + 128 + half * 32 + within % 2 * 16;
            const int low_shift = within / 4 * 4, high_shift = within / 2 * 2;
            for (int i = 0; i < 16; ++i) {
                const int code = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
                out[i] = scale * float(code - 32);
            }
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
