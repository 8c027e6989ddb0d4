// What the encoders of kernels/families.py share.
#pragma once
#include "../families_table.h"
#include "fit.h"

namespace bitsmith {
namespace BITSMITH_NS {

constexpr float kLargestFloat = 3.4028234663852886e38f;

BITSMITH_INLINE F as_signed(const F& size, const F& sign) {
    return as_float((bits(size) & splat(0x7fffffff)) | (bits(sign) & splat(INT32_MIN)));
}

// A scale or offset of either sign as it is stored: finite, and 0 only if it was.
BITSMITH_INLINE F round_signed(const F& value, ScaleType type) {
    const F size = abs(value);
    F stored = min(size, splat(kLargestFloat)), smallest = as_float(splat(1));
    if (type == kF16) {
        stored = min(round_f16(size), splat(65504.0f));
        smallest = splat(0x1p-24f);
    } else if (type == kBF16) {
        stored = min(as_float(to_bf16(size) << 16), as_float(splat(0x7F7F0000)));
        smallest = as_float(splat(0x00010000));
    }
    const F zero = splat(0.0f);
    stored = select(equal(stored, zero), select(equal(size, zero), zero, smallest), stored);
    return as_signed(stored, value);
}

// Nearest integer, ties to even, of any magnitude.
BITSMITH_INLINE F rint_any(const F& a) {
    const F size = abs(a), magic = splat(8388608.0f);  // 2^23: from here on all are integers
    return as_signed(select(less(size, magic), (size + magic) - magic, size), a);
}

BITSMITH_INLINE I load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return I{{(NativeI)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from))}};
#elif defined(__AVX2__)
    I r;
    BITSMITH_PARTS r.part[p] = (NativeI)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(from + 8 * p)));
    return r;
#else
    int32_t lanes[kLanes];
    for (int i = 0; i < kLanes; ++i) lanes[i] = from[i];
    return load(lanes);
#endif
}
// Values of 0 … 255, in order.
BITSMITH_INLINE void store_bytes(uint8_t* to, const I& a) {
#if defined(__AVX512F__)
    _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)a.part[0]));
#elif defined(__AVX2__)
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packus_epi32((__m256i)a.part[0], (__m256i)a.part[1]), 0xD8);
    _mm_storeu_si128((__m128i*)to, _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#elif defined(__GNUC__) && defined(__SSE2__)
    const __m128i low = _mm_packs_epi32((__m128i)a.part[0], (__m128i)a.part[1]);
    const __m128i high = _mm_packs_epi32((__m128i)a.part[2], (__m128i)a.part[3]);
    _mm_storeu_si128((__m128i*)to, _mm_packus_epi16(low, high));
#else
    int32_t lanes[kLanes];
    store(lanes, a);
    for (int i = 0; i < kLanes; ++i) to[i] = uint8_t(lanes[i]);
#endif
}

// convert(values) → codes, for n neighbours; the last go through padded copies, so that they are treated as all others.
template <class Convert>
BITSMITH_INLINE void row_to_bytes(const float* x, int64_t n, uint8_t* out, const Convert& convert) {
    int64_t at = 0;
    for (; at + kLanes <= n; at += kLanes) store_bytes(out + at, convert(load(x + at)));
    if (at == n) return;
    float padded[kLanes] = {};
    uint8_t codes[kLanes];
    memcpy(padded, x + at, (n - at) * sizeof(float));
    store_bytes(codes, convert(load(padded)));
    memcpy(out + at, codes, n - at);
}
template <class Convert>
BITSMITH_INLINE void row_from_bytes(const uint8_t* codes, int64_t n, float* out, const Convert& convert) {
    int64_t at = 0;
    for (; at + kLanes <= n; at += kLanes) store(out + at, convert(load_bytes(codes + at)));
    if (at == n) return;
    uint8_t padded[kLanes] = {};
    float values[kLanes];
    memcpy(padded, codes + at, n - at);
    store(values, convert(load_bytes(padded)));
    memcpy(out + at, values, (n - at) * sizeof(float));
}

// add(F total[kSums], at, count) for every piece of a group: float32 inside one, float64 over them.
template <int kSums, class Add>
BITSMITH_INLINE void sum_pieces(int n, F total[kSums], const Add& add) {
    for (int k = 0; k < kSums; ++k) total[k] = splat(0.0f);
    if (n <= kSumPiece) return add(total, 0, n);
    double lanes[kSums][kLanes] = {};
    for (int at = 0; at < n; at += kSumPiece) {
        F piece[kSums];
        float values[kLanes];
        for (int k = 0; k < kSums; ++k) piece[k] = splat(0.0f);
        add(piece, at, n - at < kSumPiece ? n - at : kSumPiece);
        for (int k = 0; k < kSums; ++k) {
            store(values, piece[k]);
            for (int lane = 0; lane < kLanes; ++lane) lanes[k][lane] = lanes[k][lane] + double(values[lane]);
        }
    }
    for (int k = 0; k < kSums; ++k) {
        float values[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) values[lane] = float(lanes[k][lane]);
        total[k] = load(values);
    }
}

// visit(values) for all values of sixteen groups, one a lane.
template <class Visit>
BITSMITH_INLINE void visit_transposed(const float* const rows[kLanes], int n, const Visit& visit) {
    F x[kLanes];
    for (int at = 0; at < n; at += kLanes) {
        const int count = n - at < kLanes ? n - at : kLanes;
        load_transposed(rows, at, count, x);
        for (int i = 0; i < count; ++i) visit(x[i]);
    }
}
struct Range {
    F low, high;  // never −0
};
BITSMITH_INLINE Range group_range(const FamilyBatch& batch) {
    Range range = {splat(kLargestFloat), splat(-kLargestFloat)};
    visit_transposed(batch.x, batch.n, [&](const F& x) {
        range.low = min(x, range.low);
        range.high = max(x, range.high);
    });
    return {range.low + splat(0.0f), range.high + splat(0.0f)};
}

// Values and, when there are any, weights in scratch, one group a lane.
template <bool kWeighted>
BITSMITH_INLINE void load_group(const FamilyBatch& batch, F*& x, F*& w) {
    x = reinterpret_cast<F*>(batch.scratch);
    w = x + batch.n;
    load_transposed(batch.x, 0, batch.n, x);
    if constexpr (kWeighted) load_weights(batch.weight, batch.n, w);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
