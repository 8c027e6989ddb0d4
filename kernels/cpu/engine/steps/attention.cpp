#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "steps.h"

namespace bitsmith::engine {

namespace {

constexpr int64_t kSplit = 2 * kKeyBlock;  // positions that are worth a chunk of their own

// A thread's scratch, as Attend has it.
struct Scratch {
    float *queries, *sums, *maxima, *weights, *scores;
    int64_t *first, *last;
    char* codes;

    Scratch(char* memory, int dim, int64_t stride) {
        first = reinterpret_cast<int64_t*>(memory);
        last = first + kMaxRows;
        scores = reinterpret_cast<float*>(last + kMaxRows);
        maxima = scores + kMaxRows * kKeyBlock;
        weights = maxima + kMaxRows;
        sums = weights + kMaxRows;
        queries = sums + kMaxRows * stride;
        codes = reinterpret_cast<char*>(queries + kMaxRows * dim);
    }
    static int64_t bytes(int dim, int64_t stride, CacheType keys) {
        const int64_t codes = has_codes(keys) ? query_bytes(key_width(keys, dim)) : 0;
        return kMaxRows * (2 * 8 + 4 * (kKeyBlock + 2 + stride + dim) + codes);
    }
};

}  // namespace

Attention::Attention(int q, int k, int v, int out, int layer, int heads, float scale, int64_t window, float softcap,
                     const Cache& cache, int threads)
    : q(q),
      k(k),
      v(v),
      out(out),
      layer(layer),
      heads(heads),
      scale(scale),
      window(window),
      softcap(softcap),
      cache_(cache) {
    const int kv_heads = cache.heads(layer), dim = cache.dim(layer);
    most_rows_ = std::min(kMaxRows, (heads + kv_heads - 1) / kv_heads);
    stride_ = cache.stride(layer);
    for (int i = 0; i < threads; ++i) scratch_.emplace_back(Scratch::bytes(dim, stride_, cache.key_type()));
}

void Attention::store(const Run& run) const {
    const int kv_heads = cache_.heads(layer), dim = cache_.dim(layer);
    run.each_row(2 * run.widths[k], [&](int64_t row, int64_t from, int64_t) {
        if (from) return;
        for (int head = 0; head < kv_heads; ++head)
            run.ops.store_key(cache_.view(layer, run.sequences[row], head), run.positions[row],
                              run.row(k, row) + head * dim, run.row(v, row) + head * dim);
    });
}

// Tasks for the batch: long ones first, and cut over positions where there are few of them.
void Attention::plan(const Run& run) {
    const int kv_heads = cache_.heads(layer);
    const std::vector<std::vector<int32_t>>* sequences = &run.of_sequence;
    if (narrow_) {
        narrowed_.clear();
        for (const std::vector<int32_t>& rows : run.of_sequence) {
            narrowed_.emplace_back();
            for (int32_t row : rows)
                if (std::binary_search(run.wanted.begin(), run.wanted.end(), row)) narrowed_.back().push_back(row);
        }
        sequences = &narrowed_;
    }
    tasks_.clear();
    pieces_.clear();
    const int tokens = std::max(1, kMaxRows / most_rows_);
    for (const std::vector<int32_t>& rows : *sequences) {
        for (int64_t last = static_cast<int64_t>(rows.size()); last > 0; last -= tokens) {
            const int64_t first = std::max<int64_t>(0, last - tokens);
            Task task{};
            task.rows = rows.data() + first;
            task.count = static_cast<int>(last - first);
            task.sequence = run.sequences[rows[first]];
            task.begin = first_position(run.positions[rows[first]]);
            task.end = static_cast<int64_t>(run.positions[rows[last - 1]]) + 1;
            for (int head = 0; head < kv_heads; ++head) {
                task.kv_head = head;
                // Query head h reads key head h · kv_heads // heads.
                const int begin = (head * heads + kv_heads - 1) / kv_heads;
                const int end = ((head + 1) * heads + kv_heads - 1) / kv_heads;
                for (int h = begin; h < end; h += most_rows_) {
                    task.first_head = h;
                    task.last_head = std::min(end, h + most_rows_);
                    tasks_.push_back(task);
                }
            }
        }
    }
    const int64_t wanted = 4 * run.pool.threads(), count = static_cast<int64_t>(tasks_.size());
    const int64_t cuts = run.pool.threads() == 1 || count == 0 ? 1 : (wanted + count - 1) / count;
    int64_t partial = 0;
    int counters = 0;
    for (size_t i = 0; i < tasks_.size(); ++i) {
        Task& task = tasks_[i];
        const int64_t length = task.end - task.begin;
        task.splits = static_cast<int>(std::max<int64_t>(1, std::min(cuts, length / kSplit)));
        if (task.splits > 1) {
            task.partial = partial;
            task.counter = counters++;
            partial += task.splits * task.count * (task.last_head - task.first_head) * (stride_ + 2);
        }
        for (int split = 0; split < task.splits; ++split) pieces_.push_back({static_cast<int>(i), split});
    }
    partial_.reserve(partial * static_cast<int64_t>(sizeof(float)));
    if (counters > left_size_) {
        left_.reset(new std::atomic<int>[counters]);
        left_size_ = counters;
    }
    for (const Task& task : tasks_)
        if (task.splits > 1) left_[task.counter].store(task.splits, std::memory_order_relaxed);
}

void Attention::finish(const Run& run, const Task& task, const float* sums, const float* weights,
                       int64_t stride) const {
    const int dim = cache_.dim(layer), share = task.last_head - task.first_head;
    for (int i = 0; i < task.count; ++i)
        for (int j = 0; j < share; ++j)
            run.ops.scale(sums + (i * share + j) * stride, 1.0f / weights[i * share + j],
                          run.row(out, task.rows[i]) + (task.first_head + j) * dim, dim);
}

void Attention::attend(const Run& run, const Piece& piece, int thread) {
    const Task& task = tasks_[piece.task];
    const int dim = cache_.dim(layer), share = task.last_head - task.first_head, rows = task.count * share;
    const Scratch scratch(scratch_[thread].data(), dim, stride_);
    for (int i = 0; i < task.count; ++i) {
        const int32_t row = task.rows[i];
        for (int j = 0; j < share; ++j) {
            const int at = i * share + j;
            run.ops.scale(run.row(q, row) + (task.first_head + j) * dim, scale, scratch.queries + at * dim, dim);
            scratch.first[at] = first_position(run.positions[row]);
            scratch.last[at] = run.positions[row];
        }
    }
    // Cuts lie between blocks, so that no block is seen twice.
    const auto cut = [&](int64_t i) {
        if (i == 0) return task.begin;
        if (i == task.splits) return task.end;
        return task.begin / kKeyBlock * kKeyBlock + (task.end - task.begin) * i / task.splits / kKeyBlock * kKeyBlock;
    };
    Attend work = {cache_.view(layer, task.sequence, task.kv_head),
                   scratch.queries,
                   rows,
                   cut(piece.split),
                   cut(piece.split + 1),
                   scratch.first,
                   scratch.last,
                   softcap,
                   scratch.sums,
                   scratch.maxima,
                   scratch.weights,
                   scratch.scores,
                   scratch.codes};
    if (task.splits == 1) {
        run.ops.attend(work);
        finish(run, task, scratch.sums, scratch.weights, stride_);
        return;
    }
    const int64_t size = rows * (stride_ + 2);
    float* parts = partial_.floats() + task.partial;
    float* mine = parts + piece.split * size;
    work.sums = mine;
    work.maxima = mine + rows * stride_;
    work.weights = work.maxima + rows;
    run.ops.attend(work);
    if (left_[task.counter].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    // The last one joins the results of all: each counts e^(its maximum − the largest).
    for (int row = 0; row < rows; ++row) {
        float largest = -HUGE_VALF, weight = 0.0f;
        for (int s = 0; s < task.splits; ++s) largest = std::max(largest, parts[s * size + rows * stride_ + row]);
        memset(scratch.sums + row * stride_, 0, static_cast<size_t>(stride_) * sizeof(float));
        for (int s = 0; s < task.splits; ++s) {
            const float* part = parts + s * size;
            float factor = part[rows * stride_ + row] - largest;
            run.ops.exp(&factor, &factor, 1);
            weight += factor * part[rows * stride_ + rows + row];
            run.ops.add_scaled(part + row * stride_, factor, scratch.sums + row * stride_, stride_);
        }
        scratch.weights[row] = weight;
    }
    finish(run, task, scratch.sums, scratch.weights, stride_);
}

void Attention::run(Run& run) {
    store(run);
    if (narrow_ && run.wanted.empty()) return;
    plan(run);
    run.pool.run(static_cast<int64_t>(pieces_.size()), [&](int64_t i, int thread) { attend(run, pieces_[i], thread); });
}

}  // namespace bitsmith::engine
