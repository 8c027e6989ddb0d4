// The passes over a whole vocabulary that sampling needs.
#pragma once
#include "table.h"
#include "vec.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

#if defined(__GNUC__)
constexpr int kDoubles = W / 2;
typedef double VD __attribute__((vector_size(8 * kDoubles)));
typedef int64_t VL __attribute__((vector_size(8 * kDoubles)));
#else
constexpr int kDoubles = 1;
typedef double VD;
typedef int64_t VL;
#endif

// eˣ within 1 ulp for −700 < x ≤ 0: x = n·ln 2 + r, eʳ by its Taylor polynomial up to r¹³.
BITSMITH_OP VD exp(VD x) {
    const VD magic = 6755399441055744.0 - VD{};  // 1.5 · 2⁵²
    const VD shifted = x * 1.4426950408889634 + magic;
    const VD n = shifted - magic;
    const VD r = (x - n * 6.93147180369123816490e-01) - n * 1.90821492927058770002e-10;
    VD p = 1.0 / 6227020800.0 - VD{};
    const double inverse[] = {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
                              1.0 / 720,       1.0 / 120,      1.0 / 24,      1.0 / 6,      0.5,         1.0};
    for (double factor : inverse) p = p * r + factor;
    p = p * r + 1.0;
    VL power;
    memcpy(&power, &shifted, sizeof power);
    power = (power + 1023) << 52;
    VD scale;
    memcpy(&scale, &power, sizeof scale);
    return p * scale;
}

// The largest value; not-a-numbers are passed over, −infinity when nothing else is there.
static float largest_of(const float* x, int64_t count) {
    V peaks[4];
    BITSMITH_EACH for (int j = 0; j < 4; ++j) peaks[j] = splat(-kInfinity);
    int64_t i = 0;
    for (; i + 4 * W <= count; i += 4 * W)
        BITSMITH_EACH for (int j = 0; j < 4; ++j) peaks[j] = max(load(x + i + j * W), peaks[j]);
    float found = largest(max(max(peaks[0], peaks[1]), max(peaks[2], peaks[3])));
    for (; i < count; ++i) found = x[i] > found ? x[i] : found;
    return found;
}

// out[i] = e^((x[i] − largest) · factor), 0 where x[i] < floor or is not a number. Returns the sum.
static double exp_sum(const float* x, float largest, double factor, float floor, int64_t count, double* out) {
    double total = 0.0;
    int64_t i = 0;
    for (; i + W <= count; i += W) {
        if (!any_at_least(load(x + i), splat(floor))) {
            for (int j = 0; j < W; ++j) out[i + j] = 0.0;
            continue;
        }
        for (int j = 0; j < W; j += kDoubles) {
            double part[kDoubles];
            for (int k = 0; k < kDoubles; ++k) {
                const float value = x[i + j + k] >= floor ? x[i + j + k] : floor;
                part[k] = ((double)value - (double)largest) * factor;
            }
            VD exponent;
            memcpy(&exponent, part, sizeof exponent);
            exponent = exp(exponent);
            memcpy(part, &exponent, sizeof part);
            for (int k = 0; k < kDoubles; ++k) part[k] = x[i + j + k] >= floor ? part[k] : 0.0;
            memcpy(out + i + j, part, sizeof part);
            for (int k = 0; k < kDoubles; ++k) total += part[k];
        }
    }
    for (; i < count; ++i) {
        VD one = (x[i] >= floor ? ((double)x[i] - (double)largest) * factor : 0.0) - VD{};
        one = exp(one);
        double part[kDoubles];
        memcpy(part, &one, sizeof part);
        out[i] = x[i] >= floor ? part[0] : 0.0;
        total += out[i];
    }
    return total;
}

// ids of values ≥ floor, in order, offset by `first`. Returns how many; ids has room for `count`.
static int64_t gather_above(const float* x, int64_t count, float floor, int32_t first, int32_t* ids) {
    int64_t found = 0, i = 0;
    const V floors = splat(floor);
    for (; i + W <= count; i += W) {
        if (!any_at_least(load(x + i), floors)) continue;
        for (int j = 0; j < W; ++j) {
            ids[found] = first + (int32_t)(i + j);
            found += x[i + j] >= floor;
        }
    }
    for (; i < count; ++i) {
        ids[found] = first + (int32_t)i;
        found += x[i] >= floor;
    }
    return found;
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
