#include <algorithm>
#include <cmath>
#include <cstring>

#include "steps.h"

namespace bitsmith::engine {

// Groups: the experts that somebody chose, and who with which weight.
void Experts::choose(const Run& run) {
    const int64_t experts = static_cast<int64_t>(gates.size());
    std::vector<std::vector<Member>> members(gates.size());
    std::vector<int32_t> order(gates.size());
    for (int64_t row = 0; row < run.rows; ++row) {
        const float* scores = run.row(logits, row);
        for (int64_t e = 0; e < experts; ++e) order[e] = static_cast<int32_t>(e);
        std::partial_sort(order.begin(), order.begin() + used, order.end(),
                          [&](int32_t a, int32_t b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a < b; });
        const double largest = scores[order[0]];
        double all = 0.0, chosen = 0.0;
        for (int64_t e = 0; e < experts; ++e) all += std::exp(scores[e] - largest);
        for (int i = 0; i < used; ++i) chosen += std::exp(scores[order[i]] - largest);
        for (int i = 0; i < used; ++i)
            members[order[i]].push_back(
                {static_cast<int32_t>(row),
                 static_cast<float>(std::exp(scores[order[i]] - largest) / (normalized ? chosen : all))});
    }
    groups_.clear();
    int64_t first = 0;
    for (int64_t e = 0; e < experts; ++e) {
        if (members[e].empty()) continue;
        groups_.push_back({static_cast<int>(e), first, std::move(members[e]), 0, 0, 0});
        first += static_cast<int64_t>(groups_.back().members.size());
    }
    if (inputs_.size() < groups_.size()) inputs_.resize(groups_.size());
    if (inners_.size() < groups_.size()) inners_.resize(groups_.size());
}

// Rounds each group's rows of x, or (hidden) what is between its two products.
void Experts::prepare(Run& run, bool hidden) {
    struct Panel {
        size_t group;
        int64_t panel;
    };
    std::vector<Panel> panels;
    for (size_t i = 0; i < groups_.size(); ++i) {
        Group& group = groups_[i];
        Prepared& prepared = (hidden ? inners_ : inputs_)[i];
        prepared.start(static_cast<int64_t>(group.members.size()));
        if (hidden) {
            group.down_act = prepared.add(*downs[group.expert], contract);
        } else {
            group.gate_act = prepared.add(*gates[group.expert], contract);
            group.up_act = prepared.add(*ups[group.expert], contract);
        }
        for (int64_t p = 0; p < prepared.panels(); ++p) panels.push_back({i, p});
    }
    const int64_t width = hidden ? gates[0]->rows : run.widths[x];
    const auto body = [&](int64_t i, int) {
        const Group& group = groups_[panels[i].group];
        const Prepared& prepared = (hidden ? inners_ : inputs_)[panels[i].group];
        const int64_t p = panels[i].panel, first = Act::first(p);
        float* rows = (hidden ? hidden_ : gathered_).floats() + group.first * width;
        if (!hidden)
            for (int64_t m = first; m < first + prepared.at(0).count(p); ++m)
                memcpy(rows + m * width, run.row(x, group.members[m].row), static_cast<size_t>(width) * sizeof(float));
        if (hidden && !rotation.empty())
            for (int64_t m = first; m < first + prepared.at(0).count(p); ++m)
                rotation.apply(run.ops, rows + m * width, width);
        for (int a = 0; a < prepared.count(); ++a) run.kernels.prepare(prepared.at(a), rows, width, p, p + 1);
    };
    const int64_t count = static_cast<int64_t>(panels.size());
    if (run.rows * used * width <= kSerial)
        for (int64_t i = 0; i < count; ++i) body(i, 0);
    else
        run.pool.run(count, body);
}

void Experts::run(Run& run) {
    choose(run);
    const int64_t total = run.rows * used, inner = gates[0]->rows, width = run.widths[out];
    const int64_t size = static_cast<int64_t>(sizeof(float));
    gathered_.reserve(total * run.widths[x] * size);
    hidden_.reserve(total * inner * size);
    upper_.reserve(total * inner * size);
    results_.reserve(total * width * size);

    prepare(run, false);
    const int64_t in_tiles = gates[0]->tiles, groups = static_cast<int64_t>(groups_.size());
    const int64_t rows = (total + groups - 1) / groups;
    const int64_t in_step = tiles_of_chunk(*gates[0], rows, in_tiles * groups, run.pool.threads());
    const int64_t in_chunks = (in_tiles + in_step - 1) / in_step;
    run.pool.run(in_chunks * groups, [&](int64_t chunk, int thread) {
        const Group& group = groups_[chunk / in_chunks];
        const Prepared& input = inputs_[chunk / in_chunks];
        const int64_t begin = chunk % in_chunks * in_step, end = std::min(begin + in_step, in_tiles);
        float *gate = hidden_.floats() + group.first * inner, *up = upper_.floats() + group.first * inner;
        void* scratch = run.scratch[thread].data();
        run.kernels.linear(*gates[group.expert], input.at(group.gate_act), {gate, inner, nullptr, false}, begin, end,
                           scratch);
        run.kernels.linear(*ups[group.expert], input.at(group.up_act), {up, inner, nullptr, false}, begin, end,
                           scratch);
        const int64_t from = begin * kTile, length = std::min(end * kTile, inner) - from;
        for (size_t m = 0; m < group.members.size(); ++m) {
            const int64_t at = static_cast<int64_t>(m) * inner + from;
            run.ops.act_mul(kind, gate + at, up + at, gate + at, length);
        }
    });

    prepare(run, true);
    // A chunk owns some columns of the result, so that no two experts add to one value at the same time.
    const int64_t out_tiles = downs[0]->tiles;
    const int64_t out_step = std::max<int64_t>(
        1, std::min(tiles_of_chunk(*downs[0], total, out_tiles, run.pool.threads()), out_tiles / run.pool.threads()));
    run.pool.run((out_tiles + out_step - 1) / out_step, [&](int64_t chunk, int thread) {
        const int64_t begin = chunk * out_step, end = std::min(begin + out_step, out_tiles);
        const int64_t from = begin * kTile, length = std::min(end * kTile, width) - from;
        for (int64_t g = 0; g < groups; ++g) {
            const Group& group = groups_[g];
            float* result = results_.floats() + group.first * width;
            run.kernels.linear(*downs[group.expert], inners_[g].at(group.down_act), {result, width, nullptr, false},
                               begin, end, run.scratch[thread].data());
            for (size_t m = 0; m < group.members.size(); ++m)
                run.ops.add_scaled(result + static_cast<int64_t>(m) * width + from, group.members[m].weight,
                                   run.row(out, group.members[m].row) + from, length);
        }
    });
}

}  // namespace bitsmith::engine
