// Products of integer codes with int8 activations: whole dot products of a step in int32, then scales in float32.
//
// Up to four tokens: vector.h. More: the codes of a tile are unpacked to bytes once, and every panel of tokens reads
// those.
#pragma once
#include "expand.h"
#include "quads.h"
#include "vector.h"
#include "write.h"

namespace bitsmith::engine::BITSMITH_NS {

// acc[c] += the dot products of quads first…first + kCount − 1.
template <int kFirst, int kCount, int C, class Quads>
BITSMITH_INLINE void dot_quads(const Quads& quads, const uint8_t* p, const int8_t* x, int width, Ints* acc) {
    if constexpr (kCount > 0) {
        const Bytes w = quads.template get<kFirst>(p);
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] =
            dot<Quads::kEightBits>(acc[c], w, x + (kFirst * width + c) * 4);
        dot_quads<kFirst + 1, kCount - 1, C>(quads, p, x, width, acc);
    }
}

// Steps that are unpacked at a time: 128 KB of codes, and at most as many of scales, in scratch.
constexpr int kPieceSteps = 256;

struct Unpacked {
    uint8_t* codes;  // [step][quad][64]
    float *scale, *minimum;
};

template <int i, class Quads>
BITSMITH_INLINE void unpack_quads(const Quads& quads, const typename Quads::Step& step, uint8_t* out) {
    if constexpr (i < kQuads) {
        store_bytes(out + i * 64, quads.template get<i>(step));
        unpack_quads<i + 1>(quads, step, out);
    }
}

// Steps [first, first + steps) of a tile; first is a multiple of a chunk's.
template <class Quads>
void unpack_tile(const Packed& w, int64_t tile, int64_t first, int steps, const Unpacked& to) {
    const Quads quads(w);
    const int entries = w.halves() ? 2 : 1;
    const uint8_t* p = w.tile(tile) + first / kChunkSteps * w.chunk_bytes();
    for (int at = 0; at < steps; at += kChunkSteps) {
        const int count = steps - at < kChunkSteps ? steps - at : kChunkSteps;
        expand(w, p, count, to.scale + at * entries * kTile, to.minimum + at * entries * kTile);
        p += w.head_bytes;
        for (int s = 0; s < count; ++s, p += Quads::kStepBytes)
            unpack_quads<0>(quads, quads.load(p), to.codes + (at + s) * kStep * kTile);
    }
}

struct BytesQuads {
    static constexpr bool kEightBits = true;
    template <int i>
    BITSMITH_INLINE Bytes get(const uint8_t* p) const {
        return load_bytes(p + 64 * i);
    }
};
struct SmallQuads : BytesQuads {  // codes of at most 7 bits
    static constexpr bool kEightBits = !kSmallDotIsFaster;
};

// One panel with an unpacked tile.
template <bool kHalves, class Quads>
struct MatrixBlock {
    const Unpacked& w;
    bool minimums;
    int zero, steps, join;  // join: steps whose dot products are added up in int32, as they share all scales
    PanelView x;

    // Σ of C tokens from `token` on.
    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
        constexpr int kEntries = kHalves ? 2 : 1, kEach = kQuads / kEntries;
        const Quads quads;
        const int width = x.width;
        const int8_t* codes = x.codes + token * 4;
        const float *sx = x.scales + token, *products = x.products + token;
        const int32_t* sums = x.sums + token;
        const uint8_t* p = w.codes;
        const float *scale = w.scale, *minimum = w.minimum;
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = zero_floats();
        Ints acc[C];
        for (int s = 0, joined = 0; s < steps; ++s) {
            BITSMITH_UNROLL for (int h = 0; h < kEntries; ++h) {
                if (kHalves || joined == 0) {
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] = splat(-zero * sums[c]);
                } else {
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] = acc[c] + splat(-zero * sums[c]);
                }
                dot_quads<0, kEach, C>(quads, p, codes, width, acc);
                p += kEach * 64;
                codes += kEach * 4 * width;
                if (kHalves || ++joined == join || s + 1 == steps) {
                    const Floats ws = load(scale);
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] =
                        fma(to_float(acc[c]) * splat(sx[c]), ws, out[c]);
                    joined = 0;
                }
                if (minimums) {
                    const Floats wm = load(minimum);
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = fma(wm, splat(products[c]), out[c]);
                }
                scale += kTile;
                minimum += kTile;
                sums += width;
                products += width;
            }
            sx += width;
        }
    }
};

template <bool kHalves, class Quads>
void matrix_panels(const Packed& w, const Act& act, const Output& out, int64_t tile, const Unpacked& unpacked,
                   int64_t first, int steps) {
    const int zero = w.zero - (Quads::kEightBits && (w.bits == 8 || w.codes == Codes::kLevels) ? kByteBias : 0);
    const int join = act.kind == ActKind::kInt8Token && !kHalves ? w.granularity / kStep : 1;
    for (int64_t panel = 0; panel < act.panels(); ++panel) {
        const PanelView x = advanced(panel_view(act, panel, kHalves), first, kHalves);
        const MatrixBlock<kHalves, Quads> block = {unpacked, w.offsets != Offsets::kZero, zero, steps, join, x};
        each_block(w, act, out, tile, panel, first > 0, first + steps == w.steps, block);
    }
}

template <class Quads>
void matrix_tiles(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                  uint8_t* scratch) {
    Unpacked unpacked = {scratch, reinterpret_cast<float*>(scratch + kPieceSteps * kStep * kTile), nullptr};
    unpacked.minimum = unpacked.scale + kPieceSteps * 2 * kTile;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        for (int64_t first = 0; first < w.steps; first += kPieceSteps) {
            const int steps = int(w.steps - first < kPieceSteps ? w.steps - first : kPieceSteps);
            unpack_tile<Quads>(w, tile, first, steps, unpacked);
            using Read = Select<Quads::kEightBits, BytesQuads, SmallQuads>;
            if (w.halves())
                matrix_panels<true, Read>(w, act, out, tile, unpacked, first, steps);
            else
                matrix_panels<false, Read>(w, act, out, tile, unpacked, first, steps);
        }
    }
}

inline void linear_integer(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                           uint8_t* scratch) {
    if constexpr (kFused) {
        if (vector_product(w, act, out, tile_begin, tile_end, scratch)) return;
    }
    with_quads(w, [&](auto quads) {
        using Quads = decltype(quads);
        matrix_tiles<Quads>(w, act, out, tile_begin, tile_end, scratch);
    });
}

}  // namespace bitsmith::engine::BITSMITH_NS
