// Statistics of stored values where the compiler has no vector types (inspect.h), and, without BITSMITH_PLAIN, with
// them. Prints figures of the same made-up values, so that both can be held against each other.
#if defined(BITSMITH_PLAIN)
#undef __GNUC__
#undef __SSE2__
#undef __SSE4_1__
#endif
#define BITSMITH_NS probe
#include "inspect.h"
#include "lanes.h"

extern "C" int printf(const char*, ...);
using namespace bitsmith;
using namespace bitsmith::probe;

constexpr int kRows = 37, kColumns = 300, kSpans = 20;
static float wide[kRows * kColumns];
static uint16_t narrow[kRows * kColumns];
static int64_t scratch[1 << 14];

static void fill() {
    unsigned seed = 1;
    for (int i = 0; i < kRows * kColumns; ++i) {
        seed = seed * 1664525u + 1013904223u;
        wide[i] = float(int(seed >> 8) - (1 << 23)) / float(1 << 23);
        uint32_t bits;
        memcpy(&bits, wide + i, sizeof bits);
        narrow[i] = uint16_t(bits >> 16);
    }
    wide[5] = 1e38f * 1e38f;
    wide[400] = wide[5] - wide[5];
}

template <class T>
static void rows_of(const void* data, int size) {
    for (int row = 0; row < 4; ++row) {
        const char* from = static_cast<const char*>(data) + row * kColumns * size;
        const RowFigures found = row_figures<T>(from, kColumns - row % 2, true, scratch);
        printf("%a %a %a %d\n", found.largest, found.median, found.squares, int(found.finite));
    }
}

template <class T>
static void columns_of(const void* data) {
    float largest[kColumns] = {}, medians[kColumns] = {}, pooled[kSpans];
    double squares[kColumns] = {};
    int64_t bad[kColumns] = {}, finite[kRows], starts[kSpans], stops[kSpans];
    static float cells[kRows * kColumns];
    for (int64_t& count : finite) count = kColumns;
    finite[0] = finite[1] = kColumns - 1;
    column_sums<T>(data, kColumns, kRows, kStripColumns, finite, largest, squares, bad, cells, kColumns);
    column_medians<T>(data, kColumns, kRows, 16, scratch, medians);
    for (int i = 0; i < kSpans; ++i) starts[i] = i * 15, stops[i] = i * 15 + 15;
    pool_rows<T>(data, kColumns, kRows, kColumns, starts, stops, kSpans, scratch, pooled);
    for (int i = 0; i < kSpans; ++i)
        printf("%a %a %d %a %a %a\n", largest[i], squares[i], int(bad[i]), medians[i], cells[i], pooled[i]);
}

int main() {
    fill();
    rows_of<TypeF32>(wide, 4);
    rows_of<TypeBF16>(narrow, 2);
    rows_of<TypeF16>(narrow, 2);
    columns_of<TypeF32>(wide);
    columns_of<TypeBF16>(narrow);
    columns_of<TypeF16>(narrow);
    for (int row = 0; row < 3; ++row) {
        float own[kColumns];
        double sums[4];
        for (int i = 0; i < kColumns; ++i) own[i] = 2 * wide[row * kColumns + i];
        row_powers(own, kColumns - row, 0.1, sums);
        printf("%a %a %a %a\n", sums[0], sums[1], sums[2], sums[3]);
    }
}
