// How many queries and vectors of the cache the inner loops of attention take at a time.
#pragma once
#include "table.h"
#include "vec.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

// Queries that one pass of the inner loops serves: as many sums as fit the registers beside two vectors of the cache.
#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kGroup = 8;
#else
constexpr int kGroup = 6;
#endif
// Few queries take four vectors at a time instead of two, so that enough sums are under way.
constexpr int vectors_for(int rows) {
    return rows <= 2 ? 4 : 2;
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
