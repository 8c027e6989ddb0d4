// How codes lie in the files of GPTQ, AWQ and GGUF's 4-bit floats: kernels/reference/packings.py. Little-endian.
#pragma once
#include <algorithm>
#include <vector>

#include "bits.h"

namespace bitsmith {

inline void pack_nibble_row(const uint8_t* codes, int64_t bytes, bool low_first, uint8_t* out) {
    const int first = low_first ? 0 : 4, second = 4 - first;
    for (int64_t i = 0; i < bytes; ++i)
        out[i] = static_cast<uint8_t>((codes[2 * i] & 15) << first | (codes[2 * i + 1] & 15) << second);
}
inline void unpack_nibble_row(const uint8_t* packed, int64_t bytes, bool low_first, uint8_t* codes) {
    const int first = low_first ? 0 : 4, second = 4 - first;
    for (int64_t i = 0; i < bytes; ++i) {
        codes[2 * i] = packed[i] >> first & 15;
        codes[2 * i + 1] = packed[i] >> second & 15;
    }
}

constexpr int64_t kStrip = 16;  // rows whose words make a cache line of the transposed result

// Rows begin … end of codes [R, K] as columns of words [K · bits / 32, R].
inline void pack_column_strip(const uint8_t* codes, int64_t rows, int64_t columns, int bits, int64_t begin, int64_t end,
                              uint32_t* out) {
    const int64_t words = columns * bits / 32;
    std::vector<uint32_t> strip(kStrip * words);
    for (int64_t first = begin; first < end; first += kStrip) {
        const int64_t count = std::min(kStrip, end - first);
        for (int64_t i = 0; i < count; ++i)
            pack_row(codes + (first + i) * columns, columns, bits, reinterpret_cast<uint8_t*>(&strip[i * words]),
                     4 * words);
        for (int64_t word = 0; word < words; ++word) {
            uint32_t* line = out + word * rows + first;
            for (int64_t i = 0; i < count; ++i) line[i] = strip[i * words + word];
        }
    }
}
// packed: words [W, N], of which columns begin … end are wanted; codes: the first of these rows.
inline void unpack_column_strip(const uint32_t* packed, int64_t rows, int64_t words, int bits, int64_t begin,
                                int64_t end, uint8_t* codes) {
    const int64_t columns = words * 32 / bits;
    std::vector<uint32_t> strip(kStrip * words);
    for (int64_t first = begin; first < end; first += kStrip) {
        const int64_t count = std::min(kStrip, end - first);
        for (int64_t word = 0; word < words; ++word) {
            const uint32_t* line = packed + word * rows + first;
            for (int64_t i = 0; i < count; ++i) strip[i * words + word] = line[i];
        }
        for (int64_t i = 0; i < count; ++i)
            unpack_row(reinterpret_cast<const uint8_t*>(&strip[i * words]), columns, bits,
                       codes + (first - begin + i) * columns);
    }
}

constexpr int kAwqOrder[8] = {0, 2, 4, 6, 1, 3, 5, 7};  // nibble i of a word is row kAwqOrder[i] of eight
constexpr int kAwqPlace[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // and row r nibble kAwqPlace[r]
constexpr int64_t kAwqStrip = 128;                      // columns that are packed at once

// Columns begin … end of codes [R, K] as rows of words [K, R / 8].
inline void pack_awq_strip(const uint8_t* codes, int64_t rows, int64_t columns, int64_t begin, int64_t end,
                           uint32_t* out) {
    const int64_t words = rows / 8;
    uint32_t line[kAwqStrip];
    uint8_t pairs[4][kAwqStrip];
    for (int64_t first = begin; first < end; first += kAwqStrip) {
        const int64_t count = std::min(kAwqStrip, end - first);
        for (int64_t word = 0; word < words; ++word) {
            const uint8_t* rows_of_word[8];
            for (int i = 0; i < 8; ++i) rows_of_word[i] = codes + (8 * word + kAwqOrder[i]) * columns + first;
            // Pairs of nibbles as bytes, then bytes as words: most of it goes byte by byte.
            for (int i = 0; i < 4; ++i) {
                const uint8_t *low = rows_of_word[2 * i], *high = rows_of_word[2 * i + 1];
                for (int64_t k = 0; k < count; ++k) pairs[i][k] = static_cast<uint8_t>((low[k] & 15) | high[k] << 4);
            }
            for (int64_t k = 0; k < count; ++k)
                line[k] = pairs[0][k] | pairs[1][k] << 8 | pairs[2][k] << 16 | static_cast<uint32_t>(pairs[3][k]) << 24;
            for (int64_t k = 0; k < count; ++k) out[(first + k) * words + word] = line[k];
        }
    }
}
// Columns begin … end of the codes of rows start … stop from words [K, N / 8]; codes [stop − start, K].
inline void unpack_awq_strip(const uint32_t* packed, int64_t words, int64_t columns, int64_t start, int64_t stop,
                             int64_t begin, int64_t end, uint8_t* codes) {
    uint32_t line[kAwqStrip];
    for (int64_t first = begin; first < end; first += kAwqStrip) {
        const int64_t count = std::min(kAwqStrip, end - first);
        for (int64_t word = start / 8; 8 * word < stop; ++word) {
            for (int64_t k = 0; k < count; ++k) line[k] = packed[(first + k) * words + word];
            for (int64_t row = std::max(start, 8 * word); row < std::min(stop, 8 * word + 8); ++row) {
                const int shift = 4 * kAwqPlace[row % 8];
                uint8_t* out = codes + (row - start) * columns + first;
                for (int64_t k = 0; k < count; ++k) out[k] = line[k] >> shift & 15;
            }
        }
    }
}

// GGUF's blocks: `header` bytes of scales, then nibbles, value j of a run low and j + run / 2 high.
struct Fp4Layout {
    int values, header, run;
};
inline void join_fp4_block(const Fp4Layout& layout, const uint8_t* codes, const uint8_t* scales, uint8_t* out) {
    for (int i = 0; i < layout.header; ++i) *out++ = scales[i];
    const int half = layout.run / 2;
    for (int at = 0; at < layout.values; at += layout.run)
        for (int j = 0; j < half; ++j) *out++ = static_cast<uint8_t>((codes[at + j] & 15) | codes[at + half + j] << 4);
}
inline void split_fp4_block(const Fp4Layout& layout, const uint8_t* block, uint8_t* codes, uint8_t* scales) {
    for (int i = 0; i < layout.header; ++i) scales[i] = *block++;
    const int half = layout.run / 2;
    for (int at = 0; at < layout.values; at += layout.run) {
        for (int j = 0; j < half; ++j) {
            codes[at + j] = block[j] & 15;
            codes[at + half + j] = block[j] >> 4;
        }
        block += half;
    }
}

}  // namespace bitsmith
