// Products of unpacked tiles, eight columns of two rows and two tokens at a time, where the CPU has such (i8mm).
#pragma once
#include "panels.h"

namespace bitsmith::engine::BITSMITH_NS {

// Whether activations lie as rows of a token, see Act.
BITSMITH_INLINE bool by_token([[maybe_unused]] const Act& act) {
#if defined(BITSMITH_EIGHT_COLUMNS)
    return act.rows > kFew && (act.kind == ActKind::kInt8 || act.kind == ActKind::kInt8Token);
#else
    return false;
#endif
}

#if defined(BITSMITH_EIGHT_COLUMNS)
template <int i, class Quads>
BITSMITH_INLINE void unpack_pairs(const Quads& quads, const typename Quads::Step& step, uint8_t* out) {
    if constexpr (i < kQuads) {
        store_pairs(out + i * 64, quads.template get<i>(step), quads.template get<i + 1>(step));
        unpack_pairs<i + 2>(quads, step, out);
    }
}

// See QuadDots. Unpacked: [step][pair of quads][8 pairs of rows][2][8 columns].
template <bool kHalves>
struct PairDots {
    using Panels = PartsOfPanels;
    static constexpr bool kCentred = false;
    static constexpr int kPairs = kQuads / (kHalves ? 4 : 2);
    const uint8_t* w;
    const int8_t* x;
    int width, at = 0;  // column of the step

    BITSMITH_INLINE PairDots(const Unpacked& unpacked, const PanelView& view, int token)
        : w(unpacked.codes), x(view.codes + token * kStep), width(view.width) {}
    template <int C>
    BITSMITH_INLINE void begin(int, int) {}
    template <int C>
    BITSMITH_INLINE void add(Ints* acc) {
        constexpr int kTwos = (C + 1) / 2;
        RowPairs sums[kTwos] = {};
        BITSMITH_UNROLL for (int pair = 0; pair < kPairs; ++pair, w += 128, x += 8) {
            TwoTokens tokens[kTwos];
            BITSMITH_UNROLL for (int i = 0; i < kTwos; ++i) tokens[i] =
                load_tokens(x + 2 * i * kStep, x + (C == 1 ? 0 : 2 * i + 1) * kStep);
            dot_pairs<kTwos>(sums, w, tokens);
        }
        BITSMITH_UNROLL for (int c = 0; c < C; ++c) acc[c] =
            acc[c] + (c % 2 ? second_token(sums[c / 2]) : first_token(sums[c / 2]));
        at += kPairs * 8;
        if (at == kStep) {  // the next step
            x += (width - 1) * kStep;
            at = 0;
        }
    }
};

template <class Quads>
struct PairProducts {
    using Dots = PairDots<false>;
    using HalfDots = PairDots<true>;
    const Quads quads;

    explicit BITSMITH_INLINE PairProducts(const Packed& w) : quads(w) {}
    BITSMITH_INLINE void unpack(const uint8_t* step, uint8_t* out) const {
        unpack_pairs<0>(quads, quads.load(step), out);
    }
    static int zero(const Packed& w) { return w.zero; }
};
#endif

}  // namespace bitsmith::engine::BITSMITH_NS
