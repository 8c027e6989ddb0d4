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
    float *queries, *sums, *maxima, *weights, *scores, *decoded;
    int64_t *first, *last, *part_first, *part_last;
    char* codes;

    Scratch(char* memory, int dim, int64_t stride) {
        first = reinterpret_cast<int64_t*>(memory);
        last = first + kMaxRows;
        part_first = last + kMaxRows;
        part_last = part_first + kMaxRows;
        scores = reinterpret_cast<float*>(part_last + kMaxRows);
        maxima = scores + kMaxRows * kKeyBlock;
        weights = maxima + kMaxRows;
        sums = weights + kMaxRows;
        queries = sums + kMaxRows * stride;
        decoded = queries + kMaxRows * dim;
        codes = reinterpret_cast<char*>(decoded + decoded_values(stride));
    }
    // Some more than the rows: blocks are decoded whole.
    static int64_t decoded_values(int64_t stride) { return kKeyTile * stride + 64; }
    static int64_t bytes(int dim, int64_t stride, CacheType keys) {
        const int64_t codes = has_codes(keys) ? query_bytes(key_width(keys, dim)) : 0;
        return kMaxRows * (4 * 8 + 4 * (kKeyBlock + 2 + stride + dim) + codes) + 4 * decoded_values(stride);
    }
};

}  // namespace

Attention::Attention(int q, int k, int v, int out, int layer, int heads, float scale, int64_t window, float softcap,
                     Cache& cache, CacheAngles angles, int threads)
    : q(q),
      k(k),
      v(v),
      out(out),
      layer(layer),
      heads(heads),
      scale(scale),
      window(window),
      softcap(softcap),
      cache_(cache),
      scheme_(cache.scheme(layer)),
      angles_(angles) {
    const int kv_heads = cache.heads(layer), dim = cache.dim(layer);
    most_rows_ = std::min(kMaxRows, (heads + kv_heads - 1) / kv_heads);
    stride_ = cache.stride(layer);
    for (int i = 0; i < threads; ++i) scratch_.emplace_back(Scratch::bytes(dim, stride_, scheme_.keys.type));
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
            task.all = &run.of_sequence[static_cast<size_t>(&rows - sequences->data())];
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
    for (int i = 0; i < task.count; ++i) {
        for (int j = 0; j < share; ++j) {
            float* result = run.row(out, task.rows[i]) + (task.first_head + j) * dim;
            run.ops.scale(sums + (i * share + j) * stride, 1.0f / weights[i * share + j], result, dim);
            if (scheme_.values.turned) hadamard(result, dim);
        }
    }
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
            if (scheme_.keys.turned && angles_.cosines == nullptr) hadamard(scratch.queries + at * dim, dim);
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
    Attend work = {view(run, *task.all, task.kv_head),
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
                   scratch.codes,
                   scratch.decoded,
                   true,
                   false,
                   false};
    const auto attend_all = [&] {
        if (scheme_.waits())
            attend_parts(run, work, task, scratch.part_first, scratch.part_last);
        else
            run.ops.attend(work);
    };
    if (task.splits == 1) {
        attend_all();
        finish(run, task, scratch.sums, scratch.weights, stride_);
        return;
    }
    const int64_t size = rows * (stride_ + 2);
    float* parts = partial_.floats() + task.partial;
    float* mine = parts + piece.split * size;
    work.sums = mine;
    work.maxima = mine + rows * stride_;
    work.weights = work.maxima + rows;
    attend_all();
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

// What a row sees of a cache that waits are up to five ranges: floats of both sides, codes of the side that becomes
// codes first and floats of the other, codes of both, and the same again the other way round. Each row has its own, as
// if it were the last that has come.
void Attention::attend_parts(const Run& run, Attend& work, const Task& task, int64_t* first, int64_t* last) const {
    const Held& held = cache_.held(layer, task.sequence);
    const bool keys_inside = scheme_.waits(scheme_.keys);  // their codes are a part of the other side's, or all are
    const auto codes = [&](bool keys, int64_t count, int64_t& begin, int64_t& end) {
        begin = 0;
        end = count;
        if (!scheme_.waits(keys ? scheme_.keys : scheme_.values)) return;
        begin = std::min(cache_.first_coded(layer, keys), count);
        end = std::max(cache_.last_coded(layer, keys, count), keys ? held.key_end : held.value_end);
        end = std::max(begin, std::min(end, count));
    };
    const int share = work.rows / task.count;
    const int64_t begin = work.begin, end = work.end;
    const int64_t *all_first = work.first, *all_last = work.last;
    work.first = first;
    work.last = last;
    bool started = false;
    for (int part = 0; part < 5; ++part) {
        work.begin = end;
        work.end = begin;
        for (int row = 0; row < work.rows; ++row) {
            const int64_t count = static_cast<int64_t>(run.positions[task.rows[row / share]]) + 1;
            int64_t edges[6] = {0, 0, 0, 0, 0, count};
            codes(!keys_inside, count, edges[1], edges[4]);
            codes(keys_inside, count, edges[2], edges[3]);
            edges[2] = std::clamp(edges[2], edges[1], edges[4]);
            edges[3] = std::clamp(edges[3], edges[2], edges[4]);
            first[row] = std::max({edges[part], all_first[row], begin});
            last[row] = std::min({edges[part + 1] - 1, all_last[row], end - 1});
            if (first[row] > last[row]) continue;
            work.begin = std::min(work.begin, first[row]);
            work.end = std::max(work.end, last[row] + 1);
        }
        if (work.begin >= work.end && (started || part < 4)) continue;
        const bool inside = part != 2, outside = part == 0 || part == 4;  // whether these are floats
        work.float_keys = (keys_inside ? inside : outside) && scheme_.waits(scheme_.keys);
        work.float_values = (keys_inside ? outside : inside) && scheme_.waits(scheme_.values);
        work.fresh = !started;
        started = true;
        run.ops.attend(work);
    }
}

void Attention::run(Run& run) {
    if (!grow(run)) return;
    if (!narrow_ || !run.wanted.empty()) {
        plan(run);
        run.pool.run(static_cast<int64_t>(pieces_.size()),
                     [&](int64_t i, int thread) { attend(run, pieces_[i], thread); });
    }
    if (scheme_.waits()) settle(run);
}

}  // namespace bitsmith::engine
