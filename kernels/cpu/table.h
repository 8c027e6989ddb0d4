// What every instruction set offers: one table of plain functions, filled in isa/kernels.inl.
#pragma once
#include <stdint.h>

namespace bitsmith {

constexpr int kLanes = 16;

// Same order as the tables in isa/kernels.inl. Block sizes and bytes: layouts.py, asserted by a test.
enum Kind {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    MXFP4,
    NVFP4,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ3_XXS,
    IQ3_S,
    kKinds
};

struct Layout {
    const char* name;
    int block;
    int bytes;
};

constexpr Layout kLayouts[kKinds] = {
    {"Q4_0", 32, 18},    {"Q4_1", 32, 20},     {"Q5_0", 32, 22},    {"Q5_1", 32, 24},   {"Q8_0", 32, 34},
    {"Q2_K", 256, 84},   {"Q3_K", 256, 110},   {"Q4_K", 256, 144},  {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
    {"IQ4_NL", 32, 18},  {"IQ4_XS", 256, 136}, {"TQ1_0", 256, 54},  {"TQ2_0", 256, 66}, {"MXFP4", 32, 17},
    {"NVFP4", 64, 36},   {"IQ2_XXS", 256, 66}, {"IQ2_XS", 256, 74}, {"IQ2_S", 256, 82}, {"IQ3_XXS", 256, 98},
    {"IQ3_S", 256, 110},
};

// Sixteen blocks, one a lane. Always full: lanes past the end repeat the last block and write to a scratch block.
struct Batch {
    const float* x[kLanes];       // block values
    const float* weight[kLanes];  // importance of the block's columns; all null when there is none
    uint8_t* out[kLanes];         // block bytes
    bool weighted;
    bool search;
    float tensor_scale;  // NVFP4 only
};
// How the scale of a group is stored.
enum ScaleType { kF16, kBF16, kF32 };

// Sixteen groups of n values along rows, one a lane; lanes past the end as in Batch.
struct GroupBatch {
    const float* x[kLanes];
    const float* weight[kLanes];
    uint8_t* codes[kLanes];  // n unsigned codes
    float scale[kLanes];     // results: the scale as stored
    float zero[kLanes];      // and the unsigned code that stands for 0
    float* scratch;          // 16 · n floats, as many again when weighted, 64-byte aligned
    int n;
    int bits;
    ScaleType scale_type;
    bool symmetric;
    bool weighted;
    bool search;
};

// A group's sums are made of pieces of so many values (encode/groups.h); kernels/reference/groups.py has the same
// number.
constexpr int kSumPiece = 1024;

// Sixteen pieces of n ≤ kSumPiece values along rows, one a lane, and the sums of each for one scale.
struct PieceBatch {
    const float* x[kLanes];
    const float* weight[kLanes];                  // already divided by a power of two; all null when there is none
    float scale[kLanes], zero[kLanes];            // zero: the signed code that stands for 0
    float error[kLanes], xq[kLanes], qq[kLanes];  // results
    float* scratch;                               // 2 · 16 · kSumPiece floats, 64-byte aligned
    int n;
    int bits;
    bool weighted;
    bool load;  // false: scratch holds these pieces already
};

// Sums over one row. Values that are not finite in the source are counted and left out of all the rest.
struct RowError {
    double source_squares, error_squares, max_error;
    int64_t nonfinite;
};
struct RowScan {
    float largest, lowest, highest;
    int64_t nonfinite;
};

// Of one row's finite values: largest and median magnitude, sum of squares, how many.
struct RowFigures {
    float largest, median;
    double squares;
    int64_t finite;
};
constexpr int kCell = 8;  // rows and columns of a cell of the picture; kernels/reference/inspect.py has it too
constexpr int kStripColumns = 256;  // that column_sums takes at once, a multiple of kCell
constexpr int kKeyLine = 64;        // bytes of the keys that column_medians takes of a row

// Stored types whose statistics are taken from their bits (inspect.h).
enum StoredType { kStoredBF16, kStoredF16, kStoredF32, kStoredTypes };
struct Inspect {
    RowFigures (*row_figures)(const void* row, int64_t n, bool median, void* scratch);
    void (*column_sums)(const void* data, int64_t stride, int64_t rows, int64_t columns, const int64_t* row_finite,
                        float* largest, double* squares, int64_t* bad, float* cells, int64_t cell_stride);
    void (*column_medians)(const void* data, int64_t stride, int64_t rows, int64_t columns, void* scratch,
                           float* medians);
    void (*pool_rows)(const void* data, int64_t stride, int64_t rows, int64_t span, const int64_t* starts,
                      const int64_t* stops, int64_t width, void* scratch, float* out);
};

using Crc32 = uint32_t (*)(uint32_t before, const uint8_t* data, int64_t n);
using EncodeBatch = void (*)(const Batch& batch);
using DecodeBlocks = void (*)(const uint8_t* in, int64_t blocks, float* out, float tensor_scale);

struct Kernels {
    const char* name;
    bool (*all_finite)(const float* x, int64_t n);
    EncodeBatch encode[kKinds];
    DecodeBlocks decode[kKinds];
    void (*encode_groups)(GroupBatch& batch);
    void (*group_sums)(PieceBatch& batch);
    void (*group_codes)(const float* x, int64_t n, float scale, float zero, int bits, uint8_t* codes);
    void (*decode_group)(const uint8_t* codes, float scale, float zero, int64_t n, float* out);
    void (*to_f16)(const float* x, int64_t n, uint16_t* out);
    void (*from_f16)(const uint16_t* x, int64_t n, float* out);
    void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
    void (*from_bf16)(const uint16_t* x, int64_t n, float* out);
    RowError (*row_error)(const float* source, const float* other, int64_t n);
    // counts: `bins` of them, over −limit … limit; what lies outside is counted in the first and last. One more counts
    // the values that are not finite. pairs: null, or (bins + 1)² that take two values each, the first's bin times
    // bins + 1 and the second's added.
    void (*row_histogram)(const float* source, const float* other, int64_t n, float limit, int bins, uint32_t* pairs,
                          int64_t* counts);
    RowScan (*row_scan)(const float* x, int64_t n);
    float (*group_error_ratio)(const float* source, const float* other, int64_t n, float floor);
    Inspect inspect[kStoredTypes];
    void (*row_powers)(const float* x, int64_t n, double pivot, double* sums);
    Crc32 crc32;  // null where the set has no carry-less product
};

const Kernels* kernels_baseline();
const Kernels* kernels_avx2();  // null when this compiler or architecture has none
const Kernels* kernels_avx512();

}  // namespace bitsmith
