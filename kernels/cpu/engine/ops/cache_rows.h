// Attention over what the cache has as rows: codes (row_kinds.h), and the floats beside codes. Rows become floats
// kKeyTile at a time, once for all queries of a task, in scratch that stays in the first cache.
#pragma once
#include "cache_floats.h"
#include "row_values.h"
#include "rows.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

BITSMITH_OP const uint8_t* float_row(const FloatRows& rows, int64_t position, int dim, Row& row) {
    row = Row::kF16;
    if (position >= rows.batch_start) {
        row = Row::kF32;
        const int64_t at = rows.batch_rows[position - rows.batch_start];
        return reinterpret_cast<const uint8_t*>(rows.batch + at * rows.batch_width);
    }
    if (position < rows.sink_count) return rows.sinks + position * 2 * dim;
    return rows.ring + position % rows.ring_size * 2 * dim;
}

// Positions [from, to) of one tile as floats, out[position % kKeyTile][cache.stride]; values past dim are zeros.
static void read_rows(const CacheView& cache, bool keys, bool floats, int64_t from, int64_t to, float* out) {
    const Row row = keys ? cache.key_row : cache.value_row;
    const RowFormat& format = format_of(row);
    const int dim = cache.dim, stride = cache.stride;
    const uint8_t* codes = static_cast<const uint8_t*>(keys ? cache.keys : cache.values);
    if (format.channels && !floats) {
        const int first = (int)(from / kKeyTile * kKeyTile % kUnit);
        const uint8_t* unit = codes + from / kUnit * format.bytes(dim);
        if (format.bits == 4)
            decode_channels<4>(unit, first, kKeyTile, dim, stride, out);
        else
            decode_channels<2>(unit, first, kKeyTile, dim, stride, out);
    }
    for (int64_t position = from; position < to; ++position) {
        float* values = out + position % kKeyTile * stride;
        if (floats) {
            Row kept;
            const uint8_t* at = float_row(keys ? cache.key_floats : cache.value_floats, position, dim, kept);
            decode_row(kept, at, dim, 1.0f, values);
        } else if (!format.channels) {
            decode_row(row, codes + position * format.bytes(dim), dim, keys ? cache.key_scale : cache.value_scale,
                       values);
        }
        if (keys && cache.angles.cosines) {
            if (cache.turned_keys) hadamard(values, dim);
            const int64_t at = 2 * position * cache.angles.count;
            rope(values, cache.angles.cosines + at, cache.angles.cosines + at + cache.angles.count, cache.angles.count,
                 cache.angles.pairs);
        }
        for (int d = dim; d < stride; ++d) values[d] = 0.0f;
    }
}

// scores[r][i] = queries[r] · rows[i], for i in [from, to).
template <int rows>
static void score_decoded(const float* queries, int dim, const float* decoded, int stride, int from, int to,
                          float* scores) {
    for (int i = from; i < to; ++i) {
        V sums[rows] = {};
        const float* key = decoded + i * stride;
        int d = 0;
        for (; d + W <= dim; d += W) {
            const V x = load(key + d);
            BITSMITH_EACH for (int r = 0; r < rows; ++r) sums[r] = fma(x, load(queries + r * dim + d), sums[r]);
        }
        if (d < dim)
            BITSMITH_EACH for (int r = 0; r < rows; ++r) sums[r] =
                fma(load(key + d), load_some(queries + r * dim + d, dim - d), sums[r]);
        BITSMITH_EACH for (int r = 0; r < rows; ++r) scores[r * kKeyBlock + i] = sum(sums[r]);
    }
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
