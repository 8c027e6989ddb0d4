// 8-bit floats, with and without a scale: kernels/reference/float8.py. OCP E4M3 has no infinity, E5M2 is as IEEE 754.
#pragma once
#include "encode/family.h"

namespace bitsmith {
namespace BITSMITH_NS {

template <int kMantissa, int kBias>
struct MiniFloat {
    static constexpr int kShift = 23 - kMantissa;
    // Nearest code, ties to even, of a magnitude that does not overflow.
    static BITSMITH_INLINE I nearest(const F& size) {
        constexpr float kLeastNormal = kBias == 7 ? 0x1p-6f : 0x1p-14f, kSteps = kBias == 7 ? 0x1p9f : 0x1p16f;
        const I word = bits(size);
        const I up = word + splat((1 << (kShift - 1)) - 1) + ((word >> kShift) & splat(1));
        const I normal = (up >> kShift) - splat((127 - kBias) << kMantissa);
        // A subnormal may round up to the least normal number, whose code is the next.
        const I subnormal = rint_to_int(min(size, splat(kLeastNormal)) * splat(kSteps));
        return select(less(size, splat(kLeastNormal)), subnormal, normal);
    }
    // The value of a finite code without sign.
    static BITSMITH_INLINE F value(const I& code) {
        constexpr float kStep = kBias == 7 ? 0x1p-9f : 0x1p-16f;
        const F normal = as_float((code << kShift) + splat((127 - kBias) << 23));
        return select(less(code, splat(1 << kMantissa)), to_float(code) * splat(kStep), normal);
    }
};
struct E4m3 : MiniFloat<3, 7> {
    static constexpr float kLargest = 448.0f;
    static BITSMITH_INLINE I round(const F& size) { return nearest(min(size, splat(kLargest))); }
    static BITSMITH_INLINE F decode(const I& code) {
        return select(equal(code, splat(0x7F)), as_float(splat(0x7FC00000)), value(code));
    }
};
struct E5m2 : MiniFloat<2, 15> {
    static constexpr float kLargest = 57344.0f;
    static BITSMITH_INLINE I round(const F& size) {
        return select(less(size, splat(61440.0f)), nearest(size), splat(0x7C));  // from there on 2^16 is nearest
    }
    static BITSMITH_INLINE F decode(const I& code) {
        const F special = select(equal(code, splat(0x7C)), splat(INFINITY), as_float(splat(0x7FC00000)));
        return select(less(code, splat(0x7C)), value(code), special);
    }
};

template <class Type>
BITSMITH_INLINE I to_float8(const F& x) {
    const F size = abs(x);
    const I code = select(less(splat(0x7F800000), bits(size)), splat(0x7F), Type::round(size));
    return code | ((bits(x) >> 24) & splat(0x80));
}
template <class Type>
BITSMITH_INLINE F from_float8(const I& code) {
    return as_float(bits(Type::decode(code & splat(0x7F))) | ((code & splat(0x80)) << 24));
}

template <class Type>
inline void row_to_float8(const float* x, int64_t n, uint8_t* out) {
    row_to_bytes(x, n, out, [](const F& a) { return to_float8<Type>(a); });
}
template <class Type>
inline void row_from_float8(const uint8_t* codes, int64_t n, float* out) {
    row_from_bytes(codes, n, out, [](const I& code) { return from_float8<Type>(code); });
}
template <class Type>
inline void encode_float8(const float* x, int64_t n, float scale, uint8_t* out) {
    const F divisor = splat(scale);
    row_to_bytes(x, n, out,
                 [&](const F& a) { return to_float8<Type>(clamp(a / divisor, -Type::kLargest, Type::kLargest)); });
}
template <class Type>
inline void decode_float8(const uint8_t* codes, int64_t n, float scale, float* out) {
    const F factor = splat(scale);
    row_from_bytes(codes, n, out, [&](const I& code) { return from_float8<Type>(code) * factor; });
}

// E2M1 codes of x · factor, the nearest, ties to the even code; 6 where it is larger. There is no −0.
inline void encode_e2m1(const float* x, int64_t n, float factor, uint8_t* out) {
    const F by = splat(factor), two = splat(2.0f), four = splat(4.0f), half = splat(0.5f);
    row_to_bytes(x, n, out, [&](const F& value) {
        const F a = min(abs(value) * by, splat(8.0f));
        // Steps of ½ below 2, of 1 below 4, of 2 above: the least of three lines, each rounded.
        const F nearest = min(min(rint(a + a), rint(a) + two), min(rint(a * half) + four, splat(7.0f)));
        const I code = rint_to_int(nearest);
        return select(equal(code, splat(0)), code, code | ((bits(value) >> 28) & splat(8)));
    });
}

// round(x · factor + zero), held to low … high, plus shift.
inline void round_codes(const float* x, int64_t n, const RoundedRange& range, float factor, float zero,
                        uint8_t* codes) {
    const F by = splat(factor), from = splat(zero);
    const I shift = splat(range.shift);
    row_to_bytes(x, n, codes,
                 [&](const F& a) { return rint_to_int(clamp(a * by + from, range.low, range.high)) + shift; });
}

// The largest |x| of a rectangle.
inline float tile_amax(const float* x, int64_t rows, int64_t stride, int64_t columns) {
    F largest = splat(0.0f);
    float lanes[kLanes];
    for (int64_t row = 0; row < rows; ++row, x += stride) {
        int64_t at = 0;
        for (; at + kLanes <= columns; at += kLanes) largest = max(abs(load(x + at)), largest);
        if (at == columns) continue;
        float padded[kLanes] = {};
        memcpy(padded, x + at, (columns - at) * sizeof(float));
        largest = max(abs(load(padded)), largest);
    }
    store(lanes, largest);
    for (int i = 1; i < kLanes; ++i) lanes[0] = lanes[i] > lanes[0] ? lanes[i] : lanes[0];
    return lanes[0];
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
