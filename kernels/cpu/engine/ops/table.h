// What every instruction set offers besides products: plain functions on one thread, filled in rows.h and attention.h.
#pragma once
#include <stdint.h>

#include "row_kinds.h"

namespace bitsmith::engine {

// In tiles: floats, and codes of which kCodeBlock neighbours share a float16 scale. Or rows of row_kinds.h.
enum class CacheType { kF16, kBF16, kF32, kQ8_0, kQ4_0, kRows };
enum class Activation { kSilu, kGelu, kGeluTanh };

constexpr int kKeyTile = 16;    // positions that lie together
constexpr int kKeyBlock = 64;   // positions whose scores are computed together
constexpr int kMaxRows = 64;    // queries that share one pass over the cache
constexpr int kCodeBlock = 32;  // values of a head

constexpr bool has_codes(CacheType type) {
    return type == CacheType::kQ8_0 || type == CacheType::kQ4_0;
}
constexpr int code_bits(CacheType type) {
    return type == CacheType::kQ8_0 ? 8 : 4;
}
// Values of a head with those that are only there to fill up.
constexpr int key_width(CacheType type, int dim) {
    return has_codes(type) ? (dim + kCodeBlock - 1) / kCodeBlock * kCodeBlock : dim;
}
constexpr int value_width(CacheType type, int dim) {
    return has_codes(type) ? key_width(type, dim) : (dim + kKeyTile - 1) / kKeyTile * kKeyTile;
}
// Bytes of kKeyTile positions; width: as the two above have it.
constexpr int64_t tile_bytes(CacheType type, int width) {
    if (has_codes(type)) return int64_t{kKeyTile} * (width / kCodeBlock) * (2 + kCodeBlock * code_bits(type) / 8);
    return int64_t{kKeyTile} * width * (type == CacheType::kF32 ? 4 : 2);
}

constexpr int kMostOrder = 256;  // of the small factor of a rotation
constexpr int kBuckets = 1024;   // that logits are sorted into, for top-p

// Positions that stay or wait as float16 rows beside the codes: the first ones, then the last ones in a ring. What the
// batch brings is still where the batch has it, in float32: position batch_start + i in row batch_rows[i].
struct FloatRows {
    uint8_t* sinks;
    int64_t sink_count;
    uint8_t* ring;
    int64_t ring_size;
    const float* batch;
    int64_t batch_width;
    const int32_t* batch_rows;
    int64_t batch_start;
};

// Of keys that are kept as they are before the rotary step: [position][cosines, then sines]; null: they are turned.
struct CacheAngles {
    const float* cosines;
    int count;
    bool pairs;
};

// Keys and values of one layer, sequence and key head, in tiles of kKeyTile positions.
// Floats: keys [tile][dim][position], so that scores of neighbouring positions are sums over vectors, and values
// [position][stride]. Codes: see cache_codes.h. Rows of codes: [position][bytes], of units [position / kUnit][bytes].
struct CacheView {
    void* keys;
    void* values;
    int dim;
    int stride;  // value_width
    CacheType key_type, value_type;
    Row key_row, value_row;        // of kRows
    float key_scale, value_scale;  // of FP8
    bool turned_keys;              // by hadamard, which has to be undone before the rotary step
    CacheAngles angles;
    FloatRows key_floats, value_floats;
};

// Queries over positions [begin, end) of one cache view; a row sees only [first[i], last[i]].
// queries: [rows][dim], scaled. sums: [rows][stride], maxima and weights: [rows]; the running state of the online
// softmax, which `fresh` begins. A row's result is sums / weights. float_keys, float_values: they are read from the
// rows beside the codes.
struct Attend {
    CacheView cache;
    const float* queries;
    int rows;
    int64_t begin, end;
    const int64_t* first;
    const int64_t* last;
    float softcap;
    float* sums;
    float* maxima;
    float* weights;
    float* scores;   // scratch: [kMaxRows][kKeyBlock]
    char* codes;     // scratch for keys with codes: query_bytes of kMaxRows queries
    float* decoded;  // scratch for rows: [kKeyTile][stride] and 64 more
    bool fresh;
    bool float_keys, float_values;
};

// Queries as codes meet them: 16-bit integers, a sum for each kCodeBlock of them, and one scale.
constexpr int64_t query_bytes(int width) {
    return 2 * width + 4 * (width / kCodeBlock) + 4;
}

// A run of order · size values becomes (x ∘ signs) · (factor ⊗ Sylvester's matrix of `size`) · scale. size: a power of
// two; order ≤ kMostOrder; signs: [order · size]; factor: [order][order], not looked at where the order is 1.
struct RunRotation {
    int64_t size, order;
    const float* factor;
    const float* signs;
    float scale;
};

struct OpTable {
    void (*norm)(const float* x, float* out, const float* gain, int64_t width, float eps);
    void (*rope)(float* x, const float* cosines, const float* sines, int count, bool pairs);
    void (*act_mul)(Activation kind, const float* gate, const float* up, float* out, int64_t count);
    void (*rotate_run)(float* x, const RunRotation& rotation);
    void (*add)(const float* x, float* out, int64_t count);
    void (*add_scaled)(const float* x, float scale, float* out, int64_t count);
    void (*scale)(const float* x, float factor, float* out, int64_t count);
    void (*softcap)(float* x, float cap, int64_t count);
    void (*exp)(const float* x, float* out, int64_t count);
    void (*store_key)(const CacheView& cache, int64_t position, const float* key);
    void (*store_value)(const CacheView& cache, int64_t position, const float* value);
    void (*read_rows)(const CacheView& cache, bool keys, bool floats, int64_t from, int64_t to, float* out);
    void (*attend)(const Attend& task);
    // For sampling.
    float (*largest)(const float* x, int64_t count);
    double (*exp_sum)(const float* x, float largest, double factor, float floor, int64_t count, double* out);
    double (*keep_above)(const float* x, float cut, int64_t last, double least, int64_t count, double* share);
    void (*bucket_mass)(const float* x, const double* share, int64_t count, float largest, float scale, double* mass);
    int64_t (*gather_bucket)(const float* x, int64_t count, float largest, float scale, int bucket, int32_t* ids);
    int64_t (*gather_above)(const float* x, int64_t count, float floor, int32_t first, int32_t* ids);
};

}  // namespace bitsmith::engine
