// Formats of which the cache keeps whole rows: the bytes that kernels/reference/kv.py has of one head and token, one
// after the other; of formats with scales of channels, of one head and kUnit tokens.
#pragma once
#include <stdint.h>

namespace bitsmith::engine {

enum class Row : uint8_t {
    kF16,
    kBF16,
    kF32,
    kQ8_0,
    kQ5_1,
    kQ5_0,
    kQ4_1,
    kQ4_0,
    kIQ4_NL,
    kInt8,
    kInt4,
    kInt8g64,
    kInt4g64,
    kInt4g32,
    kE4M3,
    kE5M2,
    kU8g64,
    kU4g64,
    kU4g32,
    kU2g32,
    kU4t32,
    kU2t32,
    kLM4,
    kLM3,
    kLM2,
};

constexpr int kUnit = 32;  // tokens that are stored together

// bits: of a code. group: values with numbers of their own, 0: the whole row. metadata: bytes of these numbers.
// channels: a group is kUnit tokens of one channel.
struct RowFormat {
    const char* name;
    int bits, group, metadata;
    bool channels;

    int waits() const { return channels ? kUnit : 1; }
    // Of waits() tokens. A last group takes as much as all others.
    int64_t bytes(int dim) const {
        if (channels) return (int64_t)dim * (kUnit * bits / 8 + metadata);
        const int groups = group ? (dim + group - 1) / group : 1;
        return ((group ? groups * group : dim) * bits + 7) / 8 + groups * metadata;
    }
};

// In the order of Row.
constexpr RowFormat kRowFormats[] = {
    {"F16", 16, 0, 0, false},      {"BF16", 16, 0, 0, false},     {"F32", 32, 0, 0, false},
    {"Q8_0", 8, 32, 2, false},     {"Q5_1", 5, 32, 4, false},     {"Q5_0", 5, 32, 2, false},
    {"Q4_1", 4, 32, 4, false},     {"Q4_0", 4, 32, 2, false},     {"IQ4_NL", 4, 32, 2, false},
    {"INT8", 8, 0, 2, false},      {"INT4", 4, 0, 2, false},      {"INT8-g64", 8, 64, 2, false},
    {"INT4-g64", 4, 64, 2, false}, {"INT4-g32", 4, 32, 2, false}, {"FP8", 8, 0, 0, false},
    {"FP8-E5M2", 8, 0, 0, false},  {"U8-g64", 8, 64, 4, false},   {"U4-g64", 4, 64, 4, false},
    {"U4-g32", 4, 32, 4, false},   {"U2-g32", 2, 32, 4, false},   {"U4-t32", 4, 32, 4, true},
    {"U2-t32", 2, 32, 4, true},    {"LM4", 4, 0, 2, false},       {"LM3", 3, 0, 2, false},
    {"LM2", 2, 0, 2, false},
};
constexpr const RowFormat& format_of(Row row) {
    return kRowFormats[(int)row];
}

constexpr float kIQ4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// The best 2^bits levels for N(0, 1), ascending: as kernels/reference/kv.py computes them.
const float* normal_levels(int bits);

// x [dim] → bytes; scale: the one that is given for FP8. Formats without scales of channels.
void encode_row(Row row, const float* x, int dim, float scale, uint8_t* out);
// x [kUnit][dim] → bytes, of formats with scales of channels.
void encode_unit(Row row, const float* x, int dim, uint8_t* out);
// Turns x by Sylvester's Hadamard matrix ÷ √size, along runs of the largest power of two that divides dim; twice is
// none.
constexpr int kMostTurned = 1024;  // values of such a run
void hadamard(float* x, int dim);
// To the nearest float16 and back.
float rounded_to_f16(float x);

}  // namespace bitsmith::engine
