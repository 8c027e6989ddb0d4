// One sweep of coordinate descent on (w − q) H (w − q)ᵀ over the codes of a few rows: each column in turn takes the
// level that is best while all others stay. gradient = (w − q) H is kept up to date.
#pragma once
#include "../lanes.h"
#include "../solve_table.h"

namespace bitsmith {
namespace BITSMITH_NS {

static int nearest_index_of(float t, const Levels& levels) {
    if (levels.even) {
        const float above = t - levels.level[0], last = (float)(levels.count - 1);
        const float held = above > 0.0f ? above : 0.0f, inside = held < last ? held : last;
        return (int)((inside + kRoundMagic) - kRoundMagic);
    }
    int low = 0, high = levels.count - 1;  // the answer: how many middles are below
    while (low < high) {
        const int half = (low + high) / 2;
        if (levels.middle[half] < t)
            low = half + 1;
        else
            high = half;
    }
    return low;
}

// gradient −= change · h
static void take_off(float* gradient, const float* h, float change, int64_t n) {
    const F factor = splat(change);
    int64_t k = 0;
    for (; k + kLanes <= n; k += kLanes) store(gradient + k, load(gradient + k) - factor * load(h + k));
    for (; k < n; ++k) gradient[k] = gradient[k] - change * h[k];
}

static int64_t descend(const StripeProblem& p) {
    int64_t changed = 0;
    for (int64_t j = 0; j < p.columns; ++j) {
        if (j % kSolveBlock == 0 && *p.stop) break;
        const float* h = p.matrix + j * p.columns;
        if (!(h[j] > 0.0f)) continue;  // nothing comes in: any level is as good
        for (int64_t row = 0; row < p.rows; ++row) {
            const int64_t at = row * p.groups + p.group[j];
            const float step = p.steps[at], offset = p.offsets[at];
            uint8_t* index = p.index + row * p.columns + j;
            float* gradient = p.gradient + row * p.columns;
            const float now = step * p.levels.level[*index] + offset;
            const float wanted = now + gradient[j] / h[j];
            const int best = step != 0.0f ? nearest_index_of((wanted - offset) / step, p.levels) : *index;
            if (best == *index) continue;
            const float value = step * p.levels.level[best] + offset;
            take_off(gradient, h, value - now, p.columns);
            *index = (uint8_t)best;
            ++changed;
        }
    }
    return changed;
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
