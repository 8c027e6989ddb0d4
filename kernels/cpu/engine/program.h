// A decoder as a tape of steps: what kernels/program.py describes, compiled for one instruction set and thread pool.
#pragma once
#include <stdint.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cache.h"
#include "memory.h"
#include "ops/table.h"
#include "packed.h"
#include "pool.h"
#include "table.h"

namespace bitsmith::engine {

class Program;

// Activations as products read them, one of each kind and order that the weights ask for. The memory is kept from step
// to step.
class Prepared {
public:
    void start(int64_t rows) {
        rows_ = rows;
        used_ = 0;
    }
    // The index of the act that suits these weights; a new one has its place in memory, but no values yet.
    int add(const Packed& weights, Contract contract);
    int count() const { return used_; }
    const Act& at(int i) const { return acts_[static_cast<size_t>(i)]; }
    int64_t panels() const { return used_ ? acts_[0].panels() : 0; }

private:
    int64_t rows_ = 0;
    int used_ = 0;
    std::vector<Act> acts_;
    std::vector<Memory> memory_;
};

// What the steps of one batch share.
struct Run {
    const Kernels& kernels;
    const OpTable& ops;
    Pool& pool;
    int64_t rows = 0;  // tokens; only the wanted ones after the last attention
    std::vector<int32_t> tokens, sequences, positions;
    std::vector<int32_t> wanted;                    // rows whose logits are wanted, ascending, without repeats
    std::vector<std::vector<int32_t>> of_sequence;  // rows of each sequence that is there, by position
    std::vector<float*> buffers;
    const std::vector<int64_t>& widths;
    Prepared& prepared;                  // for whoever runs
    const std::vector<Memory>& scratch;  // kScratch bytes of each thread

    float* row(int buffer, int64_t index) const { return buffers[buffer] + index * widths[buffer]; }
    int64_t size(int buffer) const { return rows * widths[buffer]; }
    // body(row, first column, number of columns): in this thread where little is to do.
    template <class Body>
    void each_row(int64_t width, const Body& body) const;
};

class Step {
public:
    virtual ~Step() = default;
    virtual void run(Run& run) = 0;
    virtual std::vector<int> reads() const = 0;   // buffers
    virtual std::vector<int> writes() const = 0;  // buffers that are written whole
    virtual bool attends() const { return false; }
    // Takes over the step before or after it; false, and the step is left alone, where it can not.
    virtual bool absorb_before(std::unique_ptr<Step>&) { return false; }
    virtual bool absorb_after(std::unique_ptr<Step>&) { return false; }
    // Only the wanted rows of what it gives are ever looked at.
    virtual void narrow() {}
};

// Cosines and sines of a batch's positions times a scale, one table for all steps with the same frequencies.
struct Angles {
    std::vector<float> frequencies;
    float scale;
    Memory values;  // [rows][2][frequencies]
    bool ready = false;

    void compute(const Run& run);
    const float* cosines(int64_t row) const {
        return values.floats() + 2 * row * static_cast<int64_t>(frequencies.size());
    }
};

// Cosines and sines of all positions that the cache has, for keys that are kept before the rotary step.
struct AllAngles {
    std::vector<float> frequencies;
    float scale;
    Memory values;  // [capacity][2][frequencies]
};

class Program {
public:
    Program(const Kernels& kernels, int threads, std::vector<int64_t> widths, int logits, int64_t sequences,
            int64_t capacity, Contract contract);

    void add(std::unique_ptr<Step> step) { steps_.push_back(std::move(step)); }
    Angles& angles(const float* frequencies, int count, float scale);
    CacheAngles all_angles(const float* frequencies, int count, float scale, bool pairs);
    Cache& cache() { return cache_; }
    Contract contract() const { return contract_; }
    void limit_tokens(int64_t rows) { vocabulary_ = rows < vocabulary_ ? rows : vocabulary_; }
    int64_t width(int buffer) const { return widths_.at(static_cast<size_t>(buffer)); }
    // Joins steps and lays out the buffers. No add after it.
    void finish();

    // out: [wanted_count][width of the logits]. Throws std::invalid_argument before anything is computed, and returns
    // false when it was cancelled meanwhile. One run at a time; others wait.
    bool run(const int32_t* tokens, const int32_t* sequences, const int32_t* positions, int64_t rows,
             const int32_t* wanted, int64_t wanted_count, float* out);
    void cancel() { pool_.cancel(); }

    void profile(bool on);
    // Seconds of each step as it was added, since `profile`; a step that another took over has none.
    const std::vector<double>& times() const { return times_; }
    int threads() const { return pool_.threads(); }
    int64_t logits_width() const { return widths_[static_cast<size_t>(logits_)]; }
    int64_t nbytes() const;  // cache and buffers

private:
    void check(const int32_t* tokens, const int32_t* sequences, const int32_t* positions, int64_t rows,
               const int32_t* wanted, int64_t wanted_count) const;
    void lay_out(Run& run);
    void keep_wanted(Run& run);

    struct Entry {
        std::unique_ptr<Step> step;
        size_t index;
    };

    const Kernels& kernels_;
    std::vector<int64_t> widths_;
    int logits_;
    Contract contract_;
    int64_t vocabulary_ = INT64_MAX;
    Cache cache_;
    Pool pool_;
    Prepared prepared_;
    std::vector<Memory> scratch_;
    std::vector<std::unique_ptr<Step>> steps_;
    std::vector<Entry> tape_;
    size_t narrow_at_ = 0;            // only wanted rows matter from this entry on
    std::vector<bool> wide_, alive_;  // buffers of all rows; of those, the ones that are read after narrow_at_
    std::vector<std::unique_ptr<Angles>> tables_;
    std::vector<AllAngles> all_tables_;
    std::vector<Memory> memory_;  // of each buffer
    bool profiling_ = false;
    std::vector<double> times_;
    std::mutex running_;
};

constexpr int64_t kSerial = 8192;  // values below which a region costs more than it gains

template <class Body>
void Run::each_row(int64_t width, const Body& body) const {
    if (rows * width <= kSerial || pool.threads() == 1) {
        for (int64_t r = 0; r < rows; ++r) body(r, int64_t{0}, width);
        return;
    }
    const int64_t piece = width > 4 * kSerial ? kSerial : width;  // one long row is shared, too
    const int64_t pieces = (width + piece - 1) / piece;
    const int64_t together = piece < kSerial / 2 ? kSerial / piece : 1;  // short rows a chunk
    const int64_t chunks = (rows + together - 1) / together * pieces;
    pool.run(chunks, [&](int64_t chunk, int) {
        const int64_t first = chunk / pieces * together, column = chunk % pieces * piece;
        const int64_t last = first + together < rows ? first + together : rows;
        for (int64_t r = first; r < last; ++r) body(r, column, column + piece < width ? piece : width - column);
    });
}

}  // namespace bitsmith::engine
