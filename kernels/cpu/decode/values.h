// Scalar pieces of the decoders. They are written one block after another; the compiler vectorises the inner loops.
// Every value is the product (and sum) that ggml's decoder forms, in its order, so the bits are the same.
#pragma once
#include "../lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

BITSMITH_INLINE float half_at(const uint8_t* in) {
    uint16_t half;
    memcpy(&half, in, 2);
#if defined(__F16C__)
    return _cvtsh_ss(half);
#else
    const uint32_t sign = uint32_t(half & 0x8000) << 16, exponent = half & 0x7C00,
                   shifted = uint32_t(half & 0x7FFF) << 13;
    uint32_t word;
    if (exponent == 0) {
        const float subnormal = float(half & 0x3FF) * (1.0f / 16777216.0f);  // exact
        memcpy(&word, &subnormal, 4);
    } else if (exponent == 0x7C00) {
        word = shifted | 0x7F800000 | (half & 0x3FF ? 0x00400000 : 0);
    } else {
        word = shifted + (112u << 23);
    }
    word |= sign;
    float value;
    memcpy(&value, &word, 4);
    return value;
#endif
}

// E2M1 and IQ4 levels are small integers, E2M1's doubled; the scale takes the half back.
constexpr int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

}  // namespace BITSMITH_NS
}  // namespace bitsmith
