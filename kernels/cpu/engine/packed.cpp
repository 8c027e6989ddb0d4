#include "packed.h"

#include "code_bits.h"

#include <math.h>
#include <string.h>

namespace bitsmith::engine {

static int64_t padded(int64_t bytes) {
    return (bytes + kAlign - 1) / kAlign * kAlign;
}

static int scale_bytes(Scales scales) {
    switch (scales) {
        case Scales::kF32:
            return 4;
        case Scales::kF16:
        case Scales::kBF16:
            return 2;
        case Scales::kE8M0:
        case Scales::kE4M3:
            return 1;
        default:
            return 0;
    }
}

void set_layout(Packed& packed) {
    packed.tiles = (packed.rows + kTile - 1) / kTile;
    packed.steps = (packed.columns + kStep - 1) / kStep;
    const int entries = kChunk / packed.granularity;
    int64_t head = int64_t{scale_bytes(packed.scales)} * entries * kTile;
    const bool minimums = packed.offsets == Offsets::kMinimums;
    switch (packed.scales) {
        case Scales::kSub8:
            head = 32 + entries * kTile;
            break;
        case Scales::kSub4:
            head = 64 + entries * kTile;
            break;
        case Scales::kPair6:
            head = 64 + 3 * kTile * 4;
            break;
        default:
            head += packed.offsets == Offsets::kZeros ? entries * kTile : minimums ? head : 0;
    }
    packed.head_bytes = padded(head);
    switch (packed.codes) {
        case Codes::kInteger:
        case Codes::kLevels:
        case Codes::kFloatTable:
            packed.step_bytes = packed.bits * 64;
            break;
        case Codes::kF32:
            packed.step_bytes = 2048;
            break;
        case Codes::kF16:
        case Codes::kBF16:
            packed.step_bytes = 1024;
            break;
        default:
            packed.step_bytes = 512;
    }
    const int64_t chunks = (packed.steps + kChunkSteps - 1) / kChunkSteps;
    packed.tile_bytes = chunks * packed.head_bytes + packed.steps * packed.step_bytes;
}

// ---- one weight at a time ----

static float from_word(uint32_t word) {
    float value;
    memcpy(&value, &word, 4);
    return value;
}
static float f16_at(const uint8_t* p) {
    uint16_t half;
    memcpy(&half, p, 2);
    const uint32_t exponent = half & 0x7c00, sign = uint32_t(half & 0x8000) << 16,
                   shifted = uint32_t(half & 0x7fff) << 13;
    if (exponent == 0x7c00) return from_word(shifted | 0x7f800000 | sign | (half & 0x3ff ? 0x00400000 : 0));
    if (exponent) return from_word((shifted + (112u << 23)) | sign);
    const float value = float(half & 0x3ff) * (1.0f / 16777216.0f);
    return sign ? -value : value;
}
static float bf16_at(const uint8_t* p) {
    uint16_t half;
    memcpy(&half, p, 2);
    return from_word(uint32_t(half) << 16);
}
static float f32_at(const uint8_t* p) {
    float value;
    memcpy(&value, p, 4);
    return value;
}
static float e8m0_half(int e) {
    return from_word(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23);
}
static float e4m3_magnitude(int code) {
    return code < 8 ? float(code) * (1.0f / 512.0f) : from_word((uint32_t(code) << 20) + (120u << 23));
}
static float e4m3(int code) {
    const float value = (code & 0x7f) == 0x7f ? from_word(0x7fc00000) : e4m3_magnitude(code & 0x7f);
    return code & 0x80 ? -value : value;
}
static float e5m2(int code) {
    const uint8_t half[2] = {0, uint8_t(code)};
    return f16_at(half);
}

struct Scale {
    float scale, minimum;  // minimum: what is added, or the zero's code
};

// Of row r (0…15) and of `column` within the chunk whose head this is.
static Scale scale_at(const Packed& w, const uint8_t* head, int r, int column) {
    const int entries = kChunk / w.granularity, i = column / w.granularity, at = i * kTile + r;
    const float d = f16_at(head + 2 * r);
    Scale s = {1.0f, float(w.zero)};
    switch (w.scales) {
        case Scales::kNone:
            return s;
        case Scales::kF16:
            s.scale = f16_at(head + 2 * at);
            break;
        case Scales::kBF16:
            s.scale = bf16_at(head + 2 * at);
            break;
        case Scales::kF32:
            s.scale = f32_at(head + 4 * at);
            break;
        case Scales::kE8M0:
            s.scale = e8m0_half(head[at]);
            break;
        case Scales::kE4M3:
            s.scale = 0.5f * e4m3_magnitude(head[at]);
            break;
        case Scales::kSub8:
            s.scale = d * float(int8_t(head[32 + at]));
            return s;
        case Scales::kSub4: {
            const int both = head[64 + at];
            return {d * float(both & 15), -(f16_at(head + 32 + 2 * r) * float(both >> 4))};
        }
        case Scales::kPair6: {
            const bool minimums = w.offsets == Offsets::kMinimums;
            const int step = column / kStep, group = step / 4;
            const uint8_t* pair = head + 64 + r * 4 + step % 4;
            const int a = (pair[0] >> (4 * group) & 15) | (pair[128] >> (2 * group) & 3) << 4,
                      b = (pair[64] >> (4 * group) & 15) | (pair[128] >> (4 + 2 * group) & 3) << 4;
            if (minimums) return {d * float(a), -(f16_at(head + 32 + 2 * r) * float(b))};
            s.scale = d * float((i % 2 ? b : a) - 32);
            return s;
        }
    }
    const uint8_t* offsets = head + scale_bytes(w.scales) * entries * kTile;
    if (w.offsets == Offsets::kMinimums)
        s.minimum = w.scales == Scales::kF32   ? f32_at(offsets + 4 * at)
                    : w.scales == Scales::kF16 ? f16_at(offsets + 2 * at)
                                               : bf16_at(offsets + 2 * at);
    if (w.offsets == Offsets::kZeros) s.minimum = float(offsets[at]);
    return s;
}

// The stored code of row r and `column` 0…31 of the step at p.
static int code_at(const Packed& w, const uint8_t* p, int r, int column) {
    const Pieces pieces = pieces_of(w.bits, column / 4);
    int code = 0;
    for (int i = 0; i < pieces.count; ++i) {
        const Piece& piece = pieces.at[i];
        code |= (p[64 * piece.vector + r * 4 + column % 4] >> piece.from & ((1 << piece.count) - 1)) << piece.to;
    }
    return code;
}

static float weight_at(const Packed& w, const uint8_t* codes, const Scale& s, int r, int column) {
    switch (w.codes) {
        case Codes::kF32:
            return f32_at(codes + (column * kTile + r) * 4);
        case Codes::kF16:
            return f16_at(codes + (column * kTile + r) * 2);
        case Codes::kBF16:
            return bf16_at(codes + ((column / 2 * kTile + r) * 2 + column % 2) * 2);
        case Codes::kE4M3:
            return e4m3(codes[column * kTile + r]) * (s.scale * w.factor);
        case Codes::kE5M2:
            return e5m2(codes[column * kTile + r]) * (s.scale * w.factor);
        case Codes::kFloatTable:
            return w.table[code_at(w, codes, r, column)] * s.scale;
        case Codes::kLevels:
            return s.scale * float(int(w.levels[code_at(w, codes, r, column)]) - 128) * w.factor;
        case Codes::kInteger:
            break;
    }
    const float code = float(code_at(w, codes, r, column));
    return w.offsets == Offsets::kMinimums ? s.scale * code + s.minimum : s.scale * (code - s.minimum);
}

void read_row(const Packed& w, int64_t row, float* out) {
    const uint8_t* head = w.tile(row / kTile);
    const int r = int(row % kTile), run = w.granularity < kStep ? w.granularity : kStep;
    for (int64_t k = 0; k < w.columns; head += w.chunk_bytes()) {
        for (int at = 0; at < kChunk && k < w.columns; at += run) {
            const Scale s = scale_at(w, head, r, at);
            const uint8_t* codes = head + w.head_bytes + at / kStep * w.step_bytes;
            for (int i = 0; i < run && k < w.columns; ++i, ++k)
                out[w.order ? w.order[k] : k] = weight_at(w, codes, s, r, at % kStep + i);
        }
    }
}

void add_columns(const Packed& w, const int32_t* columns, int count, const float* x, int64_t x_stride, int64_t m,
                 float* out, int64_t out_stride, int64_t tile_begin, int64_t tile_end) {
    for (int64_t tile = tile_begin; tile < tile_end; ++tile) {
        const int64_t first = tile * kTile, left = w.rows - first;
        const int rows = left < kTile ? int(left) : kTile;
        for (int i = 0; i < count; ++i) {
            const int32_t column = w.place ? w.place[columns[i]] : columns[i];
            const int at = column % kChunk;
            const uint8_t* head = w.tile(tile) + column / kChunk * w.chunk_bytes();
            const uint8_t* codes = head + w.head_bytes + at / kStep * w.step_bytes;
            float weight[kTile];
            for (int r = 0; r < rows; ++r) weight[r] = weight_at(w, codes, scale_at(w, head, r, at), r, at % kStep);
            for (int64_t t = 0; t < m; ++t) {
                const float value = x[t * x_stride + columns[i]];
                if (value == 0.0f) continue;
                for (int r = 0; r < rows; ++r) out[t * out_stride + first + r] += value * weight[r];
            }
        }
    }
}

}  // namespace bitsmith::engine
