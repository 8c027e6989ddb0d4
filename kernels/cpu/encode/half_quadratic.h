// Half-quadratic quantization with a real zero point: kernels/reference/half_quadratic.py.
#pragma once
#include "family.h"

namespace bitsmith {
namespace BITSMITH_NS {

// a ^ exponent for normal a > 0.
BITSMITH_INLINE F power(const F& a, const F& exponent) {
    constexpr float kLog[4] = {float(2.8853900817779268 / 1), float(2.8853900817779268 / 3),
                               float(2.8853900817779268 / 5), float(2.8853900817779268 / 7)};
    constexpr float kExp[7] = {float(1.0 / 720), float(1.0 / 120), float(1.0 / 24), float(1.0 / 6), 0.5f, 1.0f, 1.0f};
    const I word = bits(a);
    F m = as_float((word & splat(0x007FFFFF)) | splat(0x3F800000));
    const M high = less(splat(1.4142135f), m);
    m = select(high, m * splat(0.5f), m);
    const I e = (word >> 23) - select(high, splat(126), splat(127));
    const F t = (m - splat(1.0f)) / (m + splat(1.0f)), t2 = t * t;
    const F log = t * (splat(kLog[0]) + t2 * (splat(kLog[1]) + t2 * (splat(kLog[2]) + t2 * splat(kLog[3]))));
    const F y = clamp(exponent * (to_float(e) + log), -126.0f, 126.0f);
    const F whole = rint(y), z = (y - whole) * splat(0.6931471805599453f);
    F value = splat(kExp[0]);
    BITSMITH_UNROLL for (int k = 1; k < 7; ++k) value = value * z + splat(kExp[k]);
    return value * as_float((rint_to_int(whole) + splat(127)) << 23);
}

inline void half_quadratic(FamilyBatch& batch) {
    F *x, *w;
    load_group<false>(batch, x, w);
    const F none = splat(0.0f), one = splat(1.0f), top = splat(float((1 << batch.bits) - 1));
    F low = splat(kLargestFloat), high = splat(-kLargestFloat);
    for (int i = 0; i < batch.n; ++i) {
        low = min(x[i], low);
        high = max(x[i], high);
    }
    const F span = min(high - low, splat(kLargestFloat));
    const F factor = select(equal(span, none), one, clamp(top * (one / span), 0x1p-126f, 0x1p126f));
    F zero = (none - low) * factor;
    if (batch.round_zero) zero = rint_any(zero);
    const F scale = one / factor, share = splat(1.0f / float(batch.n)), exponent = splat(batch.exponent - 1.0f);
    for (int k = 0; k < batch.iterations; ++k) {
        const F inverse_beta = splat(batch.inverse_betas[k]), limit = splat(batch.limits[k]);
        F total = none, largest = none;
        for (int i = 0; i < batch.n; ++i) {
            const F q = rint(min(max(x[i] * factor + zero, none), top));
            const F e = x[i] - (q - zero) * scale, size = abs(e);
            largest = max(size, largest);
            F inlier = x[i];
            if (any(less(limit, size))) {
                F outlier = size - power(max(size, splat(0x1p-126f)), exponent) * inverse_beta;
                outlier = as_signed(max(outlier, none), e);
                inlier = x[i] - outlier;
            }
            total = total + (q - inlier * factor);
        }
        const F next = total * share;
        const F kept = select(less(abs(next), splat(INFINITY)), next, zero);
        // Where the zero point stays, and no error will be an outlier to the last β, all further iterations are alike.
        const M still = equal(kept, zero) & less(largest, splat(batch.limits[batch.iterations - 1]));
        zero = kept;
        if (!any(equal(select(still, none, one), one))) break;
    }
    store(batch.scale, scale);
    store(batch.offset, zero);
    float factors[kLanes];
    store(factors, factor);
    for (int lane = 0; lane < kLanes; ++lane) {
        const F by = splat(factors[lane]), from = splat(batch.offset[lane]);
        row_to_bytes(batch.x[lane], batch.n, batch.codes[lane],
                     [&](const F& a) { return rint_to_int(min(max(a * by + from, none), top)); });
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
