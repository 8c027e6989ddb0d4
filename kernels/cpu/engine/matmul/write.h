// Results of a tile to where the caller wants them, and the split of a panel into what registers hold.
#pragma once
#include "../packed.h"
#include "../simd/simd.h"
#include "../table.h"

namespace bitsmith::engine::BITSMITH_NS {

template <bool which, class A, class B>
struct SelectType {
    using Type = A;
};
template <class A, class B>
struct SelectType<false, A, B> {
    using Type = B;
};
template <bool which, class A, class B>
using Select = typename SelectType<which, A, B>::Type;

// sums[c] to token first + c, as far as there are `tokens`. add: to what is there; last: with the bias.
template <int C>
BITSMITH_INLINE void write(const Packed& w, const Output& out, int64_t tile, int64_t first, int64_t tokens,
                           const Floats* sums, bool add, bool last) {
    const int64_t row = tile * kTile, left = w.rows - row;
    float* to = out.data + first * out.stride + row;
    const bool full = left >= kTile, biased = last && out.bias;
    Floats bias = zero_floats();
    if (biased) bias = full ? load(out.bias + row) : load_first(out.bias + row, int(left));
    BITSMITH_UNROLL for (int c = 0; c < C; ++c) {
        if (c >= tokens) return;
        Floats sum = biased ? sums[c] + bias : sums[c];
        if (full) {
            if (add) sum = sum + load(to);
            store(to, sum);
        } else {
            if (add) sum = sum + load_first(to, int(left));
            store_first(to, sum, int(left));
        }
        to += out.stride;
    }
}

template <int C, class Block>
BITSMITH_INLINE void one_block(const Packed& w, const Act& act, const Output& out, int64_t tile, int64_t panel,
                               int token, bool add, bool last, const Block& block) {
    Floats sums[C];
    block.template run<C>(token, sums);
    write<C>(w, out, tile, Act::first(panel) + token, act.count(panel) - token, sums, add, last);
}

// block.run<C>(token, sums) for all tokens of a panel, C ≤ kSub of them at a time, or all where Block::kWhole is. more:
// results are added to those of the columns before; last: there are no more columns.
template <class Block>
BITSMITH_INLINE void each_block(const Packed& w, const Act& act, const Output& out, int64_t tile, int64_t panel,
                                bool more, bool last, const Block& block) {
    const int width = act.width(panel);
    const bool add = more || out.accumulate;
    int token = 0;
    if constexpr (kSub >= kPanel || requires { Block::kWhole; }) {
        if (width == kPanel) return one_block<kPanel>(w, act, out, tile, panel, 0, add, last, block);
        if (width == 8) return one_block<8>(w, act, out, tile, panel, 0, add, last, block);
        if (width == 6) return one_block<6>(w, act, out, tile, panel, 0, add, last, block);
    }
    for (; width - token >= 4; token += 4) one_block<4>(w, act, out, tile, panel, token, add, last, block);
    if (width - token == 2) one_block<2>(w, act, out, tile, panel, token, add, last, block);
    if (width - token == 1) one_block<1>(w, act, out, tile, panel, token, add, last, block);
}

}  // namespace bitsmith::engine::BITSMITH_NS
