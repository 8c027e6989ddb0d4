// One to four tokens: codes go from their vectors through registers into the dot product, one pass over the weights.
//
// What bounds this is memory, as long as unpacking takes less time than reading. So codes are not shifted where a shift
// of a sum does (kInPlace), and formats with two levels of scales multiply dot products by the inner one as integers.
#pragma once
#include "heads.h"
#include "write.h"

namespace bitsmith::engine::BITSMITH_NS {

template <int C, class Head>
void vector_tiles(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                  int32_t* starts) {
    using Quads = typename Head::Codes;
    const Quads quads(w);
    PanelView x = panel_view(act, 0, Head::kHalves);
    if (!Head::kMinimums) {  // Σ (code − zero) · x = Σ code · x − zero · Σ x
        const int zero = w.zero - (Quads::kEightBits || kInPlace ? kByteBias : 0);
        const int64_t count = act.steps * (Head::kHalves ? 2 : 1) * C;
        for (int64_t i = 0; i < count; ++i) starts[i] = -zero * x.sums[i];
        x.sums = starts;
    }
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        TileSums<C, Quads, Head::kHalves, Head::kMinimums> sums(quads, w.tile(tile), x);
        for (int64_t chunk = 0; chunk * kChunkSteps < w.steps; ++chunk) {
            const uint8_t* head = sums.p;
            touch(head, w.head_bytes);
            sums.p += w.head_bytes;
            Head::run(w, head, w.chunk_steps(chunk), sums);
        }
        write<C>(w, out, tile, 0, act.rows, sums.out, out.accumulate, true);
    }
}

// False for more tokens, and for rows so long that their sums do not fit the scratch.
inline bool vector_product(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                           uint8_t* scratch) {
    if (act.rows > 4 || act.steps * 2 * 4 * int64_t{sizeof(int32_t)} > kScratch) return false;
    int32_t* starts = reinterpret_cast<int32_t*>(scratch);
    with_head(w, [&](auto head) {
        using Head = decltype(head);
        if (act.rows == 1) return vector_tiles<1, Head>(w, act, out, tile_begin, tile_end, starts);
        if (act.rows == 2) return vector_tiles<2, Head>(w, act, out, tile_begin, tile_end, starts);
        return vector_tiles<4, Head>(w, act, out, tile_begin, tile_end, starts);
    });
    return true;
}

}  // namespace bitsmith::engine::BITSMITH_NS
