// The CRC-32 of zlib and PNG, by carry-less products: 64 bytes are folded onto the next 64 until there are no more.
#pragma once
#include <array>
#include <cstdint>

#include "table.h"

#if defined(__PCLMUL__) || (defined(_MSC_VER) && defined(__AVX2__))
#define BITSMITH_CLMUL 1
#include <emmintrin.h>
#include <wmmintrin.h>
#endif

namespace bitsmith {
namespace BITSMITH_NS {

#if defined(BITSMITH_CLMUL)

constexpr uint32_t kReflected = 0xEDB88320;  // x³² + x²⁶ + … + 1, lowest power in the highest bit

constexpr std::array<uint32_t, 256> crc_of_bytes() {
    std::array<uint32_t, 256> table = {};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ kReflected : crc >> 1;
        table[byte] = crc;
    }
    return table;
}
constexpr std::array<uint32_t, 256> kCrcOfBytes = crc_of_bytes();

// x^power modulo the polynomial, as a factor of reflected words: one place up, for a product of two has one bit less.
constexpr int64_t crc_factor(int power) {
    uint32_t rest = 0x80000000;  // x⁰
    for (int i = 0; i < power; ++i) rest = rest & 1 ? rest >> 1 ^ kReflected : rest >> 1;
    return static_cast<int64_t>(rest) << 1;
}

inline __m128i crc_fold(__m128i folded, __m128i factors, __m128i next) {
    const __m128i low = _mm_clmulepi64_si128(folded, factors, 0x00), high = _mm_clmulepi64_si128(folded, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

inline uint32_t crc32(uint32_t before, const uint8_t* data, int64_t n) {
    const auto at = [&](int64_t i) { return _mm_loadu_si128(reinterpret_cast<const __m128i*>(data + 16 * i)); };
    uint32_t crc = ~before;
    if (n >= 64) {
        const __m128i by_64 = _mm_set_epi64x(crc_factor(512 - 32), crc_factor(512 + 32));
        const __m128i by_16 = _mm_set_epi64x(crc_factor(128 - 32), crc_factor(128 + 32));
        __m128i lanes[4] = {_mm_xor_si128(at(0), _mm_cvtsi32_si128(static_cast<int>(crc))), at(1), at(2), at(3)};
        for (data += 64, n -= 64; n >= 64; data += 64, n -= 64)
            for (int i = 0; i < 4; ++i) lanes[i] = crc_fold(lanes[i], by_64, at(i));
        for (int i = 1; i < 4; ++i) lanes[i] = crc_fold(lanes[i - 1], by_16, lanes[i]);
        alignas(16) uint8_t rest[16];
        _mm_store_si128(reinterpret_cast<__m128i*>(rest), lanes[3]);
        crc = 0;
        for (uint8_t byte : rest) crc = crc >> 8 ^ kCrcOfBytes[(crc ^ byte) & 255];
    }
    for (int64_t i = 0; i < n; ++i) crc = crc >> 8 ^ kCrcOfBytes[(crc ^ data[i]) & 255];
    return ~crc;
}

constexpr Crc32 kCrc32 = crc32;

#else

constexpr Crc32 kCrc32 = nullptr;

#endif

}  // namespace BITSMITH_NS
}  // namespace bitsmith
