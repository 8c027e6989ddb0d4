// The codes of a step, quad by quad, out of the bits of its vectors.
#pragma once
#include "../code_bits.h"
#include "../packed.h"
#include "../simd/simd.h"

namespace bitsmith::engine::BITSMITH_NS {

// The vectors of a step: in registers, or read whenever one is used.
template <int kCount, bool kHeld>
class Vectors {
public:
    explicit BITSMITH_INLINE Vectors(const uint8_t* p) {
        BITSMITH_UNROLL for (int v = 0; v < kCount; ++v) vectors_[v] = held(load_bytes(p + 64 * v));
    }
    BITSMITH_INLINE Bytes at(int v) const { return vectors_[v]; }

private:
    Bytes vectors_[kCount];
};
template <int kCount>
class Vectors<kCount, false> {
public:
    explicit BITSMITH_INLINE Vectors(const uint8_t* p) : p_(p) {}
    BITSMITH_INLINE Bytes at(int v) const { return load_bytes(p_ + 64 * v); }

private:
    const uint8_t* p_;
};

// Codes as unsigned bytes. kInPlace: those that lie above others stay where they are, shifted left by kShift<i>, which
// saves the shift; the dot products of codes that are shifted alike are added up, and shifted back.
template <int kBits>
struct IntegerQuads {
    static constexpr bool kEightBits = kBits == 8;
    static constexpr int kStepBytes = kBits * 64;
    template <int i>
    static constexpr int kShift = pieces_of(kBits, i).at[0].from - pieces_of(kBits, i).at[0].to;

    explicit BITSMITH_INLINE IntegerQuads(const Packed&) {}

    static constexpr bool kHeld = kHolds && !kEightBits;  // with 8 bits, each is used once
    using Step = Vectors<kBits, kHeld>;
    static BITSMITH_INLINE Step load(const uint8_t* p) { return Step(p); }
    // Quad i of a step.
    template <int i>
    BITSMITH_INLINE Bytes get(const Step& step) const {
        return from_piece<i, 0, 0>(step);
    }
    template <int i>
    BITSMITH_INLINE Bytes get_in_place(const Step& step) const {
        return from_piece<i, 0, kShift<i>>(step);
    }

private:
    // Pieces from `first` on, the code's bit 0 at bit kAt.
    template <int i, int first, int kAt>
    static BITSMITH_INLINE Bytes from_piece(const Step& step) {
        constexpr Pieces kPieces = pieces_of(kBits, i);
        constexpr Piece kPiece = kPieces.at[first];
        constexpr int kMask = ((1 << kPiece.count) - 1) << (kPiece.to + kAt);
        const Bytes moved = shift<kPiece.to + kAt - kPiece.from>(step.at(kPiece.vector));
        if constexpr (kMask == 255)
            return moved;
        else if constexpr (first + 1 == kPieces.count)
            return moved & splat_byte(kMask);
        else
            return merge(moved, splat_byte(kMask), from_piece<i, first + 1, kAt>(step));
    }
};

// 4-bit codes as numbers of an int8 level, plus 128.
struct LevelQuads {
    static constexpr bool kEightBits = true;
    static constexpr int kStepBytes = 256;
    template <int>
    static constexpr int kShift = 0;
    Levels levels;
    IntegerQuads<4> nibbles;

    explicit BITSMITH_INLINE LevelQuads(const Packed& w) : levels(load_levels(w.levels)), nibbles(w) {}

    using Step = IntegerQuads<4>::Step;
    static BITSMITH_INLINE Step load(const uint8_t* p) { return IntegerQuads<4>::load(p); }
    template <int i>
    BITSMITH_INLINE Bytes get(const Step& step) const {
        return lookup(levels, nibbles.get<i>(step));
    }
    template <int i>
    BITSMITH_INLINE Bytes get_in_place(const Step& step) const {
        return get<i>(step);
    }
};

// run(quads) with the reader of a matrix's codes.
template <class Run>
BITSMITH_INLINE void with_quads(const Packed& w, const Run& run) {
    if (w.codes == Codes::kLevels) return run(LevelQuads(w));
    switch (w.bits) {
        case 1:
            return run(IntegerQuads<1>(w));
        case 2:
            return run(IntegerQuads<2>(w));
        case 3:
            return run(IntegerQuads<3>(w));
        case 4:
            return run(IntegerQuads<4>(w));
        case 5:
            return run(IntegerQuads<5>(w));
        case 6:
            return run(IntegerQuads<6>(w));
        case 7:
            return run(IntegerQuads<7>(w));
        default:
            return run(IntegerQuads<8>(w));
    }
}

}  // namespace bitsmith::engine::BITSMITH_NS
