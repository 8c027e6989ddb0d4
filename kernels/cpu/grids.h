// Types whose codes are points of a grid: d · L · level · sign, L = 1, 3 … 31 (kernels/layouts.py, GRIDS).
#pragma once
#include "grid_points.h"

namespace bitsmith {

// values: of a point; sub_block: values that share L; signs: seven or eight are stored of eight.
template <int kValuesOfPoint, int kSubBlockValues, int kPointCount, bool kSevenSigns>
struct GridShape {
    static constexpr int kValues = kValuesOfPoint, kSubBlock = kSubBlockValues, kPoints = kPointCount;
    static constexpr int kSubBlocks = 256 / kSubBlock;
    static constexpr int kLevels = kValues == 8 ? 3 : 8, kLevelBits = kValues == 8 ? 2 : 3;
    static constexpr bool kEvenSigns = kSevenSigns;
    static constexpr float kLowest = 1.0f, kGap = kValues == 8 ? 2.125f : 2.0f;
    static constexpr int level_of(int point, int i) { return point >> (kLevelBits * i) & ((1 << kLevelBits) - 1); }
};
struct GridIq2Xxs : GridShape<8, 32, 256, true> {
    static constexpr float kTop = 5.375f;
    static constexpr int point(int k) { return kIq2XxsPoints[k]; }
};
struct GridIq2Xs : GridShape<8, 16, 512, true> {
    static constexpr float kTop = 5.375f;
    static constexpr int point(int k) { return kIq2XsPoints[k]; }
};
struct GridIq2S : GridShape<8, 16, 1024, false> {
    static constexpr float kTop = 5.375f;
    static constexpr int point(int k) { return kIq2SPoints[k]; }
};
struct GridIq3Xxs : GridShape<4, 32, 256, true> {
    static constexpr float kTop = 15.5f;
    static constexpr int point(int k) { return kIq3XxsPoints[k]; }
};
struct GridIq3S : GridShape<4, 32, 512, false> {
    static constexpr float kTop = 15.0f;
    static constexpr int point(int k) { return kIq3SPoints[k]; }
};

// What level l is worth, for d as it is stored.
template <class T>
constexpr float grid_level(int l) {
    return l == T::kLevels - 1 ? T::kTop : T::kLowest + T::kGap * float(l);
}

}  // namespace bitsmith
