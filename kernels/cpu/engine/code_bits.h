// Where the bits of a quad's codes lie in the vectors of a step: what packs, reads and tests codes all follow this.
#pragma once
#include <stdint.h>

namespace bitsmith::engine {

// Bits [from, from + count) of every byte of a vector are the bits from `to` on of the code.
struct Piece {
    int vector, from, count, to;
};
struct Pieces {
    int count;
    Piece at[7];  // the code's highest bits first
};

constexpr Pieces whole(int vector, int from, int bits) {
    return {1, {{vector, from, bits, 0}}};
}

// Of quad 0…7 of codes with 1 to 8 bits, which take as many vectors.
constexpr Pieces pieces_of(int bits, int quad) {
    switch (bits) {
        case 1:
            return whole(0, quad, 1);
        case 2:
            return whole(quad / 4, quad % 4 * 2, 2);
        case 3: {
            constexpr Pieces kThree[8] = {
                whole(0, 0, 3), whole(0, 3, 3), whole(1, 0, 3), {2, {{0, 6, 2, 1}, {1, 6, 1, 0}}},
                whole(1, 3, 3), whole(2, 0, 3), whole(2, 3, 3), {2, {{2, 6, 2, 1}, {1, 7, 1, 0}}},
            };
            return kThree[quad];
        }
        case 4:
            return whole(quad % 4, quad / 4 * 4, 4);
        case 5: {
            constexpr Pieces kFive[8] = {
                whole(0, 0, 5),
                whole(1, 0, 5),
                {2, {{0, 5, 3, 2}, {1, 6, 2, 0}}},
                whole(2, 0, 5),
                whole(3, 0, 5),
                whole(4, 0, 5),
                {2, {{3, 5, 3, 2}, {4, 6, 2, 0}}},
                {3, {{2, 5, 3, 2}, {1, 5, 1, 1}, {4, 5, 1, 0}}},
            };
            return kFive[quad];
        }
        case 6: {
            const int first = quad / 4 * 3;
            if (quad % 4 < 3) return whole(first + quad % 4, 0, 6);
            return {3, {{first, 6, 2, 4}, {first + 1, 6, 2, 2}, {first + 2, 6, 2, 0}}};
        }
        case 7:
            if (quad < 7) return whole(quad, 0, 7);
            return {7,
                    {{0, 7, 1, 6}, {1, 7, 1, 5}, {2, 7, 1, 4}, {3, 7, 1, 3}, {4, 7, 1, 2}, {5, 7, 1, 1}, {6, 7, 1, 0}}};
        default:
            return whole(quad, 0, 8);
    }
}

}  // namespace bitsmith::engine
