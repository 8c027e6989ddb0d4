// Codes of a table of sixteen levels, one scale for a group of any length: kernels/reference/codebooks.py.
#pragma once
#include "family.h"

namespace bitsmith {
namespace BITSMITH_NS {

constexpr int kCodebookShares = 15, kCodebookRefits = 2;

BITSMITH_INLINE F codebook_reciprocal(const F& scale) {
    return splat(1.0f) / max(scale, splat(1e-38f));
}

// How many middles are below each value: the place of its level. A value halfway has the lower one.
BITSMITH_INLINE I codebook_place(const Codebook& table, const F& v) {
#if defined(__AVX512F__)
    const __m512 middles = _mm512_loadu_ps(table.middles);
    const __m512 value = (__m512)v.part[0];
    __m512i place = _mm512_setzero_si512();
    for (int step = 8; step > 0; step >>= 1) {  // place + step − 1 is the middle to look at
        const __m512i next = _mm512_add_epi32(place, _mm512_set1_epi32(step - 1));
        const __mmask16 above = _mm512_cmp_ps_mask(_mm512_permutexvar_ps(next, middles), value, _CMP_LT_OQ);
        place = _mm512_mask_add_epi32(place, above, place, _mm512_set1_epi32(step));
    }
    return I{{(NativeI)place}};
#else
    I place = splat(0);
    BITSMITH_UNROLL for (int k = 0; k < 15; ++k) {
        const M above = less(splat(table.middles[k]), v);
        BITSMITH_PARTS place.part[p] -= above.part[p];
    }
    return place;
#endif
}
BITSMITH_INLINE F codebook_level(const Codebook& table, const F& v) {
#if defined(__AVX512F__)
    const __m512i place = (__m512i)codebook_place(table, v).part[0];
    return F{{(NativeF)_mm512_permutexvar_ps(place, _mm512_loadu_ps(table.levels))}};
#else
    F level = splat(table.levels[0]);
    BITSMITH_UNROLL for (int k = 0; k < 15; ++k) {
        level = select(less(splat(table.middles[k]), v), splat(table.levels[k + 1]), level);
    }
    return level;
#endif
}

template <bool kWeighted>
BITSMITH_INLINE F search_codebook(const FamilyBatch& batch, const F& first, const F& plain) {
    F *x, *w;
    load_group<kWeighted>(batch, x, w);
    const Codebook& table = *batch.table;
    const F unit = inverse(plain);
    const M searched = less(splat(0x1.fffffep-121f), plain);
    F best = plain, refit = plain, least = splat(INFINITY);
    for (int k = -1; k < kCodebookShares + kCodebookRefits; ++k) {
        F scale = plain;
        if (k >= kCodebookShares) {
            const F held = min(max(refit, first * splat(80.0f / 100.0f)), first * splat(1.25f));
            scale = round_signed(held, batch.scale_type);
        } else if (k >= 0) {
            scale = round_signed(first * splat(float(80 + 2 * k) / 100.0f), batch.scale_type);
        }
        const F reciprocal = codebook_reciprocal(scale);
        F sums[3];  // Σ w·e², Σ w·v·t, Σ w·t²
        sum_pieces<3>(batch.n, sums, [&](F* total, int at, int count) {
            for (int i = at; i < at + count; ++i) {
                const F v = x[i] * reciprocal, t = codebook_level(table, v);
                const F e = v - t, wt = weigh<kWeighted>(w, i, t);
                total[0] = total[0] + weigh<kWeighted>(w, i, e) * e;
                total[1] = total[1] + wt * v;
                total[2] = total[2] + wt * t;
            }
        });
        const F steps = scale * unit, error = sums[0] * (steps * steps);
        const F fitted = scale * (sums[1] * inverse(sums[2]));
        if (k < 0) {
            least = error;
            refit = fitted;
            continue;
        }
        const M better = less(error, least) & searched;
        best = select(better, scale, best);
        least = select(better, error, least);
        refit = select(better, fitted, refit);
    }
    return best;
}

inline void encode_codebook(FamilyBatch& batch) {
    const Codebook& table = *batch.table;
    F largest = splat(0.0f);
    visit_transposed(batch.x, batch.n, [&](const F& x) { largest = max(abs(x), largest); });
    const F first = largest / splat(table.largest);
    F scale = round_signed(first, batch.scale_type);
    if (batch.search)
        scale =
            batch.weighted ? search_codebook<true>(batch, first, scale) : search_codebook<false>(batch, first, scale);
    float reciprocal[kLanes];
    store(batch.scale, scale);
    store(reciprocal, codebook_reciprocal(scale));
    for (int lane = 0; lane < kLanes; ++lane) {
        const F factor = splat(reciprocal[lane]);
        uint8_t* codes = batch.codes[lane];
        row_to_bytes(batch.x[lane], batch.n, codes, [&](const F& x) {
            const I place = codebook_place(table, x * factor);
#if defined(__AVX512F__)
            return I{{(NativeI)_mm512_permutexvar_epi32((__m512i)place.part[0], _mm512_loadu_si512(table.order))}};
#else
            return place;
#endif
        });
#if !defined(__AVX512F__)
        if (table.ascending) continue;
        for (int i = 0; i < batch.n; ++i) codes[i] = uint8_t(table.order[codes[i]]);
#endif
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
