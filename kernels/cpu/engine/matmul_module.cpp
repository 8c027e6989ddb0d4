#include "matmul_module.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "../isa/detect.h"
#include "../parallel.h"
#include "arena.h"
#include "matmul/pack.h"
#include "memory.h"
#include "pool.h"
#include "table.h"

namespace nb = nanobind;

namespace bitsmith::engine {

namespace {

template <class T, int kDimensions>
using Array = nb::ndarray<T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;

void require(bool held, const char* message) {
    if (!held) throw std::invalid_argument(message);
}

std::atomic<int> packing{0};  // pieces that are being packed now

// An order of columns and its inverse. Equal ones are one object, so that activations are put in order once for all
// weights that ask for the same.
struct Order {
    std::vector<int32_t> order, place;
};
std::shared_ptr<const Order> shared_order(std::vector<int32_t> order) {
    static std::mutex* lock = new std::mutex;  // never destroyed, see arena.cpp
    static auto* known = new std::vector<std::weak_ptr<const Order>>;
    const std::lock_guard<std::mutex> guard(*lock);
    std::erase_if(*known, [](const auto& each) { return each.expired(); });
    for (const auto& each : *known)
        if (const auto same = each.lock(); same && same->order == order) return same;
    const auto added = std::make_shared<Order>();
    added->place.assign(order.size(), -1);
    for (size_t i = 0; i < order.size(); ++i) {
        const bool inside = order[i] >= 0 && order[i] < int64_t(order.size());
        require(inside && added->place[order[i]] < 0, "an order has every column once");
        added->place[order[i]] = int32_t(i);
    }
    added->order = std::move(order);
    known->push_back(added);
    return added;
}

class PackedMatrix {
public:
    PackedMatrix(const Packed& layout, std::string name, std::shared_ptr<const Order> order = nullptr)
        : packed_(layout), name_(std::move(name)), order_(std::move(order)), memory_(nbytes()) {
        packed_.data = memory_.data();
        if (order_) {
            packed_.order = order_->order.data();
            packed_.place = order_->place.data();
        }
    }

    const Packed& packed() const { return packed_; }
    int64_t nbytes() const { return packed_.tiles * packed_.tile_bytes; }
    const char* kind() const {
        return packed_.integer() ? "integer" : packed_.codes == Codes::kBF16 ? "BF16" : "float";
    }

    void put_blocks(int64_t first, Array<const uint8_t, 2> rows) {
        check_rows(first, rows.shape(0));
        put(rows.shape(0), [&](int64_t begin, int64_t end) {
            const int64_t row_bytes = rows.shape(1);
            pack_blocks(name_.c_str(), packed_, rows.data() + begin * row_bytes, first + begin, end - begin);
        });
    }

    void put_groups(int64_t first, Array<const uint8_t, 2> codes, Array<const float, 2> scales, nb::object zeros,
                    int64_t group) {
        check_rows(first, codes.shape(0));
        const int64_t groups = scales.shape(1);
        require((int64_t)codes.shape(1) == packed_.columns && groups == (packed_.columns + group - 1) / group &&
                    scales.shape(0) == codes.shape(0),
                "codes or scales are of another shape");
        const auto like_scales = [&](const auto& third) {
            require(third.shape(0) == scales.shape(0) && third.shape(1) == scales.shape(1),
                    "zeros or offsets are of another shape");
            return third.data();
        };
        require(zeros.is_none() == (packed_.offsets == Offsets::kZero),
                "zeros or offsets are there exactly where they are packed");
        Array<const uint8_t, 2> held_zeros;
        Array<const float, 2> held_offsets;
        const uint8_t* zero = nullptr;
        const float* offset = nullptr;
        if (packed_.offsets == Offsets::kZeros) {
            held_zeros = nb::cast<Array<const uint8_t, 2>>(zeros);
            zero = like_scales(held_zeros);
        } else if (packed_.offsets == Offsets::kMinimums) {
            held_offsets = nb::cast<Array<const float, 2>>(zeros);
            offset = like_scales(held_offsets);
        }
        put(codes.shape(0), [&](int64_t begin, int64_t end) {
            const GroupRows rows = {codes.data() + begin * packed_.columns,
                                    scales.data() + begin * groups,
                                    zero ? zero + begin * groups : nullptr,
                                    group,
                                    groups,
                                    offset ? offset + begin * groups : nullptr};
            pack_groups(packed_, rows, first + begin, end - begin);
        });
    }

    // scales: one for each `group` columns of these rows.
    void put_elements(int64_t first, Array<const uint8_t, 2> rows, nb::object scales, int64_t group) {
        check_rows(first, rows.shape(0));
        const int64_t row_bytes = rows.shape(1);
        const float* scale = nullptr;
        int64_t groups = 1;
        Array<const float, 2> held;
        if (!scales.is_none()) {
            held = nb::cast<Array<const float, 2>>(scales);
            scale = held.data();
            groups = held.shape(1);
            require(held.shape(0) == rows.shape(0) && groups == (packed_.columns + group - 1) / group,
                    "scales are of another shape");
        }
        require((scale != nullptr) == (packed_.scales != Scales::kNone),
                "scales are there exactly where they are packed");
        put(rows.shape(0), [&](int64_t begin, int64_t end) {
            pack_elements(packed_, rows.data() + begin * row_bytes, scale ? scale + begin * groups : nullptr, group,
                          groups, first + begin, end - begin);
        });
    }

    nb::ndarray<nb::numpy, float, nb::ndim<2>> take(Array<const int64_t, 1> rows) const {
        for (size_t i = 0; i < rows.shape(0); ++i)
            require(rows.data()[i] >= 0 && rows.data()[i] < packed_.rows, "no such row");
        const size_t count = rows.shape(0), columns = static_cast<size_t>(packed_.columns);
        auto values = std::make_unique<float[]>(std::max<size_t>(count * columns, 1));
        {
            nb::gil_scoped_release released;
            for (size_t i = 0; i < count; ++i) read_row(packed_, rows.data()[i], values.get() + i * columns);
        }
        float* data = values.release();
        nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<float*>(p); });
        return nb::ndarray<nb::numpy, float, nb::ndim<2>>(data, {count, columns}, owner);
    }

private:
    void check_rows(int64_t first, size_t count) const {
        require(first % kTile == 0 && first + int64_t(count) <= packed_.rows, "rows come in order, sixteen at a time");
    }
    template <class Body>
    void put(size_t count, const Body& body) {
        nb::gil_scoped_release released;
        // Tensors that are packed at the same time share the processor.
        struct Share {
            Share() : count(packing.fetch_add(1) + 1) {}
            ~Share() { packing.fetch_sub(1); }
            int count;
        } const share;
        const int threads = std::clamp<int>(std::thread::hardware_concurrency(), 1, 8);
        parallel_for(int64_t(count), kTile, std::max(1, threads / share.count), body);
    }

    Packed packed_;
    std::string name_;
    std::shared_ptr<const Order> order_;
    Slice memory_;
};

Packed sized(int64_t rows, int64_t columns) {
    require(rows > 0 && columns > 0, "a matrix has rows and columns");
    Packed packed = {};
    packed.rows = rows;
    packed.columns = columns;
    packed.factor = 1.0f;
    packed.granularity = kChunk;
    return packed;
}

Scales scales_named(const std::string& name) {
    if (name == "F16") return Scales::kF16;
    if (name == "BF16") return Scales::kBF16;
    require(name == "F32", "scales are F16, BF16 or F32");
    return Scales::kF32;
}

// The largest run of columns within a chunk that never crosses into another group.
int granularity_of(int64_t group, int64_t columns) {
    if (group >= columns) return kChunk;
    for (int run = kChunk; run >= 16; run /= 2)
        if (group % run == 0) return run;
    throw std::invalid_argument("groups are multiples of 16 columns");
}

PackedMatrix* new_blocks(const std::string& kind, int64_t rows, int64_t columns, float tensor_scale) {
    Packed packed = sized(rows, columns);
    require(describe_blocks(kind.c_str(), packed), "no block type of that name");
    packed.factor = tensor_scale;
    return new PackedMatrix(packed, kind);
}

// offsets: '', 'zeros' or 'minimums'; order: int32 [columns] or None.
PackedMatrix* new_groups(int64_t rows, int64_t columns, int bits, int64_t group, const std::string& scales,
                         const std::string& offsets, nb::object table, nb::object levels, float level_step,
                         nb::object order) {
    Packed packed = sized(rows, columns);
    require(bits >= 1 && bits <= 8 && group >= 1, "codes have 1 to 8 bits");
    packed.bits = bits;
    packed.granularity = granularity_of(group, columns);
    packed.scales = scales_named(scales);
    packed.offsets = offsets == "zeros" ? Offsets::kZeros : offsets == "minimums" ? Offsets::kMinimums : Offsets::kZero;
    packed.codes = Codes::kInteger;
    packed.zero = offsets.empty() ? 1 << (bits - 1) : 0;
    if (!levels.is_none()) {
        const auto values = nb::cast<Array<const int8_t, 1>>(levels);
        require(bits == 4 && values.shape(0) == 16, "16 levels for 4 bits");
        packed.codes = Codes::kLevels;
        packed.zero = 128;
        packed.factor = level_step;
        for (int i = 0; i < 16; ++i) packed.levels[i] = uint8_t(values.data()[i] + 128);
    } else if (!table.is_none()) {
        const auto values = nb::cast<Array<const float, 1>>(table);
        require(bits == 4 && values.shape(0) == 16, "16 levels for 4 bits");
        packed.codes = Codes::kFloatTable;
        std::copy_n(values.data(), 16, packed.table);
    }
    set_layout(packed);
    if (order.is_none()) return new PackedMatrix(packed, "");
    const auto values = nb::cast<Array<const int32_t, 1>>(order);
    require((int64_t)values.shape(0) == columns, "an order has every column once");
    return new PackedMatrix(packed, "", shared_order({values.data(), values.data() + columns}));
}

// scales: '', 'F32', or 'E8M0' for powers of two; one for each `group` columns of a row.
PackedMatrix* new_elements(const std::string& dtype, int64_t rows, int64_t columns, const std::string& scales,
                           int64_t group) {
    Packed packed = sized(rows, columns);
    if (dtype == "F32")
        packed.codes = Codes::kF32;
    else if (dtype == "F16")
        packed.codes = Codes::kF16;
    else if (dtype == "BF16")
        packed.codes = Codes::kBF16;
    else if (dtype == "F8_E4M3")
        packed.codes = Codes::kE4M3;
    else if (dtype == "F8_E5M2")
        packed.codes = Codes::kE5M2;
    else
        throw std::invalid_argument("no elements of that type");
    packed.scales = scales.empty() ? Scales::kNone : scales == "E8M0" ? Scales::kE8M0 : Scales::kF32;
    if (packed.scales == Scales::kE8M0) packed.factor = 2.0f;  // it stands for halves of powers
    if (!scales.empty()) packed.granularity = granularity_of(group, columns);
    set_layout(packed);
    return new PackedMatrix(packed, "");
}

Contract contract_named(const std::string& name) {
    if (name == "FAST") return Contract::kFast;
    if (name == "TOKEN") return Contract::kToken;
    require(name == "EXACT", "activations are FAST, EXACT or TOKEN");
    return Contract::kExact;
}

// The threads of single products; whole programs have their own.
class Threads {
public:
    template <class Run>
    void with(int threads, const Run& run) {
        if (threads == 1) {  // callers that share a machine among themselves need not wait for each other
            Pool caller(1);
            run(caller);
            return;
        }
        const std::lock_guard<std::mutex> lock(mutex_);
        if (!pool_ || pool_->threads() != threads) pool_ = std::make_unique<Pool>(threads);
        pool_->begin();
        run(*pool_);
        pool_->end();
    }

private:
    std::mutex mutex_;
    std::unique_ptr<Pool> pool_;
};
Threads& shared_threads() {
    static Threads* threads = new Threads;  // never destroyed: a worker may outlive static destructors
    return *threads;
}

// Memory of one product, from the C library, which has it at hand again for the next.
class Scratch {
public:
    explicit Scratch(int64_t bytes)
        : data_(static_cast<uint8_t*>(::operator new(static_cast<size_t>(bytes), kAlign))) {}
    ~Scratch() { ::operator delete(data_, kAlign); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
    uint8_t* data() const { return data_; }

private:
    static constexpr std::align_val_t kAlign{64};
    uint8_t* data_;
};

// repeats > 1 measures: the product is done that often, and the seconds of each are returned.
std::vector<double> product(const std::string& isa, const PackedMatrix& matrix, Array<const float, 2> x,
                            const std::string& activations, Array<float, 2> out, int threads, int repeats) {
    const Kernels& kernels = kernels_named(isa.c_str());
    const Packed& w = matrix.packed();
    const int64_t m = x.shape(0);
    require((int64_t)x.shape(1) == w.columns, "activations are of another width");
    require((int64_t)out.shape(0) == m && (int64_t)out.shape(1) == w.rows, "wrong output shape");
    require(threads >= 1 && threads <= 1024, "1 to 1024 threads");
    std::vector<double> seconds;
    if (m == 0) return seconds;
    nb::gil_scoped_release released;
    Act act = {act_kind(w, contract_named(activations)), m, w.columns, w.steps, nullptr};
    const Scratch data(act.bytes()), scratch(kScratch * threads);
    act.data = data.data();
    act.order = w.order;
    const Output to = {out.data(), w.rows, nullptr, false};
    // A few chunks a thread, so that a core which is busy elsewhere takes fewer of them.
    const int64_t grain = threads == 1 ? w.tiles : std::max<int64_t>(1, w.tiles / (threads * 8));
    shared_threads().with(threads, [&](Pool& pool) {
        for (int i = 0; i < repeats; ++i) {
            const auto begin = std::chrono::steady_clock::now();
            pool.run(act.panels(),
                     [&](int64_t panel, int) { kernels.prepare(act, x.data(), w.columns, panel, panel + 1); });
            pool.run((w.tiles + grain - 1) / grain, [&](int64_t chunk, int thread) {
                kernels.linear(w, act, to, chunk * grain, std::min(w.tiles, (chunk + 1) * grain),
                               scratch.data() + kScratch * thread);
            });
            seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
        }
    });
    return seconds;
}

// total [K][K] += Σ x xᵀ on and above the diagonal.
void add_gram(const std::string& isa, Array<const float, 2> x, Array<float, 2> total, int threads) {
    const Kernels& kernels = kernels_named(isa.c_str());
    const int64_t rows = x.shape(0), columns = x.shape(1), panels = (columns + kGramPanel - 1) / kGramPanel;
    require(int64_t(total.shape(0)) == columns && int64_t(total.shape(1)) == columns, "the sums are [K, K]");
    constexpr int64_t kMost = 512;  // rows at a time: two panels stay in the second cache
    const auto floats = std::make_unique_for_overwrite<float[]>(panels * std::min(kMost, rows) * kGramPanel);
    const float* data = x.data();
    float* sums = total.data();
    nb::gil_scoped_release released;
    for (int64_t first = 0; first < rows; first += kMost) {
        const int64_t count = std::min(kMost, rows - first);
        const int64_t words = (count + kernels.gram.rows_a_word - 1) / kernels.gram.rows_a_word;
        parallel_for(panels, 1, threads, [&](int64_t begin, int64_t end) {
            for (int64_t p = begin; p < end; ++p)
                kernels.gram.panel(data + first * columns, count, columns, p, floats.get() + p * words * kGramPanel);
        });
        const int64_t tiles = panels * (panels + 1) / 2;
        parallel_for(tiles, 1, threads, [&](int64_t begin, int64_t end) {
            int64_t row = 0, left = begin;
            while (left >= panels - row) left -= panels - row++;
            for (int64_t column = row + left, i = begin; i < end; ++i) {
                kernels.gram.tile(floats.get(), words, columns, row, column, sums);
                if (++column == panels) column = ++row;
            }
        });
    }
}

}  // namespace

const Packed& packed_of(nb::handle stored) {
    return nb::cast<const PackedMatrix&>(stored).packed();
}

void bind_matmul(nb::module_& m) {
    nb::class_<PackedMatrix>(m, "PackedMatrix")
        .def_prop_ro("nbytes", &PackedMatrix::nbytes)
        .def_prop_ro("kind", &PackedMatrix::kind)
        .def("put_blocks", &PackedMatrix::put_blocks)
        .def("put_groups", &PackedMatrix::put_groups, nb::arg("first"), nb::arg("codes"), nb::arg("scales"),
             nb::arg("zeros").none(), nb::arg("group"))
        .def("put_elements", &PackedMatrix::put_elements, nb::arg("first"), nb::arg("rows"), nb::arg("scales").none(),
             nb::arg("group"))
        .def("take", &PackedMatrix::take);
    m.def("blocks", &new_blocks);
    m.def("groups", &new_groups, nb::arg("rows"), nb::arg("columns"), nb::arg("bits"), nb::arg("group"),
          nb::arg("scales"), nb::arg("offsets"), nb::arg("table").none(), nb::arg("levels").none(),
          nb::arg("level_step"), nb::arg("order").none());
    m.def("elements", &new_elements, nb::arg("dtype"), nb::arg("rows"), nb::arg("columns"), nb::arg("scales"),
          nb::arg("group"));
    m.def("product", &product);
    m.def("add_gram", &add_gram);
    m.def("instruction_sets", [] {
        std::vector<std::string> names;
        for (const Kernels* kernels : usable_kernels()) names.push_back(kernels->name);
        return names;
    });
    m.def("refused_sets", [] {
        std::vector<std::pair<std::string, std::string>> pairs;
        for (const Refused& refused : refused_kernels()) pairs.emplace_back(refused.name, refused.reason);
        return pairs;
    });
    m.def("bfloat16_pays", [] {
        const CpuFeatures cpu = detect_cpu();
        return cpu.pairs_pay || (cpu.amx_bf16 && cpu.amx_state);
    });
}

}  // namespace bitsmith::engine
