// What every instruction set offers to kernels/families.py: one table of plain functions, filled in isa/families.inl.
#pragma once
#include "table.h"

namespace bitsmith {

// A table of sixteen levels in ascending order, the middles between neighbours, and the code of each level.
struct Codebook {
    float levels[16], middles[16];  // the last middle is infinite
    int32_t order[16];
    bool ascending;  // whether the order is 0, 1, 2 …
    float largest;   // magnitude
};

// Sixteen groups of n values along rows for the encoders of kernels/families.py; lanes past the end as in Batch.
struct FamilyBatch {
    const float* x[kLanes];
    const float* weight[kLanes];
    uint8_t* codes[kLanes];
    float scale[kLanes], offset[kLanes];  // results; offset: the affine code's, or the half-quadratic zero
    float* scratch;                       // as in GroupBatch
    int n;
    int bits;
    ScaleType scale_type;
    bool weighted;
    bool search;
    const Codebook* table;
    // Half-quadratic only. limits: errors that are surely no outliers, of each iteration.
    const float *inverse_betas, *limits;
    int iterations;
    float exponent;
    bool round_zero;
};

// Codes are integers low … high, stored with shift added.
struct RoundedRange {
    float low, high;
    int shift;
};

enum Float8 { kE4M3, kE5M2, kFloat8s };
struct Float8Rows {
    void (*from_float32)(const float* x, int64_t n, uint8_t* out);
    void (*to_float32)(const uint8_t* codes, int64_t n, float* out);
    void (*encode)(const float* x, int64_t n, float scale, uint8_t* out);  // of x / scale, never infinite
    void (*decode)(const uint8_t* codes, int64_t n, float scale, float* out);
};

struct Families {
    void (*encode_codebook)(FamilyBatch& batch);
    void (*encode_affine)(FamilyBatch& batch);
    void (*half_quadratic)(FamilyBatch& batch);
    void (*decode_codebook)(const uint8_t* codes, int64_t n, float scale, float factor, const float* table, float* out);
    void (*decode_affine)(const uint8_t* codes, int64_t n, float scale, float offset, float* out);
    Float8Rows float8[kFloat8s];
    void (*encode_e2m1)(const float* x, int64_t n, float factor, uint8_t* codes);
    void (*round_codes)(const float* x, int64_t n, const RoundedRange& range, float factor, float zero, uint8_t* codes);
    float (*tile_amax)(const float* x, int64_t rows, int64_t stride, int64_t columns);
};

const Families* families_baseline();
const Families* families_avx2();  // null when this compiler or architecture has none
const Families* families_avx512();

}  // namespace bitsmith
