// Sums over one row. Value i is added to lane i mod 16 and the lanes are added in halves, so that the order of the
// float64 additions, and with it every bit, is the same everywhere. Loops over lanes are the compiler's to vectorise.
#pragma once
#include "lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

BITSMITH_INLINE double sum_lanes(double lanes[kLanes]) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

BITSMITH_INLINE double infinity() {
    const uint64_t word = 0x7FF0000000000000u;
    double value;
    memcpy(&value, &word, 8);
    return value;
}

BITSMITH_INLINE bool is_finite(float a) {
    uint32_t word;
    memcpy(&word, &a, 4);
    return (word & 0x7F800000u) != 0x7F800000u;
}

// For count ≤ 16 values: the source and the difference, both 0 where the source is not finite. NaN differs by Inf.
BITSMITH_INLINE int differences(const float* source, const float* other, int count, double x[kLanes],
                                double e[kLanes]) {
    int nonfinite = 0;
    for (int i = 0; i < count; ++i) {
        const bool finite = is_finite(source[i]);
        nonfinite += !finite;
        const double value = finite ? double(source[i]) : 0.0, difference = finite ? double(other[i]) - value : 0.0;
        x[i] = value;
        e[i] = difference == difference ? difference : infinity();
    }
    return nonfinite;
}

// NaN and Inf are refused before anything is encoded.
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

inline RowError row_error(const float* source, const float* other, int64_t n) {
    double squares[kLanes] = {}, error_squares[kLanes] = {}, largest[kLanes] = {}, x[kLanes], e[kLanes];
    RowError sums = {0.0, 0.0, 0.0, 0};
    for (int64_t at = 0; at < n; at += kLanes) {
        if (n - at < kLanes) {
            for (int i = 0; i < kLanes; ++i) x[i] = e[i] = 0.0;
            sums.nonfinite += differences(source + at, other + at, int(n - at), x, e);
        } else {
            sums.nonfinite += differences(source + at, other + at, kLanes, x, e);
        }
        for (int i = 0; i < kLanes; ++i) {
            const double size = e[i] < 0.0 ? -e[i] : e[i];
            squares[i] = squares[i] + x[i] * x[i];
            error_squares[i] = error_squares[i] + e[i] * e[i];
            largest[i] = largest[i] > size ? largest[i] : size;
        }
    }
    sums.source_squares = sum_lanes(squares);
    sums.error_squares = sum_lanes(error_squares);
    for (int i = 0; i < kLanes; ++i) sums.max_error = sums.max_error > largest[i] ? sums.max_error : largest[i];
    return sums;
}

inline void row_histogram(const float* source, const float* other, int64_t n, double limit, int bins, int64_t* counts) {
    const double bins_a_unit = double(bins) / (2.0 * limit), last = double(bins - 1);
    for (int64_t at = 0; at < n; at += kLanes) {
        const int count = n - at < kLanes ? int(n - at) : kLanes;
        double x[kLanes], e[kLanes];
        int32_t bin[kLanes];
        differences(source + at, other + at, count, x, e);
        for (int i = 0; i < count; ++i) {
            const double place = (e[i] + limit) * bins_a_unit, low = place > 0.0 ? place : 0.0;
            bin[i] = int32_t(low < last ? low : last);
        }
        for (int i = 0; i < count; ++i)
            if (is_finite(source[at + i])) ++counts[bin[i]];
    }
}

// Largest magnitude, lowest and highest of the finite values; 0 where there are none.
inline RowScan row_scan(const float* x, int64_t n) {
    const F inf = as_float(splat(0x7F800000));
    F low = inf, high = negate(inf);
    int64_t nonfinite = 0;
    for (int64_t at = 0; at < n; at += kLanes) {
        const int64_t count = n - at < kLanes ? n - at : kLanes;
        float padded[kLanes];
        if (count < kLanes)
            for (int i = 0; i < kLanes; ++i) padded[i] = x[at + (i < count ? i : 0)];
        const F a = load(count < kLanes ? padded : x + at);
        const M finite = less(abs(a), inf);  // not for NaN either
        low = min(select(finite, a, low), low);
        high = max(select(finite, a, high), high);
        int32_t lanes[kLanes], bad = 0;
        store(lanes, select(finite, splat(0), splat(1)));
        for (int i = 0; i < kLanes; ++i) bad += i < count ? lanes[i] : 0;
        nonfinite += bad;
    }
    float lows[kLanes], highs[kLanes];
    store(lows, low);
    store(highs, high);
    for (int i = 1; i < kLanes; ++i) {
        lows[0] = lows[i] < lows[0] ? lows[i] : lows[0];
        highs[0] = highs[i] > highs[0] ? highs[i] : highs[0];
    }
    if (nonfinite == n) return {0.0f, 0.0f, 0.0f, nonfinite};
    const float down = lows[0] < 0.0f ? -lows[0] : lows[0], up = highs[0] < 0.0f ? -highs[0] : highs[0];
    return {down > up ? down : up, lows[0], highs[0], nonfinite};
}

// max |other − source| / max(|source|, floor) over n values whose source is finite. 0/0 is 0; NaN is an infinite error.
inline float group_error_ratio(const float* source, const float* other, int64_t n, float floor) {
    const F inf = as_float(splat(0x7F800000)), zero = splat(0.0f);
    F largest = zero, error = zero;
    for (int64_t at = 0; at < n; at += kLanes) {
        const int64_t count = n - at < kLanes ? n - at : kLanes;
        float a[kLanes] = {}, b[kLanes] = {};
        if (count < kLanes) {
            memcpy(a, source + at, count * sizeof(float));
            memcpy(b, other + at, count * sizeof(float));
        }
        const F x = load(count < kLanes ? a : source + at), y = load(count < kLanes ? b : other + at);
        const M finite = less(abs(x), inf);
        const F e = abs(y - x), seen = select(equal(e, e), e, inf);
        largest = max(select(finite, abs(x), zero), largest);
        error = max(select(finite, seen, zero), error);
    }
    float sizes[kLanes], errors[kLanes];
    store(sizes, largest);
    store(errors, error);
    for (int i = 1; i < kLanes; ++i) {
        sizes[0] = sizes[i] > sizes[0] ? sizes[i] : sizes[0];
        errors[0] = errors[i] > errors[0] ? errors[i] : errors[0];
    }
    const float size = sizes[0] > floor ? sizes[0] : floor;
    return errors[0] == 0.0f ? 0.0f : errors[0] / size;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
