// Codes column by column, where each column's error moves the targets of those after it; sixteen rows a lane vector.
//
// target_k = w_k + Σ_{j<k} (w_j − q_j) · matrix[k][j], summed in the order of j. A block's errors are added to all
// later columns at once, which adds them in that same order.
#pragma once
#include "../lanes.h"
#include "../solve_table.h"

namespace bitsmith {
namespace BITSMITH_NS {

// How many columns get a block's errors at once: as many sums as there are registers for.
constexpr int kSpread = kWidth == 16 ? 8 : kWidth == 8 ? 2 : 1;

BITSMITH_INLINE I nearest_index(const F& t, const Levels& levels) {
    if (levels.even) return rint_to_int(clamp(t - splat(levels.level[0]), 0.0f, (float)(levels.count - 1)));
    I found = splat(0);
    if (levels.count <= 16) {
        for (int i = 0; i + 1 < levels.count; ++i)
            found = found + select(less(splat(levels.middle[i]), t), splat(1), splat(0));
        return found;
    }
    float lanes[kLanes];
    int32_t places[kLanes];
    store(lanes, t);
    for (int lane = 0; lane < kLanes; ++lane) {
        int low = 0, high = levels.count - 1;  // the answer: how many middles are below
        while (low < high) {
            const int half = (low + high) / 2;
            if (levels.middle[half] < lanes[lane])
                low = half + 1;
            else
                high = half;
        }
        places[lane] = low;
    }
    return load(places);
}

BITSMITH_INLINE F level_of(const I& index, const Levels& levels) {
    if (levels.even) return to_float(index) + splat(levels.level[0]);
    int32_t places[kLanes];
    float lanes[kLanes];
    store(places, index);
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = levels.level[places[lane]];
    return load(lanes);
}

template <int n>
static void spread_errors(float* target, const float* errors, const float* matrix, int64_t stride, int count) {
    F sum[n][2];
    for (int i = 0; i < n; ++i) {
        sum[i][0] = load(target + i * kStripe);
        sum[i][1] = load(target + i * kStripe + kLanes);
    }
    for (int j = 0; j < count; ++j) {
        const F first = load(errors + j * kStripe), second = load(errors + j * kStripe + kLanes);
        for (int i = 0; i < n; ++i) {
            const F share = splat(matrix[i * stride + j]);
            sum[i][0] = sum[i][0] + first * share;
            sum[i][1] = sum[i][1] + second * share;
        }
    }
    for (int i = 0; i < n; ++i) {
        store(target + i * kStripe, sum[i][0]);
        store(target + i * kStripe + kLanes, sum[i][1]);
    }
}

static void feedback(const StripeProblem& p) {
    float* target = p.scratch;                      // [K][kStripe]
    float* plain = target + p.columns * kStripe;    // [kSolveBlock][kStripe], the weights themselves
    float* errors = plain + kSolveBlock * kStripe;  // [kSolveBlock][kStripe]
    float* steps = errors + kSolveBlock * kStripe;  // [groups][kStripe], as the two that follow
    float* offsets = steps + p.groups * kStripe;
    float* inverses = offsets + p.groups * kStripe;
    for (int row = 0; row < kStripe; ++row) {  // past the end, the last row again
        const int64_t from = row < p.rows ? row : p.rows - 1;
        for (int64_t g = 0; g < p.groups; ++g) {
            steps[g * kStripe + row] = p.steps[from * p.groups + g];
            offsets[g * kStripe + row] = p.offsets[from * p.groups + g];
        }
    }
    for (int64_t at = 0; at < p.groups * kStripe; at += kLanes) store(inverses + at, inverse(load(steps + at)));
    for (int64_t first = 0; first < p.columns; first += kLanes) {
        const int64_t last = first + kLanes < p.columns ? first + kLanes : p.columns;
        for (int row = 0; row < kStripe; ++row) {
            const float* from = p.w + (row < p.rows ? row : p.rows - 1) * p.columns;
            for (int64_t k = first; k < last; ++k) target[k * kStripe + row] = from[k];
        }
    }
    for (int64_t first = 0; first < p.columns; first += kSolveBlock) {
        if (*p.stop) return;
        const int count = (int)(p.columns - first < kSolveBlock ? p.columns - first : kSolveBlock);
        for (int row = 0; row < kStripe; ++row) {
            const float* from = p.w + (row < p.rows ? row : p.rows - 1) * p.columns + first;
            for (int j = 0; j < count; ++j) plain[j * kStripe + row] = from[j];
        }
        for (int j = 0; j < count; ++j) {
            const int64_t at = (int64_t)p.group[first + j] * kStripe;
            const float* seen = target + (first + j) * kStripe;
            int32_t found[kStripe];
            for (int half = 0; half < kStripe; half += kLanes) {
                const F step = load(steps + at + half), offset = load(offsets + at + half);
                const I index = nearest_index((load(seen + half) - offset) * load(inverses + at + half), p.levels);
                const F value = step * level_of(index, p.levels) + offset;
                store(errors + j * kStripe + half, load(plain + j * kStripe + half) - value);
                store(found + half, index);
            }
            for (int row = 0; row < p.rows; ++row) p.index[row * p.columns + first + j] = (uint8_t)found[row];
            const float* error = errors + j * kStripe;
            for (int k = j + 1; k < count; ++k)
                spread_errors<1>(target + (first + k) * kStripe, error, p.matrix + (first + k) * p.columns + first + j,
                                 p.columns, 1);
        }
        int64_t k = first + count;
        for (; k + kSpread <= p.columns; k += kSpread)
            spread_errors<kSpread>(target + k * kStripe, errors, p.matrix + k * p.columns + first, p.columns, count);
        for (; k < p.columns; ++k)
            spread_errors<1>(target + k * kStripe, errors, p.matrix + k * p.columns + first, p.columns, count);
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
