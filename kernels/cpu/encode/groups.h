// Integer codes of 1 … 8 bits with one scale (and zero point) for a group of any length, sixteen groups at a time.
//
// Without search: compressed-tensors' round-to-nearest, the scale rounded to its stored type before codes are chosen.
// Symmetric scale: largest |x| / ((2^b − 1) / 2). Asymmetric: the range, widened to hold 0, over 2^b − 1 steps.
//
// A group may be a row of millions of values. Its sums are made of pieces of kSumPiece values: in order and in float32
// inside a piece, and the pieces in order in float64. So a sum does not drown, and a row that does not fit in memory
// can be summed from pieces, one a lane (`group_sums`), with the same result.
#pragma once
#include "fit.h"

namespace bitsmith {
namespace BITSMITH_NS {

// The scale as it is stored: finite, positive; 1 for a group of zeros.
BITSMITH_INLINE F round_scale(const F& scale, const F& largest, ScaleType type) {
    F stored = min(scale, splat(3.4028234663852886e38f)), smallest = as_float(splat(1));
    if (type == kF16) {
        stored = min(round_f16(scale), splat(65504.0f));
        smallest = splat(0x1p-24f);
    } else if (type == kBF16) {
        stored = min(as_float(to_bf16(scale) << 16), as_float(splat(0x7F7F0000)));
        smallest = as_float(splat(0x00010000));
    }
    stored = select(equal(stored, splat(0.0f)), smallest, stored);
    return select(equal(largest, splat(0.0f)), splat(1.0f), stored);
}

struct GroupScale {
    F scale, zero;  // zero: the signed code that stands for 0
};

BITSMITH_INLINE GroupScale plain_group(const GroupBatch& batch, const F& low, const F& largest, const F& scale) {
    const float half = float(1 << (batch.bits - 1));
    const F stored = round_scale(scale, largest, batch.scale_type);
    if (batch.symmetric) return {stored, splat(0.0f)};
    return {stored, rint(clamp(splat(-half) - low / stored, -half, half - 1.0f))};
}

// Σ w·(x/s − q + z)² in steps, and the sums for a least-squares fit of s: everything in units of s.
struct GroupSums {
    F error, xq, qq;
};
template <bool kWeighted>
BITSMITH_INLINE GroupSums piece_sums(const F* x, const F* w, int n, const GroupScale& g, float low, float high) {
    const F inverse_scale = inverse(g.scale), bottom = splat(low) - g.zero, top = splat(high) - g.zero;
    GroupSums sums = {splat(0.0f), splat(0.0f), splat(0.0f)};
    for (int i = 0; i < n; ++i) {
        const F scaled = x[i] * inverse_scale, q = rint(min(max(scaled, bottom), top));
        const F e = scaled - q, wq = weigh<kWeighted>(w, i, q);
        sums.error = sums.error + weigh<kWeighted>(w, i, e) * e;
        sums.xq = sums.xq + wq * scaled;
        sums.qq = sums.qq + wq * q;
    }
    return sums;
}

BITSMITH_INLINE void add_lanes(double sums[kLanes], const F& piece) {
    float lanes[kLanes];
    store(lanes, piece);
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] = sums[lane] + double(lanes[lane]);
}
BITSMITH_INLINE F rounded_lanes(const double sums[kLanes]) {
    float lanes[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = float(sums[lane]);
    return load(lanes);
}

template <bool kWeighted>
BITSMITH_INLINE GroupSums whole_group_sums(const F* x, const F* w, int n, const GroupScale& g, float low, float high) {
    if (n <= kSumPiece) return piece_sums<kWeighted>(x, w, n, g, low, high);
    double error[kLanes] = {}, xq[kLanes] = {}, qq[kLanes] = {};
    for (int at = 0; at < n; at += kSumPiece) {
        const int count = n - at < kSumPiece ? n - at : kSumPiece;
        const GroupSums piece = piece_sums<kWeighted>(x + at, w + (kWeighted ? at : 0), count, g, low, high);
        add_lanes(error, piece.error);
        add_lanes(xq, piece.xq);
        add_lanes(qq, piece.qq);
    }
    return {rounded_lanes(error), rounded_lanes(xq), rounded_lanes(qq)};
}

// Keeps the best of what is tried, by squared error in units of `unit`.
template <bool kWeighted>
struct GroupSearch {
    const F* x;
    const F* w;
    int n;
    float low, high;
    F unit;  // 1 / the first scale
    GroupScale best;
    F best_error, refit;

    BITSMITH_INLINE void consider(const GroupScale& g, bool first) {
        const GroupSums sums = whole_group_sums<kWeighted>(x, w, n, g, low, high);
        const F steps = g.scale * unit, error = sums.error * (steps * steps);
        const F fitted = g.scale * (sums.xq * inverse(sums.qq));
        if (first) {
            best = g;
            best_error = error;
            refit = fitted;
            return;
        }
        const M better = less(error, best_error);
        best.scale = select(better, g.scale, best.scale);
        best.zero = select(better, g.zero, best.zero);
        best_error = select(better, error, best_error);
        refit = select(better, fitted, refit);
    }
};

// How much of the range a search must keep, so that no value is clipped by more than the formats promise
// (core/formats/pack_quantized.py), the scale's rounding included.
BITSMITH_INLINE float least_share(int bits, bool symmetric) {
    if (bits == 8) return 0.99f;
    const float share = 1.0f - (symmetric ? 2.2f : 1.75f) / float(1 << (bits - 1));
    return share > 0.25f ? share : 0.25f;
}

constexpr int kScaleSteps = 14, kRangeSteps = 4, kGroupRefits = 2;

template <bool kWeighted>
BITSMITH_INLINE GroupScale search_group(const GroupBatch& batch, const F* x, const F* w, const F& low_value,
                                        const F& high_value, const F& largest, const F& first_scale) {
    const float half = float(1 << (batch.bits - 1)), codes = 2.0f * half - 1.0f;
    const float least = least_share(batch.bits, batch.symmetric);
    const F zero = splat(0.0f);
    const GroupScale plain = plain_group(batch, low_value, largest, first_scale);
    GroupSearch<kWeighted> search = {x, w, batch.n, -half, half - 1.0f, inverse(plain.scale), plain, zero, zero};
    search.consider(plain, true);
    if (batch.symmetric) {
        const float most = batch.bits == 1 ? 1.25f : (half - 0.5f) / (half - 1.0f);
        const float step = (most - least) * (1.0f / (kScaleSteps - 1));
        for (int k = 0; k < kScaleSteps; ++k) {
            const F share = splat(most - step * float(k));
            search.consider({round_scale(first_scale * share, largest, batch.scale_type), zero}, false);
        }
    } else {
        const float step = (1.0f - least) * (1.0f / (kRangeSteps - 1));
        for (int k = 1; k < kRangeSteps * kRangeSteps; ++k) {
            const F low = low_value * splat(1.0f - step * float(k / kRangeSteps));
            const F high = high_value * splat(1.0f - step * float(k % kRangeSteps));
            search.consider(plain_group(batch, low, largest, (high - low) / splat(codes)), false);
        }
    }
    for (int round = 0; round < kGroupRefits; ++round) {
        // A zero point stays where it is, so an asymmetric range moves with its scale.
        const F smallest =
            batch.symmetric ? first_scale * splat(least) : search.best.scale * splat(1.0f - (1.0f - least) * 0.125f);
        const F fitted = min(max(search.refit, smallest), first_scale * splat(1.25f));
        search.consider({round_scale(fitted, largest, batch.scale_type), search.best.zero}, false);
    }
    return search.best;
}

inline void encode_groups(GroupBatch& batch) {
    const int n = batch.n;
    F* x = reinterpret_cast<F*>(batch.scratch);
    F* w = x + n;
    load_transposed(batch.x, 0, n, x);
    const F zero = splat(0.0f);
    F low = zero, high = zero;  // the range is widened to hold 0
    for (int i = 0; i < n; ++i) {
        low = min(x[i], low);
        high = max(x[i], high);
    }
    const F largest = max(negate(low), high);
    const float half = float(1 << (batch.bits - 1)), codes = 2.0f * half - 1.0f;
    const F first_scale = batch.symmetric ? largest / splat(0.5f * codes) : (high - low) / splat(codes);
    GroupScale g = plain_group(batch, low, largest, first_scale);
    if (batch.search && batch.weighted) {
        load_weights(batch.weight, n, w);
        g = search_group<true>(batch, x, w, low, high, largest, first_scale);
    } else if (batch.search) {
        g = search_group<false>(batch, x, w, low, high, largest, first_scale);
    }
    store(batch.scale, g.scale);
    store(batch.zero, g.zero + splat(half));
    I code[4] = {splat(0), splat(0), splat(0), splat(0)};
    for (int i = 0; i < n; ++i) {
        code[i % 4] = rint_to_int(clamp(x[i] / g.scale + g.zero, -half, half - 1.0f)) + splat(int32_t(half));
        if (i % 4 == 3) {
            const I word = pack_bytes(code[0], code[1], code[2], code[3]);
            store_words(batch.codes, i - 3, &word, 1);
        } else if (i / 4 == n / 4) {
            store_u8(batch.codes, i, code[i % 4]);
        }
    }
}

// The sums of sixteen pieces, one a lane, each for a scale and a signed zero of its own.
inline void group_sums(PieceBatch& batch) {
    F* x = reinterpret_cast<F*>(batch.scratch);
    F* w = x + kSumPiece;
    if (batch.load) {
        load_transposed(batch.x, 0, batch.n, x);
        if (batch.weighted) load_transposed(batch.weight, 0, batch.n, w);
    }
    const GroupScale g = {load(batch.scale), load(batch.zero)};
    const float half = float(1 << (batch.bits - 1));
    const GroupSums sums = batch.weighted ? piece_sums<true>(x, w, batch.n, g, -half, half - 1.0f)
                                          : piece_sums<false>(x, w, batch.n, g, -half, half - 1.0f);
    store(batch.error, sums.error);
    store(batch.xq, sums.xq);
    store(batch.qq, sums.qq);
}

// Codes of neighbours that share a scale; zero: the unsigned code that stands for 0.
inline void group_codes(const float* x, int64_t n, float scale, float zero, int bits, uint8_t* codes) {
    const float half = float(1 << (bits - 1));
    const F divisor = splat(scale), signed_zero = splat(zero - half);
    for (int64_t at = 0; at < n; at += kLanes) {
        const int count = n - at < kLanes ? int(n - at) : kLanes;
        float values[kLanes] = {};
        memcpy(values, x + at, count * sizeof(float));
        int32_t lanes[kLanes];
        store(lanes,
              rint_to_int(clamp(load(values) / divisor + signed_zero, -half, half - 1.0f)) + splat(int32_t(half)));
        for (int i = 0; i < count; ++i) codes[at + i] = uint8_t(lanes[i]);
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
