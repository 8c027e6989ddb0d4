// Dot products of one to four tokens with the codes of a tile, and their sums over a chunk. See vector.h.
#pragma once
#include "expand.h"
#include "panel.h"
#include "quads.h"

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

}  // namespace bitsmith::engine::BITSMITH_NS
