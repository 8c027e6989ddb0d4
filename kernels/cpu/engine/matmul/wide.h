// Products of prompts in float32: the weights of a few tiles are decoded once and meet every panel, two tiles at a time
// where registers hold their sums.
#pragma once
#include "floats.h"

namespace bitsmith::engine::BITSMITH_NS {

// What is decoded at a time lies in the second cache: 384 KB of weights, and a panel's tokens. Those are as far apart
// as lets all of them stay in the first cache.
constexpr int64_t kGroupTiles = 8, kPieceChunks = 3, kPieceColumns = kPieceChunks * kChunk, kApart = kPieceColumns + 16;
static_assert((kGroupTiles * kTile * kPieceColumns + kPanel * kApart) * int64_t{sizeof(float)} <= kScratch);

// Whether activations lie as rows of a token, see Act.
BITSMITH_INLINE bool wide(const Act& act, bool pairs) {
    return act.panels() > 1 && (act.kind == ActKind::kF32 || (act.kind == ActKind::kBF16 && !pairs));
}

// Steps of a panel → float32 [token][kApart].
inline void token_floats(const Act& act, int64_t panel, int64_t first, int64_t steps, float* out) {
    const int width = act.width(panel);
    const uint8_t* codes = act.codes(panel);
    for (int64_t s = first; s < first + steps; ++s, out += kStep) {
        for (int c = 0; c < width; ++c) {
            const int64_t at = (s * width + c) * kStep;
            float* to = out + c * kApart;
            if (act.kind == ActKind::kF32) {
                const float* from = reinterpret_cast<const float*>(codes) + at;
                store(to, load(from));
                store(to + kTile, load(from + kTile));
            } else {
                const uint16_t* from = halfwords(codes) + at;
                store(to, load_bf16(from));
                store(to + kTile, load_bf16(from + kTile));
            }
        }
    }
}

// Σ over columns of one tile with C tokens.
struct WideBlock {
    const float *w, *tokens;
    int64_t columns;

    template <int C>
    BITSMITH_INLINE void run(int token, Floats* sums) const {
        const float* x = tokens + token * kApart;
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums[c] = zero_floats();
        for (int64_t k = 0; k < columns; ++k) {
            const Floats weight = load(w + k * kTile);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums[c] = fma(weight, splat(x[c * kApart + k]), sums[c]);
        }
    }
};
// Of two tiles with a full panel: sums [2][kPanel].
BITSMITH_INLINE void two_tiles(const float* w0, const float* w1, const float* x, int64_t columns, Floats* sums) {
    BITSMITH_UNROLL for (int c = 0; c < 2 * kPanel; ++c) sums[c] = zero_floats();
    for (int64_t k = 0; k < columns; ++k) {
        const Floats a = load(w0 + k * kTile), b = load(w1 + k * kTile);
        BITSMITH_UNROLL for (int c = 0; c < kPanel; ++c) {
            const Floats value = splat(x[c * kApart + k]);
            sums[c] = fma(a, value, sums[c]);
            sums[kPanel + c] = fma(b, value, sums[kPanel + c]);
        }
    }
}

inline void linear_wide(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                        uint8_t* scratch) {
    float *weights = reinterpret_cast<float*>(scratch), *tokens = weights + kGroupTiles * kTile * kPieceColumns;
    const int64_t chunks = (w.steps + kChunkSteps - 1) / kChunkSteps, all = w.steps * kStep;
    for (int64_t tile = tile_begin; tile < tile_end; tile += kGroupTiles) {
        const int64_t stop = tile + kGroupTiles < tile_end ? tile + kGroupTiles : tile_end;
        for (int64_t chunk = 0; chunk < chunks; chunk += kPieceChunks) {
            const int64_t end = chunk + kPieceChunks < chunks ? chunk + kPieceChunks : chunks, first = chunk * kChunk;
            const int64_t columns = (end < chunks ? end * kChunk : all) - first;
            const bool stored = w.codes == Codes::kF32;
            const auto weights_of = [&](int64_t t) {
                return stored ? reinterpret_cast<const float*>(w.tile(t)) + first * kTile
                              : weights + (t - tile) * kTile * kPieceColumns;
            };
            for (int64_t t = tile; t < stop && !stored; ++t)
                for (int64_t c = chunk; c < end; ++c)
                    decode_chunk(w, t, c, weights + ((t - tile) * kPieceColumns + (c - chunk) * kChunk) * kTile);
            const bool more = chunk > 0, last = end == chunks, add = more || out.accumulate;
            for (int64_t panel = 0; panel < act.panels(); ++panel) {
                token_floats(act, panel, first / kStep, columns / kStep, tokens);
                int64_t t = tile;
                if constexpr (kSub >= kPanel) {
                    for (; act.width(panel) == kPanel && t + 2 <= stop; t += 2) {
                        Floats sums[2 * kPanel];
                        two_tiles(weights_of(t), weights_of(t + 1), tokens, columns, sums);
                        write<kPanel>(w, out, t, Act::first(panel), act.count(panel), sums, add, last);
                        write<kPanel>(w, out, t + 1, Act::first(panel), act.count(panel), sums + kPanel, add, last);
                    }
                }
                for (; t < stop; ++t)
                    each_block(w, act, out, t, panel, more, last, WideBlock{weights_of(t), tokens, columns});
            }
        }
    }
}

}  // namespace bitsmith::engine::BITSMITH_NS
