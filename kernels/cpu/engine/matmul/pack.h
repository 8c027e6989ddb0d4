// Rows as files have them → tiles.
#pragma once
#include <stdint.h>

#include "../packed.h"

namespace bitsmith::engine {

// What a GGML block type becomes. False for types that have no products. rows and columns are set by the caller.
bool describe_blocks(const char* kind, Packed& packed);
// Rows [first, first + count) of blocks as in the file. first is a multiple of 16.
void pack_blocks(const char* kind, const Packed& packed, const uint8_t* rows, int64_t first, int64_t count);

// One group's stored parts; scales are exact in the packed type.
struct GroupRows {
    const uint8_t* codes;  // [count][columns]
    const float* scales;   // [count][groups]
    const uint8_t* zeros;  // [count][groups] or null
    int64_t group, groups;
    const float* offsets = nullptr;  // [count][groups] or null: what is added, exact in the scales' type
};
void pack_groups(const Packed& packed, const GroupRows& rows, int64_t first, int64_t count);

// Float elements as in the file; scales: float32 [count][groups] of 8-bit ones, powers of two for kE8M0; or null.
void pack_elements(const Packed& packed, const uint8_t* rows, const float* scales, int64_t group, int64_t groups,
                   int64_t first, int64_t count);

}  // namespace bitsmith::engine
