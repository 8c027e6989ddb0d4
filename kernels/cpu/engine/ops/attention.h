// Attention of some queries over one key head's cache: online softmax in blocks of positions, float32 throughout.
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

template <class T>
BITSMITH_OP T* key_at(const CacheView& cache, int64_t position) {
    return static_cast<T*>(cache.keys) + position / kKeyTile * kKeyTile * cache.dim + position % kKeyTile;
}

template <class T>
static void store_key_as(const CacheView& cache, int64_t position, const float* key, const float* value) {
    T* keys = key_at<T>(cache, position);
    T* values = static_cast<T*>(cache.values) + position * cache.stride;
    for (int d = 0; d < cache.dim; ++d) {
        put(keys + d * kKeyTile, key[d]);
        put(values + d, value[d]);
    }
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
static void add_values(const T* values, int stride, int from, int to, const float* shares, float* sums) {
    constexpr int vectors = vectors_for(rows);
    int d = 0;
    for (; d + vectors * W <= stride; d += vectors * W)
        add_group<rows, vectors, T>(values + d, stride, from, to, shares, sums + d);
    for (; d < stride; d += W) add_group<rows, 1, T>(values + d, stride, from, to, shares, sums + d);
}

// Scores of a block become shares, e^(score − largest so far); what is already summed follows a larger maximum.
static void block_softmax(const Attend& task, int row, int64_t block, int count) {
    float* scores = task.scores + row * kKeyBlock;
    const int64_t after = task.last[row] + 1 - block, before = task.first[row] - block;
    const int from = before > 0 ? (int)(before < count ? before : count) : 0;
    const int to = after < count ? (int)(after > from ? after : from) : count;
    const int padded = (count + W - 1) / W * W;
    const float lowest = -kInfinity;
    for (int i = 0; i < from; ++i) scores[i] = lowest;
    for (int i = to; i < padded; ++i) scores[i] = lowest;
    if (from == to) {  // this query sees nothing of the block
        for (int i = 0; i < padded; ++i) scores[i] = 0.0f;
        return;
    }
    V peak = splat(lowest);
    if (task.softcap > 0.0f) {
        const V cap = splat(task.softcap), inverse = splat(1.0f / task.softcap);
        for (int i = 0; i < to; i += W) {
            const V score = load(scores + i);
            store(scores + i, select_less(splat(lowest), score, cap * tanh(score * inverse), score));
        }
    }
    for (int i = 0; i < padded; i += W) peak = max(peak, load(scores + i));
    float maximum = task.maxima[row];
    const float found = largest(peak);
    if (found > maximum) {
        float factors[W];
        store(factors, exp(splat(maximum - found)));  // 0 the first time
        const V factor = splat(factors[0]);
        float* sums = task.sums + (int64_t)row * task.cache.stride;
        for (int d = 0; d < task.cache.stride; d += W) store(sums + d, load(sums + d) * factor);
        task.weights[row] *= factors[0];
        task.maxima[row] = maximum = found;
    }
    V total = {};
    for (int i = 0; i < padded; i += W) {
        const V share = exp(load(scores + i) - splat(maximum));
        store(scores + i, share);
        total += share;
    }
    task.weights[row] += sum(total);
}

template <int rows, class T>
static void score_rows(const Attend& task, int first, int64_t block, int count) {
    constexpr int step = vectors_for(rows) * W;
    for (int i = 0; i < count; i += step)
        score_group<rows, T>(task.cache, block + i, task.queries + (int64_t)first * task.cache.dim,
                             task.scores + first * kKeyBlock + i);
}

// Calls f<rows>() for a number of rows known only now.
template <int most, class Function>
BITSMITH_OP void with_rows(int rows, const Function& function) {
    if constexpr (most == 1) {
        function.template operator()<1>();
    } else {
        if (rows == most)
            function.template operator()<most>();
        else
            with_rows<most - 1>(rows, function);
    }
}

template <class T>
static void attend_as(const Attend& task) {
    const int stride = task.cache.stride;
    for (int row = 0; row < task.rows; ++row) {
        task.maxima[row] = -kInfinity;
        task.weights[row] = 0.0f;
    }
    memset(task.sums, 0, sizeof(float) * task.rows * stride);
    for (int64_t block = task.begin / kKeyBlock * kKeyBlock; block < task.end; block += kKeyBlock) {
        const int from = block < task.begin ? (int)(task.begin - block) : 0;
        const int count = task.end - block < kKeyBlock ? (int)(task.end - block) : kKeyBlock;
        const T* values = static_cast<const T*>(task.cache.values) + block * stride;
        for (int row = 0; row < task.rows; row += kGroup) {
            const int rows = task.rows - row < kGroup ? task.rows - row : kGroup;
            with_rows<kGroup>(rows, [&]<int r>() { score_rows<r, T>(task, row, block, count); });
            for (int r = 0; r < rows; ++r) block_softmax(task, row + r, block, count);
            with_rows<kGroup>(rows, [&]<int r>() {
                add_values<r, T>(values, stride, from, count, task.scores + row * kKeyBlock,
                                 task.sums + (int64_t)row * stride);
            });
        }
    }
}

static void store_key(CacheType type, const CacheView& cache, int64_t position, const float* key, const float* value) {
    switch (type) {
        case CacheType::kF16:
            return store_key_as<F16>(cache, position, key, value);
        case CacheType::kBF16:
            return store_key_as<BF16>(cache, position, key, value);
        case CacheType::kF32:
            return store_key_as<float>(cache, position, key, value);
    }
}

static void attend(CacheType type, const Attend& task) {
    switch (type) {
        case CacheType::kF16:
            return attend_as<F16>(task);
        case CacheType::kBF16:
            return attend_as<BF16>(task);
        case CacheType::kF32:
            return attend_as<float>(task);
    }
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
