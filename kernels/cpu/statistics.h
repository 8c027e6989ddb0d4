// Sums over one row. Value i is added to lane i mod 16 and the lanes are added in halves, so that the order of the
// additions, and with it every bit, is the same everywhere. Loops over lanes are the compiler's to vectorise.
#pragma once
#include "lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

BITSMITH_INLINE double sum_lanes(double lanes[kLanes]) {
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

// Up to 16 values: the source and the difference in float32, both 0 where the source is not finite or there is no more.
// A difference that is NaN counts as Inf.
struct Difference {
    F x, e;
    I bad;  // 1 where a value of the source is not finite
};
BITSMITH_INLINE Difference difference(const float* source, const float* other, int64_t count) {
    float a[kLanes] = {}, b[kLanes] = {};
    if (count < kLanes) {
        memcpy(a, source, count * sizeof(float));
        memcpy(b, other, count * sizeof(float));
    }
    const F x = load(count < kLanes ? a : source), y = load(count < kLanes ? b : other);
    const F inf = as_float(splat(0x7F800000)), zero = splat(0.0f), e = y - x;
    const M finite = less(abs(x), inf);  // not for NaN either
    return {select(finite, x, zero), select(finite, select(equal(e, e), e, inf), zero),
            select(finite, splat(0), splat(1))};
}

// NaN and Inf are refused before anything is encoded.
inline bool all_finite(const float* x, int64_t n) {
    // An exponent of all ones and one more is the sign bit.
    const I magnitude = splat(0x7FFFFFFF), one = splat(0x00800000);
    I carried = splat(0);
    int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes) carried = carried | ((bits(load(x + i)) & magnitude) + one);
    bool finite = !any(less(carried, splat(0)));
    for (; i < n; ++i) {
        uint32_t word;
        memcpy(&word, x + i, 4);
        finite = finite && (word & 0x7F800000u) != 0x7F800000u;
    }
    return finite;
}

// Sums of any values, in float64.
inline RowError wide_row_error(const float* source, const float* other, int64_t n) {
    double squares[kLanes] = {}, error_squares[kLanes] = {};
    F largest = splat(0.0f);
    I bad = splat(0);
    for (int64_t at = 0; at < n; at += kLanes) {
        const Difference d = difference(source + at, other + at, n - at);
        largest = max(abs(d.e), largest);
        bad = bad + d.bad;
        float x[kLanes], e[kLanes];
        store(x, d.x);
        store(e, d.e);
        for (int i = 0; i < kLanes; ++i) squares[i] = squares[i] + double(x[i]) * double(x[i]);
        for (int i = 0; i < kLanes; ++i) error_squares[i] = error_squares[i] + double(e[i]) * double(e[i]);
    }
    float sizes[kLanes];
    int32_t bads[kLanes];
    store(sizes, largest);
    store(bads, bad);
    RowError sums = {sum_lanes(squares), sum_lanes(error_squares), 0.0, 0};
    for (int i = 0; i < kLanes; ++i) {
        sums.max_error = sums.max_error > sizes[i] ? sums.max_error : double(sizes[i]);
        sums.nonfinite += bads[i];
    }
    return sums;
}

// Ordinary values: eight squares of a lane are added in float32, of which conversions to float64 are half the work.
// False where that could overflow, lose more than the last bits to underflow, or meets a value that is not finite.
constexpr int kRun = 8;
constexpr double kLeast = 0x1p-100;
inline bool plain_row_error(const float* source, const float* other, int64_t n, RowError& sums) {
    double squares[kLanes] = {}, error_squares[kLanes] = {};
    F largest = splat(0.0f);
    for (int64_t at = 0; at < n; at += kRun * kLanes) {
        F square = splat(0.0f), error = splat(0.0f);
        const int64_t stop = n - at < kRun * kLanes ? n : at + kRun * kLanes;
        for (int64_t i = at; i < stop; i += kLanes) {
            float a[kLanes] = {}, b[kLanes] = {};
            const int64_t count = stop - i;
            if (count < kLanes) {
                memcpy(a, source + i, count * sizeof(float));
                memcpy(b, other + i, count * sizeof(float));
            }
            const F x = load(count < kLanes ? a : source + i), e = load(count < kLanes ? b : other + i) - x;
            square = square + x * x;
            error = error + e * e;
            largest = max(abs(e), largest);
        }
        float x[kLanes], e[kLanes];
        store(x, square);
        store(e, error);
        for (int i = 0; i < kLanes; ++i) squares[i] = squares[i] + double(x[i]);
        for (int i = 0; i < kLanes; ++i) error_squares[i] = error_squares[i] + double(e[i]);
    }
    sums = {sum_lanes(squares), sum_lanes(error_squares), double(largest_lane(largest)), 0};
    const double inf = double(INFINITY);
    const bool exact = sums.max_error == 0.0 && sums.error_squares == 0.0;
    return sums.source_squares >= kLeast && sums.source_squares < inf && (exact || sums.error_squares >= kLeast) &&
           sums.error_squares < inf;
}

inline RowError row_error(const float* source, const float* other, int64_t n) {
    RowError sums;
    return plain_row_error(source, other, n, sums) ? sums : wide_row_error(source, other, n);
}

BITSMITH_INLINE I bin_of(const Difference& d, float limit, int bins) {
    const F place = (d.e + splat(limit)) * splat(float(bins) / (2.0f * limit));
    const I bin = to_int(min(max(place, splat(0.0f)), splat(float(bins - 1))));
    return select(equal(d.bad, splat(0)), bin, splat(bins));
}

// Two values a count: counting is as slow as memory answers to a read and a write of the same place.
inline void row_histogram(const float* source, const float* other, int64_t n, float limit, int bins, uint32_t* pairs,
                          int64_t* counts) {
    int64_t at = 0;
    const int side = bins + 1;
    if (pairs) {
        int32_t places[kLanes];
        for (; at + 2 * kLanes <= n; at += 2 * kLanes) {
            const I first = bin_of(difference(source + at, other + at, kLanes), limit, bins);
            const I second = bin_of(difference(source + at + kLanes, other + at + kLanes, kLanes), limit, bins);
            store(places, first * splat(side) + second);
            BITSMITH_UNROLL for (int i = 0; i < kLanes; ++i)++ pairs[places[i]];
        }
    }
    for (; at < n; at += kLanes) {
        int32_t places[kLanes];
        store(places, bin_of(difference(source + at, other + at, n - at), limit, bins));
        const int count = n - at < kLanes ? int(n - at) : kLanes;
        for (int i = 0; i < count; ++i) ++counts[places[i]];
    }
}

// Largest magnitude, lowest and highest of the finite values; 0 where there are none.
inline RowScan row_scan(const float* x, int64_t n) {
    const F inf = as_float(splat(0x7F800000));
    const I zero = splat(0), one = splat(1);
    F low = inf, high = negate(inf);
    I bad = zero;
    for (int64_t at = 0; at < n; at += kLanes) {
        const int64_t count = n - at < kLanes ? n - at : kLanes;
        float padded[kLanes];
        int32_t counted[kLanes];
        if (count < kLanes) {
            for (int i = 0; i < kLanes; ++i) padded[i] = x[at + (i < count ? i : 0)];
            for (int i = 0; i < kLanes; ++i) counted[i] = i < count;
        }
        const F a = load(count < kLanes ? padded : x + at);
        const M finite = less(abs(a), inf);  // not for NaN either
        low = min(select(finite, a, low), low);
        high = max(select(finite, a, high), high);
        bad = bad + select(finite, zero, count < kLanes ? load(counted) : one);
    }
    float lows[kLanes], highs[kLanes];
    int32_t bads[kLanes];
    store(lows, low);
    store(highs, high);
    store(bads, bad);
    int64_t nonfinite = 0;
    for (int i = 0; i < kLanes; ++i) nonfinite += bads[i];
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
    F largest = splat(0.0f), error = splat(0.0f);
    for (int64_t at = 0; at < n; at += kLanes) {
        const Difference d = difference(source + at, other + at, n - at);
        largest = max(abs(d.x), largest);
        error = max(abs(d.e), error);
    }
    const float most = largest_lane(largest), worst = largest_lane(error);  // no lane is NaN
    return worst == 0.0f ? 0.0f : worst / (most > floor ? most : floor);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
