// Products of many tokens in a matrix unit (AMX): tokens are the rows of its first operand, a tile's sixteen rows of
// weights, four or two neighbouring columns in each 32 bits, are its second one as they lie unpacked, or as BF16 is
// packed.
#pragma once
#include "../simd/tiles.h"
#include "panels.h"

namespace bitsmith::engine::BITSMITH_NS {

// ---- integers: one product for each step, or half step where scales are that fine ----

// Full panels: sums in tiles 0 and 1, tokens in 2 and 3. A narrower last panel: 6 and 7. Weights: 4 and 5.
inline TileShapes integer_shapes(const Act& act, bool halves) {
    TileShapes shapes;
    const int columns = halves ? kStep / 2 : kStep, last = act.width(act.panels() - 1);
    shapes.set(0, 1, kPanel, 64);
    shapes.set(2, 3, kPanel, columns);
    shapes.set(4, 5, columns / 4, 64);
    shapes.set(6, 6, last, 64);
    shapes.set(7, 7, last, columns);
    return shapes;
}

// kSigned: the tile's codes are int8, otherwise uint8.
#define BITSMITH_TILE_PRODUCT(sums, tokens, weights) \
    _tile_zero(sums);                                \
    _tile_loadd(tokens, x, kStep);                   \
    _tile_loadd(weights, w, 64);                     \
    if constexpr (kSigned) {                         \
        _tile_dpbssd(sums, tokens, weights);         \
    } else {                                         \
        _tile_dpbsud(sums, tokens, weights);         \
    }                                                \
    _tile_stored(sums, out, 64)

// See QuadDots. Whole chunks are multiplied at once, so that the unit works while their sums are scaled.
template <bool kHalves, bool kSigned>
struct TileDots {
    using Panels = WholePanels;
    static constexpr bool kCentred = true;
    static constexpr int kEntries = kHalves ? 2 : 1;
    const uint8_t* w;
    const int8_t* x;
    int width;
    const int32_t* next = products;
    alignas(64) int32_t products[kChunkSteps * kEntries * kPanel * kTile];  // [entry][token][row]

    BITSMITH_INLINE TileDots(const Unpacked& unpacked, const PanelView& view, int token)
        : w(unpacked.codes), x(view.codes + token * kStep), width(view.width) {}

    template <int C>
    BITSMITH_INLINE void begin(int step, int steps) {
        if (step % kChunkSteps != 0) return;
        const int left = steps - step, entries = (left < kChunkSteps ? left : kChunkSteps) * kEntries;
        int32_t* out = products;
        settle();
        for (int i = 0; i < entries; ++i) {
            if constexpr (C < kPanel) {
                BITSMITH_TILE_PRODUCT(6, 7, 4);
            } else if (i % 2 == 0) {
                BITSMITH_TILE_PRODUCT(0, 2, 4);
            } else {
                BITSMITH_TILE_PRODUCT(1, 3, 5);
            }
            w += kQuads / kEntries * 64;
            x += kHalves && i % 2 == 0 ? kStep / 2 : kStep * width - (kHalves ? kStep / 2 : 0);
            out += C * kTile;
        }
        next = products;
    }
    template <int C>
    BITSMITH_INLINE void add(Ints* acc) {
        BITSMITH_UNROLL for (int c = 0; c < C; ++c, next += kTile) acc[c] =
            acc[c] + as_lanes(load_bytes(reinterpret_cast<const uint8_t*>(next)));
    }
};
#undef BITSMITH_TILE_PRODUCT

template <int i, class Quads>
BITSMITH_INLINE void unpack_centred(const Quads& quads, Bytes zero, const typename Quads::Step& step, uint8_t* out) {
    if constexpr (i < kQuads) {
        store_bytes(out + i * 64, quads.template get<i>(step) - zero);
        unpack_centred<i + 1>(quads, zero, step, out);
    }
}

// Codes minus their zero as int8 where all have the same zero, which is at least half of the largest code; codes as
// they are where it is 0.
template <class Quads, bool kSigned>
struct TileProducts {
    using Dots = TileDots<false, kSigned>;
    using HalfDots = TileDots<true, kSigned>;
    const Quads quads;
    const Bytes centre;

    explicit BITSMITH_INLINE TileProducts(const Packed& w) : quads(w), centre(splat_byte(w.zero)) {}
    BITSMITH_INLINE void unpack(const uint8_t* step, uint8_t* out) const {
        if constexpr (kSigned)
            unpack_centred<0>(quads, centre, quads.load(step), out);
        else
            unpack_quads<0>(quads, quads.load(step), out);
    }
    static int zero(const Packed&) { return 0; }
};

inline void linear_integer_tiles(const Packed& w, const Act& act, const Output& out, int64_t tile_begin,
                                 int64_t tile_end, uint8_t* scratch) {
    const TileUse use(integer_shapes(act, w.halves()));
    with_quads(w, [&](auto quads) {
        using Quads = decltype(quads);
        if (w.zero == 0)
            matrix_tiles<TileProducts<Quads, false>>(w, act, out, tile_begin, tile_end, scratch);
        else
            matrix_tiles<TileProducts<Quads, true>>(w, act, out, tile_begin, tile_end, scratch);
    });
}

// ---- bfloat16: sums stay in the unit over all columns ----

// Sums: tiles 0 to 3. Tokens: 4 and 5. Weights, a step of sixteen rows each: 6 and 7.
inline TileShapes bf16_shapes(int tokens) {
    TileShapes shapes;
    shapes.set(0, 3, tokens, 64);
    shapes.set(4, 5, tokens, 64);
    shapes.set(6, 7, kStep / 2, 64);
    return shapes;
}
constexpr int kTileSums = kPanel * kTile;

// Two panels with two tiles: sums [panel][tile][token][row].
inline void bf16_four(const uint8_t* w0, const uint8_t* w1, const uint8_t* x0, const uint8_t* x1, int64_t steps,
                      float* sums) {
    settle();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; ++s) {
        const int64_t w = s * kStep * kTile * 2, x = s * kStep * kPanel * 2;
        _tile_loadd(6, w0 + w, 64);
        _tile_loadd(4, x0 + x, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w1 + w, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1 + x, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kTileSums, 64);
    _tile_stored(2, sums + 2 * kTileSums, 64);
    _tile_stored(3, sums + 3 * kTileSums, 64);
}

// One panel with one tile. Four sums of every fourth step, as each product waits for the one before it:
// [4][token][row].
inline void bf16_one(const uint8_t* w, const uint8_t* x, int width, int64_t steps, float* sums) {
    const int64_t w_step = kStep * kTile * 2, x_step = kStep * width * 2;
    settle();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    int64_t s = 0;
    for (; s + 4 <= steps; s += 4, w += 4 * w_step, x += 4 * x_step) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, x + x_step, 64);
        _tile_loadd(7, w + w_step, 64);
        _tile_dpbf16ps(1, 5, 7);
        _tile_loadd(4, x + 2 * x_step, 64);
        _tile_loadd(6, w + 2 * w_step, 64);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, x + 3 * x_step, 64);
        _tile_loadd(7, w + 3 * w_step, 64);
        _tile_dpbf16ps(3, 5, 7);
    }
    for (; s < steps; ++s, w += w_step, x += x_step) {
        _tile_loadd(4, x, 64);
        _tile_loadd(6, w, 64);
        _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + kTileSums, 64);
    _tile_stored(2, sums + 2 * kTileSums, 64);
    _tile_stored(3, sums + 3 * kTileSums, 64);
}

// Σ of kParts stored sums.
template <int kParts>
struct StoredSums {
    const float* sums;

    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
            const float* at = sums + (token + c) * kTile;
            out[c] = load(at);
            BITSMITH_UNROLL for (int i = 1; i < kParts; ++i) out[c] = out[c] + load(at + i * kTileSums);
        }
    }
};

inline void linear_bf16_tiles(const Packed& w, const Act& act, const Output& out, int64_t tile_begin,
                              int64_t tile_end) {
    alignas(64) float sums[4 * kTileSums];
    const int64_t full = act.rows / kPanel, paired = full / 2 * 2, two = tile_begin + (tile_end - tile_begin) / 2 * 2;
    const auto one = [&](int64_t tile, int64_t panel) {
        bf16_one(w.tile(tile), act.codes(panel), act.width(panel), w.steps, sums);
        each_block(w, act, out, tile, panel, false, true, StoredSums<4>{sums});
    };
    if (full > 0) {
        const TileUse use(bf16_shapes(kPanel));
        for (int64_t tile = tile_begin; tile < two; tile += 2) {
            for (int64_t panel = 0; panel < paired; panel += 2) {
                bf16_four(w.tile(tile), w.tile(tile + 1), act.codes(panel), act.codes(panel + 1), w.steps, sums);
                for (int i = 0; i < 4; ++i)
                    each_block(w, act, out, tile + i % 2, panel + i / 2, false, true,
                               StoredSums<1>{sums + i * kTileSums});
            }
            for (int64_t panel = paired; panel < full; ++panel) {
                one(tile, panel);
                one(tile + 1, panel);
            }
        }
        if (two < tile_end)
            for (int64_t panel = 0; panel < full; ++panel) one(two, panel);
    }
    if (full < act.panels()) {
        const TileUse use(bf16_shapes(act.width(full)));
        for (int64_t tile = tile_begin; tile < tile_end; ++tile) one(tile, full);
    }
}

}  // namespace bitsmith::engine::BITSMITH_NS
