// IQ2_XXS … IQ3_S: points of a grid, d · L · level · sign.
#pragma once
#include "../grids.h"
#include "values.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Eight values from one point or two; signs: a bit each.
template <class T>
BITSMITH_INLINE void decode_grid_eight(const int* point, int signs, float scale, float* out) {
    for (int i = 0; i < 8; ++i) {
        const int level = T::level_of(T::point(point[i / T::kValues]), i % T::kValues);
        const float value = scale * grid_level<T>(level);
        out[i] = signs >> i & 1 ? -value : value;
    }
}

// The eighth sign makes the number of negative values even.
BITSMITH_INLINE int eight_signs(uint32_t seven) {
    uint32_t parity = seven ^ seven >> 4;
    parity ^= parity >> 2;
    parity ^= parity >> 1;
    return static_cast<int>(seven | (parity & 1) << 7);
}
BITSMITH_INLINE float odd_scale(float d, int half) {
    return d * float(2 * half + 1);
}
BITSMITH_INLINE uint32_t word_at(const uint8_t* in) {
    uint32_t word;
    memcpy(&word, in, 4);
    return word;
}

inline void decode_iq2_xxs(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 66) {
        for (int group = 0; group < 32; ++group, out += 8) {
            const uint8_t* const part = in + 2 + group / 4 * 8;
            const uint32_t word = word_at(part + 4);
            const int point = part[group % 4];
            decode_grid_eight<GridIq2Xxs>(&point, eight_signs(word >> (group % 4 * 7) & 127),
                                          odd_scale(half_at(in), word >> 28), out);
        }
    }
}

inline void decode_iq2_xs(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 74) {
        for (int group = 0; group < 32; ++group, out += 8) {
            const int code = in[2 + 2 * group] | in[3 + 2 * group] << 8, point = code & 511;
            const int half = in[66 + group / 4] >> (group / 2 % 2 * 4) & 15;
            decode_grid_eight<GridIq2Xs>(&point, eight_signs(code >> 9), odd_scale(half_at(in), half), out);
        }
    }
}

inline void decode_iq2_s(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 82) {
        for (int group = 0; group < 32; ++group, out += 8) {
            const int point = in[2 + group] | (in[66 + group / 4] >> (group % 4 * 2) & 3) << 8;
            const int half = in[74 + group / 4] >> (group / 2 % 2 * 4) & 15;
            decode_grid_eight<GridIq2S>(&point, in[34 + group], odd_scale(half_at(in), half), out);
        }
    }
}

inline void decode_iq3_xxs(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 98) {
        for (int group = 0; group < 32; ++group, out += 8) {
            const uint32_t word = word_at(in + 66 + group / 4 * 4);
            const int point[2] = {in[2 + 2 * group], in[3 + 2 * group]};
            decode_grid_eight<GridIq3Xxs>(point, eight_signs(word >> (group % 4 * 7) & 127),
                                          odd_scale(half_at(in), word >> 28), out);
        }
    }
}

inline void decode_iq3_s(const uint8_t* in, int64_t blocks, float* out, float) {
    for (; blocks > 0; --blocks, in += 110) {
        for (int group = 0; group < 32; ++group, out += 8) {
            const int top = in[66 + group / 4] >> (group % 4 * 2);
            const int point[2] = {in[2 + 2 * group] | (top & 1) << 8, in[3 + 2 * group] | (top >> 1 & 1) << 8};
            const int half = in[106 + group / 8] >> (group / 4 % 2 * 4) & 15;
            decode_grid_eight<GridIq3S>(point, in[74 + group], odd_scale(half_at(in), half), out);
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
