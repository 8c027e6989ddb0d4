// Keys and values that are kept as floats.
#pragma once
#include "groups.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

template <class T>
BITSMITH_OP T* key_at(const CacheView& cache, int64_t position) {
    return static_cast<T*>(cache.keys) + position / kKeyTile * kKeyTile * cache.dim + position % kKeyTile;
}

template <class T>
static void put_float_key(const CacheView& cache, int64_t position, const float* key) {
    T* keys = key_at<T>(cache, position);
    for (int d = 0; d < cache.dim; ++d) put(keys + d * kKeyTile, key[d]);
}
template <class T>
static void put_float_value(const CacheView& cache, int64_t position, const float* value) {
    T* values = static_cast<T*>(cache.values) + position * cache.stride;
    for (int d = 0; d < cache.dim; ++d) put(values + d, value[d]);
}

// scores[r][i] = queries[r] · key at position + i, for one group of vectors.
template <int rows, class T>
static void score_group(const CacheView& cache, int64_t position, const float* queries, float* scores) {
    constexpr int vectors = vectors_for(rows);
    const int dim = cache.dim;
    const T* keys[vectors];
    BITSMITH_EACH for (int v = 0; v < vectors; ++v) keys[v] = key_at<T>(cache, position + v * W);
    V sums[rows][vectors] = {};
    for (int d = 0; d < dim; ++d) {
        V key[vectors];
        BITSMITH_EACH for (int v = 0; v < vectors; ++v) key[v] = load(keys[v] + d * kKeyTile);
        BITSMITH_EACH for (int r = 0; r < rows; ++r) {
            const V query = splat(queries[r * dim + d]);
            BITSMITH_EACH for (int v = 0; v < vectors; ++v) sums[r][v] = fma(key[v], query, sums[r][v]);
        }
    }
    BITSMITH_EACH for (int r = 0; r < rows; ++r) BITSMITH_EACH for (int v = 0; v < vectors; ++v)
        store(scores + r * kKeyBlock + v * W, sums[r][v]);
}

// sums[r][d …] += Σ over positions [from, to) of the block of shares[r][i] · value
template <int rows, int vectors, class T>
static void add_group(const T* values, int stride, int from, int to, const float* shares, float* sums) {
    V total[rows][vectors];
    BITSMITH_EACH for (int r = 0; r < rows; ++r) BITSMITH_EACH for (int v = 0; v < vectors; ++v) total[r][v] =
        load(sums + r * stride + v * W);
    for (int i = from; i < to; ++i) {
        V value[vectors];
        BITSMITH_EACH for (int v = 0; v < vectors; ++v) value[v] = load(values + (int64_t)i * stride + v * W);
        BITSMITH_EACH for (int r = 0; r < rows; ++r) {
            const V share = splat(shares[r * kKeyBlock + i]);
            BITSMITH_EACH for (int v = 0; v < vectors; ++v) total[r][v] = fma(value[v], share, total[r][v]);
        }
    }
    BITSMITH_EACH for (int r = 0; r < rows; ++r) BITSMITH_EACH for (int v = 0; v < vectors; ++v)
        store(sums + r * stride + v * W, total[r][v]);
}

// A vector of the cache's own type has kKeyTile values at most, so a row of values is whole groups of one vector.
template <int rows, class T>
static void add_floats(const T* values, int stride, int from, int to, const float* shares, float* sums) {
    constexpr int vectors = vectors_for(rows);
    int d = 0;
    for (; d + vectors * W <= stride; d += vectors * W)
        add_group<rows, vectors, T>(values + d, stride, from, to, shares, sums + d);
    for (; d < stride; d += W) add_group<rows, 1, T>(values + d, stride, from, to, shares, sums + d);
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
