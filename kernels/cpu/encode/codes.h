// How the codes of 32-value blocks are packed.
#pragma once
#include "../transpose.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Codes 0…15 as nibbles: byte j has code j (low) and code j + 16 (high).
BITSMITH_INLINE void store_nibbles(uint8_t* const out[kLanes], int at, const I code[32]) {
    const I nibble = splat(15);
    I words[4];
    BITSMITH_UNROLL for (int i = 0; i < 4; ++i) {
        I byte[4];
        BITSMITH_UNROLL for (int k = 0; k < 4; ++k) {
            byte[k] = (code[4 * i + k] & nibble) | ((code[4 * i + k + 16] & nibble) << 4);
        }
        words[i] = pack_bytes(byte[0], byte[1], byte[2], byte[3]);
    }
    store_words(out, at, words, 4);
}

// Codes of 4 or 5 bits: the fifth bits first, code j's at bit j, then the nibbles.
template <int kBits>
BITSMITH_INLINE void store_codes(uint8_t* const out[kLanes], int at, const I code[32]) {
    if constexpr (kBits == 5) {
        I fifth = splat(0);
        BITSMITH_UNROLL for (int j = 0; j < 32; ++j) fifth = fifth | (((code[j] >> 4) & splat(1)) << j);
        store_words(out, at, &fifth, 1);
        at += 4;
    }
    store_nibbles(out, at, code);
}

BITSMITH_INLINE void store_signed_bytes(uint8_t* const out[kLanes], int at, const I code[32]) {
    const I byte = splat(0xFF);
    I words[8];
    BITSMITH_UNROLL for (int i = 0; i < 8; ++i) {
        words[i] = pack_bytes(code[4 * i] & byte, code[4 * i + 1] & byte, code[4 * i + 2] & byte, code[4 * i + 3]);
    }
    store_words(out, at, words, 8);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
