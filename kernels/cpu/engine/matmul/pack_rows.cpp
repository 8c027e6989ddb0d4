// Groups, and float elements → tiles.
#include <string.h>

#include "pack.h"
#include "place.h"

namespace bitsmith::engine {

static uint16_t f16_bits(float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    const uint32_t sign = word >> 16 & 0x8000, magnitude = word & 0x7fffffff;
    if (magnitude >= 0x7f800000) return uint16_t(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (magnitude < 0x38800000) {  // subnormal: the scale is exact, so that nothing is rounded
        float a;
        memcpy(&a, &magnitude, 4);
        return uint16_t(sign | uint32_t(a * 16777216.0f));
    }
    return uint16_t(sign | ((magnitude - 0x38000000) >> 13));
}

static void place_scale(const Packed& w, uint8_t* entries, int at, float value) {
    uint32_t word;
    memcpy(&word, &value, 4);
    const uint16_t half = w.scales == Scales::kF16 ? f16_bits(value) : uint16_t(word >> 16);
    if (w.scales == Scales::kF32)
        memcpy(entries + 4 * at, &value, 4);
    else if (w.scales == Scales::kE8M0)
        entries[at] = uint8_t(word >> 23);
    else
        memcpy(entries + 2 * at, &half, 2);
}

// Of one row, at every multiple of the granularity: the file's group there.
static void place_scales(const Packed& w, int64_t row, const float* scales, const uint8_t* zeros, const float* offsets,
                         int64_t group) {
    const int entries = kChunk / w.granularity, size = w.scales == Scales::kF32 ? 4 : 2;
    for (int64_t k = 0; k < w.columns; k += w.granularity) {
        uint8_t *head = chunk_at(w, row, k), *behind = head + size * entries * kTile;
        const int at = int(k % kChunk / w.granularity * kTile + row % kTile);
        place_scale(w, head, at, scales[k / group]);
        if (zeros) behind[at] = zeros[k / group];
        if (offsets) place_scale(w, behind, at, offsets[k / group]);
    }
}

void pack_groups(const Packed& packed, const GroupRows& rows, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
        place_codes(packed, first + i, 0, rows.codes + i * packed.columns, packed.columns, 0);
        place_scales(packed, first + i, rows.scales + i * rows.groups,
                     rows.zeros ? rows.zeros + i * rows.groups : nullptr,
                     rows.offsets ? rows.offsets + i * rows.groups : nullptr, rows.group);
    }
}

void pack_elements(const Packed& w, const uint8_t* rows, const float* scales, int64_t group, int64_t groups,
                   int64_t first, int64_t count) {
    const int size = w.codes == Codes::kF32 ? 4 : w.codes == Codes::kF16 || w.codes == Codes::kBF16 ? 2 : 1;
    const int pair = w.codes == Codes::kBF16 ? 2 : 1;
    for (int64_t row = first; row < first + count; ++row) {
        const int64_t r = row % kTile;
        for (int64_t k = 0; k < w.columns; k += kChunk) {
            uint8_t* to = chunk_at(w, row, k) + w.head_bytes;
            const int64_t end = w.columns - k < kChunk ? w.columns - k : kChunk;
            for (int64_t i = 0; i < end; ++i, rows += size)
                memcpy(to + ((i / pair * kTile + r) * pair + i % pair) * size, rows, size_t(size));
        }
        if (scales) place_scales(w, row, scales + (row - first) * groups, nullptr, nullptr, group);
    }
}

}  // namespace bitsmith::engine
