// Python's door to the kernels: checks shapes, releases the GIL, splits work over threads.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <vector>

#include "isa/detect.h"
#include "parallel.h"
#include "table.h"

namespace nb = nanobind;
using namespace bitsmith;

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Instruction sets that can run here, best first.
static const std::vector<const Kernels*>& usable_kernels() {
    static const std::vector<const Kernels*> usable = [] {
        const CpuFeatures cpu = detect_cpu();
        std::vector<const Kernels*> found;
        if (cpu.avx512 && kernels_avx512()) found.push_back(kernels_avx512());
        if (cpu.avx2 && kernels_avx2()) found.push_back(kernels_avx2());
        found.push_back(kernels_baseline());
        return found;
    }();
    return usable;
}

static const Kernels& kernels_named(const std::string& isa) {
    for (const Kernels* kernels : usable_kernels())
        if (isa == kernels->name) return *kernels;
    throw std::invalid_argument("this CPU or build has no instruction set " + isa);
}

// The number of a block type, or −1 for those that have no kernels.
static int find_kind(const std::string& kind) {
    for (int i = 0; i < kKinds; ++i)
        if (kind == kLayouts[i].name) return i;
    return -1;
}

static int kind_named(const std::string& kind) {
    const int found = find_kind(kind);
    if (found < 0) throw std::invalid_argument("no block type " + kind);
    return found;
}

static void require(bool ok, const char* message) {
    if (!ok) throw std::invalid_argument(message);
}

static void encode_blocks(const std::string& isa, const std::string& kind_name, Floats x, nb::object importance,
                          BytesOut out, bool search, float tensor_scale, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int kind = kind_named(kind_name);
    const Layout layout = kLayouts[kind];
    const int64_t rows = x.shape(0), columns = x.shape(1), row_blocks = columns / layout.block;
    require(kernels.encode[kind] != nullptr, "this block type has no compiled encoder");
    require(columns % layout.block == 0, "the block does not divide the row");
    require((int64_t)out.shape(0) == rows && (int64_t)out.shape(1) == row_blocks * layout.bytes, "wrong output shape");
    const float* weight = nullptr;
    Weights weights;
    if (!importance.is_none()) {
        weights = nb::cast<Weights>(importance);
        require((int64_t)weights.shape(0) == columns, "importance needs one weight a column");
        weight = weights.data();
    }
    const float* values = x.data();
    uint8_t* bytes = out.data();
    std::atomic<bool> finite{true};
    {
        nb::gil_scoped_release released;
        parallel_for(rows * row_blocks, kLanes, threads, [&](int64_t begin, int64_t end) {
            uint8_t scratch[512];
            Batch batch = {};
            batch.weighted = weight != nullptr;
            batch.search = search;
            batch.tensor_scale = tensor_scale;
            for (int64_t first = begin; first < end && finite.load(std::memory_order_relaxed); first += kLanes) {
                const int64_t count = std::min<int64_t>(kLanes, end - first);
                if (!kernels.all_finite(values + first * layout.block, count * layout.block)) finite = false;
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    const int64_t block = first + std::min(lane, count - 1);
                    batch.x[lane] = values + block * layout.block;
                    batch.weight[lane] = weight ? weight + block % row_blocks * layout.block : nullptr;
                    batch.out[lane] = lane < count ? bytes + block * layout.bytes : scratch;
                }
                kernels.encode[kind](batch);
            }
        });
    }
    require(finite, "NaN or Inf can not be encoded");
}

static void decode_blocks(const std::string& isa, const std::string& kind_name, Bytes data, FloatsOut out,
                          float tensor_scale, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int kind = kind_named(kind_name);
    const Layout layout = kLayouts[kind];
    const int64_t rows = out.shape(0), columns = out.shape(1), row_blocks = columns / layout.block;
    require(kernels.decode[kind] != nullptr, "this block type has no compiled decoder");
    require(columns % layout.block == 0, "the block does not divide the row");
    require((int64_t)data.shape(0) == rows && (int64_t)data.shape(1) == row_blocks * layout.bytes, "wrong data shape");
    const uint8_t* bytes = data.data();
    float* values = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * row_blocks, kLanes, threads, [&](int64_t begin, int64_t end) {
        kernels.decode[kind](bytes + begin * layout.bytes, end - begin, values + begin * layout.block, tensor_scale);
    });
}

NB_MODULE(_cpu, m) {
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernels* kernels : usable_kernels()) names.push_back(kernels->name);
        return names;
    });
    m.def("layouts", [] {
        nb::list all;
        for (const Layout& layout : kLayouts) all.append(nb::make_tuple(layout.name, layout.block, layout.bytes));
        return all;
    });
    m.def("encodes", [](const std::string& kind) {
        const int found = find_kind(kind);
        return found >= 0 && kernels_baseline()->encode[found] != nullptr;
    });
    m.def("decodes", [](const std::string& kind) {
        const int found = find_kind(kind);
        return found >= 0 && kernels_baseline()->decode[found] != nullptr;
    });
    m.def("encode_blocks", &encode_blocks, nb::arg("isa"), nb::arg("kind"), nb::arg("x"), nb::arg("importance").none(),
          nb::arg("out"), nb::arg("search"), nb::arg("tensor_scale"), nb::arg("threads"));
    m.def("decode_blocks", &decode_blocks);
}
