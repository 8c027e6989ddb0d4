// The codes of a step, quad by quad, out of their bit planes.
#pragma once
#include "../packed.h"
#include "../simd/simd.h"

namespace bitsmith::engine::BITSMITH_NS {

// Bits at `from` of every byte, `count` of them, moved to `to`.
template <int count, int from, int to>
BITSMITH_INLINE Bytes field(Bytes a) {
    constexpr int kMask = ((1 << count) - 1) << to;
    return shift<to - from>(a) & splat_byte(kMask);
}

// The same, beside the bits that `rest` has elsewhere.
template <int count, int from, int to>
BITSMITH_INLINE Bytes field_beside(Bytes a, Bytes rest) {
    constexpr int kMask = ((1 << count) - 1) << to;
    return merge(shift<to - from>(a), splat_byte(kMask), rest);
}

template <int kBits>
struct IntegerQuads {
    static constexpr bool kEightBits = kBits == 8;
    static constexpr int kStepBytes = kBits * 64;
    static constexpr int kPlanes = kBits == 8 ? 1 : (kBits >> 2 & 1) + (kBits >> 1 & 1) + (kBits & 1);

    explicit BITSMITH_INLINE IntegerQuads(const Packed&) {}

    // Quad i of the step at p, as unsigned bytes.
    template <int i>
    BITSMITH_INLINE Bytes get(const uint8_t* p) const {
        if constexpr (kBits == 8) return load_bytes(p + 64 * i);
        constexpr bool kFour = kBits & 4, kTwo = kBits & 2, kOne = kBits & 1;
        constexpr int kTwoAt = kFour ? 4 : 0, kOneAt = kTwoAt + (kTwo ? 2 : 0);
        const uint8_t *two = p + (kFour ? 256 : 0), *one = two + (kTwo ? 128 : 0);
        if constexpr (kFour) {
            Bytes code = field<4, i / 4 * 4, 0>(load_bytes(p + 64 * (i % 4)));
            if constexpr (kTwo) code = field_beside<2, i / 2 * 2, kTwoAt>(load_bytes(two + 64 * (i % 2)), code);
            if constexpr (kOne) code = field_beside<1, i, kOneAt>(load_bytes(one), code);
            return code;
        } else if constexpr (kTwo) {
            Bytes code = field<2, i / 2 * 2, kTwoAt>(load_bytes(two + 64 * (i % 2)));
            if constexpr (kOne) code = field_beside<1, i, kOneAt>(load_bytes(one), code);
            return code;
        } else {
            return field<1, i, 0>(load_bytes(one));
        }
    }
};

// 4-bit codes as numbers of an int8 level, plus 128.
struct LevelQuads {
    static constexpr bool kEightBits = true;
    static constexpr int kStepBytes = 256;
    static constexpr int kPlanes = 1;
    Levels levels;

    explicit BITSMITH_INLINE LevelQuads(const Packed& w) : levels(load_levels(w.levels)) {}

    template <int i>
    BITSMITH_INLINE Bytes get(const uint8_t* p) const {
        return lookup(levels, field<4, i / 4 * 4, 0>(load_bytes(p + 64 * (i % 4))));
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
