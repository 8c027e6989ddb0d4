// What every instruction set offers to kernels/solve.py: one table of plain functions, filled in isa/solve.inl.
#pragma once
#include "table.h"

namespace bitsmith {

constexpr int kStripe = 2 * kLanes;  // rows that are solved together
constexpr int kSolveBlock = 64;      // columns whose errors are spread at once to those after them
constexpr int kMaxLevels = 256;

// value = step · level + offset, for one of `count` ascending levels.
struct Levels {
    const float* level;
    const float* middle;  // between neighbours, count − 1 of them
    int count;
    bool even;  // level[i] = level[0] + i, whole numbers
};

// Rows of one stripe, or fewer. All matrices are row-major; K columns in the order in which they are solved.
struct StripeProblem {
    int64_t rows, columns, groups;
    const float* w;        // [rows, K]
    const float* matrix;   // [K, K]: feedback (feedback.h), or H (descend.h)
    const float* steps;    // [rows, groups]
    const float* offsets;  // [rows, groups]
    const int32_t* group;  // [K], of each column
    Levels levels;
    uint8_t* index;                // [rows, K], of levels
    float* gradient;               // [rows, K] (descend.h only)
    const volatile int32_t* stop;  // leave when it is no longer 0
    float* scratch;                // 64-byte aligned; `feedback_scratch` floats (feedback.h only)
};

inline int64_t feedback_scratch(int64_t columns, int64_t groups) {
    return kStripe * (columns + 2 * kSolveBlock + 3 * groups);
}

// Rows of a matrix whose rounding is learned (learn.h). Codes of a group are 0 … top, of value (code − zero) · scale.
struct LearnProblem {
    int64_t rows, columns, size;  // of a group
    const uint8_t* first;         // [rows, K], the codes that were begun with
    uint16_t* latent;             // [rows, K], float16, less those; null: codes stay as they are
    const float* zeros;           // [rows, groups]
    const float* scales;          // [rows, groups]
    const uint16_t* grad;         // [rows, K], bfloat16
    float* slopes;                // [rows, groups], of the scales: Σ grad · (code − zero)
    uint16_t* weight;             // [rows, K], bfloat16
    float rate, top;              // how far a latent value moves
};
constexpr float kLatentEdge = 0.49f;  // how far past the last codes it may be

struct Solve {
    void (*feedback)(const StripeProblem& problem);
    int64_t (*descend)(const StripeProblem& problem);  // → how many codes changed
    void (*learn_step)(const LearnProblem& problem);
    void (*learned_weight)(const LearnProblem& problem);
};

const Solve* solve_baseline();
const Solve* solve_avx2();  // null when this compiler or architecture has none
const Solve* solve_avx512();

}  // namespace bitsmith
