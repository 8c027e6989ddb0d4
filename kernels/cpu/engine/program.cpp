#include "program.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace bitsmith::engine {

int Prepared::add(const Packed& weights, Contract contract) {
    const ActKind kind = act_kind(weights, contract);
    for (int i = 0; i < used_; ++i)
        if (at(i).kind == kind && at(i).order == weights.order) return i;
    const size_t place = static_cast<size_t>(used_);
    if (place == acts_.size()) {
        acts_.emplace_back();
        memory_.emplace_back();
    }
    Act& act = acts_[place];
    act.kind = kind;
    act.rows = rows_;
    act.columns = weights.columns;
    act.steps = weights.steps;
    act.order = weights.order;
    memory_[place].reserve(act.bytes());
    act.data = reinterpret_cast<uint8_t*>(memory_[place].data());
    return used_++;
}

// [begin, end) of the cosines and sines of one position.
static void fill_angles(float* cosines, const std::vector<float>& frequencies, int64_t position, float scale,
                        int64_t begin, int64_t end) {
    const size_t count = frequencies.size();
    for (int64_t i = begin; i < end; ++i) {
        const double angle = static_cast<double>(position) * static_cast<double>(frequencies[i]);
        cosines[i] = static_cast<float>(scale * std::cos(angle));
        cosines[count + i] = static_cast<float>(scale * std::sin(angle));
    }
}

void Angles::compute(const Run& run) {
    if (ready) return;
    const int64_t count = static_cast<int64_t>(frequencies.size());
    values.reserve(run.rows * 2 * count * static_cast<int64_t>(sizeof(float)));
    float* all = values.floats();
    run.each_row(64 * count, [&](int64_t row, int64_t from, int64_t length) {  // a cosine takes as long as 64 products
        fill_angles(all + 2 * row * count, frequencies, run.positions[row], scale, from / 64, (from + length) / 64);
    });
    ready = true;
}

Program::Program(const Kernels& kernels, int threads, std::vector<int64_t> widths, int logits, int64_t sequences,
                 int64_t capacity, Contract contract)
    : kernels_(kernels),
      widths_(std::move(widths)),
      logits_(logits),
      contract_(contract),
      cache_(sequences, capacity),
      pool_(threads) {
    if (kernels.ops == nullptr) throw std::invalid_argument("this instruction set has no operations besides products");
    if (logits < 0 || logits >= static_cast<int>(widths_.size())) throw std::invalid_argument("no such logits buffer");
    for (int i = 0; i < pool_.threads(); ++i) scratch_.emplace_back(kScratch);
    memory_.resize(widths_.size());
}

Angles& Program::angles(const float* frequencies, int count, float scale) {
    const std::vector<float> wanted(frequencies, frequencies + count);
    for (const auto& table : tables_)
        if (table->scale == scale && table->frequencies == wanted) return *table;
    tables_.push_back(std::make_unique<Angles>());
    tables_.back()->frequencies = wanted;
    tables_.back()->scale = scale;
    return *tables_.back();
}

CacheAngles Program::all_angles(const float* frequencies, int count, float scale, bool pairs) {
    const std::vector<float> wanted(frequencies, frequencies + count);
    for (const AllAngles& table : all_tables_)
        if (table.scale == scale && table.frequencies == wanted) return {table.values.floats(), count, pairs};
    const int64_t capacity = cache_.capacity();
    AllAngles table{wanted, scale, Memory(capacity * 2 * count * static_cast<int64_t>(sizeof(float)))};
    for (int64_t position = 0; position < capacity; ++position)
        fill_angles(table.values.floats() + 2 * position * count, wanted, position, scale, 0, count);
    all_tables_.push_back(std::move(table));
    return {all_tables_.back().values.floats(), count, pairs};
}

void Program::finish() {
    for (size_t i = 0; i < steps_.size(); ++i) {
        for (const std::vector<int>& touched : {steps_[i]->reads(), steps_[i]->writes()})
            for (int buffer : touched)
                if (buffer < 0 || buffer >= static_cast<int>(widths_.size()))
                    throw std::invalid_argument("a step names a buffer that is not there");
    }
    for (size_t i = 0; i < steps_.size(); ++i) {
        if (!tape_.empty() && tape_.back().step->absorb_after(steps_[i])) continue;
        if (!tape_.empty() && steps_[i]->absorb_before(tape_.back().step)) tape_.pop_back();
        tape_.push_back({std::move(steps_[i]), i});
    }
    times_.assign(steps_.size(), 0.0);
    steps_.clear();

    wide_.assign(widths_.size(), false);
    alive_.assign(widths_.size(), false);
    for (size_t i = 0; i < tape_.size(); ++i)
        if (tape_[i].step->attends()) narrow_at_ = i + 1;
    if (narrow_at_) tape_[narrow_at_ - 1].step->narrow();
    for (size_t i = 0; i < narrow_at_; ++i)
        for (const std::vector<int>& touched : {tape_[i].step->reads(), tape_[i].step->writes()})
            for (int buffer : touched) wide_[buffer] = true;
    std::vector<bool> written(widths_.size(), false);
    for (size_t i = narrow_at_; i < tape_.size(); ++i) {
        for (int buffer : tape_[i].step->reads())
            if (!written[buffer]) alive_[buffer] = true;
        for (int buffer : tape_[i].step->writes()) written[buffer] = true;
    }
    if (!written[logits_]) alive_[logits_] = true;
}

void Program::check(const int32_t* tokens, const int32_t* sequences, const int32_t* positions, int64_t rows,
                    const int32_t* wanted, int64_t wanted_count) const {
    const auto require = [](const int32_t* values, int64_t count, int64_t limit, const char* what) {
        for (int64_t i = 0; i < count; ++i)
            if (values[i] < 0 || values[i] >= limit)
                throw std::invalid_argument(std::string("a ") + what + " is outside of 0 … " +
                                            std::to_string(limit - 1));
    };
    require(tokens, rows, vocabulary_, "token");
    require(sequences, rows, cache_.sequences(), "sequence");
    require(positions, rows, cache_.capacity(), "position");
    require(wanted, wanted_count, rows, "wanted row");
}

// Buffers for the batch, and which rows belong together.
void Program::lay_out(Run& run) {
    const int64_t wanted = static_cast<int64_t>(run.wanted.size());
    run.buffers.resize(widths_.size());
    for (size_t i = 0; i < widths_.size(); ++i) {
        memory_[i].reserve((wide_[i] ? run.rows : wanted) * widths_[i] * static_cast<int64_t>(sizeof(float)));
        run.buffers[i] = memory_[i].floats();
    }
    std::vector<int32_t> place(static_cast<size_t>(cache_.sequences()), -1);
    for (int64_t row = 0; row < run.rows; ++row) {
        int32_t& at = place[run.sequences[row]];
        if (at < 0) {
            at = static_cast<int32_t>(run.of_sequence.size());
            run.of_sequence.emplace_back();
        }
        run.of_sequence[at].push_back(static_cast<int32_t>(row));
    }
    const auto by_position = [&](int32_t a, int32_t b) { return run.positions[a] < run.positions[b]; };
    for (std::vector<int32_t>& rows : run.of_sequence)
        if (!std::is_sorted(rows.begin(), rows.end(), by_position))
            std::stable_sort(rows.begin(), rows.end(), by_position);
    if (cache_.waits())
        for (const std::vector<int32_t>& rows : run.of_sequence)
            if (run.positions[rows.back()] - run.positions[rows[0]] + 1 != static_cast<int64_t>(rows.size()))
                throw std::invalid_argument("positions of a sequence leave out or repeat some");
    for (const auto& table : tables_) table->ready = false;
}

// From here on the wanted rows are all there is.
void Program::keep_wanted(Run& run) {
    const int64_t count = static_cast<int64_t>(run.wanted.size());
    if (count == run.rows) return;
    for (size_t i = 0; i < widths_.size(); ++i) {
        if (!wide_[i] || !alive_[i]) continue;
        for (int64_t to = 0; to < count; ++to) {  // ascending: a row never lands on one that is still needed
            const int64_t from = run.wanted[to];
            if (to != from)
                memmove(run.buffers[i] + to * widths_[i], run.buffers[i] + from * widths_[i],
                        static_cast<size_t>(widths_[i]) * sizeof(float));
        }
    }
    for (int64_t to = 0; to < count; ++to) {
        run.tokens[to] = run.tokens[run.wanted[to]];
        run.positions[to] = run.positions[run.wanted[to]];
    }
    run.rows = count;
    for (const auto& table : tables_) table->ready = false;
}

bool Program::run(const int32_t* tokens, const int32_t* sequences, const int32_t* positions, int64_t rows,
                  const int32_t* wanted, int64_t wanted_count, float* out) {
    using Clock = std::chrono::steady_clock;
    const std::lock_guard<std::mutex> guard(running_);
    pool_.take_cancel();  // one that came when nothing ran
    check(tokens, sequences, positions, rows, wanted, wanted_count);
    Run run{kernels_, *kernels_.ops, pool_, rows, {}, {}, {}, {}, {}, {}, widths_, prepared_, scratch_};
    run.tokens.assign(tokens, tokens + rows);
    run.sequences.assign(sequences, sequences + rows);
    run.positions.assign(positions, positions + rows);
    run.wanted.assign(wanted, wanted + wanted_count);
    std::sort(run.wanted.begin(), run.wanted.end());
    run.wanted.erase(std::unique(run.wanted.begin(), run.wanted.end()), run.wanted.end());
    lay_out(run);

    struct Busy {
        Pool& pool;
        explicit Busy(Pool& p) : pool(p) { pool.begin(); }
        ~Busy() { pool.end(); }
    } busy(pool_);
    const std::vector<int32_t> kept = run.wanted;
    for (size_t i = 0; i < tape_.size() && !pool_.cancelled() && rows > 0; ++i) {
        if (i == narrow_at_) {
            keep_wanted(run);
            if (run.rows == 0) break;
        }
        if (!profiling_) {
            tape_[i].step->run(run);
            continue;
        }
        const Clock::time_point started = Clock::now();
        tape_[i].step->run(run);
        times_[tape_[i].index] += std::chrono::duration<double>(Clock::now() - started).count();
    }
    if (pool_.take_cancel()) return false;
    if (tape_.size() == narrow_at_) keep_wanted(run);
    const int64_t width = widths_[logits_];
    for (int64_t i = 0; i < wanted_count; ++i) {
        const int64_t row = std::lower_bound(kept.begin(), kept.end(), wanted[i]) - kept.begin();
        memcpy(out + i * width, run.row(logits_, row), static_cast<size_t>(width) * sizeof(float));
    }
    return true;
}

void Program::profile(bool on) {
    const std::lock_guard<std::mutex> guard(running_);
    profiling_ = on;
    std::fill(times_.begin(), times_.end(), 0.0);
}

int64_t Program::nbytes() const {
    int64_t total = cache_.nbytes();
    for (const Memory& memory : memory_) total += memory.bytes();
    for (const Memory& memory : scratch_) total += memory.bytes();
    return total;
}

}  // namespace bitsmith::engine
