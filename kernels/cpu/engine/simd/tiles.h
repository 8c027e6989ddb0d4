// AMX: eight tiles of up to sixteen rows of 64 bytes. Numbers of tiles are literals in every call, as the instructions
// have them inside. BITSMITH_EMULATED_TILES takes the same functions from a test's header instead of the processor.
#pragma once
#include <stdint.h>
#if defined(BITSMITH_EMULATED_TILES)
#include "emulated_tiles.h"
#else
#include <immintrin.h>
#endif

namespace bitsmith::engine::BITSMITH_NS {

// What was stored before is in memory: GCC does not know what loads of tiles and of their shapes read.
inline void settle() {
#if defined(__GNUC__)
    __asm__ volatile("" : : : "memory");
#endif
}

struct alignas(64) TileShapes {  // what ldtilecfg reads
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int first, int last, int tile_rows, int bytes) {
        for (int i = first; i <= last; ++i) {
            rows[i] = uint8_t(tile_rows);
            row_bytes[i] = uint16_t(bytes);
        }
    }
};
static_assert(sizeof(TileShapes) == 64);

// The calling thread's tiles have these shapes while this lives; then they are given back, so that the system need not
// save them any more.
class TileUse {
public:
    explicit TileUse(const TileShapes& shapes) {
        const TileShapes* volatile seen = &shapes;
        settle();
        _tile_loadconfig(seen);
    }
    TileUse(const TileUse&) = delete;
    ~TileUse() { _tile_release(); }
};

}  // namespace bitsmith::engine::BITSMITH_NS
