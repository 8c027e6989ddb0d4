// Σ x xᵀ over rows x in tiles of 64 × 64 on and above the diagonal: products of float32, or of pairs of bfloat16.
//
// Rows are stored in panels of 64 columns: [panel][row][64]. Both sides of a product are then read one after the other.
// Of pairs, two rows are one row of words, the first in the lower half of each.
#pragma once
#include "../table.h"
#include "prepare.h"

namespace bitsmith::engine::BITSMITH_NS {

constexpr int64_t kGramBlock = 96;  // rows whose part of two panels stays in the first cache
// Of a tile, what is summed at once: these sums stay in registers. The rows that are left of a panel, too.
constexpr int kGramVectors = kSub >= kPanel ? kGramPanel / kTile : 1, kGramRows = kSub >= kPanel ? 6 : kSub;
constexpr int kGramLeft = kGramPanel % kGramRows > 0 ? kGramPanel % kGramRows : kGramRows;

BITSMITH_INLINE Floats gram_columns(const float* from, int64_t left) {
    return left >= kTile ? load(from) : left > 0 ? load_first(from, int(left)) : zero_floats();
}
template <bool kPairs>
static void gram_panel(const float* x, int64_t rows, int64_t columns, int64_t panel, float* to) {
    const int64_t first = panel * kGramPanel, left = columns - first;
    for (int64_t row = 0; row < rows; row += kPairs ? 2 : 1, to += kGramPanel) {
        const float* from = x + row * columns + first;
        for (int v = 0; v < kGramPanel; v += kTile) {
            Floats words = gram_columns(from + v, left - v);
            if constexpr (kPairs) {
                const Ints upper = to_bf16(gram_columns(from + columns + v, row + 1 < rows ? left - v : 0));
                words = as_floats(to_bf16(words) | shift<16>(upper));
            }
            store(to + v, words);
        }
    }
}

// sum += across · down[0]: a word of sixteen columns each, or of two rows of them.
template <bool kPairs>
BITSMITH_INLINE Floats gram_product(Floats sum, const float* across, const float* down) {
    if constexpr (kPairs)
        return dot_bf16(sum, reinterpret_cast<const uint16_t*>(across), reinterpret_cast<const uint16_t*>(down));
    return fma(load(across), splat(*down), sum);
}
// total [kRows][stride] += Σ over rows of down · across, as far as there are `columns`.
template <bool kPairs, int kRows>
BITSMITH_INLINE void gram_rows(const float* down, const float* across, int64_t rows, float* total, int64_t stride,
                               int64_t columns) {
    Floats sums[kRows][kGramVectors];
    BITSMITH_UNROLL for (int i = 0; i < kRows; ++i) BITSMITH_UNROLL for (int v = 0; v < kGramVectors; ++v) sums[i][v] =
        zero_floats();
    for (int64_t r = 0; r < rows; ++r, down += kGramPanel, across += kGramPanel) {
        BITSMITH_UNROLL for (int i = 0; i < kRows; ++i) BITSMITH_UNROLL for (int v = 0; v < kGramVectors; ++v)
            sums[i][v] = gram_product<kPairs>(sums[i][v], across + v * kTile, down + i);
    }
    BITSMITH_UNROLL for (int i = 0; i < kRows; ++i) BITSMITH_UNROLL for (int v = 0; v < kGramVectors; ++v) {
        float* at = total + i * stride + v * kTile;
        const int64_t some = columns - v * kTile;
        if (some >= kTile) {
            store(at, load(at) + sums[i][v]);
        } else if (some > 0) {
            store_first(at, load_first(at, int(some)) + sums[i][v], int(some));
        }
    }
}

template <bool kPairs>
static void gram_tile(const float* panels, int64_t rows, int64_t columns, int64_t row_panel, int64_t column_panel,
                      float* total) {
    const int64_t first = row_panel * kGramPanel, column = column_panel * kGramPanel, left = columns - column;
    const int64_t count = kGramPanel < columns - first ? kGramPanel : columns - first;
    float* to = total + first * columns + column;
    for (int64_t begin = 0; begin < rows; begin += kGramBlock) {
        const int64_t some = kGramBlock < rows - begin ? kGramBlock : rows - begin;
        const float* down = panels + (row_panel * rows + begin) * kGramPanel;
        const float* across = panels + (column_panel * rows + begin) * kGramPanel;
        for (int64_t v = 0; v < kGramPanel && v < left; v += kGramVectors * kTile) {
            int64_t i = 0;
            for (; i + kGramRows <= count; i += kGramRows)
                gram_rows<kPairs, kGramRows>(down + i, across + v, some, to + i * columns + v, columns, left - v);
            for (; i + kGramLeft <= count; i += kGramLeft)
                gram_rows<kPairs, kGramLeft>(down + i, across + v, some, to + i * columns + v, columns, left - v);
            for (; i < count; ++i)
                gram_rows<kPairs, 1>(down + i, across + v, some, to + i * columns + v, columns, left - v);
        }
    }
}

template <bool kPairs>
constexpr Gram kGram = {kPairs ? 2 : 1, gram_panel<kPairs>, gram_tile<kPairs>};

}  // namespace bitsmith::engine::BITSMITH_NS
