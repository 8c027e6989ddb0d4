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

// The first kDoubles values as doubles.
BITSMITH_OP VD widen(const float* from) {
#if defined(__GNUC__)
    typedef float Half __attribute__((vector_size(4 * kDoubles)));
    Half part;
    memcpy(&part, from, sizeof part);
    return __builtin_convertvector(part, VD);
#else
    return *from;
#endif
}
BITSMITH_OP VD load(const double* from) {
    VD r;
    memcpy(&r, from, sizeof r);
    return r;
}
BITSMITH_OP void store(double* to, VD x) {
    memcpy(to, &x, sizeof x);
}
BITSMITH_OP double sum(VD x) {
    double part[kDoubles], total = 0.0;
    store(part, x);
    for (double value : part) total += value;
    return total;
}

// out[i] = e^((x[i] − largest) · factor), 0 where x[i] < floor or is not a number. Returns the sum.
static double exp_sum(const float* x, float largest, double factor, float floor, int64_t count, double* out) {
    const VD peak = (double)largest - VD{}, lowest = (double)floor - VD{}, zero = {};
    VD total = {};
    int64_t i = 0;
    for (; i + W <= count; i += W) {
        if (!any_at_least(load(x + i), splat(floor))) {
            memset(out + i, 0, W * sizeof(double));
            continue;
        }
        BITSMITH_EACH for (int j = 0; j < W; j += kDoubles) {
            const VD value = widen(x + i + j);
            const VD share = exp(((value >= lowest ? value : lowest) - peak) * factor);
            const VD counted = value >= lowest ? share : zero;
            store(out + i + j, counted);
            total += counted;
        }
    }
    double rest = 0.0;
    for (; i < count; ++i) {
        float one[kDoubles] = {};
        for (float& value : one) value = x[i] >= floor ? x[i] : floor;
        double share[kDoubles];
        store(share, exp((widen(one) - peak) * factor));
        out[i] = x[i] >= floor ? share[0] : 0.0;
        rest += out[i];
    }
    return sum(total) + rest;
}

// Leaves the shares of values above `cut`, and of equal ones up to index `last`, where they reach `least`; the others
// become 0. Returns the sum.
static double keep_above(const float* x, float cut, int64_t last, double least, int64_t count, double* share) {
    const VD edge = (double)cut - VD{}, lowest = least - VD{}, zero = {};
    VD total = {};
    int64_t i = 0;
    for (; i + W <= count && i + W - 1 <= last; i += W) {
        BITSMITH_EACH for (int j = 0; j < W; j += kDoubles) {
            const VD value = widen(x + i + j), one = load(share + i + j);
            const VD likely = one >= lowest ? one : zero, kept = value >= edge ? likely : zero;
            store(share + i + j, kept);
            total += kept;
        }
    }
    double rest = 0.0;
    for (; i < count; ++i) {
        if (!(share[i] >= least && (x[i] > cut || (x[i] == cut && i <= last)))) share[i] = 0.0;
        rest += share[i];
    }
    return sum(total) + rest;
}

BITSMITH_OP int bucket_of(float x, float largest, float scale) {
    const float at = (largest - x) * scale, end = (float)(kBuckets - 1);
    return (int)(at < end ? at : end);
}
// mass[b] += shares of the values whose distance to the largest, times scale, lies in bucket b.
static void bucket_mass(const float* x, const double* share, int64_t count, float largest, float scale, double* mass) {
    constexpr int kPiece = 256;
    int32_t at[kPiece];
    for (int64_t i = 0; i < count; i += kPiece) {
        const int length = count - i < kPiece ? (int)(count - i) : kPiece;
        for (int j = 0; j < length; ++j) at[j] = bucket_of(x[i + j], largest, scale);
        for (int j = 0; j < length; ++j) mass[at[j]] += share[i + j];
    }
}
// ids of one bucket, in order. Returns how many; ids has room for `count`.
static int64_t gather_bucket(const float* x, int64_t count, float largest, float scale, int bucket, int32_t* ids) {
    constexpr int kPiece = 256;
    int32_t at[kPiece];
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += kPiece) {
        const int length = count - i < kPiece ? (int)(count - i) : kPiece;
        int some = 0;
        for (int j = 0; j < length; ++j) {
            at[j] = bucket_of(x[i + j], largest, scale);
            some |= at[j] == bucket;
        }
        if (!some) continue;
        for (int j = 0; j < length; ++j) {
            ids[found] = (int32_t)(i + j);
            found += at[j] == bucket;
        }
    }
    return found;
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
