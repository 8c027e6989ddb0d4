// Attention of some queries over one key head's cache: online softmax in blocks of positions, float32 throughout.
#pragma once
#include "cache_codes.h"
#include "cache_floats.h"
#include "cache_rows.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

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
    float* scores = task.scores + first * kKeyBlock;
    for (int i = 0; i < count; i += step) {
        if constexpr (kHasCodes<T>)
            score_codes<rows, T>(task, block + i, first, scores + i);
        else
            score_group<rows, T>(task.cache, block + i, task.queries + (int64_t)first * task.cache.dim, scores + i);
    }
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

template <int rows, class T>
static void add_values(const CacheView& cache, int64_t block, int from, int to, const float* shares, float* sums) {
    if constexpr (kHasCodes<T>)
        add_codes<rows, T>(cache, block, from, to, shares, sums);
    else
        add_floats<rows, T>(static_cast<const T*>(cache.values) + block * cache.stride, cache.stride, from, to, shares,
                            sums);
}

// Calls f(value of the type) for one that is known only now.
template <class Function>
BITSMITH_OP void with_type(CacheType type, const Function& function) {
    switch (type) {
        case CacheType::kF16:
            return function(F16{});
        case CacheType::kBF16:
            return function(BF16{});
        case CacheType::kF32:
            return function(float{});
        case CacheType::kQ8_0:
            return function(Q8_0{});
        case CacheType::kQ4_0:
            return function(Q4_0{});
        case CacheType::kRows:
            return;  // has no tiles
    }
}

// f(first row, number of rows) for groups of queries.
template <class Function>
BITSMITH_OP void each_group(int rows, const Function& function) {
    for (int row = 0; row < rows; row += kGroup) function(row, rows - row < kGroup ? rows - row : kGroup);
}
// f(first position, last + 1) for the tiles of a block, as places in the block.
template <class Function>
BITSMITH_OP void each_tile(int from, int to, const Function& function) {
    for (int start = from / kKeyTile * kKeyTile; start < to; start += kKeyTile)
        function(start, from > start ? from : start, to < start + kKeyTile ? to : start + kKeyTile);
}

static void score_rows_of(const Attend& task, int64_t block, int from, int to) {
    const CacheView& cache = task.cache;
    const int stride = cache.stride;
    each_tile(from, to, [&](int start, int first, int last) {
        read_rows(cache, true, task.float_keys, block + first, block + last, task.decoded);
        each_group(task.rows, [&](int row, int rows) {
            with_rows<kGroup>(rows, [&]<int r>() {
                score_decoded<r>(task.queries + (int64_t)row * cache.dim, cache.dim, task.decoded, stride,
                                 first - start, last - start, task.scores + row * kKeyBlock + start);
            });
        });
    });
}
static void add_rows_of(const Attend& task, int64_t block, int from, int to) {
    const CacheView& cache = task.cache;
    each_tile(from, to, [&](int start, int first, int last) {
        read_rows(cache, false, task.float_values, block + first, block + last, task.decoded);
        each_group(task.rows, [&](int row, int rows) {
            with_rows<kGroup>(rows, [&]<int r>() {
                add_floats<r, float>(task.decoded, cache.stride, first - start, last - start,
                                     task.scores + row * kKeyBlock + start, task.sums + (int64_t)row * cache.stride);
            });
        });
    });
}

static void attend(const Attend& task) {
    const CacheView& cache = task.cache;
    const bool row_keys = task.float_keys || cache.key_type == CacheType::kRows;
    const bool row_values = task.float_values || cache.value_type == CacheType::kRows;
    if (task.fresh) {
        for (int row = 0; row < task.rows; ++row) {
            task.maxima[row] = -kInfinity;
            task.weights[row] = 0.0f;
        }
        memset(task.sums, 0, sizeof(float) * task.rows * cache.stride);
    }
    if (has_codes(cache.key_type) && !row_keys) round_queries(task);
    for (int64_t block = task.begin / kKeyBlock * kKeyBlock; block < task.end; block += kKeyBlock) {
        const int from = block < task.begin ? (int)(task.begin - block) : 0;
        const int count = task.end - block < kKeyBlock ? (int)(task.end - block) : kKeyBlock;
        if (row_keys) score_rows_of(task, block, from, count);
        each_group(task.rows, [&](int row, int rows) {
            float* scores = task.scores + row * kKeyBlock;
            if (!row_keys)
                with_type(cache.key_type, [&]<class T>(T) {
                    with_rows<kGroup>(rows, [&]<int r>() { score_rows<r, T>(task, row, block, count); });
                });
            for (int r = 0; r < rows; ++r) block_softmax(task, row + r, block, count);
            if (row_values) return;
            float* sums = task.sums + (int64_t)row * cache.stride;
            with_type(cache.value_type, [&]<class T>(T) {
                with_rows<kGroup>(rows, [&]<int r>() { add_values<r, T>(cache, block, from, count, scores, sums); });
            });
        });
        if (row_values) add_rows_of(task, block, from, count);
    }
}

static void store_key(const CacheView& cache, int64_t position, const float* key) {
    with_type(cache.key_type, [&]<class T>(T) {
        if constexpr (kHasCodes<T>)
            put_code_key<T>(cache, position, key);
        else
            put_float_key<T>(cache, position, key);
    });
}
static void store_value(const CacheView& cache, int64_t position, const float* value) {
    with_type(cache.value_type, [&]<class T>(T) {
        if constexpr (kHasCodes<T>)
            put_code_value<T>(cache, position, value);
        else
            put_float_value<T>(cache, position, value);
    });
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
