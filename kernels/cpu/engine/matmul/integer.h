// Products of integer codes with int8 activations: whole dot products of a step in int32, then scales in float32.
//
// Up to four tokens: codes go from their planes through registers into the dot product, one pass over the weights.
// More: the codes of a tile are unpacked to bytes once, and every panel of tokens reads those.
#pragma once
#include "expand.h"
#include "quads.h"
#include "write.h"

namespace bitsmith::engine::BITSMITH_NS {

// Pointers to one panel, at its first step.
struct PanelView {
    const int8_t* codes;
    const float *scales, *products;  // products, sums: of half steps where weights have scales that fine
    const int32_t* sums;
    int width;
};
BITSMITH_INLINE PanelView panel_view(const Act& act, int64_t panel, bool halves) {
    PanelView v = {reinterpret_cast<const int8_t*>(act.codes(panel)), act.scales(panel), nullptr, nullptr,
                   act.width(panel)};
    v.products = halves ? act.half_products(panel) : act.step_products(panel);
    v.sums = halves ? act.half_sums(panel) : act.step_sums(panel);
    return v;
}
// `steps` later.
BITSMITH_INLINE PanelView advanced(PanelView v, int64_t steps, bool halves) {
    v.codes += steps * kStep * v.width;
    v.scales += steps * v.width;
    const int64_t entries = (halves ? 2 : 1) * steps * v.width;
    v.products += entries;
    v.sums += entries;
    return v;
}

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

// The planes of a step are read by turns, which the processor's own prefetcher takes for no stream; so every line is
// asked for once in the order of addresses. Worth a third of the rate from memory for six bits.
template <int kBytes>
BITSMITH_INLINE void touch_in_order(const uint8_t* p) {
    BITSMITH_UNROLL for (int at = 0; at < kBytes; at += 64) prefetch(p + at);
}

// One tile with the C ≤ 4 tokens of a panel.
template <int C, class Quads>
BITSMITH_INLINE void vector_tile(const Packed& w, const Quads& quads, PanelView x, int64_t tile, Floats* out) {
    const bool halves = w.halves(), minimums = w.offsets != Offsets::kZero;
    const int zero = w.zero - (Quads::kEightBits ? kByteBias : 0), entries = halves ? 2 : 1;
    alignas(64) float scale[2 * kChunkSteps * kTile], minimum[2 * kChunkSteps * kTile];
    BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = zero_floats();
    const uint8_t* p = w.tile(tile);
    for (int64_t chunk = 0; chunk * kChunkSteps < w.steps; ++chunk) {
        const int steps = w.chunk_steps(chunk);
        expand(w, p, steps, scale, minimum);
        p += w.head_bytes;
        const float *ws = scale, *wm = minimum;
        for (int s = 0; s < steps; ++s, p += Quads::kStepBytes) {
            if constexpr (Quads::kPlanes > 1) touch_in_order<Quads::kStepBytes>(p);
            Ints first[C], second[C];
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                first[c] = splat(-zero * x.sums[c]);
                second[c] = halves ? splat(-zero * x.sums[C + c]) : zero_ints();
            }
            dot_quads<0, 4, C>(quads, p, x.codes, C, first);
            dot_quads<4, 4, C>(quads, p, x.codes, C, second);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                const Floats sx = splat(x.scales[c]);
                if (halves) {
                    out[c] = fma(to_float(first[c]) * sx, load(ws), out[c]);
                    out[c] = fma(to_float(second[c]) * sx, load(ws + kTile), out[c]);
                    if (minimums) out[c] = fma(load(wm + kTile), splat(x.products[C + c]), out[c]);
                } else {
                    out[c] = fma(to_float(first[c] + second[c]) * sx, load(ws), out[c]);
                }
                if (minimums) out[c] = fma(load(wm), splat(x.products[c]), out[c]);
            }
            ws += entries * kTile;
            wm += entries * kTile;
            x.codes += kStep * C;
            x.scales += C;
            x.sums += entries * C;
            x.products += entries * C;
        }
    }
}

template <int C, class Quads>
void vector_tiles(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end) {
    const Quads quads(w);
    const PanelView x = panel_view(act, 0, w.halves());
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        Floats sums[C];
        vector_tile<C>(w, quads, x, tile, sums);
        write<C>(w, out, tile, 0, act.rows, sums, out.accumulate, true);
    }
}

// Steps that are unpacked at a time: 128 KB of codes, and at most as many of scales, in scratch.
constexpr int kPieceSteps = 256;

struct Unpacked {
    uint8_t* codes;  // [step][quad][64]
    float *scale, *minimum;
};

template <int i, class Quads>
BITSMITH_INLINE void unpack_quads(const Quads& quads, const uint8_t* p, uint8_t* out) {
    if constexpr (i < kQuads) {
        store_bytes(out + i * 64, quads.template get<i>(p));
        unpack_quads<i + 1>(quads, p, out);
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
            unpack_quads<0>(quads, p, to.codes + (at + s) * kStep * kTile);
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
    with_quads(w, [&](auto quads) {
        using Quads = decltype(quads);
        if constexpr (kFused) {
            if (act.rows == 1) return vector_tiles<1, Quads>(w, act, out, tile_begin, tile_end);
            if (act.rows == 2) return vector_tiles<2, Quads>(w, act, out, tile_begin, tile_end);
            if (act.rows <= 4) return vector_tiles<4, Quads>(w, act, out, tile_begin, tile_end);
        }
        matrix_tiles<Quads>(w, act, out, tile_begin, tile_end, scratch);
    });
}

}  // namespace bitsmith::engine::BITSMITH_NS
