// Python's door to the statistics of stored values (inspect.h).
#include <algorithm>
#include <mutex>
#include <vector>

#include "arrays.h"
#include "parallel.h"

// Stored values as they lie in the file: BF16 and F16 as 16-bit words, or F32.
static const Inspect& inspect_named(const std::string& isa, const std::string& type, const Stored& x) {
    const StoredType found = type == "BF16" ? kStoredBF16 : type == "F16" ? kStoredF16 : kStoredF32;
    require(found != kStoredF32 || type == "F32", "stored values are BF16, F16 or F32");
    require(x.itemsize() == (found == kStoredF32 ? 4u : 2u), "wrong size of stored values");
    return kernels_named(isa).inspect[found];
}

// Adds to counts[65536] how many values have each pattern of the upper 16 bits.
static void count_patterns(Stored x, Counts counts, int threads) {
    require(counts.shape(0) == 65536, "there are 65536 patterns");
    require(x.itemsize() == 2 || x.itemsize() == 4, "stored values have 16 or 32 bits");
    const uint16_t* halves = static_cast<const uint16_t*>(x.data());
    const int64_t step = x.itemsize() / 2, n = x.size();
    const uint16_t one = 1;
    const bool little = *reinterpret_cast<const uint8_t*>(&one) == 1;
    if (step == 2 && little) ++halves;
    int64_t* total = counts.data();
    nb::gil_scoped_release released;
    std::mutex adding;
    constexpr int64_t kPiece = int64_t{1} << 30;  // before a count of 32 bits overflows
    parallel_for(n, 1 << 16, threads, [&](int64_t begin, int64_t end) {
        std::vector<uint32_t> mine(65536);
        for (int64_t first = begin; first < end; first += kPiece) {
            const int64_t last = std::min(end, first + kPiece);
            std::fill(mine.begin(), mine.end(), 0);
            for (int64_t i = first; i < last; ++i) ++mine[halves[i * step]];
            const std::lock_guard<std::mutex> guard(adding);
            for (int64_t i = 0; i < 65536; ++i) total[i] += mine[i];
        }
    });
}

// Adds to sums[4] those of the powers, row after row.
static void add_powers(const std::string& isa, Floats x, double pivot, DoubleRow sums, int threads) {
    const Kernels& kernels = kernels_named(isa);
    require(sums.shape(0) == 4, "there are four sums");
    const int64_t rows = x.shape(0), columns = x.shape(1);
    const float* values = x.data();
    double* total = sums.data();
    nb::gil_scoped_release released;
    std::vector<double> found(4 * rows);
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
            kernels.row_powers(values + row * columns, columns, pivot, found.data() + 4 * row);
    });
    for (int64_t i = 0; i < 4 * rows; ++i) total[i % 4] += found[i];
}

// What a block of rows adds to a tensor's channels. squares, largest and bad of the columns are added to.
static void channel_sums(const std::string& isa, const std::string& type, Stored x, FloatRow row_largest,
                         FloatRow row_median, DoubleRow row_squares, Counts row_finite, FloatRow largest,
                         DoubleRow squares, Counts bad, FloatsOut cells, bool medians, int threads) {
    const Inspect& inspect = inspect_named(isa, type, x);
    const int64_t rows = x.shape(0), columns = x.shape(1), size = x.itemsize();
    require((int64_t)row_largest.shape(0) == rows && (int64_t)row_median.shape(0) == rows &&
                (int64_t)row_squares.shape(0) == rows && (int64_t)row_finite.shape(0) == rows,
            "one figure a row");
    require((int64_t)largest.shape(0) == columns && (int64_t)squares.shape(0) == columns &&
                (int64_t)bad.shape(0) == columns,
            "one figure a column");
    require((int64_t)cells.shape(0) == (rows + kCell - 1) / kCell &&
                (int64_t)cells.shape(1) == (columns + kCell - 1) / kCell,
            "wrong shape of cells");
    const char* data = static_cast<const char*>(x.data());
    float *row_max = row_largest.data(), *row_mid = row_median.data(), *max = largest.data(), *cell = cells.data();
    double *row_square = row_squares.data(), *square = squares.data();
    int64_t *finite = row_finite.data(), *missing = bad.data();
    const int64_t cell_stride = cells.shape(1);
    nb::gil_scoped_release released;
    parallel_for(rows, 1, threads, [&](int64_t begin, int64_t end) {
        std::vector<int32_t> scratch(columns + kKeyLine);
        for (int64_t row = begin; row < end; ++row) {
            const RowFigures found = inspect.row_figures(data + row * columns * size, columns, medians, scratch.data());
            row_max[row] = found.largest;
            row_mid[row] = found.median;
            row_square[row] = found.squares;
            finite[row] = found.finite;
        }
    });
    parallel_for(columns, kStripColumns, threads, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; at += kStripColumns)
            inspect.column_sums(data + at * size, columns, rows, std::min<int64_t>(kStripColumns, end - at), finite,
                                max + at, square + at, missing + at, cell + at / kCell, cell_stride);
    });
}

static void column_medians(const std::string& isa, const std::string& type, Stored x, FloatRow out, int threads) {
    const Inspect& inspect = inspect_named(isa, type, x);
    const int64_t rows = x.shape(0), columns = x.shape(1), size = x.itemsize(), width = kKeyLine / size;
    require((int64_t)out.shape(0) == columns, "one median a column");
    const char* data = static_cast<const char*>(x.data());
    float* medians = out.data();
    nb::gil_scoped_release released;
    parallel_for(columns, width, threads, [&](int64_t begin, int64_t end) {
        std::vector<int32_t> scratch(rows * kKeyLine / sizeof(int32_t));
        for (int64_t at = begin; at < end; at += width)
            inspect.column_medians(data + at * size, columns, rows, std::min(width, end - at), scratch.data(),
                                   medians + at);
    });
}

// out[i, j]: largest |x| of rows row_starts[i] … row_stops[i] and columns likewise; none is empty.
static void pool_max(const std::string& isa, const std::string& type, Stored x, Edges row_starts, Edges row_stops,
                     Edges column_starts, Edges column_stops, FloatsOut out, int threads) {
    const Inspect& inspect = inspect_named(isa, type, x);
    const int64_t height = out.shape(0), width = out.shape(1), columns = x.shape(1), size = x.itemsize();
    const auto check = [](const Edges& starts, const Edges& stops, int64_t cells, int64_t limit) {
        require((int64_t)starts.shape(0) == cells && (int64_t)stops.shape(0) == cells, "one span a cell");
        for (int64_t i = 0; i < cells; ++i)
            require(0 <= starts.data()[i] && starts.data()[i] < stops.data()[i] && stops.data()[i] <= limit,
                    "a cell is empty or outside");
    };
    check(row_starts, row_stops, height, x.shape(0));
    check(column_starts, column_stops, width, columns);
    if (height == 0 || width == 0) return;
    const int64_t left = *std::min_element(column_starts.data(), column_starts.data() + width);
    const int64_t right = *std::max_element(column_stops.data(), column_stops.data() + width);
    std::vector<int64_t> starts(column_starts.data(), column_starts.data() + width);
    std::vector<int64_t> stops(column_stops.data(), column_stops.data() + width);
    for (int64_t i = 0; i < width; ++i) {
        starts[i] -= left;
        stops[i] -= left;
    }
    const char* data = static_cast<const char*>(x.data()) + left * size;
    const int64_t *first = row_starts.data(), *last = row_stops.data();
    float* cells = out.data();
    nb::gil_scoped_release released;
    parallel_for(height, 1, threads, [&](int64_t begin, int64_t end) {
        std::vector<int32_t> scratch(right - left);
        for (int64_t i = begin; i < end; ++i)
            inspect.pool_rows(data + first[i] * columns * size, columns, last[i] - first[i], right - left,
                              starts.data(), stops.data(), width, scratch.data(), cells + i * width);
    });
}

void bitsmith::add_inspect(nb::module_& m) {
    m.def("count_patterns", &count_patterns);
    m.def("add_powers", &add_powers);
    m.def("channel_sums", &channel_sums);
    m.def("column_medians", &column_medians);
    m.def("pool_max", &pool_max);
}
