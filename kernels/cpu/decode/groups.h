#pragma once
#include "../lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

// scale · (code − zero): the difference is exact, so there is one rounding.
inline void decode_group(const uint8_t* codes, float scale, float zero, int64_t n, float* out) {
    for (int64_t i = 0; i < n; ++i) out[i] = (float(codes[i]) - zero) * scale;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
