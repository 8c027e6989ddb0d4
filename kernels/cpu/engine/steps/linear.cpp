#include <algorithm>
#include <cmath>
#include <cstring>

#include "steps.h"

namespace bitsmith::engine {

namespace {

// Of weights, for few tokens. A chunk that begins elsewhere costs the start of a stream, some hundred nanoseconds in
// which memory idles: so chunks are large, and small only at the end, where threads wait for the last one.
constexpr int64_t kSmallBytes = 48 << 10, kLargeBytes = 4 << 20;
constexpr int64_t kChunkBytes = 256 << 10;    // where all are alike
constexpr int64_t kChunkProducts = 16 << 20;  // for many tokens

}  // namespace

int64_t tiles_of_chunk(const Packed& weight, int64_t rows, int64_t all_tiles, int threads) {
    const int64_t wanted = rows <= kPanel ? kChunkBytes / std::max<int64_t>(1, weight.tile_bytes)
                                          : kChunkProducts / (kTile * weight.columns * rows);
    return std::max<int64_t>(1, std::min(wanted, all_tiles / (6 * threads)));
}

bool Linear::absorb_before(std::unique_ptr<Step>& step) {
    const Norm* norm = dynamic_cast<const Norm*>(step.get());
    if (norm == nullptr || norm->out != x || norm->heads != 1) return false;
    norm_ = norm;
    norm_owner_ = std::move(step);
    return true;
}

bool Linear::absorb_after(std::unique_ptr<Step>& step) {
    const ActMul* next = dynamic_cast<const ActMul*>(step.get());
    if (next == nullptr || activation_ != nullptr || parts.size() != 2 || accumulate) return false;
    const int a = parts[0].out, b = parts[1].out;
    if (!((next->gate == a && next->up == b) || (next->gate == b && next->up == a))) return false;
    if (a == b || parts[0].weight->rows != parts[1].weight->rows || next->out == x) return false;
    activation_ = next;
    activation_owner_ = std::move(step);
    return true;
}

std::vector<int> Linear::reads() const {
    std::vector<int> buffers = {norm_ ? norm_->x : x};
    if (accumulate)
        for (const Part& part : parts) buffers.push_back(part.out);
    return buffers;
}

std::vector<int> Linear::writes() const {
    std::vector<int> buffers;
    if (norm_) buffers.push_back(norm_->out);
    for (const Part& part : parts) buffers.push_back(part.out);
    if (activation_) buffers.push_back(activation_->out);
    return buffers;
}

// Columns of x that reach the threshold in some row; without_ is x without them.
void Linear::find_outliers(const Run& run) {
    const int64_t width = run.widths[x];
    std::vector<float> largest(static_cast<size_t>(width), 0.0f);
    for (int64_t row = 0; row < run.rows; ++row)
        for (int64_t c = 0; c < width; ++c) largest[c] = std::max(largest[c], std::fabs(run.row(x, row)[c]));
    apart_.clear();
    for (int64_t c = 0; c < width; ++c)
        if (largest[c] >= outliers) apart_.push_back(static_cast<int32_t>(c));
    if (apart_.empty()) return;
    const int64_t bytes = run.rows * width * static_cast<int64_t>(sizeof(float));
    without_.reserve(bytes);
    memcpy(without_.data(), run.buffers[x], static_cast<size_t>(bytes));
    for (int64_t row = 0; row < run.rows; ++row)
        for (int32_t c : apart_) without_.floats()[row * width + c] = 0.0f;
}

void Linear::prepare(Run& run) {
    Prepared& prepared = run.prepared;
    prepared.start(run.rows);
    acts_.clear();
    for (const Part& part : parts) acts_.push_back(prepared.add(*part.weight, contract));
    const Norm* norm = norm_;
    apart_.clear();
    if (outliers > 0.0f) {
        if (norm)
            for (int64_t row = 0; row < run.rows; ++row) norm->one_row(run, row);
        norm = nullptr;
        find_outliers(run);
    }
    const int64_t width = run.widths[x];
    const float* from = apart_.empty() ? run.buffers[x] : without_.floats();
    const auto panel = [&](int64_t p, int) {
        if (norm) {
            const int64_t first = Act::first(p);
            for (int64_t row = first; row < first + prepared.at(0).count(p); ++row) norm->one_row(run, row);
        }
        for (int i = 0; i < prepared.count(); ++i) run.kernels.prepare(prepared.at(i), from, width, p, p + 1);
    };
    if (prepared.panels() == 1 || run.rows * width <= kSerial)
        for (int64_t p = 0; p < prepared.panels(); ++p) panel(p, 0);
    else
        run.pool.run(prepared.panels(), panel);
}

// Chunks of tiles: of the two parts together where an activation joins them, of one part after the other otherwise.
void Linear::cut(const Run& run) {
    if (cut_for_ == run.rows) return;
    cut_for_ = run.rows;
    const size_t count = activation_ ? 1 : parts.size(), together = parts.size() / count;
    const int threads = run.pool.threads();
    int64_t left = 0, all_tiles = 0;  // bytes
    for (const Part& part : parts) left += part.weight->tiles * part.weight->tile_bytes;
    for (size_t i = 0; i < count; ++i) all_tiles += parts[i].weight->tiles;
    chunks_.clear();
    for (size_t i = 0; i < count; ++i) {
        const Packed& weight = *parts[i].weight;
        int64_t bytes = 0, tiles = tiles_of_chunk(weight, run.rows, all_tiles, threads);
        for (size_t j = i; j < i + together; ++j) bytes += parts[j].weight->tile_bytes;
        for (int64_t begin = 0; begin < weight.tiles; begin = chunks_.back().end) {
            if (run.rows <= kPanel)
                tiles = std::clamp(left / (2 * threads), kSmallBytes, kLargeBytes) / std::max<int64_t>(1, bytes);
            const int64_t end = std::min(weight.tiles, begin + std::max<int64_t>(1, tiles));
            chunks_.push_back({i, begin, end});
            left -= (end - begin) * bytes;
        }
    }
}

void Linear::run(Run& run) {
    prepare(run);
    cut(run);
    const auto product = [&](size_t i, int64_t begin, int64_t end, int thread) {
        const Part& part = parts[i];
        const int64_t stride = run.widths[part.out];
        const Output output = {run.buffers[part.out], stride, part.bias.empty() ? nullptr : part.bias.data(),
                               accumulate};
        run.kernels.linear(*part.weight, run.prepared.at(acts_[i]), output, begin, end, run.scratch[thread].data());
        if (!apart_.empty())
            add_columns(*part.weight, apart_.data(), static_cast<int>(apart_.size()), run.buffers[x], run.widths[x],
                        run.rows, output.data, stride, begin, end);
    };
    run.pool.run(static_cast<int64_t>(chunks_.size()), [&](int64_t chunk, int thread) {
        const auto [i, begin, end] = chunks_[static_cast<size_t>(chunk)];
        const Packed& weight = *parts[i].weight;
        product(i, begin, end, thread);
        if (activation_ == nullptr) return;
        product(1, begin, end, thread);
        const int64_t from = begin * kTile, length = std::min(end * kTile, weight.rows) - from;
        for (int64_t row = 0; row < run.rows; ++row)
            run.ops.act_mul(activation_->kind, run.row(activation_->gate, row) + from,
                            run.row(activation_->up, row) + from, run.row(activation_->out, row) + from, length);
    });
}

}  // namespace bitsmith::engine
