// The next token from logits; kernels/reference/sample.py says what every argument means.
#pragma once
#include <stdint.h>

#include "ops/table.h"

namespace bitsmith::engine {

struct Sampling {
    double temperature;
    int64_t top_k;  // 0: all
    double top_p, min_p;
    float repetition;
    uint64_t seed, step;
};

// Throws std::invalid_argument where no logit is finite, or one is infinite.
int32_t sample(const OpTable& ops, const float* logits, int64_t count, const int32_t* previous, int64_t previous_count,
               const Sampling& sampling);

}  // namespace bitsmith::engine
