// The steps of kernels/program.py; each does what its namesake there says.
#pragma once
#include <cmath>
#include <memory>
#include <vector>

#include "../program.h"

namespace bitsmith::engine {

struct Embed final : Step {
    Embed(const Packed& weight, int out, float scale) : weight(weight), out(out), scale(scale) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {}; }
    std::vector<int> writes() const override { return {out}; }

    const Packed& weight;
    int out;
    float scale;
};

struct Norm final : Step {
    Norm(int x, int out, std::vector<float> gain, float eps, int heads)
        : x(x), out(out), gain(std::move(gain)), eps(eps), heads(heads) {}
    void run(Run& run) override;
    void one_row(const Run& run, int64_t row) const;
    std::vector<int> reads() const override { return {x}; }
    std::vector<int> writes() const override { return {out}; }

    int x, out;
    std::vector<float> gain;
    float eps;
    int heads;
};

struct Split final : Step {
    Split(int x, std::vector<int> outs) : x(x), outs(std::move(outs)) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {x}; }
    std::vector<int> writes() const override { return outs; }

    int x;
    std::vector<int> outs;  // as wide as their runs of columns
};

struct Rope final : Step {
    Rope(int x, int heads, Angles& angles, bool pairs) : x(x), heads(heads), angles(angles), pairs(pairs) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {x}; }
    std::vector<int> writes() const override { return {x}; }

    int x, heads;
    Angles& angles;
    bool pairs;
};

struct ActMul final : Step {
    ActMul(int gate, int up, int out, Activation kind) : gate(gate), up(up), out(out), kind(kind) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {gate, up}; }
    std::vector<int> writes() const override { return {out}; }

    int gate, up, out;
    Activation kind;
};

// What weights stored as W R meet: each run of a row is rotated.
struct Hadamard final : Step {
    // factor, signs: as RunRotation has them.
    struct Rotation {
        std::vector<float> factor, signs;
        int64_t size = 0, order = 0;  // of nothing: not rotated

        bool empty() const { return size == 0; }
        int64_t width() const { return size * order; }
        RunRotation run() const {
            return {size, order, factor.data(), signs.data(), 1.0f / std::sqrt(static_cast<float>(width()))};
        }
        // A row of so many values, which are whole runs.
        void apply(const OpTable& ops, float* row, int64_t columns) const;
    };

    Hadamard(int x, Rotation rotation) : x(x), rotation(std::move(rotation)) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {x}; }
    std::vector<int> writes() const override { return {x}; }

    int x;
    Rotation rotation;
};

struct Add final : Step {
    Add(int x, int out) : x(x), out(out) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {x, out}; }
    std::vector<int> writes() const override { return {out}; }

    int x, out;
};

struct SoftCap final : Step {
    SoftCap(int x, float cap) : x(x), cap(cap) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {x}; }
    std::vector<int> writes() const override { return {x}; }

    int x;
    float cap;
};

// A norm before it runs while the activations are prepared, an activation after it on each piece of the results.
struct Linear final : Step {
    struct Part {
        const Packed* weight;
        int out;
        std::vector<float> bias;  // or empty
    };
    Linear(int x, std::vector<Part> parts, bool accumulate, float outliers, Contract contract)
        : x(x), parts(std::move(parts)), accumulate(accumulate), outliers(outliers), contract(contract) {}
    void run(Run& run) override;
    bool absorb_before(std::unique_ptr<Step>& step) override;
    bool absorb_after(std::unique_ptr<Step>& step) override;
    std::vector<int> reads() const override;
    std::vector<int> writes() const override;

    int x;
    std::vector<Part> parts;
    bool accumulate;
    float outliers;
    Contract contract;

private:
    void prepare(Run& run);
    void find_outliers(const Run& run);
    void cut(const Run& run);

    struct Chunk {
        size_t part;
        int64_t begin, end;  // tiles
    };
    std::unique_ptr<Step> norm_owner_, activation_owner_;
    const Norm* norm_ = nullptr;
    const ActMul* activation_ = nullptr;
    std::vector<int> acts_;  // of each part, in Run::prepared
    std::vector<Chunk> chunks_;
    int64_t cut_for_ = -1;        // tokens
    std::vector<int32_t> apart_;  // columns with outliers
    Memory without_;              // x with zeros in them
};

struct Attention final : Step {
    Attention(int q, int k, int v, int out, int layer, int heads, float scale, int64_t window, float softcap,
              Cache& cache, CacheAngles angles, int threads);
    void run(Run& run) override;
    bool attends() const override { return true; }
    void narrow() override { narrow_ = true; }
    std::vector<int> reads() const override { return {q, k, v}; }
    std::vector<int> writes() const override { return {out}; }

    int q, k, v, out, layer, heads;
    float scale;
    int64_t window;
    float softcap;

private:
    // Some tokens of one sequence and the query heads of one key head, over a part of the positions.
    struct Task {
        const int32_t* rows;
        const std::vector<int32_t>* all;  // rows of the sequence
        int count, sequence, kv_head, first_head, last_head;
        int64_t begin, end;
        int splits;       // of these positions over threads
        int64_t partial;  // where their results lie
        int counter;
    };
    struct Piece {
        int task, split;
    };
    // growth.cpp: what the batch brings comes into the cache. grow: false when it was cancelled, and nothing came in.
    bool grow(const Run& run);
    void store(const Run& run, int32_t row) const;
    void cut(const Run& run, int64_t sequence, int64_t count) const;
    void quantize(const Run& run, const std::vector<int32_t>& rows, int head) const;
    void settle(const Run& run) const;
    CacheView view(const Run& run, const std::vector<int32_t>& rows, int head) const;
    CacheView view(int64_t sequence, int head) const;
    void plan(const Run& run);
    void attend(const Run& run, const Piece& piece, int thread);
    void attend_parts(const Run& run, Attend& work, const Task& task, int64_t* first, int64_t* last) const;
    void finish(const Run& run, const Task& task, const float* sums, const float* weights, int64_t stride) const;
    int64_t first_position(int64_t position) const { return window && position >= window ? position + 1 - window : 0; }

    Cache& cache_;
    const LayerScheme scheme_;
    CacheAngles angles_;
    bool narrow_ = false;
    int most_rows_;
    int64_t stride_;
    std::vector<Memory> scratch_;  // of each thread
    std::vector<Task> tasks_;
    std::vector<Piece> pieces_;
    std::vector<std::vector<int32_t>> narrowed_;
    Memory partial_;
    std::unique_ptr<std::atomic<int>[]> left_;
    int64_t left_size_ = 0;
};

struct Experts final : Step {
    Experts(int x, int logits, int out, std::vector<const Packed*> gates, std::vector<const Packed*> ups,
            std::vector<const Packed*> downs, int used, bool normalized, Activation kind, Hadamard::Rotation rotation,
            Contract contract)
        : x(x),
          logits(logits),
          out(out),
          gates(std::move(gates)),
          ups(std::move(ups)),
          downs(std::move(downs)),
          used(used),
          normalized(normalized),
          kind(kind),
          rotation(std::move(rotation)),
          contract(contract) {}
    void run(Run& run) override;
    std::vector<int> reads() const override { return {x, logits, out}; }
    std::vector<int> writes() const override { return {out}; }

    int x, logits, out;
    std::vector<const Packed*> gates, ups, downs;
    int used;
    bool normalized;
    Activation kind;
    Hadamard::Rotation rotation;  // of what comes into each down
    Contract contract;

private:
    struct Member {
        int32_t row;
        float weight;
    };
    struct Group {
        int expert;
        int64_t first;  // of its members
        std::vector<Member> members;
        int gate_act, up_act, down_act;
    };
    void choose(const Run& run);
    void prepare(Run& run, bool hidden);

    std::vector<Group> groups_;
    std::vector<Prepared> inputs_, inners_;  // of each group
    Memory gathered_, hidden_, upper_, results_;
};

// Tiles that one chunk of a product takes, for rows tokens and tiles of a matrix.
int64_t tiles_of_chunk(const Packed& weight, int64_t rows, int64_t all_tiles, int threads);

}  // namespace bitsmith::engine
