// What every instruction set offers besides products: plain functions on one thread, filled in rows.h and attention.h.
#pragma once
#include <stdint.h>

namespace bitsmith::engine {

enum class CacheType { kF16, kBF16, kF32 };
enum class Activation { kSilu, kGelu, kGeluTanh };

// Keys and values of one layer, sequence and key head. Keys lie in tiles of kKeyTile positions, [tile][dim][position],
// so that scores of neighbouring positions are sums over vectors; values are rows of `stride` (a multiple of kKeyTile).
constexpr int kKeyTile = 16;
constexpr int kKeyBlock = 64;  // positions whose scores are computed together
constexpr int kMaxRows = 64;   // queries that share one pass over the cache

constexpr int kBuckets = 1024;  // that logits are sorted into, for top-p

struct CacheView {
    void* keys;
    void* values;
    int dim;
    int stride;
};

// Queries over positions [begin, end) of one cache view; a row sees only [first[i], last[i]].
// queries: [rows][dim], scaled. sums: [rows][stride], maxima and weights: [rows]; the running state of the online
// softmax. A row's result is sums / weights.
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
    float* scores;  // scratch: [kMaxRows][kKeyBlock]
};

struct OpTable {
    void (*norm)(const float* x, float* out, const float* gain, int64_t width, float eps);
    void (*rope)(float* x, const float* cosines, const float* sines, int count, bool pairs);
    void (*act_mul)(Activation kind, const float* gate, const float* up, float* out, int64_t count);
    void (*add)(const float* x, float* out, int64_t count);
    void (*add_scaled)(const float* x, float scale, float* out, int64_t count);
    void (*scale)(const float* x, float factor, float* out, int64_t count);
    void (*softcap)(float* x, float cap, int64_t count);
    void (*exp)(const float* x, float* out, int64_t count);
    // In the order of CacheType.
    void (*store_key)(CacheType type, const CacheView& cache, int64_t position, const float* key, const float* value);
    void (*attend)(CacheType type, const Attend& task);
    // For sampling.
    float (*largest)(const float* x, int64_t count);
    double (*exp_sum)(const float* x, float largest, double factor, float floor, int64_t count, double* out);
    double (*keep_above)(const float* x, float cut, int64_t last, double least, int64_t count, double* share);
    void (*bucket_mass)(const float* x, const double* share, int64_t count, float largest, float scale, double* mass);
    int64_t (*gather_bucket)(const float* x, int64_t count, float largest, float scale, int bucket, int32_t* ids);
    int64_t (*gather_above)(const float* x, int64_t count, float floor, int32_t first, int32_t* ids);
};

}  // namespace bitsmith::engine
