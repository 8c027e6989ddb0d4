// Learned rounding: a code is the nearest integer to a latent value, which the signs of gradients move.
#pragma once
#include "../encode/family.h"
#include "../solve_table.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Of sixteen neighbours of a group, or the last few, which are copied.
template <class T>
struct Neighbours {
    T padded[kLanes];
    const T* values;
    Neighbours(const T* from, int64_t count) : padded{}, values(from) {
        if (count < kLanes) values = static_cast<const T*>(memcpy(padded, from, count * sizeof(T)));
    }
};
template <class T>
BITSMITH_INLINE void put_back(T* to, const I& values, int64_t count) {
    int32_t lanes[kLanes];
    store(lanes, values);
    if (count == kLanes)
        for (int i = 0; i < kLanes; ++i) to[i] = T(lanes[i]);
    else
        for (int64_t i = 0; i < count; ++i) to[i] = T(lanes[i]);
}

// The first code and what a latent value is away from it.
struct Latent {
    F first, away;
    BITSMITH_INLINE Latent(const LearnProblem& p, int64_t at, int64_t count) : away(splat(0.0f)) {
        const Neighbours<uint8_t> codes(p.first + at, count);
        first = to_float(load_bytes(codes.values));
        if (p.latent) away = from_f16(load(Neighbours<uint16_t>(p.latent + at, count).values));
    }
    BITSMITH_INLINE F code(const LearnProblem& p) const { return clamp(rint(first + away), 0.0f, p.top); }
};

static void learn_step(const LearnProblem& p) {
    const int64_t groups = p.columns / p.size;
    const F rate = splat(p.rate), zero = splat(0.0f);
    for (int64_t group = 0; group < p.rows * groups; ++group) {
        F total = zero;
        for (int64_t k = 0; k < p.size; k += kLanes) {
            const int64_t at = group * p.size + k, count = p.size - k < kLanes ? p.size - k : kLanes;
            const Latent latent(p, at, count);
            const F grad = as_float(load(Neighbours<uint16_t>(p.grad + at, count).values) << 16);
            total = total + grad * (latent.code(p) - splat(p.zeros[group]));
            if (!p.latent || p.rate == 0.0f) continue;
            const F down = select(less(zero, grad), rate, zero), up = select(less(grad, zero), rate, zero);
            const F moved = (latent.away - down) + up;
            const F low = splat(-kLatentEdge) - latent.first, high = splat(p.top + kLatentEdge) - latent.first;
            put_back(p.latent + at, to_f16(min(max(moved, low), high)), count);
        }
        float lanes[kLanes];
        store(lanes, total);
        for (int width = kLanes / 2; width > 0; width /= 2)
            for (int i = 0; i < width; ++i) lanes[i] = lanes[i] + lanes[i + width];
        p.slopes[group] = lanes[0];
    }
}

static void learned_weight(const LearnProblem& p) {
    const int64_t groups = p.columns / p.size;
    for (int64_t group = 0; group < p.rows * groups; ++group) {
        const F zero = splat(p.zeros[group]), scale = splat(p.scales[group]);
        for (int64_t k = 0; k < p.size; k += kLanes) {
            const int64_t at = group * p.size + k, count = p.size - k < kLanes ? p.size - k : kLanes;
            put_back(p.weight + at, to_bf16((Latent(p, at, count).code(p) - zero) * scale), count);
        }
    }
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
