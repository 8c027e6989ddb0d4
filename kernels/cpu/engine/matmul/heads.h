// How products of few tokens read each kind of a chunk's head, and with it the chunk.
#pragma once
#include "vector_sums.h"

namespace bitsmith::engine::BITSMITH_NS {

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
// What is added to all weights of entry i: a minimum, or −zero · scale.
BITSMITH_INLINE Floats group_offset(const Packed& w, const uint8_t* offsets, int i, Floats scale) {
    if (w.offsets == Offsets::kMinimums) return plain_entry(w.scales, offsets, i);
    return to_float(widen_u8(offsets + i * kTile)) * scale * splat(-1.0f);
}
// One for each group of steps. Products of a group are added up before its scale, zero or minimum is looked at.
template <class Quads>
struct GroupHead {
    using Codes = Quads;
    static constexpr bool kHalves = false, kMinimums = false;
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed& w, const uint8_t* head, int steps, Tile& sums) {
        constexpr int C = sizeof(sums.out) / sizeof(sums.out[0]);
        const int together = w.granularity / kStep, entries = kChunk / w.granularity;
        const uint8_t* offsets = head + entries * kTile * scale_bytes(w.scales);
        alignas(64) float scales[kChunkSteps * kTile];
        plain_entries(w.scales, head, (steps + together - 1) / together, splat(scale_factor(w)), scales);
        for (int s = 0, group = 0; s < steps; ++group) {
            Floats scaled[C];
            float products[C];
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                scaled[c] = zero_floats();
                products[c] = 0.0f;
            }
            for (const int end = s + together < steps ? s + together : steps; s < end; ++s) {
                const Sums<C> dots =
                    Dots<C, Quads, 0, 8>().run(sums.quads, sums.quads.load(sums.p), sums.x.codes, sums.x.sums);
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
                    scaled[c] = fma(to_float(dots.of[c]), splat(sums.x.scales[c]), scaled[c]);
                    products[c] += sums.x.products[c];
                }
                sums.next();
            }
            const Floats scale = load(scales + group * kTile);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums.out[c] = fma(scaled[c], scale, sums.out[c]);
            if (w.offsets == Offsets::kZero) continue;
            const Floats offset = group_offset(w, offsets, group, scale);
            BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums.out[c] = fma(offset, splat(products[c]), sums.out[c]);
        }
    }
};
// One for each half step.
template <class Quads>
struct HalfGroupHead {
    using Codes = Quads;
    static constexpr bool kHalves = true, kMinimums = false;
    template <class Tile>
    static BITSMITH_INLINE void run(const Packed& w, const uint8_t* head, int steps, Tile& sums) {
        constexpr int C = sizeof(sums.out) / sizeof(sums.out[0]);
        const uint8_t* offsets = head + kChunk / w.granularity * kTile * scale_bytes(w.scales);
        const Floats factor = splat(scale_factor(w));
        for (int s = 0; s < steps; ++s) {
            const typename Quads::Step codes = sums.quads.load(sums.p);
            const Sums<C> dots[2] = {Dots<C, Quads, 0, 4>().run(sums.quads, codes, sums.x.codes, sums.x.sums),
                                     Dots<C, Quads, 4, 4>().run(sums.quads, codes, sums.x.codes, sums.x.sums + C)};
            BITSMITH_UNROLL for (int h = 0; h < 2; ++h) {
                const Floats scale = plain_entry(w.scales, head, 2 * s + h) * factor;
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums.out[c] =
                    fma(to_float(dots[h].of[c]) * splat(sums.x.scales[c]), scale, sums.out[c]);
                if (w.offsets == Offsets::kZero) continue;
                const Floats offset = group_offset(w, offsets, 2 * s + h, scale);
                BITSMITH_UNROLL for (int c = 0; c < C; ++c) sums.out[c] =
                    fma(offset, splat(sums.x.products[h * C + c]), sums.out[c]);
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
        if (w.halves()) return run(HalfGroupHead<decltype(quads)>());
        return run(GroupHead<decltype(quads)>());
    });
}

}  // namespace bitsmith::engine::BITSMITH_NS
