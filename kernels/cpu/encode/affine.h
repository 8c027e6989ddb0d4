// Codes with a scale and an offset of any sign for a group of any length: kernels/reference/affine.py.
#pragma once
#include "family.h"

namespace bitsmith {
namespace BITSMITH_NS {

constexpr int kAffineSteps = 4, kAffineRefits = 3;

struct AffinePair {
    F scale, offset;
};

// MLX's scale and offset before they are rounded. Ranges beyond float32's largest value stay finite.
BITSMITH_INLINE AffinePair plain_affine(const Range& range, const F& top) {
    const F largest = splat(kLargestFloat), zero = splat(0.0f), span = range.high - range.low;
    F scale = select(less(largest, span), min(range.high / top - range.low / top, largest), span / top);
    scale = max(scale, splat(1e-7f));
    const M from_low = less(abs(range.high), abs(range.low));
    scale = select(from_low, scale, negate(scale));
    const F edge = select(from_low, range.low, range.high);
    const F code = rint_any(clamp(edge / scale, -kLargestFloat, kLargestFloat));
    const M none = equal(code, zero);
    return {select(none, scale, edge / code), select(none, zero, edge)};
}

// Keeps the best scale and offset of those tried, as they are stored.
template <bool kWeighted>
struct AffineTries {
    const FamilyBatch& batch;
    const F *x, *w;
    F top, low, high, room, unit;
    AffinePair best;
    F least, sums[6];  // of the best: Σ w·e², Σ w·e, Σ w·e·q, Σ w·q, Σ w·q², Σ w, e = (x − offset) / scale − q

    BITSMITH_INLINE void consider(const AffinePair& line, bool first) {
        const F reciprocal = inverse(line.scale), end = top, offset = line.offset, zero = splat(0.0f);
        const F *values = x, *weights = w;
        F now[6];
        sum_pieces<6>(batch.n, now, [&](F* total, int at, int count) {
            for (int i = at; i < at + count; ++i) {
                const F scaled = (values[i] - offset) * reciprocal, q = rint(min(max(scaled, zero), end));
                const F e = scaled - q, we = weigh<kWeighted>(weights, i, e), wq = weigh<kWeighted>(weights, i, q);
                total[0] = total[0] + we * e;
                total[1] = total[1] + we;
                total[2] = total[2] + we * q;
                total[3] = total[3] + wq;
                total[4] = total[4] + wq * q;
                total[5] = total[5] + weigh<kWeighted>(weights, i, splat(1.0f));
            }
        });
        const F steps = line.scale * unit, error = now[0] * (steps * steps);
        if (first) {
            best = line;
            least = error;
            for (int k = 0; k < 6; ++k) sums[k] = now[k];
            return;
        }
        const M better = less(error, least);
        best.scale = select(better, line.scale, best.scale);
        best.offset = select(better, line.offset, best.offset);
        least = select(better, error, least);
        for (int k = 0; k < 6; ++k) sums[k] = select(better, now[k], sums[k]);
    }

    BITSMITH_INLINE void try_range(int near, int far) {
        const F part = room * splat(1.0f / float(kAffineSteps - 1));
        const F start = low + part * splat(float(near)), stop = high - part * splat(float(far));
        const M up = less(splat(0.0f), best.scale);
        const F offset = round_signed(select(up, start, stop), batch.scale_type);
        const F end = select(up, stop, start);
        consider({round_signed((end - offset) / top, batch.scale_type), offset}, false);
    }

    BITSMITH_INLINE void try_fit() {
        const F &e = sums[1], &eq = sums[2], &q = sums[3], &qq = sums[4], &total = sums[5];
        const F determinant = total * qq - q * q;
        const M solvable = less(splat(1e-5f) * total * qq, determinant), up = less(splat(0.0f), best.scale);
        const F moved = select(solvable, (qq * e - q * eq) * inverse(determinant), splat(0.0f));
        const F low_end = low + room, high_end = high - room;
        F offset = best.offset + best.scale * moved;
        offset = round_signed(select(up, min(offset, low_end), max(offset, high_end)), batch.scale_type);
        const F shift = (offset - best.offset) * inverse(best.scale);
        F scale = best.scale + best.scale * ((eq - shift * q) * inverse(qq));
        const F shortest = (select(up, high_end, low_end) - offset) / top;
        scale = select(up, max(scale, shortest), min(scale, shortest));
        consider({round_signed(scale, batch.scale_type), offset}, false);
    }
};

template <bool kWeighted>
BITSMITH_INLINE AffinePair search_affine_pair(const FamilyBatch& batch, const Range& range, const F& top,
                                              const AffinePair& plain) {
    F *x, *w;
    load_group<kWeighted>(batch, x, w);
    const float kept = 1.0f - 1.75f / float(1 << (batch.bits - 1));
    const float least = batch.bits == 8 ? 0.99f : kept > 0.25f ? kept : 0.25f;
    const F room = (range.high - range.low) * splat(0.5f * (1.0f - least)), none = splat(0.0f);
    AffineTries<kWeighted> tries = {batch, x,    w, top, range.low, range.high, room, inverse(abs(plain.scale)),
                                    plain, none, {}};
    tries.consider(plain, true);
    for (int k = 0; k < kAffineSteps * kAffineSteps; ++k) tries.try_range(k / kAffineSteps, k % kAffineSteps);
    for (int k = 0; k < kAffineRefits; ++k) tries.try_fit();
    return tries.best;
}

inline void encode_affine(FamilyBatch& batch) {
    const Range range = group_range(batch);
    const F top = splat(float((1 << batch.bits) - 1));
    AffinePair exact = plain_affine(range, top);
    AffinePair stored = {round_signed(exact.scale, batch.scale_type), round_signed(exact.offset, batch.scale_type)};
    if (batch.search) {
        stored = batch.weighted ? search_affine_pair<true>(batch, range, top, stored)
                                : search_affine_pair<false>(batch, range, top, stored);
        exact = stored;
    }
    store(batch.scale, stored.scale);
    store(batch.offset, stored.offset);
    float scales[kLanes], offsets[kLanes];
    store(scales, exact.scale);
    store(offsets, exact.offset);
    for (int lane = 0; lane < kLanes; ++lane) {
        const F scale = splat(scales[lane]), offset = splat(offsets[lane]), zero = splat(0.0f);
        row_to_bytes(batch.x[lane], batch.n, batch.codes[lane],
                     [&](const F& x) { return rint_to_int(min(max((x - offset) / scale, zero), top)); });
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
