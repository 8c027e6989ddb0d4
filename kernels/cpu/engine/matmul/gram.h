// Σ x xᵀ over rows x: sums of products of bfloat16, two rows at a time, in tiles of 64 × 64 on and above the diagonal.
//
// Two rows are stored as pairs, the first in the lower half of each word, in panels of 64 columns: [panel][pair][64].
// Both sides of a product are then read one after the other.
#pragma once
#include <algorithm>

#include "../table.h"
#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

namespace bitsmith::engine::BITSMITH_NS {

#if defined(__AVX512BF16__)

constexpr int kGramLanes = 16, kGramVectors = kGramPanel / kGramLanes;
constexpr int kGramRows = 6;  // of a tile that are summed at once: 24 sums stay in registers

static void gram_pairs(const float* x, int64_t rows, int64_t columns, int64_t panel, uint32_t* pairs) {
    const int64_t first = panel * kGramPanel, width = std::min<int64_t>(kGramPanel, columns - first);
    for (int64_t row = 0; row < rows; row += 2, pairs += kGramPanel) {
        const float *upper = x + row * columns + first, *lower = upper + columns;
        for (int v = 0; v < kGramVectors; ++v) {
            const int64_t left = std::clamp<int64_t>(width - v * kGramLanes, 0, kGramLanes);
            const __mmask16 mask = static_cast<__mmask16>((1u << left) - 1), second = row + 1 < rows ? mask : 0;
            const __m512i a =
                _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, upper + v * kGramLanes)));
            const __m512i b = _mm512_cvtepu16_epi32(
                (__m256i)_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(second, lower + v * kGramLanes)));
            _mm512_storeu_si512(pairs + v * kGramLanes, _mm512_or_si512(a, _mm512_slli_epi32(b, 16)));
        }
    }
}

// total[row …][column …] += Σ over pairs of down · across.
template <int kRows>
inline void gram_rows(const uint32_t* down, const uint32_t* across, int64_t count, float* total, int64_t stride,
                      const __mmask16* masks) {
    __m512 sums[kRows][kGramVectors];
    for (auto& row : sums)
        for (__m512& sum : row) sum = _mm512_setzero_ps();
    for (int64_t p = 0; p < count; ++p, down += kGramPanel, across += kGramPanel) {
        __m512i b[kGramVectors];
        for (int v = 0; v < kGramVectors; ++v) b[v] = _mm512_loadu_si512(across + v * kGramLanes);
        for (int i = 0; i < kRows; ++i) {
            const __m512i a = _mm512_set1_epi32(static_cast<int32_t>(down[i]));
            for (int v = 0; v < kGramVectors; ++v)
                sums[i][v] = _mm512_dpbf16_ps(sums[i][v], (__m512bh)a, (__m512bh)b[v]);
        }
    }
    for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < kGramVectors; ++v) {
            float* at = total + i * stride + v * kGramLanes;
            const __m512 before = _mm512_maskz_loadu_ps(masks[v], at);
            _mm512_mask_storeu_ps(at, masks[v], _mm512_add_ps(before, sums[i][v]));
        }
    }
}

static void gram_tile(const uint32_t* pairs, int64_t count, int64_t columns, int64_t row_panel, int64_t column_panel,
                      float* total) {
    const int64_t first = row_panel * kGramPanel, column = column_panel * kGramPanel;
    const int64_t rows = std::min<int64_t>(kGramPanel, columns - first);
    __mmask16 masks[kGramVectors];
    for (int v = 0; v < kGramVectors; ++v) {
        const int64_t left = std::clamp<int64_t>(columns - column - v * kGramLanes, 0, kGramLanes);
        masks[v] = static_cast<__mmask16>((1u << left) - 1);
    }
    const uint32_t *down = pairs + row_panel * count * kGramPanel, *across = pairs + column_panel * count * kGramPanel;
    int64_t i = 0;
    for (; i + kGramRows <= rows; i += kGramRows)
        gram_rows<kGramRows>(down + i, across, count, total + (first + i) * columns + column, columns, masks);
    for (; i < rows; ++i) gram_rows<1>(down + i, across, count, total + (first + i) * columns + column, columns, masks);
}

constexpr Gram kGram = {gram_pairs, gram_tile};

#else

constexpr Gram kGram = {nullptr, nullptr};

#endif

}  // namespace bitsmith::engine::BITSMITH_NS
