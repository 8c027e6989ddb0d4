// Python's door to the operations of kernels/families.py: checks shapes, releases the GIL, splits work over threads.
#include <math.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <vector>

#include "arrays.h"
#include "families_table.h"
#include "packing.h"
#include "parallel.h"

using Words = nb::ndarray<const uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using WordsOut = nb::ndarray<uint32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

// Those of an instruction set that can run here.
static const Families& families_named(const std::string& isa) {
    const Kernels* kernels = &kernels_named(isa);
    if (kernels == kernels_avx512()) return *families_avx512();
    return kernels == kernels_avx2() ? *families_avx2() : *families_baseline();
}

template <class A, class B>
static void require_same(const A& a, const B& b) {
    require(a.shape(0) == b.shape(0) && a.shape(1) == b.shape(1), "the two differ in shape");
}
template <class A>
static void require_shape(const A& a, int64_t rows, int64_t columns) {
    require((int64_t)a.shape(0) == rows && (int64_t)a.shape(1) == columns, "wrong shape");
}

// Runs a batch encoder over all groups of a matrix. offset: null for an encoder that has none.
static void encode_family(const Kernels& kernels, void (*encode)(FamilyBatch&), FamilyBatch settings, Floats x,
                          int64_t group, nb::object importance, BytesOut codes, FloatsOut scales, float* offset,
                          int threads) {
    const int64_t rows = x.shape(0), columns = x.shape(1);
    require(group > 0 && columns % group == 0, "the group does not divide the row");
    const int64_t row_groups = columns / group;
    require_same(codes, x);
    require_shape(scales, rows, row_groups);
    const float* weight = nullptr;
    Weights weights;
    if (!importance.is_none()) {
        weights = nb::cast<Weights>(importance);
        require((int64_t)weights.shape(0) == columns, "importance needs one weight a column");
        weight = weights.data();
    }
    settings.n = static_cast<int>(group);
    settings.weighted = weight != nullptr;
    const bool loads = settings.search || settings.iterations > 0;  // all values of sixteen groups at once
    const float* values = x.data();
    uint8_t* code = codes.data();
    float* scale = scales.data();
    std::atomic<bool> finite{true};
    {
        nb::gil_scoped_release released;
        parallel_for(rows * row_groups, kLanes, threads, [&](int64_t begin, int64_t end) {
            std::vector<float> scratch((loads ? (settings.weighted ? 2 : 1) * kLanes * group : 0) + kLanes);
            std::vector<uint8_t> surplus(group);
            const uintptr_t address = reinterpret_cast<uintptr_t>(scratch.data());
            FamilyBatch batch = settings;
            batch.scratch = scratch.data() + (64 - address % 64) % 64 / sizeof(float);
            for (int64_t first = begin; first < end && finite.load(std::memory_order_relaxed); first += kLanes) {
                const int64_t count = std::min<int64_t>(kLanes, end - first);
                if (!kernels.all_finite(values + first * group, count * group)) {
                    finite = false;
                    break;
                }
                for (int64_t lane = 0; lane < kLanes; ++lane) {
                    const int64_t at = first + std::min(lane, count - 1);
                    batch.x[lane] = values + at * group;
                    batch.weight[lane] = weight ? weight + at % row_groups * group : nullptr;
                    batch.codes[lane] = lane < count ? code + at * group : surplus.data();
                }
                encode(batch);
                std::copy_n(batch.scale, count, scale + first);
                if (offset) std::copy_n(batch.offset, count, offset + first);
            }
        });
    }
    require(finite, "NaN or Inf can not be encoded");
}

static Codebook make_codebook(const Weights& table) {
    require(table.shape(0) == 16, "a table has sixteen levels");
    const float* levels = table.data();
    Codebook book = {};
    std::iota(book.order, book.order + 16, 0);
    std::stable_sort(book.order, book.order + 16, [&](int a, int b) { return levels[a] < levels[b]; });
    book.ascending = std::is_sorted(book.order, book.order + 16);
    for (int i = 0; i < 16; ++i) {
        book.levels[i] = levels[book.order[i]];
        book.largest = std::max(book.largest, fabsf(book.levels[i]));
    }
    for (int i = 0; i < 15; ++i) book.middles[i] = (book.levels[i + 1] + book.levels[i]) * 0.5f;
    book.middles[15] = INFINITY;
    return book;
}

static void encode_codebook(const std::string& isa, Floats x, Weights table, int64_t group,
                            const std::string& scale_type, bool search, nb::object importance, BytesOut codes,
                            FloatsOut scales, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const Codebook book = make_codebook(table);
    FamilyBatch settings = {};
    settings.table = &book;
    settings.scale_type = scale_type_named(scale_type);
    settings.search = search;
    encode_family(kernels, families_named(isa).encode_codebook, settings, x, group, importance, codes, scales, nullptr,
                  threads);
}

static void encode_affine(const std::string& isa, Floats x, int bits, int64_t group, const std::string& scale_type,
                          bool search, nb::object importance, BytesOut codes, FloatsOut scales, FloatsOut offsets,
                          int threads) {
    const Kernels& kernels = kernels_named(isa);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    FamilyBatch settings = {};
    settings.bits = bits;
    settings.scale_type = scale_type_named(scale_type);
    settings.search = search;
    require_same(offsets, scales);
    encode_family(kernels, families_named(isa).encode_affine, settings, x, group, importance, codes, scales,
                  offsets.data(), threads);
}

static void half_quadratic(const std::string& isa, Floats x, int bits, int64_t group, bool round_zero, float exponent,
                           Weights inverse_betas, BytesOut codes, FloatsOut scales, FloatsOut zeros, int threads) {
    const Kernels& kernels = kernels_named(isa);
    require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
    // |e| = |e|^(p − 1) / β at (1 / β)^(1 / (2 − p)): what is a hundredth below is no outlier, however that is rounded.
    std::vector<float> limits(inverse_betas.shape(0) + 1);
    for (size_t k = 0; k + 1 < limits.size(); ++k)
        limits[k] = static_cast<float>(0.99 * pow(double(inverse_betas.data()[k]), 1.0 / (2.0 - double(exponent))));
    FamilyBatch settings = {};
    settings.bits = bits;
    settings.round_zero = round_zero;
    settings.exponent = exponent;
    settings.inverse_betas = inverse_betas.data();
    settings.limits = limits.data();
    settings.iterations = static_cast<int>(inverse_betas.shape(0));
    settings.search = true;
    require_same(zeros, scales);
    encode_family(kernels, families_named(isa).half_quadratic, settings, x, group, nb::none(), codes, scales,
                  zeros.data(), threads);
}

// run(group, codes, out) for every group of a matrix of codes.
template <class Run>
static void decode_family(Bytes codes, int64_t group, Floats scales, FloatsOut out, int threads, const Run& run) {
    const int64_t rows = codes.shape(0), columns = codes.shape(1);
    require(group > 0 && columns % group == 0, "the group does not divide the row");
    require_shape(scales, rows, columns / group);
    require_same(out, codes);
    const uint8_t* code = codes.data();
    float* values = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * (columns / group), 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) run(at, code + at * group, values + at * group);
    });
}

static void decode_codebook(const std::string& isa, Bytes codes, Floats scales, Weights table, int64_t group,
                            float factor, FloatsOut out, int threads) {
    const auto decode = families_named(isa).decode_codebook;
    require(table.shape(0) == 16, "a table has sixteen levels");
    const float *scale = scales.data(), *levels = table.data();
    decode_family(codes, group, scales, out, threads, [&](int64_t at, const uint8_t* code, float* values) {
        decode(code, group, scale[at], factor, levels, values);
    });
}

static void decode_affine(const std::string& isa, Bytes codes, Floats scales, Floats offsets, int64_t group,
                          FloatsOut out, int threads) {
    const auto decode = families_named(isa).decode_affine;
    require_same(offsets, scales);
    const float *scale = scales.data(), *offset = offsets.data();
    decode_family(codes, group, scales, out, threads, [&](int64_t at, const uint8_t* code, float* values) {
        decode(code, group, scale[at], offset[at], values);
    });
}
static void decode_zeros(const std::string& isa, Bytes codes, Floats scales, Floats zeros, int64_t group, FloatsOut out,
                         int threads) {
    const auto decode = kernels_named(isa).decode_group;
    require_same(zeros, scales);
    const float *scale = scales.data(), *zero = zeros.data();
    decode_family(codes, group, scales, out, threads, [&](int64_t at, const uint8_t* code, float* values) {
        decode(code, scale[at], zero[at], group, values);
    });
}

static const Float8Rows& float8_named(const std::string& isa, const std::string& type) {
    require(type == "F8_E4M3" || type == "F8_E5M2", "8-bit floats are F8_E4M3 or F8_E5M2");
    return families_named(isa).float8[type == "F8_E4M3" ? kE4M3 : kE5M2];
}
static void to_float8(const std::string& isa, const std::string& type, Floats x, BytesOut out, int threads) {
    const Float8Rows& rows = float8_named(isa, type);
    require_same(out, x);
    const float* values = x.data();
    uint8_t* codes = out.data();
    const int64_t n = x.size();
    nb::gil_scoped_release released;
    parallel_for(n, 4096, threads,
                 [&](int64_t begin, int64_t end) { rows.from_float32(values + begin, end - begin, codes + begin); });
}
static void from_float8(const std::string& isa, const std::string& type, Bytes x, FloatsOut out, int threads) {
    const Float8Rows& rows = float8_named(isa, type);
    require_same(out, x);
    const uint8_t* codes = x.data();
    float* values = out.data();
    const int64_t n = x.size();
    nb::gil_scoped_release released;
    parallel_for(n, 4096, threads,
                 [&](int64_t begin, int64_t end) { rows.to_float32(codes + begin, end - begin, values + begin); });
}

// run(first value, count, scale) for every stretch of a row that has one scale, in tiles of a × b.
template <class Run>
static void over_tiles(int64_t rows, int64_t columns, Floats scales, int64_t a, int64_t b, int threads,
                       const Run& run) {
    require(a > 0 && b > 0, "a tile has at least one value");
    const int64_t row_tiles = (columns + b - 1) / b;
    require_shape(scales, (rows + a - 1) / a, row_tiles);
    const float* scale = scales.data();
    nb::gil_scoped_release released;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            for (int64_t tile = 0; tile < row_tiles; ++tile)
                run(row * columns + tile * b, std::min(b, columns - tile * b), scale[row / a * row_tiles + tile]);
    });
}
static void encode_float8(const std::string& isa, const std::string& type, Floats x, Floats scales, int64_t a,
                          int64_t b, BytesOut out, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const Float8Rows& rows = float8_named(isa, type);
    require_same(out, x);
    const float* values = x.data();
    uint8_t* codes = out.data();
    std::atomic<bool> finite{true};
    over_tiles(x.shape(0), x.shape(1), scales, a, b, threads, [&](int64_t at, int64_t n, float scale) {
        if (!kernels.all_finite(values + at, n)) finite = false;
        rows.encode(values + at, n, scale, codes + at);
    });
    require(finite, "NaN or Inf can not be encoded");
}
static void decode_float8(const std::string& isa, const std::string& type, Bytes x, Floats scales, int64_t a, int64_t b,
                          FloatsOut out, int threads) {
    const Float8Rows& rows = float8_named(isa, type);
    require_same(out, x);
    const uint8_t* codes = x.data();
    float* values = out.data();
    over_tiles(x.shape(0), x.shape(1), scales, a, b, threads,
               [&](int64_t at, int64_t n, float scale) { rows.decode(codes + at, n, scale, values + at); });
}
// Scales: E8M0 codes of groups along rows, not 255.
static void encode_e2m1(const std::string& isa, Floats x, Bytes scales, BytesOut out, int threads) {
    const auto encode = families_named(isa).encode_e2m1;
    const int64_t rows = x.shape(0), groups = scales.shape(1);
    require(groups > 0 && x.shape(1) % groups == 0, "the groups do not divide the row");
    require_shape(scales, rows, groups);
    require_same(out, x);
    const int64_t group = x.shape(1) / groups;
    const float* values = x.data();
    const uint8_t* scale = scales.data();
    uint8_t* codes = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * groups, kLanes, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at)
            encode(values + at * group, group, ldexpf(1.0f, 127 - scale[at]), codes + at * group);
    });
}
static void round_codes(const std::string& isa, Floats x, Floats factors, Floats zeros, int low, int high, int shift,
                        BytesOut codes, int threads) {
    const auto round = families_named(isa).round_codes;
    const int64_t rows = x.shape(0), groups = factors.shape(1);
    require(groups > 0 && x.shape(1) % groups == 0, "the groups do not divide the row");
    require(-128 <= low && low <= high && high <= 255 && low + shift >= 0 && high + shift <= 255, "codes are bytes");
    require_shape(factors, rows, groups);
    require_same(zeros, factors);
    require_same(codes, x);
    const RoundedRange range = {float(low), float(high), shift};
    const int64_t group = x.shape(1) / groups;
    const float *values = x.data(), *factor = factors.data(), *zero = zeros.data();
    uint8_t* code = codes.data();
    nb::gil_scoped_release released;
    parallel_for(rows * groups, kLanes, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at)
            round(values + at * group, group, range, factor[at], zero[at], code + at * group);
    });
}
static void tile_amax(const std::string& isa, Floats x, int64_t a, int64_t b, FloatsOut out, int threads) {
    const Kernels& kernels = kernels_named(isa);
    const Families& families = families_named(isa);
    require(a > 0 && b > 0, "a tile has at least one value");
    const int64_t rows = x.shape(0), columns = x.shape(1), tiles = (columns + b - 1) / b;
    require_shape(out, (rows + a - 1) / a, tiles);
    const float* values = x.data();
    float* largest = out.data();
    std::atomic<bool> finite{true};
    {
        nb::gil_scoped_release released;
        parallel_for((rows + a - 1) / a, 1, threads, [&](int64_t begin, int64_t end) {
            for (int64_t band = begin; band < end; ++band) {
                const int64_t count = std::min(a, rows - band * a);
                const float* first = values + band * a * columns;
                if (!kernels.all_finite(first, count * columns)) finite = false;
                for (int64_t tile = 0; tile < tiles; ++tile)
                    largest[band * tiles + tile] =
                        families.tile_amax(first + tile * b, count, columns, std::min(b, columns - tile * b));
            }
        });
    }
    require(finite, "NaN or Inf can not be encoded");
}

static void pack_nibbles(Bytes codes, bool low_first, BytesOut out, int threads) {
    const int64_t rows = codes.shape(0), bytes = out.shape(1);
    require_shape(codes, out.shape(0), 2 * bytes);
    const uint8_t* code = codes.data();
    uint8_t* packed = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * bytes, 4096, threads, [&](int64_t begin, int64_t end) {
        pack_nibble_row(code + 2 * begin, end - begin, low_first, packed + begin);
    });
}
static void unpack_nibbles(Bytes packed, bool low_first, BytesOut out, int threads) {
    const int64_t rows = packed.shape(0), bytes = packed.shape(1);
    require_shape(out, rows, 2 * bytes);
    const uint8_t* from = packed.data();
    uint8_t* code = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * bytes, 4096, threads, [&](int64_t begin, int64_t end) {
        unpack_nibble_row(from + begin, end - begin, low_first, code + 2 * begin);
    });
}

static void pack_columns(Bytes codes, int bits, WordsOut out, int threads) {
    const int64_t rows = codes.shape(0), columns = codes.shape(1);
    require(bits >= 1 && bits <= 8 && columns * bits % 32 == 0, "codes of a row are whole words");
    require_shape(out, columns * bits / 32, rows);
    const uint8_t* code = codes.data();
    uint32_t* words = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows, kStrip, threads,
                 [&](int64_t begin, int64_t end) { pack_column_strip(code, rows, columns, bits, begin, end, words); });
}
static void unpack_columns(Words packed, int bits, int64_t start, int64_t stop, BytesOut out, int threads) {
    const int64_t words = packed.shape(0), rows = packed.shape(1);
    require(bits >= 1 && bits <= 8 && words * 32 % bits == 0, "words are whole codes");
    require(0 <= start && start <= stop && stop <= rows, "rows that are not there");
    const int64_t columns = words * 32 / bits;
    require_shape(out, stop - start, columns);
    const uint32_t* from = packed.data();
    uint8_t* code = out.data();
    nb::gil_scoped_release released;
    parallel_for(stop - start, kStrip, threads, [&](int64_t begin, int64_t end) {
        unpack_column_strip(from, rows, words, bits, start + begin, start + end, code + begin * columns);
    });
}

static void pack_awq(Bytes codes, WordsOut out, int threads) {
    const int64_t rows = codes.shape(0), columns = codes.shape(1);
    require(rows % 8 == 0, "AWQ packs multiples of 8 rows");
    require_shape(out, columns, rows / 8);
    const uint8_t* code = codes.data();
    uint32_t* words = out.data();
    nb::gil_scoped_release released;
    parallel_for(columns, kAwqStrip, threads,
                 [&](int64_t begin, int64_t end) { pack_awq_strip(code, rows, columns, begin, end, words); });
}
static void unpack_awq(Words packed, int64_t start, int64_t stop, BytesOut out, int threads) {
    const int64_t columns = packed.shape(0), words = packed.shape(1);
    require(0 <= start && start <= stop && stop <= 8 * words, "rows that are not there");
    require_shape(out, stop - start, columns);
    const uint32_t* from = packed.data();
    uint8_t* code = out.data();
    nb::gil_scoped_release released;
    parallel_for(columns, kAwqStrip, threads, [&](int64_t begin, int64_t end) {
        unpack_awq_strip(from, words, columns, start, stop, begin, end, code);
    });
}

static Fp4Layout fp4_layout(const std::string& kind) {
    require(kind == "MXFP4" || kind == "NVFP4", "blocks of 4-bit floats are MXFP4 or NVFP4");
    return kind == "MXFP4" ? Fp4Layout{32, 1, 32} : Fp4Layout{64, 4, 16};
}
static void join_fp4_blocks(const std::string& kind, Bytes codes, Bytes scales, BytesOut out, int threads) {
    const Fp4Layout layout = fp4_layout(kind);
    const int64_t rows = codes.shape(0), blocks = codes.shape(1) / layout.values;
    const int bytes = layout.header + layout.values / 2;
    require_shape(codes, rows, blocks * layout.values);
    require_shape(scales, rows, blocks * layout.header);
    require_shape(out, rows, blocks * bytes);
    const uint8_t *code = codes.data(), *scale = scales.data();
    uint8_t* packed = out.data();
    nb::gil_scoped_release released;
    parallel_for(rows * blocks, 16, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at)
            join_fp4_block(layout, code + at * layout.values, scale + at * layout.header, packed + at * bytes);
    });
}
static void split_fp4_blocks(const std::string& kind, Bytes packed, BytesOut codes, BytesOut scales, int threads) {
    const Fp4Layout layout = fp4_layout(kind);
    const int64_t rows = packed.shape(0), blocks = codes.shape(1) / layout.values;
    const int bytes = layout.header + layout.values / 2;
    require_shape(codes, rows, blocks * layout.values);
    require_shape(scales, rows, blocks * layout.header);
    require_shape(packed, rows, blocks * bytes);
    const uint8_t* from = packed.data();
    uint8_t *code = codes.data(), *scale = scales.data();
    nb::gil_scoped_release released;
    parallel_for(rows * blocks, 16, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at)
            split_fp4_block(layout, from + at * bytes, code + at * layout.values, scale + at * layout.header);
    });
}

void bitsmith::add_families(nb::module_& m) {
    m.def("encode_codebook", &encode_codebook, nb::arg("isa"), nb::arg("x"), nb::arg("table"), nb::arg("group"),
          nb::arg("scale_type"), nb::arg("search"), nb::arg("importance").none(), nb::arg("codes"), nb::arg("scales"),
          nb::arg("threads"));
    m.def("encode_affine", &encode_affine, nb::arg("isa"), nb::arg("x"), nb::arg("bits"), nb::arg("group"),
          nb::arg("scale_type"), nb::arg("search"), nb::arg("importance").none(), nb::arg("codes"), nb::arg("scales"),
          nb::arg("offsets"), nb::arg("threads"));
    m.def("half_quadratic", &half_quadratic);
    m.def("decode_codebook", &decode_codebook);
    m.def("decode_affine", &decode_affine);
    m.def("decode_zeros", &decode_zeros);
    m.def("to_float8", &to_float8);
    m.def("from_float8", &from_float8);
    m.def("encode_float8", &encode_float8);
    m.def("decode_float8", &decode_float8);
    m.def("encode_e2m1", &encode_e2m1);
    m.def("round_codes", &round_codes);
    m.def("tile_amax", &tile_amax);
    m.def("pack_nibbles", &pack_nibbles);
    m.def("unpack_nibbles", &unpack_nibbles);
    m.def("pack_columns", &pack_columns);
    m.def("unpack_columns", &unpack_columns);
    m.def("pack_awq", &pack_awq);
    m.def("unpack_awq", &unpack_awq);
    m.def("join_fp4_blocks", &join_fp4_blocks);
    m.def("split_fp4_blocks", &split_fp4_blocks);
}
