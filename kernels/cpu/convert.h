// float32 from and to the 16-bit types, value by value.
#pragma once
#include "lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

// The last values of a row go through a padded copy, so that they are treated as all others.
template <class Convert>
BITSMITH_INLINE void to_16_bits(const float* x, int64_t n, uint16_t* out, const Convert& convert) {
    for (int64_t at = 0; at < n; at += kLanes) {
        const int64_t count = n - at < kLanes ? n - at : kLanes;
        float padded[kLanes] = {};
        if (count < kLanes) memcpy(padded, x + at, count * sizeof(float));
        int32_t halves[kLanes];
        store(halves, convert(load(count < kLanes ? padded : x + at)));
        if (count == kLanes) {
            for (int i = 0; i < kLanes; ++i) out[at + i] = uint16_t(halves[i]);
        } else {
            for (int64_t i = 0; i < count; ++i) out[at + i] = uint16_t(halves[i]);
        }
    }
}
template <class Convert>
BITSMITH_INLINE void from_16_bits(const uint16_t* x, int64_t n, float* out, const Convert& convert) {
    for (int64_t at = 0; at < n; at += kLanes) {
        const int64_t count = n - at < kLanes ? n - at : kLanes;
        if (count == kLanes) {
            store(out + at, convert(load(x + at)));
        } else {
            uint16_t padded[kLanes] = {};
            memcpy(padded, x + at, count * sizeof(uint16_t));
            float values[kLanes];
            store(values, convert(load(padded)));
            memcpy(out + at, values, count * sizeof(float));
        }
    }
}

inline void row_to_f16(const float* x, int64_t n, uint16_t* out) {
    to_16_bits(x, n, out, [](const F& a) { return to_f16(a); });
}
inline void row_from_f16(const uint16_t* x, int64_t n, float* out) {
    from_16_bits(x, n, out, [](const I& a) { return from_f16(a); });
}
inline void row_to_bf16(const float* x, int64_t n, uint16_t* out) {
    to_16_bits(x, n, out, [](const F& a) { return to_bf16(a); });
}
inline void row_from_bf16(const uint16_t* x, int64_t n, float* out) {
    from_16_bits(x, n, out, [](const I& a) { return as_float(a << 16); });
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
