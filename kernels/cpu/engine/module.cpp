// The extension module kernels.cpu._engine: programs, and sampling. Products and matrices: matmul_module.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "matmul_module.h"
#include "sample.h"
#include "steps/steps.h"

namespace nb = nanobind;
using namespace bitsmith::engine;

namespace {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Logits = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool held, const char* message) {
    if (!held) throw std::invalid_argument(message);
}

Contract contract_of(const std::string& name) {
    if (name == "FAST") return Contract::kFast;
    if (name == "TOKEN") return Contract::kToken;
    require(name == "EXACT", "activations are FAST, EXACT or TOKEN");
    return Contract::kExact;
}

Activation activation_of(const std::string& name) {
    if (name == "silu") return Activation::kSilu;
    if (name == "gelu") return Activation::kGelu;
    require(name == "gelu_tanh", "activations are silu, gelu or gelu_tanh");
    return Activation::kGeluTanh;
}

std::vector<float> values_of(const Floats& values) {
    return std::vector<float>(values.data(), values.data() + values.shape(0));
}

// Of rows of `columns` values. factor: [order][order].
Hadamard::Rotation rotation_of(int64_t columns, int64_t size, const Matrix& factor, const Floats& signs) {
    const int64_t order = (int64_t)factor.shape(0), width = order * size;
    require(size >= 1 && (size & (size - 1)) == 0, "Sylvester's matrices have powers of two");
    require(order >= 1 && order <= kMostOrder && (int64_t)factor.shape(1) == order,
            "the factor is too large or no square");
    require((int64_t)signs.shape(0) == width && columns % width == 0, "a row is not a whole number of runs");
    Hadamard::Rotation rotation;
    rotation.size = size;
    rotation.order = order;
    rotation.factor.assign(factor.data(), factor.data() + order * order);
    rotation.signs = values_of(signs);
    return rotation;
}

// Builds a tape from calls in the order of the steps, and checks what the steps rely on.
class Builder {
public:
    Builder(const std::string& isa, int threads, std::vector<int64_t> widths, int logits, int64_t sequences,
            int64_t capacity, const std::string& activations)
        : widths_(widths),
          program_(kernels_named(isa.c_str()), checked(threads), std::move(widths), logits, sequences, capacity,
                   contract_of(activations)) {
        require(sequences >= 1 && capacity >= 1, "a cache has sequences and positions");
    }

    // scales: of FP8, of each head or one; before_rope: keys are kept as they are before the rotary step.
    void layer(int heads, int dim, const std::string& keys, const std::string& values, int64_t window, int64_t sinks,
               bool turn_keys, bool turn_values, bool before_rope, const std::vector<float>& key_scales,
               const std::vector<float>& value_scales) {
        LayerScheme scheme;
        scheme.keys = SideScheme::of(keys, before_rope);
        scheme.values = SideScheme::of(values);
        require(!format_of(scheme.values.row).channels, "values have no scales of channels");
        scheme.keys.turned = turn_keys && scheme.keys.coded;
        scheme.values.turned = turn_values && scheme.values.coded;
        scheme.keys.scales = key_scales;
        scheme.values.scales = value_scales;
        scheme.window = window;
        scheme.sinks = sinks;
        program_.cache().add_layer(heads, dim, std::move(scheme));
    }

    void embed(nb::handle weight, int out, float scale) {
        const Packed& packed = keep(weight);
        require(packed.columns == width(out), "rows of the embedding are not as wide as their buffer");
        program_.limit_tokens(packed.rows);
        program_.add(std::make_unique<Embed>(packed, out, scale));
    }
    void norm(int x, int out, Floats gain, float eps, int heads) {
        require(heads >= 1 && width(x) == heads * (int64_t)gain.shape(0), "gains are not as wide as the heads");
        require(width(x) == width(out), "a norm keeps the width");
        program_.add(std::make_unique<Norm>(x, out, values_of(gain), eps, heads));
    }
    void linear(int x, const std::vector<nb::object>& weights, const std::vector<int>& outs,
                const std::vector<nb::object>& biases, bool accumulate, float outliers) {
        require(!weights.empty() && weights.size() == outs.size(), "a product has weights, each with a buffer");
        require(biases.empty() || biases.size() == outs.size(), "a bias for each weight, or none at all");
        std::vector<Linear::Part> parts;
        for (size_t i = 0; i < weights.size(); ++i) {
            const Packed& packed = keep(weights[i]);
            require(packed.columns == width(x), "weights are not as wide as what they multiply");
            require(packed.rows == width(outs[i]), "a product is not as wide as its buffer");
            require(outs[i] != x, "a product can not overwrite what it reads");
            std::vector<float> bias;
            if (!biases.empty() && !biases[i].is_none()) bias = values_of(nb::cast<Floats>(biases[i]));
            require(bias.empty() || (int64_t)bias.size() == packed.rows,
                    "a bias is not as long as its product is wide");
            parts.push_back({&packed, outs[i], std::move(bias)});
        }
        program_.add(std::make_unique<Linear>(x, std::move(parts), accumulate, outliers, program_.contract()));
    }
    void split(int x, const std::vector<int>& outs) {
        int64_t total = 0;
        for (int out : outs) total += width(out);
        require(total <= width(x), "the parts are wider than the whole");
        program_.add(std::make_unique<Split>(x, outs));
    }
    void rope(int x, int heads, Floats frequencies, float scale, bool pairs) {
        require(heads >= 1 && width(x) % heads == 0, "the buffer is not a whole number of heads");
        require(2 * (int64_t)frequencies.shape(0) <= width(x) / heads, "more frequencies than a head has pairs");
        Angles& angles = program_.angles(frequencies.data(), (int)frequencies.shape(0), scale);
        program_.add(std::make_unique<Rope>(x, heads, angles, pairs));
    }
    void attention(int q, int k, int v, int out, int layer, int heads, float scale, int64_t window, float softcap,
                   Floats frequencies, float rope_scale, bool pairs) {
        Cache& cache = program_.cache();
        require(layer >= 0 && layer < cache.layers(), "the cache has no such layer");
        const int64_t dim = cache.dim(layer), kv_heads = cache.heads(layer);
        require(heads >= kv_heads, "fewer query heads than key heads");
        require(width(q) == heads * dim && width(out) == heads * dim, "queries are not as wide as their heads");
        require(width(k) == kv_heads * dim && width(v) == kv_heads * dim, "keys are not as wide as their heads");
        require(window >= 0, "a window is not negative");
        CacheAngles angles{nullptr, 0, false};
        if (frequencies.shape(0)) {
            require(cache.scheme(layer).keys.type == CacheType::kRows, "such keys are kept after the rotary step");
            require(2 * (int64_t)frequencies.shape(0) <= dim, "more frequencies than a head has pairs");
            angles = program_.all_angles(frequencies.data(), (int)frequencies.shape(0), rope_scale, pairs);
        }
        program_.add(std::make_unique<Attention>(q, k, v, out, layer, heads, scale, window, softcap, cache, angles,
                                                 program_.threads()));
    }
    void act_mul(int gate, int up, int out, const std::string& kind) {
        require(width(gate) == width(up) && width(up) == width(out), "gate, up and out differ in width");
        program_.add(std::make_unique<ActMul>(gate, up, out, activation_of(kind)));
    }
    void hadamard(int x, int64_t size, const Matrix& factor, Floats signs) {
        program_.add(std::make_unique<Hadamard>(x, rotation_of(width(x), size, factor, signs)));
    }
    void add(int x, int out) {
        require(width(x) == width(out), "the two differ in width");
        program_.add(std::make_unique<Add>(x, out));
    }
    void softcap(int x, float cap) {
        width(x);
        program_.add(std::make_unique<SoftCap>(x, cap));
    }
    void experts(int x, int logits, int out, const std::vector<nb::object>& gates, const std::vector<nb::object>& ups,
                 const std::vector<nb::object>& downs, int used, bool normalized, const std::string& kind, int64_t size,
                 const Matrix& factor, Floats signs) {
        require(!gates.empty() && gates.size() == ups.size() && ups.size() == downs.size(),
                "experts have three weights");
        require((int64_t)gates.size() == width(logits), "one logit an expert");
        require(used >= 1 && used <= (int)gates.size(), "more experts are used than there are");
        std::vector<const Packed*> all[3];
        for (size_t i = 0; i < gates.size(); ++i) {
            const Packed &gate = keep(gates[i]), &up = keep(ups[i]), &down = keep(downs[i]);
            const int64_t inner = all[0].empty() ? gate.rows : all[0][0]->rows;
            require(gate.columns == width(x) && up.columns == width(x) && gate.rows == inner && up.rows == inner &&
                        down.columns == inner && down.rows == width(out),
                    "an expert's weights do not fit its buffers");
            all[0].push_back(&gate);
            all[1].push_back(&up);
            all[2].push_back(&down);
        }
        Hadamard::Rotation rotation;
        if (size) rotation = rotation_of(all[0][0]->rows, size, factor, signs);
        program_.add(std::make_unique<Experts>(x, logits, out, std::move(all[0]), std::move(all[1]), std::move(all[2]),
                                               used, normalized, activation_of(kind), std::move(rotation),
                                               program_.contract()));
    }
    void finish() { program_.finish(); }

    bool run(Ints tokens, Ints sequences, Ints positions, Ints wanted, Logits out) {
        require(tokens.shape(0) == sequences.shape(0) && tokens.shape(0) == positions.shape(0),
                "each token has a sequence and a position");
        require(out.shape(0) == wanted.shape(0) && (int64_t)out.shape(1) == program_.logits_width(),
                "the result has the wrong shape");
        const nb::gil_scoped_release released;
        return program_.run(tokens.data(), sequences.data(), positions.data(), (int64_t)tokens.shape(0), wanted.data(),
                            (int64_t)wanted.shape(0), out.data());
    }
    void cancel() { program_.cancel(); }
    void profile(bool on) {
        const nb::gil_scoped_release released;
        program_.profile(on);
    }
    std::vector<double> times() const { return program_.times(); }
    int64_t nbytes() const { return program_.nbytes(); }
    int64_t cache_bytes() { return program_.cache().nbytes(); }

private:
    static int checked(int threads) {
        require(threads >= 1 && threads <= 1024, "a pool has 1 to 1024 threads");
        return threads;
    }
    int64_t width(int buffer) const {
        require(buffer >= 0 && buffer < (int)widths_.size(), "a step names a buffer that is not there");
        return widths_[buffer];
    }
    // The steps point into the weights, so these must stay.
    const Packed& keep(nb::handle weight) {
        kept_.push_back(nb::borrow(weight));
        return packed_of(weight);
    }

    std::vector<nb::object> kept_;
    std::vector<int64_t> widths_;
    Program program_;
};

int32_t sample_token(const std::string& isa, Floats logits, Ints previous, double temperature, int64_t top_k,
                     double top_p, double min_p, float repetition, uint64_t seed, uint64_t step) {
    const OpTable* ops = kernels_named(isa.c_str()).ops;
    require(ops != nullptr, "this instruction set has no operations besides products");
    require(logits.shape(0) > 0, "there are no logits");
    const nb::gil_scoped_release released;
    return sample(*ops, logits.data(), (int64_t)logits.shape(0), previous.data(), (int64_t)previous.shape(0),
                  {temperature, top_k, top_p, min_p, repetition, seed, step});
}

// One operation on plain arrays, for tests.
void exp_values(const std::string& isa, Floats x, nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu> out) {
    require(x.shape(0) == out.shape(0), "the two differ in length");
    kernels_named(isa.c_str()).ops->exp(x.data(), out.data(), (int64_t)x.shape(0));
}

}  // namespace

NB_MODULE(_engine, m) {
    // Models that are alive when the interpreter ends are no leak: it does not free what modules and threads still
    // hold.
    nb::set_leak_warnings(false);
    bind_matmul(m);
    nb::class_<Builder>(m, "Program")
        .def(nb::init<const std::string&, int, std::vector<int64_t>, int, int64_t, int64_t, const std::string&>(),
             nb::arg("isa"), nb::arg("threads"), nb::arg("widths"), nb::arg("logits"), nb::arg("sequences"),
             nb::arg("capacity"), nb::arg("activations"))
        .def("layer", &Builder::layer)
        .def("embed", &Builder::embed)
        .def("norm", &Builder::norm)
        .def("linear", &Builder::linear)
        .def("split", &Builder::split)
        .def("rope", &Builder::rope)
        .def("attention", &Builder::attention)
        .def("act_mul", &Builder::act_mul)
        .def("hadamard", &Builder::hadamard)
        .def("add", &Builder::add)
        .def("softcap", &Builder::softcap)
        .def("experts", &Builder::experts)
        .def("finish", &Builder::finish)
        .def("run", &Builder::run)
        .def("cancel", &Builder::cancel)
        .def("profile", &Builder::profile)
        .def("times", &Builder::times)
        .def("nbytes", &Builder::nbytes)
        .def("cache_bytes", &Builder::cache_bytes);
    m.def("sample", &sample_token);
    m.def("exp", &exp_values);
}
