// One to four tokens: codes go from their vectors through registers into the dot product, one pass over the weights.
//
// What bounds this is memory, as long as unpacking takes less time than reading. So codes are not shifted where a shift
// of a sum does (IntegerQuads::kInPlace), formats with two levels of scales multiply dot products by the inner one as
// integers, and only what is rare has its scales expanded to memory first.
#pragma once
#include "expand.h"
#include "panel.h"
#include "quads.h"
#include "write.h"

namespace bitsmith::engine::BITSMITH_NS {

// Scales are read one by one between the codes, which the processor's prefetcher takes for no stream; so the lines of a
// head are asked for first, in the order of addresses.
BITSMITH_INLINE void touch(const uint8_t* p, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) prefetch(p + at);
}

constexpr bool kInPlace = kByteBias == 0 && !kSmallDotIsFaster;  // all 8 bits of a byte cost no more than 7

template <int C>
struct Sums {
    Ints of[C];
};

// The dot products of `kCount` quads from kFirst on with C tokens: one sum for every shift in place, and a second one
// where no quad is shifted, since a chain of eight dot products would be long.
template <int C, class Quads, int kFirst, int kCount>
class Dots {
public:
    // starts: int32 [C] that the sums begin with, or null.
    BITSMITH_INLINE Sums<C> run(const Quads& quads, const typename Quads::Step& codes, const int8_t* x,
                                const int32_t* starts) {
        BITSMITH_UNROLL for (int slot = 0; slot <= kSecond; ++slot) {
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums_[slot][c] = zero_ints();
        }
        if (starts) {
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums_[0][c] = splat(starts[c]);
        }
        add<0>(quads, codes, x);
        Sums<C> joined;
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) joined.of[c] = shifted_back<highest(8)>(sums_[highest(8)][c], c);
        return joined;
    }

private:
    static constexpr int kSecond = 8;
    Ints sums_[kSecond + 1][C];

    template <int i>
    static constexpr int shift_of() {
        return kInPlace ? Quads::template kShift<i> : 0;
    }
    template <int i = 0>
    static constexpr unsigned shifts() {  // as a set of bits
        if constexpr (i == kCount)
            return 1;
        else
            return 1u << shift_of<kFirst + i>() | shifts<i + 1>();
    }
    static constexpr int highest(int below) {
        for (int s = below - 1; s > 0; --s)
            if (shifts() >> s & 1) return s;
        return 0;
    }
    template <int i>
    BITSMITH_INLINE void add(const Quads& quads, const typename Quads::Step& codes, const int8_t* x) {
        if constexpr (i < kCount) {
            constexpr int kQuad = kFirst + i, kSlot = shifts() == 1 && i >= 4 ? kSecond : shift_of<kQuad>();
            constexpr bool kEightBits = Quads::kEightBits || kInPlace;
            Bytes w;
            if constexpr (kInPlace)
                w = quads.template get_in_place<kQuad>(codes);
            else
                w = quads.template get<kQuad>(codes);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums_[kSlot][c] =
                dot<kEightBits>(sums_[kSlot][c], w, x + (kQuad * C + c) * 4);
            add<i + 1>(quads, codes, x);
        }
    }
    // total: the sum of what is shifted by s or more.
    template <int s>
    BITSMITH_INLINE Ints shifted_back(Ints total, int c) const {
        if constexpr (s > 0) {
            constexpr int kLower = highest(s);
            return shifted_back<kLower>(shift_signed<s - kLower>(total) + sums_[kLower][c], c);
        } else if constexpr (shifts() == 1 && kCount > 4) {
            return total + sums_[kSecond][c];
        } else {
            return total;
        }
    }
};

// What is summed up of one tile, and where its codes and the tokens' are.
template <int C, class Quads, bool kHalves, bool kMinimums>
struct TileSums {
    static constexpr int kEntries = kHalves ? 2 : 1;
    const Quads& quads;
    const uint8_t* p;
    PanelView x;
    Floats out[C], scaled[C], lifted[C];  // of the tile; of the chunk, before d and dmin

    BITSMITH_INLINE TileSums(const Quads& q, const uint8_t* at, const PanelView& view) : quads(q), p(at), x(view) {
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) out[c] = scaled[c] = lifted[c] = zero_floats();
    }
    BITSMITH_INLINE void next() {
        p += Quads::kStepBytes;
        x.codes += kStep * C;
        x.scales += C;
        x.products += kEntries * C;
        if (!kMinimums) x.sums += kEntries * C;
    }
    // A step whose weights are d · scale · code − dmin · minimum; one scale and minimum for each half of it if kHalves.
    BITSMITH_INLINE void inner_step(const Ints* scale, const Ints* minimum) {
        const int32_t* starts = kMinimums ? nullptr : x.sums;
        const typename Quads::Step codes = quads.load(p);
        if constexpr (kHalves) {
            const Sums<C> first = Dots<C, Quads, 0, 4>().run(quads, codes, x.codes, starts);
            const Sums<C> second = Dots<C, Quads, 4, 4>().run(quads, codes, x.codes, starts ? starts + C : nullptr);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) scaled[c] =
                fma(to_float(first.of[c] * scale[0] + second.of[c] * scale[1]), splat(x.scales[c]), scaled[c]);
        } else {
            const Sums<C> sums = Dots<C, Quads, 0, 8>().run(quads, codes, x.codes, starts);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) scaled[c] =
                fma(to_float(sums.of[c] * scale[0]), splat(x.scales[c]), scaled[c]);
        }
        if constexpr (kMinimums) {
            BITSMITH_UNROLL for (int h = 0; h < kEntries; ++h) {
                const Floats value = to_float(minimum[h]);
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) lifted[c] =
                    fma(value, splat(x.products[h * C + c]), lifted[c]);
            }
        }
        next();
    }
    BITSMITH_INLINE void end_chunk(const uint8_t* head) {
        const Floats d = load_f16(halfwords(head));
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
            out[c] = fma(d, scaled[c], out[c]);
            scaled[c] = zero_floats();
        }
        if constexpr (kMinimums) {
            const Floats dmin = load_f16(halfwords(head) + kTile) * splat(-1.0f);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                out[c] = fma(dmin, lifted[c], out[c]);
                lifted[c] = zero_floats();
            }
        }
    }
};

// How each kind of head is read. run: one chunk, whose codes are at sums.p.
template <int kBits>
struct PairsWithMinimums {
    using Codes = IntegerQuads<kBits>;
    static constexpr bool kHalves = false, kMinimums = true;
    template <class Tile>
    static BITSMITH_INLINE void one(Tile& sums, const Pairs& pair) {
        sums.inner_step(&pair.a, &pair.b);
    }
};
struct PairsOfHalves {
    using Codes = IntegerQuads<3>;
    static constexpr bool kHalves = true, kMinimums = false;
    template <class Tile>
    static BITSMITH_INLINE void one(Tile& sums, const Pairs& pair) {
        const Ints scales[2] = {pair.a - splat(32), pair.b - splat(32)};
        sums.inner_step(scales, nullptr);
    }
};
template <class Head>
struct PairHead : Head {
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed&, const uint8_t* head, int steps, Tile& sums) {
        const Pairs groups[2] = {load_pairs<0>(head), load_pairs<1>(head)};
        for (int first = 0; first < steps; first += 4) {
            const Pairs& pairs = groups[first / 4];
            Head::one(sums, pair_of<0>(pairs));
            if (first + 1 < steps) Head::one(sums, pair_of<1>(pairs));
            if (first + 2 < steps) Head::one(sums, pair_of<2>(pairs));
            if (first + 3 < steps) Head::one(sums, pair_of<3>(pairs));
        }
        sums.end_chunk(head);
    }
};
template <class Quads, bool kHalf>
struct Sub8Head {
    using Codes = Quads;
    static constexpr bool kHalves = kHalf, kMinimums = false;
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed&, const uint8_t* head, int steps, Tile& sums) {
        const uint8_t* scale = head + 32;
        for (int s = 0; s < steps; ++s, scale += Tile::kEntries * kTile) {
            const Ints scales[2] = {widen_s8(scale), kHalves ? widen_s8(scale + kTile) : zero_ints()};
            sums.inner_step(scales, nullptr);
        }
        sums.end_chunk(head);
    }
};
struct Sub4Head {
    using Codes = IntegerQuads<2>;
    static constexpr bool kHalves = true, kMinimums = true;
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed&, const uint8_t* head, int steps, Tile& sums) {
        const uint8_t* both = head + 64;
        for (int s = 0; s < steps; ++s, both += 2 * kTile) {
            const Ints first = widen_u8(both), second = widen_u8(both + kTile);
            const Ints scales[2] = {first & splat(15), second & splat(15)},
                       minimums[2] = {shift<-4>(first), shift<-4>(second)};
            sums.inner_step(scales, minimums);
        }
        sums.end_chunk(head);
    }
};
template <class Quads>
struct F16Head {  // one for each step
    using Codes = Quads;
    static constexpr bool kHalves = false, kMinimums = false;
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed&, const uint8_t* head, int steps, Tile& sums) {
        constexpr int C = sizeof(sums.out) / sizeof(sums.out[0]);
        // Scales at once, so that the codes are one stream after them: a fifth faster for eight bits.
        alignas(64) float scales[kChunkSteps * kTile];
        for (int s = 0; s < steps; ++s) store(scales + s * kTile, load_f16(halfwords(head) + s * kTile));
        for (int s = 0; s < steps; ++s) {
            const Floats scale = load(scales + s * kTile);
            const Sums<C> dots =
                Dots<C, Quads, 0, 8>().run(sums.quads, sums.quads.load(sums.p), sums.x.codes, sums.x.sums);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums.out[c] =
                fma(to_float(dots.of[c]) * splat(sums.x.scales[c]), scale, sums.out[c]);
            sums.next();
        }
    }
};
// Everything else, through memory. Its zero is not in the starts but in `x.sums` as they are.
template <class Quads, bool kHalf>
struct ExpandedHead {
    using Codes = Quads;
    static constexpr bool kHalves = kHalf, kMinimums = false;
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed& w, const uint8_t* head, int steps, Tile& sums) {
        constexpr int C = sizeof(sums.out) / sizeof(sums.out[0]);
        constexpr int kEach = kQuads / Tile::kEntries;
        alignas(64) float scale[2 * kChunkSteps * kTile], minimum[2 * kChunkSteps * kTile];
        expand(w, head, steps, scale, minimum);
        const float *ws = scale, *wm = minimum;
        const bool minimums = w.offsets != Offsets::kZero;
        for (int s = 0; s < steps; ++s) {
            const typename Quads::Step codes = sums.quads.load(sums.p);
            Sums<C> dots[2];
            dots[0] = Dots<C, Quads, 0, kEach>().run(sums.quads, codes, sums.x.codes, sums.x.sums);
            if constexpr (kHalves)
                dots[1] = Dots<C, Quads, 4, kEach>().run(sums.quads, codes, sums.x.codes, sums.x.sums + C);
            BITSMITH_UNROLL for (int h = 0; h < Tile::kEntries; ++h, ws += kTile, wm += kTile) {
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                    sums.out[c] = fma(to_float(dots[h].of[c]) * splat(sums.x.scales[c]), load(ws), sums.out[c]);
                    if (minimums) sums.out[c] = fma(load(wm), splat(sums.x.products[h * C + c]), sums.out[c]);
                }
            }
            sums.next();
        }
    }
};

// run(head) with the reader of a matrix's chunks.
template <class Run>
BITSMITH_INLINE void with_head(const Packed& w, const Run& run) {
    const bool levels = w.codes == Codes::kLevels, minimums = w.offsets == Offsets::kMinimums;
    switch (w.scales) {
        case Scales::kPair6:
            if (!minimums) return run(PairHead<PairsOfHalves>());
            if (w.bits == 4) return run(PairHead<PairsWithMinimums<4>>());
            return run(PairHead<PairsWithMinimums<5>>());
        case Scales::kSub8:
            if (levels) return run(Sub8Head<LevelQuads, false>());
            return run(Sub8Head<IntegerQuads<6>, true>());
        case Scales::kSub4:
            return run(Sub4Head());
        case Scales::kF16:
            if (w.granularity != kStep || w.offsets != Offsets::kZero || w.factor != 1.0f) break;
            if (levels) return run(F16Head<LevelQuads>());
            if (w.bits == 4) return run(F16Head<IntegerQuads<4>>());
            if (w.bits == 5) return run(F16Head<IntegerQuads<5>>());
            if (w.bits == 8) return run(F16Head<IntegerQuads<8>>());
            break;
        default:
            break;
    }
    with_quads(w, [&](auto quads) {
        if (w.halves()) return run(ExpandedHead<decltype(quads), true>());
        return run(ExpandedHead<decltype(quads), false>());
    });
}

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
