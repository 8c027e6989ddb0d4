// Codes of 1 … 8 bits as a dense little-endian bit stream: code i at bit i · bits, whatever words that straddles.
#pragma once
#include <stdint.h>
#include <string.h>

namespace bitsmith {

inline void pack_row(const uint8_t* codes, int64_t n, int bits, uint8_t* out, int64_t out_bytes) {
    const uint32_t mask = (1u << bits) - 1;
    uint64_t word = 0;
    int filled = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; ++i) {
        word |= static_cast<uint64_t>(codes[i] & mask) << filled;
        filled += bits;
        for (; filled >= 8; filled -= 8, word >>= 8) out[at++] = static_cast<uint8_t>(word);
    }
    if (filled > 0) out[at++] = static_cast<uint8_t>(word);
    memset(out + at, 0, out_bytes - at);
}

inline void unpack_row(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
    const uint32_t mask = (1u << bits) - 1;
    uint32_t word = 0;
    int filled = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; ++i) {
        if (filled < bits) {
            word |= static_cast<uint32_t>(packed[at++]) << filled;
            filled += 8;
        }
        codes[i] = static_cast<uint8_t>(word & mask);
        word >>= bits;
        filled -= bits;
    }
}

}  // namespace bitsmith
