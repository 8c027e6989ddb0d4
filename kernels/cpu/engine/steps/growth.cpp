// How keys and values of a batch come into the cache: at once where all tokens are kept alike; else what leaves the
// window becomes codes before the batch attends, and its own rows are kept in float16 after it.
#include <algorithm>
#include <vector>

#include "steps.h"

namespace bitsmith::engine {

namespace {

void store_codes(const SideScheme& side, void* codes, int64_t position, const float* row, int dim, float scale) {
    encode_row(side.row, row, dim, scale, static_cast<uint8_t*>(codes) + position * format_of(side.row).bytes(dim));
}

// What is kept before the rotary step is read that way, too.
CacheView as_stored(CacheView view) {
    view.angles.cosines = nullptr;
    return view;
}

}  // namespace

CacheView Attention::view(int64_t sequence, int head) const {
    CacheView view = cache_.view(layer, sequence, head);
    view.angles = angles_;
    return view;
}

// With the rows of the batch, which follow what the cache has of their sequence.
CacheView Attention::view(const Run& run, const std::vector<int32_t>& rows, int head) const {
    CacheView all = view(run.sequences[rows[0]], head);
    if (!scheme_.waits()) return all;
    const int64_t at = static_cast<int64_t>(head) * cache_.dim(layer);
    for (FloatRows* floats : {&all.key_floats, &all.value_floats}) {
        const int buffer = floats == &all.key_floats ? k : v;
        floats->batch = run.buffers[buffer] + at;
        floats->batch_width = run.widths[buffer];
        floats->batch_rows = rows.data();
        floats->batch_start = run.positions[rows[0]];
    }
    return all;
}

// A row as it is kept: turned, and in float16 where it waits; then, where it does not wait, stored.
void Attention::store(const Run& run, int32_t row) const {
    const int dim = cache_.dim(layer);
    for (int head = 0; head < cache_.heads(layer); ++head) {
        const CacheView view = cache_.view(layer, run.sequences[row], head);
        for (const bool keys : {true, false}) {
            const SideScheme& side = keys ? scheme_.keys : scheme_.values;
            float* values = run.row(keys ? k : v, row) + head * dim;
            if (side.turned) hadamard(values, dim);
            if (scheme_.waits(side))
                for (int d = 0; d < dim; ++d) values[d] = rounded_to_f16(values[d]);
            else if (side.type == CacheType::kRows)
                store_codes(side, keys ? view.keys : view.values, run.positions[row], values, dim, side.scale(head));
            else
                (keys ? run.ops.store_key : run.ops.store_value)(view, run.positions[row], values);
        }
    }
}

// Only the first `count` tokens are held from here on. What is left of a unit that is cut waits again, as what it had
// become.
void Attention::cut(const Run& run, int64_t sequence, int64_t count) const {
    Held& held = cache_.held(layer, sequence);
    const int dim = cache_.dim(layer);
    std::vector<float> tile(static_cast<size_t>(kKeyTile * stride_ + 64));
    for (const bool keys : {true, false}) {
        const SideScheme& side = keys ? scheme_.keys : scheme_.values;
        int64_t& end = keys ? held.key_end : held.value_end;
        if (!scheme_.waits(side)) continue;
        const int64_t first = cache_.first_coded(layer, keys);
        const int64_t kept = std::max(first, std::min(end, count / side.waits() * side.waits()));
        for (int head = 0; head < cache_.heads(layer) && kept < end; ++head) {
            const CacheView view = as_stored(cache_.view(layer, sequence, head));
            const FloatRows& floats = keys ? view.key_floats : view.value_floats;
            for (int64_t position = kept; position < count; ++position) {
                run.ops.read_rows(view, keys, false, position, position + 1, tile.data());
                encode_row(Row::kF16, tile.data() + position % kKeyTile * stride_, dim, 1.0f,
                           floats.ring + position % floats.ring_size * 2 * dim);
            }
        }
        end = kept;
    }
    held.count = count;
}

// Tokens that are old enough with all rows of the batch become codes, of one head.
void Attention::quantize(const Run& run, const std::vector<int32_t>& rows, int head) const {
    const int64_t sequence = run.sequences[rows[0]], count = static_cast<int64_t>(run.positions[rows.back()]) + 1;
    const int dim = cache_.dim(layer);
    const CacheView all = as_stored(view(run, rows, head));
    std::vector<float> tile(static_cast<size_t>(kKeyTile * stride_ + 64)), unit(static_cast<size_t>(kUnit * dim));
    for (const bool keys : {true, false}) {
        const SideScheme& side = keys ? scheme_.keys : scheme_.values;
        if (!scheme_.waits(side)) continue;
        const Held& held = cache_.held(layer, sequence);
        const int waits = side.waits();
        const int64_t begin = keys ? held.key_end : held.value_end, end = cache_.last_coded(layer, keys, count);
        // With a gap before the batch, what was never there stays what it is.
        const int64_t from =
            held.count < all.key_floats.batch_start ? (all.key_floats.batch_start + waits - 1) / waits * waits : begin;
        uint8_t* codes = static_cast<uint8_t*>(keys ? all.keys : all.values);
        for (int64_t position = std::max(begin, from); position < end; ++position) {
            run.ops.read_rows(all, keys, true, position, position + 1, tile.data());
            const float* row = tile.data() + position % kKeyTile * stride_;
            if (waits > 1) {
                std::copy(row, row + dim, unit.data() + position % waits * dim);
                if (position % waits == waits - 1)
                    encode_unit(side.row, unit.data(), dim, codes + position / waits * format_of(side.row).bytes(dim));
            } else if (side.type == CacheType::kRows) {
                store_codes(side, codes, position, row, dim, side.scale(head));
            } else {
                (keys ? run.ops.store_key : run.ops.store_value)(all, position, row);
            }
        }
    }
}

bool Attention::grow(const Run& run) {
    run.each_row(2 * run.widths[k], [&](int64_t row, int64_t from, int64_t) {
        if (from == 0) store(run, static_cast<int32_t>(row));
    });
    if (!scheme_.waits()) return true;
    for (const std::vector<int32_t>& rows : run.of_sequence) {
        const int64_t sequence = run.sequences[rows[0]], start = run.positions[rows[0]];
        if (start < cache_.held(layer, sequence).count) cut(run, sequence, start);
    }
    const int64_t heads = cache_.heads(layer);
    run.pool.run(static_cast<int64_t>(run.of_sequence.size()) * heads, [&](int64_t i, int) {
        quantize(run, run.of_sequence[static_cast<size_t>(i / heads)], static_cast<int>(i % heads));
    });
    return !run.pool.cancelled();
}

// After the batch has attended, as its first rows still see what its last ones push out of the ring.
void Attention::settle(const Run& run) const {
    const int dim = cache_.dim(layer);
    for (const std::vector<int32_t>& rows : run.of_sequence) {
        const int64_t sequence = run.sequences[rows[0]], start = run.positions[rows[0]];
        const int64_t count = start + static_cast<int64_t>(rows.size());
        for (const bool keys : {true, false}) {
            if (!scheme_.waits(keys ? scheme_.keys : scheme_.values)) continue;
            for (int head = 0; head < cache_.heads(layer); ++head) {
                const CacheView view = cache_.view(layer, sequence, head);
                const FloatRows& floats = keys ? view.key_floats : view.value_floats;
                for (int64_t position = start; position < count; ++position) {
                    const bool sink = position < floats.sink_count;
                    if (!sink && position < count - floats.ring_size) continue;
                    uint8_t* to =
                        sink ? floats.sinks + position * 2 * dim : floats.ring + position % floats.ring_size * 2 * dim;
                    encode_row(Row::kF16,
                               run.row(keys ? k : v, rows[static_cast<size_t>(position - start)]) + head * dim, dim,
                               1.0f, to);
                }
            }
        }
        Held& held = cache_.held(layer, sequence);
        held.count = count;
        held.key_end = std::max(held.key_end, cache_.last_coded(layer, true, count));
        held.value_end = std::max(held.value_end, cache_.last_coded(layer, false, count));
    }
}

}  // namespace bitsmith::engine
