// Products of more than a few tokens with integer codes: the codes of a tile are unpacked to bytes once, and every
// panel of tokens reads those. What multiplies the bytes differs between instruction sets.
#pragma once
#include "expand.h"
#include "panel.h"
#include "quads.h"
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
template <class Products>
void unpack_tile(const Packed& w, int64_t tile, int64_t first, int steps, const Unpacked& to) {
    const Products products(w);
    const int entries = w.halves() ? 2 : 1;
    const uint8_t* p = w.tile(tile) + first / kChunkSteps * w.chunk_bytes();
    for (int at = 0; at < steps; at += kChunkSteps) {
        const int count = steps - at < kChunkSteps ? steps - at : kChunkSteps;
        expand(w, p, count, to.scale + at * entries * kTile, to.minimum + at * entries * kTile);
        p += w.head_bytes;
        for (int s = 0; s < count; ++s, p += w.step_bytes) products.unpack(p, to.codes + (at + s) * kStep * kTile);
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

// Whether the tokens of a panel may be multiplied a few at a time.
struct PartsOfPanels {};
struct WholePanels {
    static constexpr bool kWhole = true;
};

// The dot products of C tokens, `token` and on, with an unpacked tile: add<C>(acc) is called for one step, or half
// step, after the other; begin<C>(step, steps) before each step. kCentred: the tile's codes have no zero left to
// subtract.
template <class Quads, bool kHalves>
struct QuadDots {
    using Panels = PartsOfPanels;
    static constexpr bool kCentred = false;
    const uint8_t* w;
    const int8_t* x;
    int width;

    BITSMITH_INLINE QuadDots(const Unpacked& unpacked, const PanelView& view, int token)
        : w(unpacked.codes), x(view.codes + token * 4), width(view.width) {}
    template <int C>
    BITSMITH_INLINE void begin(int, int) {}
    template <int C>
    BITSMITH_INLINE void add(Ints* acc) {
        constexpr int kEach = kQuads / (kHalves ? 2 : 1);
        dot_quads<0, kEach, C>(Quads(), w, x, width, acc);
        w += kEach * 64;
        x += kEach * 4 * width;
    }
};

// One panel with an unpacked tile.
template <bool kHalves, class Dots>
struct MatrixBlock : Dots::Panels {
    const Unpacked& w;
    bool minimums;
    int zero, steps, join;  // join: steps whose dot products are added up in int32, as they share all scales
    PanelView x;

    // Σ of C tokens from `token` on.
    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
        constexpr int kEntries = kHalves ? 2 : 1;
        Dots dots(w, x, token);
        const int width = x.width;
        const float *sx = x.scales + token, *products = x.products + token;
        const int32_t* sums = x.sums + token;
        const float *scale = w.scale, *minimum = w.minimum;
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = zero_floats();
        Ints acc[C];
        for (int s = 0, joined = 0; s < steps; ++s) {
            dots.template begin<C>(s, steps);
            BITSMITH_UNROLL for (int h = 0; h < kEntries; ++h) {
                if (Dots::kCentred) {
                    if (kHalves || joined == 0) BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] = zero_ints();
                } else if (kHalves || joined == 0) {
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] = splat(-zero * sums[c]);
                } else {
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] = acc[c] + splat(-zero * sums[c]);
                }
                dots.template add<C>(acc);
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

// zero: what the dot products subtract from every weight.
template <bool kHalves, class Dots>
void matrix_panels(const Packed& w, const Act& act, const Output& out, int64_t tile, const Unpacked& unpacked,
                   int64_t first, int steps, int zero) {
    const int join = act.kind == ActKind::kInt8Token && !kHalves ? w.granularity / kStep : 1;
    for (int64_t panel = 0; panel < act.panels(); ++panel) {
        const PanelView x = advanced(panel_view(act, panel, kHalves), first, kHalves);
        const MatrixBlock<kHalves, Dots> block = {{}, unpacked, w.offsets != Offsets::kZero, zero, steps, join, x};
        each_block(w, act, out, tile, panel, first > 0, first + steps == w.steps, block);
    }
}

// Products: unpack(step, out), the dot products of what it leaves, and the zero that these still have.
template <class Products>
void matrix_tiles(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                  uint8_t* scratch) {
    Unpacked unpacked = {scratch, reinterpret_cast<float*>(scratch + kPieceSteps * kStep * kTile), nullptr};
    unpacked.minimum = unpacked.scale + kPieceSteps * 2 * kTile;
    const int zero = Products::zero(w);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        for (int64_t first = 0; first < w.steps; first += kPieceSteps) {
            const int steps = int(w.steps - first < kPieceSteps ? w.steps - first : kPieceSteps);
            unpack_tile<Products>(w, tile, first, steps, unpacked);
            if (w.halves())
                matrix_panels<true, typename Products::HalfDots>(w, act, out, tile, unpacked, first, steps, zero);
            else
                matrix_panels<false, typename Products::Dots>(w, act, out, tile, unpacked, first, steps, zero);
        }
    }
}

template <class Quads>
struct QuadProducts {
    using Read = Select<Quads::kEightBits, BytesQuads, SmallQuads>;
    using Dots = QuadDots<Read, false>;
    using HalfDots = QuadDots<Read, true>;
    const Quads quads;

    explicit BITSMITH_INLINE QuadProducts(const Packed& w) : quads(w) {}
    BITSMITH_INLINE void unpack(const uint8_t* step, uint8_t* out) const {
        unpack_quads<0>(quads, quads.load(step), out);
    }
    static int zero(const Packed& w) {
        return w.zero - (Read::kEightBits && (w.bits == 8 || w.codes == Codes::kLevels) ? kByteBias : 0);
    }
};

}  // namespace bitsmith::engine::BITSMITH_NS
