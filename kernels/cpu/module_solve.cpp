// Python's door to the operations of kernels/solve.py: checks shapes, releases the GIL, splits rows over threads.
#include <atomic>
#include <vector>

#include "arrays.h"
#include "parallel.h"
#include "solve_table.h"

using Integers = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Flag = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Those of an instruction set that can run here.
static const Solve& solve_named(const std::string& isa) {
    const Kernels* kernels = &kernels_named(isa);
    if (kernels == kernels_avx512()) return *solve_avx512();
    return kernels == kernels_avx2() ? *solve_avx2() : *solve_baseline();
}

static StripeProblem problem_of(int64_t rows, int64_t columns, Floats matrix, Floats steps, Floats offsets,
                                Integers group, Weights levels, Weights middles, bool even, BytesOut index, Flag stop) {
    const int64_t groups = steps.shape(1), count = levels.shape(0);
    require((int64_t)matrix.shape(0) == columns && (int64_t)matrix.shape(1) == columns, "the matrix is [K, K]");
    require((int64_t)steps.shape(0) == rows && (int64_t)offsets.shape(0) == rows && offsets.shape(1) == steps.shape(1),
            "steps and offsets are [rows, groups]");
    require((int64_t)group.shape(0) == columns, "each column has a group");
    require((int64_t)index.shape(0) == rows && (int64_t)index.shape(1) == columns, "the indices are [rows, K]");
    require(count >= 1 && count <= kMaxLevels && (int64_t)middles.shape(0) == count - 1, "there are 1 to 256 levels");
    require(stop.shape(0) == 1, "the flag is one number");
    for (int64_t k = 0; k < columns; ++k)
        require(group.data()[k] >= 0 && group.data()[k] < groups, "a column's group is not there");
    StripeProblem problem = {};
    problem.rows = rows;
    problem.columns = columns;
    problem.groups = groups;
    problem.matrix = matrix.data();
    problem.steps = steps.data();
    problem.offsets = offsets.data();
    problem.group = group.data();
    problem.levels = Levels{levels.data(), middles.data(), (int)count, even};
    problem.index = index.data();
    problem.stop = stop.data();
    return problem;
}

// body(part) for stripes of rows; part is `problem` moved to its rows.
template <class Body>
static void each_stripe(const StripeProblem& problem, int threads, const Body& body) {
    const int64_t rows = problem.rows, columns = problem.columns, stripes = (rows + kStripe - 1) / kStripe;
    std::atomic<int64_t> next{0};  // stripes are handed out one by one: threads of a busy machine are not equally quick
    const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, stripes));
    parallel_for(workers, 1, (int)workers, [&](int64_t, int64_t) {
        std::vector<float> room(feedback_scratch(columns, problem.groups) + kLanes);
        const uintptr_t address = reinterpret_cast<uintptr_t>(room.data());
        for (int64_t stripe; (stripe = next.fetch_add(1)) < stripes && !*problem.stop;) {
            const int64_t row = stripe * kStripe;
            StripeProblem part = problem;
            part.rows = std::min<int64_t>(kStripe, rows - row);
            part.steps += row * problem.groups;
            part.offsets += row * problem.groups;
            part.index += row * columns;
            if (part.w) part.w += row * columns;
            if (part.gradient) part.gradient += row * columns;
            part.scratch = room.data() + (64 - address % 64) % 64 / sizeof(float);
            body(part);
        }
    });
}

static void solve_feedback(const std::string& isa, Floats w, Floats feedback, Floats steps, Floats offsets,
                           Integers group, Weights levels, Weights middles, bool even, BytesOut index, Flag stop,
                           int threads) {
    StripeProblem problem =
        problem_of(w.shape(0), w.shape(1), feedback, steps, offsets, group, levels, middles, even, index, stop);
    problem.w = w.data();
    const Solve& solve = solve_named(isa);
    nb::gil_scoped_release released;
    each_stripe(problem, threads, [&](const StripeProblem& part) { solve.feedback(part); });
}

static int64_t solve_descend(const std::string& isa, FloatsOut gradient, Floats h, Floats steps, Floats offsets,
                             Integers group, Weights levels, Weights middles, bool even, BytesOut index, Flag stop,
                             int threads) {
    StripeProblem problem =
        problem_of(gradient.shape(0), gradient.shape(1), h, steps, offsets, group, levels, middles, even, index, stop);
    problem.gradient = gradient.data();
    const uint8_t* at = index.data();
    for (int64_t i = 0; i < problem.rows * problem.columns; ++i)
        require(at[i] < problem.levels.count, "an index is past the levels");
    const Solve& solve = solve_named(isa);
    nb::gil_scoped_release released;
    std::atomic<int64_t> changed{0};
    each_stripe(problem, threads, [&](const StripeProblem& part) { changed += solve.descend(part); });
    return changed;
}

// Rows of a problem over threads.
static void each_row(LearnProblem problem, int threads, void (*run)(const LearnProblem&)) {
    const int64_t columns = problem.columns, groups = columns / problem.size;
    nb::gil_scoped_release released;
    parallel_for(problem.rows, 16, threads, [&](int64_t begin, int64_t end) {
        LearnProblem part = problem;
        part.rows = end - begin;
        part.first += begin * columns;
        if (part.latent) part.latent += begin * columns;
        if (part.grad) part.grad += begin * columns;
        if (part.weight) part.weight += begin * columns;
        part.zeros += begin * groups;
        if (part.scales) part.scales += begin * groups;
        if (part.slopes) part.slopes += begin * groups;
        run(part);
    });
}

static LearnProblem learning(Bytes first, HalvesOut latent, Floats zeros, int top) {
    LearnProblem problem = {};
    problem.rows = first.shape(0);
    problem.columns = first.shape(1);
    const int64_t groups = zeros.shape(1);
    require(
        (int64_t)zeros.shape(0) == problem.rows && groups > 0 && problem.columns > 0 && problem.columns % groups == 0,
        "zeros are [rows, groups], and groups divide the columns");
    require(latent.size() == 0 || (latent.shape(0) == first.shape(0) && latent.shape(1) == first.shape(1)),
            "latent values are [rows, K], or none");
    problem.size = problem.columns / groups;
    problem.first = first.data();
    problem.latent = latent.size() ? latent.data() : nullptr;
    problem.zeros = zeros.data();
    problem.top = (float)top;
    return problem;
}

static void solve_learn_step(const std::string& isa, Halves grad, Bytes first, HalvesOut latent, Floats zeros,
                             FloatsOut slopes, float rate, int top, int threads) {
    LearnProblem problem = learning(first, latent, zeros, top);
    require(grad.shape(0) == first.shape(0) && grad.shape(1) == first.shape(1), "the gradient is [rows, K]");
    require(slopes.shape(0) == zeros.shape(0) && slopes.shape(1) == zeros.shape(1), "slopes are [rows, groups]");
    problem.grad = grad.data();
    problem.slopes = slopes.data();
    problem.rate = rate;
    each_row(problem, threads, solve_named(isa).learn_step);
}

static void solve_learned_weight(const std::string& isa, Bytes first, HalvesOut latent, Floats zeros, Floats scales,
                                 HalvesOut weight, int top, int threads) {
    LearnProblem problem = learning(first, latent, zeros, top);
    require(scales.shape(0) == zeros.shape(0) && scales.shape(1) == zeros.shape(1), "scales are [rows, groups]");
    require(weight.shape(0) == first.shape(0) && weight.shape(1) == first.shape(1), "the weight is [rows, K]");
    problem.scales = scales.data();
    problem.weight = weight.data();
    each_row(problem, threads, solve_named(isa).learned_weight);
}

void bitsmith::add_solve(nb::module_& m) {
    m.def("solve_learn_step", &solve_learn_step);
    m.def("solve_learned_weight", &solve_learned_weight);
    m.def("solve_feedback", &solve_feedback);
    m.def("solve_descend", &solve_descend);
}
