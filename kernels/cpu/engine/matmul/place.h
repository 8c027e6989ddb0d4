// Puts codes and scales of one row where the layout has them.
#pragma once
#include <string.h>

#include "../code_bits.h"
#include "../packed.h"

namespace bitsmith::engine {

// The chunk that holds `column` of `row`.
inline uint8_t* chunk_at(const Packed& w, int64_t row, int64_t column) {
    return w.data + row / kTile * w.tile_bytes + column / kChunk * w.chunk_bytes();
}

// Codes of one step of row r, into vectors that were zeros.
template <int kBits>
inline void place_step(uint8_t* step, int r, const uint8_t* codes) {
    uint32_t vectors[kBits] = {};
    for (int q = 0; q < kQuads; ++q) {
        uint32_t quad;
        memcpy(&quad, codes + 4 * q, 4);
        const Pieces pieces = pieces_of(kBits, q);
        for (int i = 0; i < pieces.count; ++i) {
            const Piece& piece = pieces.at[i];
            const uint32_t mask = 0x01010101u * ((1u << piece.count) - 1);
            vectors[piece.vector] |= (quad >> piece.to & mask) << piece.from;
        }
    }
    for (int v = 0; v < kBits; ++v) memcpy(step + 64 * v + 4 * r, &vectors[v], 4);
}
inline void place_step(int bits, uint8_t* step, int r, const uint8_t* codes) {
    switch (bits) {
        case 1:
            return place_step<1>(step, r, codes);
        case 2:
            return place_step<2>(step, r, codes);
        case 3:
            return place_step<3>(step, r, codes);
        case 4:
            return place_step<4>(step, r, codes);
        case 5:
            return place_step<5>(step, r, codes);
        case 6:
            return place_step<6>(step, r, codes);
        case 7:
            return place_step<7>(step, r, codes);
        default:
            return place_step<8>(step, r, codes);
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
