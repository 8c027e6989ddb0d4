// Codes of 1 … 8 bits as a dense little-endian bit stream: code i at bit i · bits, whatever words that straddles.
#pragma once
#include <stdint.h>
#include <string.h>

namespace bitsmith {

// Eight codes, one a byte, pushed together into the low 8 · bits bits; and back. Pairs, then fours, then all.
inline uint64_t join_eight(uint64_t codes, int bits) {
    codes &= 0x0101010101010101u * ((1u << bits) - 1);
    codes = (codes & 0x00FF00FF00FF00FFu) | ((codes & 0xFF00FF00FF00FF00u) >> (8 - bits));
    codes = (codes & 0x0000FFFF0000FFFFu) | ((codes & 0xFFFF0000FFFF0000u) >> (16 - 2 * bits));
    return (codes & 0xFFFFFFFFu) | (codes >> 32 << 4 * bits);
}
inline uint64_t part_eight(uint64_t packed, int bits) {
    const uint64_t fours = (uint64_t{1} << 4 * bits) - 1, pairs = (1u << 2 * bits) - 1, one = (1u << bits) - 1;
    packed = (packed & fours) | (packed >> 4 * bits & fours) << 32;
    packed = (packed & (pairs | pairs << 32)) | (packed & (pairs | pairs << 32) << 2 * bits) << (16 - 2 * bits);
    const uint64_t mask = one | one << 16 | one << 32 | one << 48;
    return (packed & mask) | (packed & mask << bits) << (8 - bits);
}
inline uint64_t little_endian(uint64_t word) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    return __builtin_bswap64(word);
#else
    return word;
#endif
}

// Neighbours as the low and high nibble of a byte; a loop that compilers vectorise.
inline void pack_pairs(const uint8_t* codes, int64_t bytes, uint8_t* out) {
    for (int64_t i = 0; i < bytes; ++i) out[i] = static_cast<uint8_t>((codes[2 * i] & 15) | codes[2 * i + 1] << 4);
}
inline void unpack_pairs(const uint8_t* packed, int64_t bytes, uint8_t* codes) {
    for (int64_t i = 0; i < bytes; ++i) {
        codes[2 * i] = packed[i] & 15;
        codes[2 * i + 1] = packed[i] >> 4;
    }
}

inline void pack_row(const uint8_t* codes, int64_t n, int bits, uint8_t* out, int64_t out_bytes) {
    int64_t at = 0, i = 0;
    if (bits == 8) {
        memcpy(out, codes, n);
        i = at = n;
    } else if (bits == 4) {
        at = n / 2;
        i = 2 * at;
        pack_pairs(codes, at, out);
    }
    for (; i < n; i += 8, at += bits) {
        uint64_t word = 0;
        memcpy(&word, codes + i, n - i < 8 ? n - i : 8);
        word = little_endian(join_eight(little_endian(word), bits));
        if (at + 8 <= out_bytes) {
            memcpy(out + at, &word, 8);
        } else {
            memcpy(out + at, &word, out_bytes - at < bits ? out_bytes - at : bits);
        }
    }
    if (at < out_bytes) memset(out + at, 0, out_bytes - at);
}

inline void unpack_row(const uint8_t* packed, int64_t n, int bits, uint8_t* codes) {
    const int64_t bytes = (n * bits + 7) / 8;
    int64_t at = 0, i = 0;
    if (bits == 8) {
        memcpy(codes, packed, n);
        return;
    }
    if (bits == 4) {
        at = n / 2;
        i = 2 * at;
        unpack_pairs(packed, at, codes);
    }
    for (; i < n; i += 8, at += bits) {
        uint64_t word = 0;
        memcpy(&word, packed + at, bytes - at < 8 ? bytes - at : 8);
        word = little_endian(part_eight(little_endian(word), bits));
        memcpy(codes + i, &word, n - i < 8 ? n - i : 8);
    }
}

}  // namespace bitsmith
