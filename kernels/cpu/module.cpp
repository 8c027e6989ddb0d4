// Python's door to the kernels: checks shapes, releases the GIL, splits work over threads.
#include <nanobind/stl/vector.h>

#include <atomic>
#include <mutex>
#include <vector>

#include "arrays.h"
#include "bits.h"
#include "isa/detect.h"
#include "parallel.h"

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

const Kernels& bitsmith::kernels_named(const std::string& isa) {
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

ScaleType bitsmith::scale_type_named(const std::string& name) {
    if (name == "F16") return kF16;
    if (name == "BF16") return kBF16;
    require(name == "F32", "scales are F16, BF16 or F32");
    return kF32;
}

static void encode_groups(const std::string& isa, Floats x, int bits, int64_t group, bool symmetric,
                          const std::string& scale_type, bool search, nb::object importance, BytesOut codes,
                          FloatsOut scales, BytesOut zeros, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = x.shape(0), columns = x.shape(1);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    require(group > 0 && columns % group == 0, "the group does not divide the row");
    const int64_t row_groups = columns / group;
    require(codes.shape(0) == x.shape(0) && codes.shape(1) == x.shape(1), "wrong shape of codes");
    require((int64_t)scales.shape(0) == rows && (int64_t)scales.shape(1) == row_groups, "wrong shape of scales");
    require((int64_t)zeros.shape(0) == rows && (int64_t)zeros.shape(1) == row_groups, "wrong shape of zeros");
    const float* weight = nullptr;
    Weights weights;
    if (!importance.is_none()) {
        weights = nb::cast<Weights>(importance);
        require((int64_t)weights.shape(0) == columns, "importance needs one weight a column");
        weight = weights.data();
    }
    GroupBatch settings = {};
    settings.n = static_cast<int>(group);
    settings.bits = bits;
    settings.scale_type = scale_type_named(scale_type);
    settings.symmetric = symmetric;
    settings.weighted = weight != nullptr;
    settings.search = search;
    const float* values = x.data();
    uint8_t *code = codes.data(), *zero = zeros.data();
    float* scale = scales.data();
    std::atomic<bool> finite{true};
    {
        nb::gil_scoped_release released;
        parallel_for(rows * row_groups, kLanes, threads, [&](int64_t begin, int64_t end) {
            // One lane's values and weights a vector, and room to align them.
            std::vector<float> scratch((settings.weighted ? 2 : 1) * kLanes * group + kLanes);
            std::vector<uint8_t> surplus(group);
            const uintptr_t address = reinterpret_cast<uintptr_t>(scratch.data());
            GroupBatch batch = settings;
            batch.scratch = scratch.data() + (64 - address % 64) % 64 / sizeof(float);
            for (int64_t first = begin; first < end && finite.load(std::memory_order_relaxed); first += kLanes) {
                const int64_t count = std::min<int64_t>(kLanes, end - first);
                if (!kernels.all_finite(values + first * group, count * group)) finite = false;
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    const int64_t at = first + std::min(lane, count - 1);
                    batch.x[lane] = values + at * group;
                    batch.weight[lane] = weight ? weight + at % row_groups * group : nullptr;
                    batch.codes[lane] = lane < count ? code + at * group : surplus.data();
                }
                kernels.encode_groups(batch);
                for (int64_t lane = 0; lane < count; ++lane) {
                    scale[first + lane] = batch.scale[lane];
                    zero[first + lane] = static_cast<uint8_t>(batch.zero[lane]);
                }
            }
        });
    }
    require(finite, "NaN or Inf can not be encoded");
}

// Adds to total, float64 [C, 3 · R], the sums of each row for each of C scales and unsigned zeros, [C, R].
static void group_sums(const std::string& isa, Floats x, nb::object weights_or_none, Floats scales, Floats zeros,
                       int bits, DoublesOut total, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = x.shape(0), columns = x.shape(1), tries = scales.shape(0);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    require((int64_t)scales.shape(1) == rows, "wrong shape of scales");
    require((int64_t)zeros.shape(0) == tries && (int64_t)zeros.shape(1) == rows, "wrong shape of zeros");
    require((int64_t)total.shape(0) == tries && (int64_t)total.shape(1) == 3 * rows, "wrong shape of sums");
    const float* weight = nullptr;
    Weights weights;
    if (!weights_or_none.is_none()) {
        weights = nb::cast<Weights>(weights_or_none);
        require((int64_t)weights.shape(0) == columns, "importance needs one weight a column");
        weight = weights.data();
    }
    const int64_t row_pieces = (columns + kSumPiece - 1) / kSumPiece;
    const float *values = x.data(), *scale = scales.data(), *zero = zeros.data();
    const float half = static_cast<float>(1 << (bits - 1));
    double* sums = total.data();
    nb::gil_scoped_release released;
    std::vector<float> found(3 * tries * rows * row_pieces);
    parallel_for(rows * row_pieces, kLanes, threads, [&](int64_t begin, int64_t end) {
        std::vector<float> scratch(2 * kLanes * kSumPiece + kLanes);
        std::vector<float> padded(kLanes * kSumPiece), padded_weights(weight ? kSumPiece : 0);
        const uintptr_t address = reinterpret_cast<uintptr_t>(scratch.data());
        PieceBatch batch = {};
        batch.scratch = scratch.data() + (64 - address % 64) % 64 / sizeof(float);
        batch.n = kSumPiece;
        batch.bits = bits;
        batch.weighted = weight != nullptr;
        for (int64_t first = begin; first < end; first += kLanes) {
            const int64_t count = std::min<int64_t>(kLanes, end - first);
            for (int64_t lane = 0; lane < kLanes; ++lane) {
                const int64_t piece = first + std::min(lane, count - 1);
                const int64_t row = piece / row_pieces, at = piece % row_pieces * kSumPiece;
                const int64_t length = std::min<int64_t>(kSumPiece, columns - at);
                batch.x[lane] = values + row * columns + at;
                batch.weight[lane] = weight ? weight + at : nullptr;
                if (length == kSumPiece) continue;
                // The end of a row is filled up with zeros, which add nothing.
                float* filled = padded.data() + lane * kSumPiece;
                std::fill(std::copy_n(batch.x[lane], length, filled), filled + kSumPiece, 0.0f);
                batch.x[lane] = filled;
                if (weight) {
                    std::fill(std::copy_n(weight + at, length, padded_weights.begin()), padded_weights.end(), 0.0f);
                    batch.weight[lane] = padded_weights.data();
                }
            }
            for (int64_t k = 0; k < tries; ++k) {
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    const int64_t row = (first + std::min(lane, count - 1)) / row_pieces;
                    batch.scale[lane] = scale[k * rows + row];
                    batch.zero[lane] = zero[k * rows + row] - half;
                }
                batch.load = k == 0;
                kernels.group_sums(batch);
                for (int64_t lane = 0; lane < count; ++lane) {
                    float* out = found.data() + 3 * (k * rows * row_pieces + first + lane);
                    out[0] = batch.error[lane];
                    out[1] = batch.xq[lane];
                    out[2] = batch.qq[lane];
                }
            }
        }
    });
    for (int64_t i = 0; i < tries * rows; ++i)  // [C, R], the pieces of each in order
        for (int64_t piece = 0; piece < row_pieces; ++piece)
            for (int64_t j = 0; j < 3; ++j) sums[3 * i + j] += found[3 * (i * row_pieces + piece) + j];
}

// Codes of rows with one scale and unsigned zero each.
static void group_codes(const std::string& isa, Floats x, Weights scales, Weights zeros, int bits, BytesOut codes,
                        int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = x.shape(0), columns = x.shape(1);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    require((int64_t)scales.shape(0) == rows && (int64_t)zeros.shape(0) == rows, "one scale and zero a row");
    require(codes.shape(0) == x.shape(0) && codes.shape(1) == x.shape(1), "wrong shape of codes");
    const float *values = x.data(), *scale = scales.data(), *zero = zeros.data();
    uint8_t* code = codes.data();
    nb::gil_scoped_release released;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            kernels.group_codes(values + row * columns, columns, scale[row], zero[row], bits, code + row * columns);
    });
}

// zeros: one code a group; all are the middle code when there is none to give.
static void decode_groups(const std::string& isa, Bytes codes, Floats scales, nb::object zeros, int middle,
                          int64_t group, FloatsOut out, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = codes.shape(0), columns = codes.shape(1);
    require(group > 0 && columns % group == 0, "the group does not divide the row");
    const int64_t row_groups = columns / group;
    require((int64_t)scales.shape(0) == rows && (int64_t)scales.shape(1) == row_groups, "wrong shape of scales");
    require(out.shape(0) == codes.shape(0) && out.shape(1) == codes.shape(1), "wrong output shape");
    const uint8_t* zero = nullptr;
    Bytes zero_codes;
    if (!zeros.is_none()) {
        zero_codes = nb::cast<Bytes>(zeros);
        require((int64_t)zero_codes.shape(0) == rows && (int64_t)zero_codes.shape(1) == row_groups,
                "wrong shape of zeros");
        zero = zero_codes.data();
    }
    const uint8_t* code = codes.data();
    const float* scale = scales.data();
    float* values = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * row_groups, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
            const float none = static_cast<float>(zero ? zero[at] : middle);
            kernels.decode_group(code + at * group, scale[at], none, group, values + at * group);
        }
    });
}

// 'F16' or 'BF16', a multiple of the lanes a piece so that only the last is short.
static void to_half(const std::string& isa, const std::string& type, Floats x, HalvesOut out, int threads) {
    const Kernels& kernels = kernels_named(isa);
    require(out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1), "wrong output shape");
    const auto convert = type == "F16" ? kernels.to_f16 : kernels.to_bf16;
    const float* values = x.data();
    uint16_t* halves = out.data();
    const int64_t n = x.size();
    nb::gil_scoped_release released;
    parallel_for(n, 4096, threads,
                 [&](int64_t begin, int64_t end) { convert(values + begin, end - begin, halves + begin); });
}
static void from_half(const std::string& isa, const std::string& type, Halves x, FloatsOut out, int threads) {
    const Kernels& kernels = kernels_named(isa);
    require(out.shape(0) == x.shape(0) && out.shape(1) == x.shape(1), "wrong output shape");
    const auto convert = type == "F16" ? kernels.from_f16 : kernels.from_bf16;
    const uint16_t* halves = x.data();
    float* values = out.data();
    const int64_t n = x.size();
    nb::gil_scoped_release released;
    parallel_for(n, 4096, threads,
                 [&](int64_t begin, int64_t end) { convert(halves + begin, end - begin, values + begin); });
}

// Codes of a row as a dense little-endian bit stream: code i at bit i · bits.
static void pack_bits(Bytes codes, int bits, BytesOut out, int threads) {
    const int64_t rows = codes.shape(0), columns = codes.shape(1), row_bytes = out.shape(1);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    require((int64_t)out.shape(0) == rows && row_bytes == (columns * bits + 31) / 32 * 4, "wrong output shape");
    const uint8_t* code = codes.data();
    uint8_t* bytes = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            pack_row(code + row * columns, columns, bits, bytes + row * row_bytes, row_bytes);
    });
}
static void unpack_bits(Bytes packed, int bits, BytesOut out, int threads) {
    const int64_t rows = out.shape(0), columns = out.shape(1), row_bytes = packed.shape(1);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    require((int64_t)packed.shape(0) == rows && row_bytes == (columns * bits + 31) / 32 * 4, "wrong packed shape");
    const uint8_t* bytes = packed.data();
    uint8_t* code = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            unpack_row(bytes + row * row_bytes, columns, bits, code + row * columns);
    });
}

// (Σx², Σe², max |e|, values not finite), and counts of e, in the rows of which `every` is a factor, when limit > 0.
// Rows are summed in order.
static nb::tuple error_stats(const std::string& isa, Floats source, Floats other, float limit, Counts counts,
                             int64_t every, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = source.shape(0), columns = source.shape(1), bins = counts.shape(0);
    require(other.shape(0) == source.shape(0) && other.shape(1) == source.shape(1), "the two differ in shape");
    require(every >= 1, "every is at least 1");
    const float *x = source.data(), *y = other.data();
    int64_t* count = counts.data();
    RowError total = {0.0, 0.0, 0.0, 0};
    {
        nb::gil_scoped_release released;
        std::vector<RowError> sums(rows);
        std::mutex adding;
        parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
            const bool counts_any = limit > 0.0f && bins > 0;
            const int64_t side = bins + 1;
            // A table of pairs pays where it stays in the cache, and where there are more values than it has entries.
            const bool paired = counts_any && side <= 256 && (end - begin) / every * columns > side * side;
            std::vector<int64_t> mine(side);
            std::vector<uint32_t> pairs(paired ? side * side : 0);
            for (int64_t row = begin; row < end; ++row) {
                const int64_t at = row * columns;
                sums[row] = kernels.row_error(x + at, y + at, columns);
                if (counts_any && row % every == 0)
                    kernels.row_histogram(x + at, y + at, columns, limit, static_cast<int>(bins),
                                          paired ? pairs.data() : nullptr, mine.data());
            }
            const std::lock_guard<std::mutex> guard(adding);
            for (int64_t i = 0; i < bins; ++i) count[i] += mine[i];
            if (!paired) return;
            for (int64_t first = 0; first <= bins; ++first) {
                for (int64_t second = 0; second <= bins; ++second) {
                    const int64_t found = pairs[first * side + second];
                    if (first < bins) count[first] += found;
                    if (second < bins) count[second] += found;
                }
            }
        });
        for (const RowError& row : sums) {
            total.source_squares += row.source_squares;
            total.error_squares += row.error_squares;
            total.max_error = std::max(total.max_error, row.max_error);
            total.nonfinite += row.nonfinite;
        }
    }
    return nb::make_tuple(total.source_squares, total.error_squares, total.max_error, total.nonfinite);
}

// Three values a row (largest magnitude, lowest, highest) and how many are not finite.
static void scan(const std::string& isa, Floats x, FloatsOut extremes, Counts nonfinite, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = x.shape(0), columns = x.shape(1);
    require((int64_t)extremes.shape(0) == rows && extremes.shape(1) == 3, "wrong shape of extremes");
    require((int64_t)nonfinite.shape(0) == rows, "wrong shape of counts");
    const float* values = x.data();
    float* extreme = extremes.data();
    int64_t* bad = nonfinite.data();
    nb::gil_scoped_release released;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const RowScan found = kernels.row_scan(values + row * columns, columns);
            extreme[3 * row] = found.largest;
            extreme[3 * row + 1] = found.lowest;
            extreme[3 * row + 2] = found.highest;
            bad[row] = found.nonfinite;
        }
    });
}

static float max_group_error_ratio(const std::string& isa, Floats source, Floats other, int64_t group, float floor,
                                   int threads) {
    const Kernels& kernels = kernels_named(isa);
    const int64_t rows = source.shape(0), columns = source.shape(1);
    require(other.shape(0) == source.shape(0) && other.shape(1) == source.shape(1), "the two differ in shape");
    require(group > 0, "groups have at least one value");
    const float *x = source.data(), *y = other.data();
    nb::gil_scoped_release released;
    std::mutex comparing;
    float largest = 0.0f;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        float mine = 0.0f;
        for (int64_t row = begin; row < end; ++row) {
            for (int64_t at = 0; at < columns; at += group) {
                const int64_t first = row * columns + at, count = std::min(group, columns - at);
                mine = std::max(mine, kernels.group_error_ratio(x + first, y + first, count, floor));
            }
        }
        const std::lock_guard<std::mutex> guard(comparing);
        largest = std::max(largest, mine);
    });
    return largest;
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
    m.def("encode_groups", &encode_groups, nb::arg("isa"), nb::arg("x"), nb::arg("bits"), nb::arg("group"),
          nb::arg("symmetric"), nb::arg("scale_type"), nb::arg("search"), nb::arg("importance").none(),
          nb::arg("codes"), nb::arg("scales"), nb::arg("zeros"), nb::arg("threads"));
    m.def("group_sums", &group_sums, nb::arg("isa"), nb::arg("x"), nb::arg("weights").none(), nb::arg("scales"),
          nb::arg("zeros"), nb::arg("bits"), nb::arg("total"), nb::arg("threads"));
    m.def("group_codes", &group_codes);
    m.def("decode_groups", &decode_groups, nb::arg("isa"), nb::arg("codes"), nb::arg("scales"), nb::arg("zeros").none(),
          nb::arg("middle"), nb::arg("group"), nb::arg("out"), nb::arg("threads"));
    m.def("to_half", &to_half);
    m.def("from_half", &from_half);
    m.def("pack_bits", &pack_bits);
    m.def("unpack_bits", &unpack_bits);
    m.def("error_stats", &error_stats);
    m.def("scan", &scan);
    m.def("max_group_error_ratio", &max_group_error_ratio);
    add_inspect(m);
    add_families(m);
    add_solve(m);
    add_files(m);
}
