// Products in float32: float weights, and integer ones where activations stay float32; bfloat16 with bfloat16.
#pragma once
#include "expand.h"
#include "quads.h"
#include "write.h"

namespace bitsmith::engine::BITSMITH_NS {

// Four columns of a quad, times scales.
template <class Value>
BITSMITH_INLINE void quad_floats(Bytes quad, float* out, const Value& value) {
    const Ints all = as_lanes(quad), byte = splat(255);
    store(out, value(all & byte));
    store(out + kTile, value(shift<-8>(all) & byte));
    store(out + 2 * kTile, value(shift<-16>(all) & byte));
    store(out + 3 * kTile, value(shift<-24>(all)));
}
template <int i, class Quads, class Value>
BITSMITH_INLINE void quads_floats(const Quads& quads, const typename Quads::Step& step, float* out, const Value& first,
                                  const Value& second) {
    if constexpr (i < kQuads) {
        quad_floats(quads.template get<i>(step), out + i * 4 * kTile, i < 4 ? first : second);
        quads_floats<i + 1>(quads, step, out, first, second);
    }
}

// (code − zero) · scale, or code · scale + minimum; a table's level · scale.
struct IntegerValue {
    Floats scale, offset;
    bool minimum;
    BITSMITH_INLINE Floats operator()(Ints code) const {
        const Floats value = to_float(code);
        return minimum ? fma(value, scale, offset) : (value + offset) * scale;
    }
};
struct TableValue {
    FloatTable table;
    Floats scale;
    BITSMITH_INLINE Floats operator()(Ints code) const { return lookup(table, code) * scale; }
};

template <class Quads>
void decode_integers(const Packed& w, const uint8_t* p, int steps, float* out) {
    alignas(64) float scale[2 * kChunkSteps * kTile], minimum[2 * kChunkSteps * kTile];
    expand(w, p, steps, scale, minimum);
    p += w.head_bytes;
    const Quads quads(w);
    const bool minimums = w.offsets != Offsets::kZero;
    const int each = w.halves() ? 2 : 1;
    for (int s = 0; s < steps; ++s, p += Quads::kStepBytes, out += kStep * kTile) {
        const int first = s * each * kTile, second = (s * each + each - 1) * kTile;
        if (w.codes == Codes::kFloatTable) {
            const FloatTable table = load_table(w.table);
            quads_floats<0>(quads, quads.load(p), out, TableValue{table, load(scale + first)},
                            TableValue{table, load(scale + second)});
        } else {
            const Floats zero = splat(float(-w.zero));
            quads_floats<0>(quads, quads.load(p), out,
                            IntegerValue{load(scale + first), minimums ? load(minimum + first) : zero, minimums},
                            IntegerValue{load(scale + second), minimums ? load(minimum + second) : zero, minimums});
        }
    }
}

// Columns of one entry that `expand` gives.
BITSMITH_INLINE int scale_columns(const Packed& w) {
    return w.halves() ? kStep / 2 : kStep;
}

// Chunk `chunk` of a tile → float32 [columns][16].
inline void decode_chunk(const Packed& w, int64_t tile, int64_t chunk, float* out) {
    const uint8_t* p = w.tile(tile) + chunk * w.chunk_bytes();
    const int steps = w.chunk_steps(chunk), columns = steps * kStep;
    if (w.integer() || w.codes == Codes::kFloatTable) {
        if (w.codes == Codes::kFloatTable) return decode_integers<IntegerQuads<4>>(w, p, steps, out);
        return with_quads(w, [&](auto quads) { decode_integers<decltype(quads)>(w, p, steps, out); });
    }
    alignas(64) float scale[2 * kChunkSteps * kTile];
    if (w.scales != Scales::kNone) expand(w, p, steps, scale, nullptr);
    p += w.head_bytes;
    if (w.codes == Codes::kF16) {
        for (int k = 0; k < columns; ++k) store(out + k * kTile, load_f16(halfwords(p) + k * kTile));
    } else if (w.codes == Codes::kBF16) {
        for (int k = 0; k < columns; k += 2) {
            const Ints both = as_lanes(load_bytes(p + k * kTile * 2));
            store(out + k * kTile, as_floats(shift<16>(both)));
            store(out + (k + 1) * kTile, as_floats(both & splat(int32_t(0xffff0000))));
        }
    } else {
        const bool e4m3 = w.codes == Codes::kE4M3;
        const int each = scale_columns(w);
        for (int k = 0; k < columns; ++k, p += kTile) {
            const Floats value = e4m3 ? load_e4m3_small(p) * splat(kE4M3Factor) : load_e5m2(p);
            store(out + k * kTile, w.scales == Scales::kNone ? value : value * load(scale + k / each * kTile));
        }
    }
}

// One column, or one pair of them, of sixteen rows times one token's activations.
struct DotF32 {
    static constexpr int kBytes = 64;  // of weights; activations take 4
    static BITSMITH_INLINE Floats add(Floats sum, const uint8_t* w, const uint8_t* x) {
        float value;
        memcpy(&value, x, 4);
        return fma(load(reinterpret_cast<const float*>(w)), splat(value), sum);
    }
};
struct DotF16 {
    static constexpr int kBytes = 32;
    static BITSMITH_INLINE Floats add(Floats sum, const uint8_t* w, const uint8_t* x) {
        float value;
        memcpy(&value, x, 4);
        return fma(load_f16(halfwords(w)), splat(value), sum);
    }
};
struct DotBF16 {  // a pair
    static constexpr int kBytes = 64;
    static BITSMITH_INLINE Floats add(Floats sum, const uint8_t* w, const uint8_t* x) {
        return dot_bf16(sum, halfwords(w), halfwords(x));
    }
};

template <bool kE4M3>
struct DotFloat8 {  // without the factor of from_float8
    static constexpr int kBytes = 16;
    static BITSMITH_INLINE Floats add(Floats sum, const uint8_t* w, const uint8_t* x) {
        float value;
        memcpy(&value, x, 4);
        return fma(kE4M3 ? load_e4m3_small(w) : load_e5m2(w), splat(value), sum);
    }
};

// Σ over `count` columns or pairs with C tokens; few tokens take several sums to hide latency.
template <class Dot>
struct FloatBlock {
    const uint8_t* w;
    const uint8_t* x;  // of the panel
    int64_t count;
    int width;

    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
        constexpr int kWays = C == 1 ? 8 : C == 2 ? 4 : C <= 4 && kSub >= kPanel ? 2 : 1;
        const uint8_t *wp = w, *xp = x + token * 4;
        Floats sums[kWays][C];
        BITSMITH_UNROLL for (int i = 0; i < kWays; ++i) BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums[i][c] =
            zero_floats();
        for (int64_t k = 0; k < count; k += kWays) {  // a step divides evenly
            BITSMITH_UNROLL for (int i = 0; i < kWays; ++i) {
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums[i][c] = Dot::add(sums[i][c], wp, xp + 4 * c);
                wp += Dot::kBytes;
                xp += 4 * width;
            }
        }
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
            out[c] = sums[0][c];
            BITSMITH_UNROLL for (int i = 1; i < kWays; ++i) out[c] = out[c] + sums[i][c];
        }
    }
};

// Weights that are read as they are stored.
template <class Dot>
void linear_stored(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end) {
    const int64_t count = w.tile_bytes / Dot::kBytes;
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        for (int64_t panel = 0; panel < act.panels(); ++panel) {
            const FloatBlock<Dot> block = {w.tile(tile), act.codes(panel), count, act.width(panel)};
            each_block(w, act, out, tile, panel, false, true, block);
        }
    }
}

// FloatBlock of 8-bit floats.
template <bool kE4M3>
struct Float8Run {
    const uint8_t* w;
    const uint8_t* x;
    int64_t count;
    int width;

    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
#if defined(BITSMITH_FOUR_FLOAT8)
        constexpr int kWays = C <= 4 ? 4 : 1;
        const uint8_t* xp = x + token * 4;
        Floats sums[kWays][C];
        BITSMITH_UNROLL for (int i = 0; i < kWays; ++i) BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums[i][c] =
            zero_floats();
        for (int64_t k = 0; k < count; k += 4) {
            Floats weights[4];
            load_four_float8<kE4M3>(w + k * kTile, weights);
            BITSMITH_UNROLL for (int i = 0; i < 4; ++i, xp += 4 * width) {
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                    float value;
                    memcpy(&value, xp + 4 * c, 4);
                    sums[i % kWays][c] = fma(weights[i], splat(value), sums[i % kWays][c]);
                }
            }
        }
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
            out[c] = sums[0][c];
            BITSMITH_UNROLL for (int i = 1; i < kWays; ++i) out[c] = out[c] + sums[i][c];
        }
#else
        const FloatBlock<DotFloat8<kE4M3>> block = {w, x, count, width};
        block.template run<C>(token, out);
#endif
    }
};

// Eight-bit floats with their scales: a sum for each run of columns that shares them.
template <bool kE4M3>
struct Float8Block {
    const Packed& w;
    int64_t tile;
    const uint8_t* x;
    int width;

    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
        constexpr float kFactor = kE4M3 ? kE4M3Factor : 1.0f;
        const int run_columns = w.granularity, each = scale_columns(w);
        alignas(64) float scale[2 * kChunkSteps * kTile];
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = zero_floats();
        const uint8_t *p = w.tile(tile), *xp = x;
        for (int64_t chunk = 0; chunk * kChunkSteps < w.steps; ++chunk) {
            const int steps = w.chunk_steps(chunk), columns = steps * kStep;
            if (w.scales != Scales::kNone) expand(w, p, steps, scale, nullptr);
            p += w.head_bytes;
            for (int k = 0; k < columns; k += run_columns) {
                const int count = columns - k < run_columns ? columns - k : run_columns;
                Floats sums[C], factor = splat(kFactor);
                if (w.scales != Scales::kNone) factor = factor * load(scale + k / each * kTile);
                const Float8Run<kE4M3> block = {p, xp, count, width};
                block.template run<C>(token, sums);
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = fma(sums[c], factor, out[c]);
                p += count * kTile;
                xp += count * width * 4;
            }
        }
    }
};
template <bool kE4M3>
void linear_float8(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end) {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        for (int64_t panel = 0; panel < act.panels(); ++panel) {
            const Float8Block<kE4M3> block = {w, tile, act.codes(panel), act.width(panel)};
            each_block(w, act, out, tile, panel, false, true, block);
        }
    }
}

// Codes of four bits as numbers of a float level: eight columns of sixteen rows lie in one vector, a nibble each.
// sums: [C], or [2][C], one for each half step.
template <bool kHalves, int kNibble, int C>
BITSMITH_INLINE void add_nibbles(FloatTable table, Ints codes, const uint8_t* x, int width, Floats* sums) {
    if constexpr (kNibble < 8) {
        // Nibble 2c is column c of the vector's first quad, 2c + 1 of the one 16 columns later.
        const uint8_t* column = x + (kNibble / 2 + kNibble % 2 * 16) * width * 4;
        const Floats weight = lookup(table, shift<-4 * kNibble>(codes));
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
            float value;
            memcpy(&value, column + 4 * c, 4);
            constexpr int kAt = kHalves ? kNibble % 2 * C : 0;
            sums[kAt + c] = fma(weight, splat(value), sums[kAt + c]);
        }
        add_nibbles<kHalves, kNibble + 1, C>(table, codes, x, width, sums);
    }
}
// A sum for each step, or half step where scales are that fine, then its scale.
template <bool kHalves>
struct TableBlock {
    const Packed& w;
    int64_t tile;
    const uint8_t* x;
    int width;

    template <int C>
    BITSMITH_INLINE void run(int token, Floats* out) const {
        constexpr int kEntries = kHalves ? 2 : 1;
        const FloatTable table = load_table(w.table);
        alignas(64) float scale[2 * kChunkSteps * kTile];
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = zero_floats();
        const uint8_t *p = w.tile(tile), *xp = x + token * 4;
        for (int64_t chunk = 0; chunk * kChunkSteps < w.steps; ++chunk) {
            const int steps = w.chunk_steps(chunk);
            expand(w, p, steps, scale, nullptr);
            p += w.head_bytes;
            for (int s = 0; s < steps; ++s, p += 4 * 64, xp += kStep * width * 4) {
                Floats sums[kEntries * C];
                BITSMITH_UNROLL for (int c = 0; c < kEntries * C; ++c) sums[c] = zero_floats();
                for (int v = 0; v < 4; ++v)
                    add_nibbles<kHalves, 0, C>(table, as_lanes(load_bytes(p + 64 * v)), xp + v * 4 * width * 4, width,
                                               sums);
                BITSMITH_UNROLL for (int h = 0; h < kEntries; ++h) {
                    const Floats factor = load(scale + (s * kEntries + h) * kTile);
                    BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = fma(sums[h * C + c], factor, out[c]);
                }
            }
        }
    }
};
inline void linear_table(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end) {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        if (w.halves())
            each_block(w, act, out, tile, 0, false, true, TableBlock<true>{w, tile, act.codes(0), act.width(0)});
        else
            each_block(w, act, out, tile, 0, false, true, TableBlock<false>{w, tile, act.codes(0), act.width(0)});
    }
}

// Weights of one panel's products, decoded a chunk at a time.
inline void linear_decoded(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                           uint8_t* scratch) {
    const int64_t chunks = (w.steps + kChunkSteps - 1) / kChunkSteps;
    const int width = act.width(0);
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        for (int64_t chunk = 0; chunk < chunks; ++chunk) {
            decode_chunk(w, tile, chunk, reinterpret_cast<float*>(scratch));
            const FloatBlock<DotF32> block = {scratch, act.codes(0) + chunk * kChunk * width * 4,
                                              w.chunk_steps(chunk) * kStep, width};
            each_block(w, act, out, tile, 0, chunk > 0, chunk + 1 == chunks, block);
        }
    }
}

}  // namespace bitsmith::engine::BITSMITH_NS
