// IQ4_NL and IQ4_XS: four-bit codes into sixteen unevenly spaced levels.
#pragma once
#include "../decode/values.h"
#include "codes.h"
#include "search_block.h"
#include "search_symmetric.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Values above this get level k + 1 or more; halfway, the lower level is taken.
constexpr float iq4_halfway(int k) {
    return 0.5f * float(kIq4Levels[k] + kIq4Levels[k + 1]);
}

// The nearest level, fifteen comparisons in general. Two tables do with fewer: the value leads to a threshold, and on
// which side of it the value lies, to the level.
#if defined(__AVX512F__)
struct Iq4Tables {
    alignas(64) float threshold[32], below[32], above[32];
};
// Entry k (mod 32) is for values that are nearest to 8 · k. No two thresholds lie so near to the same multiple of
// eight.
constexpr Iq4Tables make_iq4_tables() {
    Iq4Tables tables = {};
    for (int k = -15; k < 16; ++k) {
        int level = 0;  // of the thresholds below, and perhaps one in the middle
        while (level < 15 && iq4_halfway(level) < 8.0f * float(k) - 4.0f) ++level;
        const bool one = level < 15 && iq4_halfway(level) < 8.0f * float(k) + 4.0f;
        tables.threshold[k & 31] = one ? iq4_halfway(level) : 1000.0f;
        tables.below[k & 31] = kIq4Levels[level];
        tables.above[k & 31] = kIq4Levels[one ? level + 1 : level];
    }
    return tables;
}
constexpr Iq4Tables kIq4Tables = make_iq4_tables();

constexpr float kIq4Inside = 0.0f;
template <bool kHeld>
BITSMITH_INLINE F iq4_level(const F& scaled) {
    const F held = clamp(scaled, -120.0f, 120.0f);
    const __m512i at = (__m512i)bits(held + splat(8.0f * kRoundMagic)).part[0];  // 8 · k, k in the low bits
    const auto look = [&at](const float* table) {
        return _mm512_permutex2var_ps(_mm512_load_ps(table), at, _mm512_load_ps(table + 16));
    };
    const F threshold = {{(NativeF)look(kIq4Tables.threshold)}};
    return select(less(threshold, held), F{{(NativeF)look(kIq4Tables.above)}}, F{{(NativeF)look(kIq4Tables.below)}});
}
#elif defined(__AVX2__)
struct Iq4Tables {
    alignas(32) float threshold[16], level[16];
};
constexpr Iq4Tables make_iq4_tables() {
    Iq4Tables tables = {};
    for (int k = 0; k < 16; ++k) {
        tables.threshold[k] = k < 15 ? iq4_halfway(k) : 1000.0f;
        tables.level[k] = kIq4Levels[k];
    }
    return tables;
}
constexpr Iq4Tables kIq4Tables = make_iq4_tables();

// Entry k in 0 … 15 of a table.
BITSMITH_INLINE __m256 look_up(const float* table, __m256i k) {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(table), k);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8), k);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(k, 28)));
}
// At threshold k the cubic differs from k by less than 0.2, so that it leads to the one above the value or below.
constexpr float kIq4Inside = 170.0f;  // it does so up to here
template <bool kHeld>
BITSMITH_INLINE F iq4_level(const F& scaled) {
    const F held = kHeld ? clamp(scaled, -122.0f, 122.0f) : scaled;
    const F near = (held * held * splat(-1.4e-6f) + splat(0.0812f)) * held + splat(7.375f);
    const I k = bits(near + splat(kRoundMagic));
    F level;
    BITSMITH_PARTS {
        const __m256i at = (__m256i)k.part[p];
        const __m256 above = _mm256_cmp_ps(look_up(kIq4Tables.threshold, at), (__m256)held.part[p], _CMP_LT_OQ);
        level.part[p] = (NativeF)look_up(kIq4Tables.level, _mm256_sub_epi32(at, _mm256_castps_si256(above)));
    }
    return level;
}
#else
constexpr float kIq4Inside = 0.0f;
template <bool kHeld>
BITSMITH_INLINE F iq4_level(const F& scaled) {
    F level = splat(float(kIq4Levels[0]));
    BITSMITH_UNROLL for (int k = 0; k < 15; ++k) {
        level = select(less(splat(iq4_halfway(k)), scaled), splat(float(kIq4Levels[k + 1])), level);
    }
    return level;
}
#endif

struct Iq4Codes {
    static constexpr bool kHasZero = false;
    static constexpr float kShortEnd = 113.0f, kLowEnd = 127.0f, kHighEnd = 113.0f, kHalfGap = 12.0f;
    static constexpr float kInside = kIq4Inside, kNotBelow = 0.0f;
    struct Inside {
        static BITSMITH_INLINE F value(const F& scaled) { return iq4_level<false>(scaled); }
    };
    using NotBelow = Iq4Codes;
    static BITSMITH_INLINE F value(const F& scaled) { return iq4_level<true>(scaled); }
    static BITSMITH_INLINE I code(const F& scaled) {
        I code = splat(0);
        BITSMITH_UNROLL for (int k = 0; k < 15; ++k) {
            code = select(less(splat(iq4_halfway(k)), scaled), splat(k + 1), code);
        }
        return code;
    }
};

constexpr GgmlScales kGgmlIq4 = {127.0f, -134.0f, 1.0f, 15, false};

constexpr float kIq4Reaches[] = {-127.0f, -140.0f, -131.43f, -122.86f, -114.29f, -105.71f, -97.14f, -88.57f, -80.0f,
                                 132.0f,  124.5f,  117.0f,   109.5f,   102.0f,   94.5f,    87.0f,   79.5f,   72.0f};

// Dense around the lowest level, which is what values far from zero ask for.
constexpr float kIq4NlReaches[] = {-127.0f, -134.0f, -133.0f, -132.0f, -131.0f, -130.0f, -129.0f, -128.0f, -126.0f,
                                   -125.0f, -124.0f, -123.0f, -122.0f, -121.0f, -120.0f, -190.0f, -172.0f, -160.0f,
                                   -150.0f, -143.0f, -138.0f, -116.0f, -111.0f, -106.0f, -100.0f, -94.0f,  -88.0f,
                                   -80.0f,  160.0f,  148.0f,  138.0f,  131.0f,  124.5f,  119.0f,  113.0f,  108.0f,
                                   102.0f,  96.0f,   90.0f,   82.0f,   74.0f};
constexpr ScaleSearch kIq4NlSearch = {kIq4NlReaches, count_of(kIq4NlReaches), 1, 0.349f};
constexpr ScaleSearch kIq4NlPlain = {kIq4NlReaches, 1, 0, 0.349f};

// Tries every scale that ggml fits, with its weights. It keeps the one that explains most, which is a matter of
// rounding where a single column counts.
template <bool kWeighted>
inline void keep_better_of_ggml(const Normalised<32, kWeighted>& block, StoredScale& best) {
    const F allowed = block.largest * splat(kIq4NlSearch.error_bound),
            inverse_widest = inverse(widest_value<32>(block.x));
    F v[32];
    ggml_weights<32, kWeighted>(block.x, block.w, mean_square<32>(block.x) * splat(2.0f), v);
    F least = measured_error<Iq4Codes, 32, kWeighted>(block.x, block.w, best.value, allowed);
    for (int k = -1; k < kGgmlIq4.count; ++k) {
        const F inverse_scale = inverse_widest * splat(kGgmlIq4.reach(k));
        const ScaleSums sums = scale_sums<Iq4Codes, 32, true>(block.x, v, inverse_scale);
        const StoredScale now = store_scale(sums.xq * inverse(sums.qq), block);
        const F error = measured_error<Iq4Codes, 32, kWeighted>(block.x, block.w, now.value, allowed);
        const M better = less(error, least);
        least = select(better, error, least);
        best.bits = select(better, now.bits, best.bits);
        best.value = select(better, now.value, best.value);
    }
}

// IQ4_NL: d, nibbles[16]. Blocks of 32 values.
template <bool kWeighted>
inline void encode_iq4_nl_lanes(const Batch& batch) {
    Normalised<32, kWeighted> block;
    load_normalised(batch, block);
    StoredScale best = search_scale<Iq4Codes>(block, batch.search ? kIq4NlSearch : kIq4NlPlain);
    if (batch.search) keep_better_of_ggml(block, best);
    // No level is zero: below four steps of float16 all values would become the lowest positive one.
    const M vanishes = less(block.largest * block.unit, splat(1.0f / (1 << 22)));
    const I stored = select(vanishes, splat(0), best.bits);
    I code[32];
    const F inverse_scale = select(vanishes, splat(0.0f), inverse(best.value));
    for (int i = 0; i < 32; ++i) code[i] = Iq4Codes::code(block.x[i] * inverse_scale);
    store_u16(batch.out, 0, stored);
    store_nibbles(batch.out, 2, code);
}

// IQ4_XS: d, top two bits of eight L + 32 (u16), their low nibbles[4], nibbles[128].
template <bool kWeighted>
inline void encode_iq4_xs_lanes(const Batch& batch) {
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    SymmetricSearch search = {kIq4Reaches, count_of(kIq4Reaches), 1,        -32.0f, 31.0f, 16, 1, 0.499f,
                              true,        4.0f * kGain,          kGgmlIq4, 1.0f};
    if (!batch.search) search = {kIq4Reaches, 1, 0, -32.0f, 31.0f, 1, 0, 0.499f, false, kGain, {}, 0.0f};
    const SymmetricScales<8> scales = search_symmetric<Iq4Codes, 8, true>(block, search);
    I code[256];
    symmetric_codes<Iq4Codes, 8>(block, scales, code);
    I top = splat(0), low = splat(0);
    for (int j = 0; j < 8; ++j) {
        const I sub = rint_to_int(scales.sub[j]) + splat(32);
        top = top | ((sub >> 4) << (2 * j));
        low = low | ((sub & splat(15)) << (4 * j));
    }
    store_u16(batch.out, 0, scales.d.bits);
    store_u16(batch.out, 2, top);
    store_words(batch.out, 4, &low, 1);
    for (int j = 0; j < 8; ++j) store_nibbles(batch.out, 8 + 16 * j, code + 32 * j);
}

inline void encode_iq4_nl(const Batch& batch) {
    batch.weighted ? encode_iq4_nl_lanes<true>(batch) : encode_iq4_nl_lanes<false>(batch);
}
inline void encode_iq4_xs(const Batch& batch) {
    batch.weighted ? encode_iq4_xs_lanes<true>(batch) : encode_iq4_xs_lanes<false>(batch);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
