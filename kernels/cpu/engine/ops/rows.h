// Operations on one row.
#pragma once
#include "table.h"
#include "vec.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

static void norm(const float* x, float* out, const float* gain, int64_t width, float eps) {
    V squares[4] = {};
    int64_t i = 0;
    for (; i + 4 * W <= width; i += 4 * W) {
        BITSMITH_EACH for (int j = 0; j < 4; ++j) {
            const V v = load(x + i + j * W);
            squares[j] = fma(v, v, squares[j]);
        }
    }
    for (; i + W <= width; i += W) {
        const V v = load(x + i);
        squares[0] = fma(v, v, squares[0]);
    }
    float total = sum((squares[0] + squares[1]) + (squares[2] + squares[3]));
    for (; i < width; ++i) total += x[i] * x[i];
    const float factor = 1.0f / sqrtf(total / (float)width + eps);
    const V factors = splat(factor);
    for (i = 0; i + W <= width; i += W) store(out + i, load(x + i) * factors * load(gain + i));
    for (; i < width; ++i) out[i] = x[i] * factor * gain[i];
}

// One head: the first 2 · count values.
static void rope(float* x, const float* cosines, const float* sines, int count, bool pairs) {
    if (pairs) {
        for (int i = 0; i < count; ++i) {
            const float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cosines[i] - b * sines[i];
            x[2 * i + 1] = b * cosines[i] + a * sines[i];
        }
        return;
    }
    float* y = x + count;
    int i = 0;
    for (; i + W <= count; i += W) {
        const V a = load(x + i), b = load(y + i), c = load(cosines + i), s = load(sines + i);
        store(x + i, a * c - b * s);
        store(y + i, fma(a, s, b * c));
    }
    for (; i < count; ++i) {
        const float a = x[i], b = y[i];
        x[i] = a * cosines[i] - b * sines[i];
        y[i] = b * cosines[i] + a * sines[i];
    }
}

template <Activation kind>
BITSMITH_OP V activate(V x) {
    const V one = splat(1.0f), half = splat(0.5f);
    if constexpr (kind == Activation::kSilu) {
        return x / (one + exp(splat(0.0f) - x));
    } else if constexpr (kind == Activation::kGelu) {
        // x · Φ(x), Φ from the side where nothing cancels.
        const V tail = half * erfc(magnitude(x) * splat(0.70710678f));
        return x * select_less(x, splat(0.0f), tail, one - tail);
    } else {
        // 0.5 · (1 + tanh(u)) = 1 / (1 + e^(−2u))
        const V u = x * fma(x * x, splat(0.044715f * 0.79788456f), splat(0.79788456f));
        return x / (one + exp(splat(-2.0f) * u));
    }
}

template <Activation kind>
static void act_mul_as(const float* gate, const float* up, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(out + i, activate<kind>(load(gate + i)) * load(up + i));
    if (i < count) {
        const int64_t rest = count - i;
        store_some(out + i, activate<kind>(load_some(gate + i, rest)) * load_some(up + i, rest), rest);
    }
}

static void act_mul(Activation kind, const float* gate, const float* up, float* out, int64_t count) {
    switch (kind) {
        case Activation::kSilu:
            return act_mul_as<Activation::kSilu>(gate, up, out, count);
        case Activation::kGelu:
            return act_mul_as<Activation::kGelu>(gate, up, out, count);
        case Activation::kGeluTanh:
            return act_mul_as<Activation::kGeluTanh>(gate, up, out, count);
    }
}

// Sylvester's matrix of W: entry (i, j) is −1 to the number of ones that i and j share.
struct Signs {
    float of[W][W];
};
constexpr Signs signs() {
    Signs s{};
    for (int i = 0; i < W; ++i)
        for (int j = 0; j < W; ++j) {
            int ones = 0;
            for (int both = i & j; both; both &= both - 1) ++ones;
            s.of[i][j] = ones % 2 ? -1.0f : 1.0f;
        }
    return s;
}
constexpr Signs kSigns = signs();

// W neighbours times that matrix: as many products, but of whole vectors.
BITSMITH_OP V within(const float* x) {
    V even = splat(0.0f), odd = splat(0.0f);
    BITSMITH_EACH for (int i = 0; i + 1 < W; i += 2) {
        even = fma(splat(x[i]), load(kSigns.of[i]), even);
        odd = fma(splat(x[i + 1]), load(kSigns.of[i + 1]), odd);
    }
    return W == 1 ? load(x) : even + odd;
}

// One stretch of `size` values times Sylvester's matrix.
static void walsh(float* x, int64_t size) {
    if (size < W) {
        for (int64_t step = 1; step < size; step *= 2)
            for (int64_t i = 0; i < size; i += 2 * step)
                for (int64_t j = i; j < i + step; ++j) {
                    const float a = x[j], b = x[j + step];
                    x[j] = a + b;
                    x[j + step] = a - b;
                }
        return;
    }
    for (int64_t i = 0; i < size; i += W) store(x + i, within(x + i));
    int64_t step = W;
    for (; 4 * step <= size; step *= 4)  // two distances at once: half as often through the memory
        for (int64_t i = 0; i < size; i += 4 * step)
            for (int64_t j = i; j < i + step; j += W) {
                const V a = load(x + j), b = load(x + j + step), c = load(x + j + 2 * step), d = load(x + j + 3 * step);
                const V ab = a + b, cd = c + d, less = a - b, other = c - d;
                store(x + j, ab + cd);
                store(x + j + step, less + other);
                store(x + j + 2 * step, ab - cd);
                store(x + j + 3 * step, less - other);
            }
    for (; 2 * step <= size; step *= 2)
        for (int64_t i = 0; i < size; i += 2 * step)
            for (int64_t j = i; j < i + step; j += W) {
                const V a = load(x + j), b = load(x + j + step);
                store(x + j, a + b);
                store(x + j + step, a - b);
            }
}

// Rows of a matrix [order][size], some neighbouring columns at a time, become their sums weighed by the factor.
static void mix(float* x, int64_t column, int64_t count, const RunRotation& r) {
    float was[kMostOrder * W] = {};
    for (int64_t i = 0; i < r.order; ++i)
        for (int64_t c = 0; c < count; ++c) was[i * W + c] = x[i * r.size + column + c];
    for (int64_t to = 0; to < r.order; ++to) {
        V total = splat(0.0f);
        for (int64_t i = 0; i < r.order; ++i) total = fma(splat(r.factor[i * r.order + to]), load(was + i * W), total);
        float sums[W];
        store(sums, total);
        for (int64_t c = 0; c < count; ++c) x[to * r.size + column + c] = sums[c];
    }
}

static void rotate_run(float* x, const RunRotation& r) {
    const int64_t width = r.order * r.size;
    for (int64_t i = 0; i < width; ++i) x[i] *= r.signs[i] * r.scale;
    for (int64_t i = 0; i < r.order; ++i) walsh(x + i * r.size, r.size);
    if (r.order == 1) return;
    for (int64_t c = 0; c < r.size; c += W) mix(x, c, r.size - c < W ? r.size - c : W, r);
}

static void add(const float* x, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(out + i, load(out + i) + load(x + i));
    for (; i < count; ++i) out[i] += x[i];
}

// out += scale · x
static void add_scaled(const float* x, float scale, float* out, int64_t count) {
    const V factor = splat(scale);
    int64_t i = 0;
    for (; i + W <= count; i += W) store(out + i, fma(load(x + i), factor, load(out + i)));
    for (; i < count; ++i) out[i] += scale * x[i];
}

static void scale(const float* x, float factor, float* out, int64_t count) {
    for (int64_t i = 0; i < count; ++i) out[i] = factor * x[i];
}

static void softcap(float* x, float cap, int64_t count) {
    const V caps = splat(cap), inverse = splat(1.0f / cap);
    int64_t i = 0;
    for (; i + W <= count; i += W) store(x + i, caps * tanh(load(x + i) * inverse));
    if (i < count) {
        const int64_t rest = count - i;
        store_some(x + i, caps * tanh(load_some(x + i, rest) * inverse), rest);
    }
}

static void exp_row(const float* x, float* out, int64_t count) {
    int64_t i = 0;
    for (; i + W <= count; i += W) store(out + i, exp(load(x + i)));
    if (i < count) store_some(out + i, exp(load_some(x + i, count - i)), count - i);
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
