// Puts codes and scales of one row where the layout has them.
#pragma once
#include <string.h>

#include "../packed.h"

namespace bitsmith::engine {

// The chunk that holds `column` of `row`.
inline uint8_t* chunk_at(const Packed& w, int64_t row, int64_t column) {
    return w.data + row / kTile * w.tile_bytes + column / kChunk * w.chunk_bytes();
}

// Codes of one step of row r, into planes that were zeros.
inline void place_step(int bits, uint8_t* step, int r, const uint8_t* codes) {
    uint32_t quads[kQuads];
    memcpy(quads, codes, kStep);
    const auto put = [r](uint8_t* vector, uint32_t four) { memcpy(vector + 4 * r, &four, 4); };
    if (bits == 8) {
        for (int q = 0; q < kQuads; ++q) put(step + 64 * q, quads[q]);
        return;
    }
    if (bits & 4) {
        for (int v = 0; v < 4; ++v) put(step + 64 * v, (quads[v] & 0x0f0f0f0f) | (quads[v + 4] & 0x0f0f0f0f) << 4);
        for (uint32_t& quad : quads) quad = quad >> 4 & 0x0f0f0f0f;
        step += 256;
    }
    if (bits & 2) {
        for (int v = 0; v < 2; ++v) {
            uint32_t four = 0;
            for (int j = 0; j < 4; ++j) four |= (quads[2 * j + v] & 0x03030303) << (2 * j);
            put(step + 64 * v, four);
        }
        for (uint32_t& quad : quads) quad = quad >> 2 & 0x3f3f3f3f;
        step += 128;
    }
    if (bits & 1) {
        uint32_t four = 0;
        for (int q = 0; q < kQuads; ++q) four |= (quads[q] & 0x01010101) << q;
        put(step, four);
    }
}

// Codes of `count` columns of a row from `column` on, a multiple of 32; a short last step is filled with `zero`.
inline void place_codes(const Packed& w, int64_t row, int64_t column, const uint8_t* codes, int64_t count,
                        uint8_t zero) {
    const int r = int(row % kTile);
    for (int64_t k = 0; k < count; k += kStep) {
        uint8_t* chunk = chunk_at(w, row, column + k);
        uint8_t* step = chunk + w.head_bytes + (column + k) % kChunk / kStep * w.step_bytes;
        if (count - k >= kStep) {
            place_step(w.bits, step, r, codes + k);
        } else {
            uint8_t padded[kStep];
            memset(padded, zero, kStep);
            memcpy(padded, codes + k, size_t(count - k));
            place_step(w.bits, step, r, padded);
        }
    }
}

}  // namespace bitsmith::engine
