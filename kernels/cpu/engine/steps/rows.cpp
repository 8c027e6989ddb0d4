// The steps that treat each token on its own.
#include <algorithm>
#include <cstring>

#include "steps.h"

namespace bitsmith::engine {

void Embed::run(Run& run) {
    run.each_row(weight.columns, [&](int64_t row, int64_t from, int64_t) {
        if (from) return;  // a row is read whole
        float* values = run.row(out, row);
        read_row(weight, run.tokens[row], values);
        if (scale != 1.0f) run.ops.scale(values, scale, values, weight.columns);
    });
}

void Norm::one_row(const Run& run, int64_t row) const {
    const int64_t width = static_cast<int64_t>(gain.size());
    const float* from = run.row(x, row);
    float* to = run.row(out, row);
    for (int head = 0; head < heads; ++head)
        run.ops.norm(from + head * width, to + head * width, gain.data(), width, eps);
}

void Norm::run(Run& run) {
    run.each_row(run.widths[x], [&](int64_t row, int64_t from, int64_t) {
        if (from == 0) one_row(run, row);
    });
}

void Split::run(Run& run) {
    run.each_row(run.widths[x], [&](int64_t row, int64_t column, int64_t) {
        if (column) return;
        const float* from = run.row(x, row);
        for (int buffer : outs) {
            memcpy(run.row(buffer, row), from, static_cast<size_t>(run.widths[buffer]) * sizeof(float));
            from += run.widths[buffer];
        }
    });
}

void Rope::run(Run& run) {
    angles.compute(run);
    const int count = static_cast<int>(angles.frequencies.size());
    const int64_t dim = run.widths[x] / heads;
    run.each_row(run.widths[x], [&](int64_t row, int64_t from, int64_t) {
        if (from) return;
        const float* cosines = angles.cosines(row);
        for (int head = 0; head < heads; ++head)
            run.ops.rope(run.row(x, row) + head * dim, cosines, cosines + count, count, pairs);
    });
}

void ActMul::run(Run& run) {
    run.each_row(run.widths[out], [&](int64_t row, int64_t from, int64_t count) {
        run.ops.act_mul(kind, run.row(gate, row) + from, run.row(up, row) + from, run.row(out, row) + from, count);
    });
}

void Hadamard::Rotation::apply(const OpTable& ops, float* row, int64_t columns) const {
    const RunRotation one = run();
    for (int64_t at = 0; at < columns; at += width()) ops.rotate_run(row + at, one);
}

void Hadamard::run(Run& run) {
    const int64_t width = rotation.width(), columns = run.widths[x], pieces = columns / width;
    if (run.rows * columns <= kSerial) {
        for (int64_t row = 0; row < run.rows; ++row) rotation.apply(run.ops, run.row(x, row), columns);
        return;
    }
    const RunRotation one = rotation.run();
    const int64_t together = std::max<int64_t>(1, kSerial / 2 / width);  // short runs a chunk
    const int64_t all = run.rows * pieces;
    run.pool.run((all + together - 1) / together, [&](int64_t chunk, int) {
        for (int64_t i = chunk * together; i < std::min(all, (chunk + 1) * together); ++i)
            run.ops.rotate_run(run.row(x, i / pieces) + i % pieces * width, one);
    });
}

void Add::run(Run& run) {
    run.each_row(run.widths[out], [&](int64_t row, int64_t from, int64_t count) {
        run.ops.add(run.row(x, row) + from, run.row(out, row) + from, count);
    });
}

void SoftCap::run(Run& run) {
    run.each_row(run.widths[x], [&](int64_t row, int64_t from, int64_t count) {
        run.ops.softcap(run.row(x, row) + from, cap, count);
    });
}

}  // namespace bitsmith::engine
