// NaN and Inf are refused before anything is encoded.
#pragma once
#include "lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

inline bool all_finite(const float* x, int64_t n) {
    const I exponent = splat(0x7F800000);
    I largest = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) largest = max(largest, bits(load(x + i)) & exponent);
    bool finite = !any(equal(largest, exponent));
    for (; i < n; ++i) {
        uint32_t word;
        memcpy(&word, x + i, 4);
        finite = finite && (word & 0x7F800000u) != 0x7F800000u;
    }
    return finite;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
