// Products of integer codes with int8 activations: whole dot products of a step in int32, then scales in float32.
//
// Up to four tokens: vector.h. More: panels.h and, where the CPU has them, dot products of eight columns.
#pragma once
#include "pairs.h"
#include "panels.h"
#include "vector.h"

namespace bitsmith::engine::BITSMITH_NS {

inline void linear_integer(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                           uint8_t* scratch) {
    if constexpr (kFused) {
        if (vector_product(w, act, out, tile_begin, tile_end, scratch)) return;
    }
    with_quads(w, [&](auto quads) {
        using Quads = decltype(quads);
#if defined(BITSMITH_EIGHT_COLUMNS)
        if (by_token(act)) return matrix_tiles<PairProducts<Quads>>(w, act, out, tile_begin, tile_end, scratch);
#endif
        matrix_tiles<QuadProducts<Quads>>(w, act, out, tile_begin, tile_end, scratch);
    });
}

}  // namespace bitsmith::engine::BITSMITH_NS
