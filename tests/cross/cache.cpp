// Attention over caches of every type, on each instruction set that is named, against float64 on what the cache keeps:
// codes by the same rules as ggml's plain encoders. Exits with 1 where one differs.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "ops/table.h"
#include "table.h"

using namespace bitsmith::engine;

namespace {

constexpr int kPositions = 200, kRows = 7, kCapacity = 256;
const CacheType kTypes[] = {CacheType::kF16, CacheType::kBF16, CacheType::kF32, CacheType::kQ8_0, CacheType::kQ4_0};
const char* const kNames[] = {"F16", "BF16", "F32", "Q8_0", "Q4_0"};

float round_float(float x, int mantissa) {  // normal numbers, ties to even
    int exponent;
    const double fraction = std::frexp(static_cast<double>(x), &exponent);
    return static_cast<float>(std::ldexp(std::nearbyint(std::ldexp(fraction, mantissa)), exponent - mantissa));
}

void keep(CacheType type, float* x, int dim) {
    if (type == CacheType::kF32) return;
    if (!has_codes(type)) {
        for (int d = 0; d < dim; ++d) x[d] = round_float(x[d], type == CacheType::kF16 ? 11 : 8);
        return;
    }
    for (int from = 0; from < dim; from += kCodeBlock) {
        const int to = from + kCodeBlock < dim ? from + kCodeBlock : dim;
        float extreme = 0;
        for (int d = from; d < to; ++d)
            if (std::fabs(x[d]) > std::fabs(extreme)) extreme = x[d];
        const bool eight = type == CacheType::kQ8_0;
        const float step = eight ? std::fabs(extreme) / 127.0f : extreme / -8.0f, inverse = step != 0 ? 1.0f / step : 0;
        const float stored = round_float(step, 11);
        for (int d = from; d < to; ++d) {
            volatile float scaled = x[d] * inverse;  // rounded before anything is added
            const float code = eight ? std::round(scaled) : std::fmin(std::floor(scaled + 8.5f), 15.0f) - 8.0f;
            x[d] = stored * code;
        }
    }
}

double difference(const OpTable& ops, CacheType keys, CacheType values, int dim, int rows, int64_t begin) {
    std::mt19937 random(static_cast<unsigned>(dim));
    std::normal_distribution<float> normal;
    const int key_wide = key_width(keys, dim), stride = value_width(values, dim);
    std::vector<char> key_memory(static_cast<size_t>(kCapacity / kKeyTile * tile_bytes(keys, key_wide)));
    std::vector<char> value_memory(static_cast<size_t>(kCapacity / kKeyTile * tile_bytes(values, stride)));
    const CacheView cache{key_memory.data(), value_memory.data(), dim, stride, keys, values};
    std::vector<float> k(kPositions * dim), v(kPositions * dim), q(rows * dim);
    for (float& x : k) x = normal(random);
    for (float& x : v) x = normal(random);
    for (float& x : q) x = 0.3f * normal(random);
    for (int p = 0; p < kPositions; ++p) {
        ops.store_key(cache, p, &k[p * dim]);
        ops.store_value(cache, p, &v[p * dim]);
        keep(keys, &k[p * dim], dim);
        keep(values, &v[p * dim], dim);
    }
    std::vector<int64_t> first(rows), last(rows);
    for (int r = 0; r < rows; ++r) {
        first[r] = begin + 3 * r;
        last[r] = kPositions - 1 - 5 * r;
    }
    std::vector<float> sums(rows * stride), maxima(rows), weights(rows), scores(kMaxRows * kKeyBlock);
    std::vector<char> codes(static_cast<size_t>(kMaxRows * query_bytes(key_width(CacheType::kQ8_0, dim))));
    std::vector<float> decoded(kKeyTile * stride + 64);
    ops.attend({cache, q.data(), rows, begin, kPositions, first.data(), last.data(), 0.0f, sums.data(), maxima.data(),
                weights.data(), scores.data(), codes.data(), decoded.data(), true, false, false});
    double worst = 0, size = 0;
    for (int r = 0; r < rows; ++r) {
        std::vector<double> want(dim);
        double total = 0;
        for (int64_t p = first[r]; p <= last[r]; ++p) {
            double score = 0;
            for (int d = 0; d < dim; ++d) score += static_cast<double>(q[r * dim + d]) * k[p * dim + d];
            total += std::exp(score);
            for (int d = 0; d < dim; ++d) want[d] += std::exp(score) * v[p * dim + d];
        }
        for (int d = 0; d < dim; ++d) {
            worst = std::fmax(worst, std::fabs(sums[r * stride + d] / weights[r] - want[d] / total));
            size = std::fmax(size, std::fabs(want[d] / total));
        }
    }
    return worst / size;
}

}  // namespace

int main(int count, char** names) {
    int wrong = 0;
    for (int i = 1; i < count; ++i) {
        const OpTable* ops = kernels_named(names[i]).ops;
        for (int a = 0; a < 5; ++a) {
            for (int b = 0; b < 5; ++b) {
                if (a != b && a + b != 7) continue;
                double worst = 0;
                for (int dim : {33, 64, 80})
                    for (int rows : {1, 2, kRows})
                        worst = std::fmax(worst, difference(*ops, kTypes[a], kTypes[b], dim, rows, dim % 2 ? 21 : 0));
                std::printf("%s keys %s values %s: %.1e\n", names[i], kNames[a], kNames[b], worst);
                if (!(worst < (has_codes(kTypes[a]) ? 1e-4 : 3e-6))) wrong = 1;
            }
        }
    }
    return wrong;
}
