// Rows become codes once a token, so this is compiled once, and without fused products: bytes are the reference's.
#include "row_kinds.h"

#include <math.h>
#include <string.h>

#define BITSMITH_NS rows
#include "vec.h"

namespace bitsmith::engine {

using rows::ops::F16;
using rows::ops::put;

namespace {

constexpr int kBlock = 32;
constexpr float kNormal4[] = {-2.73258948f,  -2.06901717f,  -1.6180464f,  -1.25623119f, -0.942340434f, -0.656759143f,
                              -0.388048291f, -0.128395036f, 0.128395036f, 0.388048291f, 0.656759143f,  0.942340434f,
                              1.25623119f,   1.6180464f,    2.06901717f,  2.73258948f};
constexpr float kNormal3[] = {-2.15194559f, -1.34390926f, -0.756005287f, -0.24509418f,
                              0.24509418f,  0.756005287f, 1.34390926f,   2.15194559f};
constexpr float kNormal2[] = {-1.51041758f, -0.452780038f, 0.452780038f, 1.51041758f};
constexpr uint16_t kNaN = 0x7e00;

uint16_t half_of(float x) {
    F16 half;
    put(&half, x);
    return half.bits;
}
float value_of(uint16_t half) {
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, body = (uint32_t)(half & 0x7fff) << 13;
    float value;
    if ((half & 0x7c00) == 0x7c00) {
        const uint32_t bits = sign | body | 0x7f800000;
        memcpy(&value, &bits, 4);
        return value;
    }
    memcpy(&value, &body, 4);
    value *= 0x1p112f;
    return sign ? -value : value;
}
void store_half(uint8_t* to, uint16_t half) {
    memcpy(to, &half, 2);
}
float inverse_of(float x) {
    const float largest = 3.4028234663852886e38f;
    if (x == 0.0f) return 0.0f;
    const float inverse = 1.0f / x;
    return inverse > largest ? largest : inverse < -largest ? -largest : inverse;
}
bool all_finite(const float* x, int count, int step = 1) {
    float odd = 0.0f;
    for (int i = 0; i < count; ++i) odd += x[i * step] - x[i * step];
    return odd == 0.0f;
}
// Codes one after the other, the first in the lowest bits.
void pack(const uint8_t* codes, int count, int bits, uint8_t* out) {
    uint32_t waiting = 0;
    int filled = 0;
    for (int i = 0; i < count; ++i) {
        waiting |= (uint32_t)codes[i] << filled;
        for (filled += bits; filled >= 8; filled -= 8, waiting >>= 8) *out++ = (uint8_t)waiting;
    }
    if (filled) *out = (uint8_t)waiting;
}

// Blocks of ggml. Codes of 5 bits have the fifth apart, before the others, which lie 16 apart.
uint8_t* store_block(const uint8_t codes[kBlock], int bits, uint8_t* out) {
    if (bits == 5) {
        uint32_t fifth = 0;
        for (int i = 0; i < kBlock; ++i) fifth |= (uint32_t)(codes[i] >> 4) << i;
        memcpy(out, &fifth, 4);
        out += 4;
    }
    for (int i = 0; i < kBlock / 2; ++i) out[i] = (uint8_t)((codes[i] & 15) | (codes[i + kBlock / 2] & 15) << 4);
    return out + kBlock / 2;
}

float extreme_of(const float* x) {
    float extreme = 0.0f;
    for (int i = 0; i < kBlock; ++i)
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    return extreme;
}

void centred(const float* x, int bits, uint8_t* out) {
    const int half = 1 << (bits - 1);
    const float scale = extreme_of(x) / (float)-half, inverse = inverse_of(scale);
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) {
        const float scaled = x[i] * inverse;
        const int code = (int)(scaled + ((float)half + 0.5f));
        codes[i] = (uint8_t)(code < 2 * half - 1 ? code : 2 * half - 1);
    }
    store_half(out, half_of(scale));
    store_block(codes, bits, out + 2);
}
void eight_bits(const float* x, uint8_t* out) {
    const float scale = fabsf(extreme_of(x)) / 127.0f, inverse = inverse_of(scale);
    store_half(out, half_of(scale));
    for (int i = 0; i < kBlock; ++i) {  // ties away from zero
        const float scaled = x[i] * inverse;
        out[2 + i] = (uint8_t)(int8_t)(int)(scaled + (scaled < 0.0f ? -0.49999997f : 0.49999997f));
    }
}
void affine(const float* x, int bits, uint8_t* out) {
    float low = x[0], high = x[0];
    for (int i = 1; i < kBlock; ++i) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const int most = (1 << bits) - 1;
    const float scale = (high - low) / (float)most, inverse = inverse_of(scale);
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) {
        const float scaled = (x[i] - low) * inverse;
        const int code = (int)(scaled + 0.5f);
        codes[i] = (uint8_t)(code < most ? code : most);
    }
    store_half(out, half_of(scale));
    store_half(out + 2, half_of(low));
    store_block(codes, bits, out + 4);
}
int nearest_level(float scaled) {
    int code = 0;
    while (code < 15 && scaled > (kIQ4Levels[code] + kIQ4Levels[code + 1]) / 2.0f) ++code;
    return code;
}
// The value of largest magnitude at −127, or the best scale for the codes that this gives, whichever leaves less: as
// kernels/reference/iq4.py does without a search. Everything is in units of the block's own power of two.
void uneven(const float* values, uint8_t* out) {
    const float extreme = fabsf(extreme_of(values));
    uint32_t word;
    const float held = extreme < 0x1p-60f ? 0x1p-60f : extreme > 0x1p60f ? 0x1p60f : extreme;
    memcpy(&word, &held, 4);
    word &= 0x7f800000;
    float unit, x[kBlock], low = 0.0f, high = 0.0f;
    memcpy(&unit, &word, 4);
    const float per_unit = 1.0f / unit;
    for (int i = 0; i < kBlock; ++i) {
        x[i] = values[i] * per_unit;
        x[i] = x[i] > 2.0f ? 2.0f : x[i] < -2.0f ? -2.0f : x[i];
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
    }
    const float largest = extreme * per_unit < 2.0f ? extreme * per_unit : 2.0f;
    const float per_step = inverse_of(high < -low ? low : high) * -127.0f, step = inverse_of(per_step);
    float ee = 0.0f, eq = 0.0f, qq = 0.0f;
    for (int i = 0; i < kBlock; ++i) {
        const float scaled = x[i] * per_step, q = kIQ4Levels[nearest_level(scaled)], e = scaled - q;
        ee = ee + e * e;
        eq = eq + e * q;
        qq = qq + q * q;
    }
    const float change = eq * inverse_of(qq), rest = ee - change * eq, left = rest < ee * 0x1p-20f ? 0.0f : rest;
    const float allowed = largest * 0.349f;
    float least = HUGE_VALF, best = 0.0f;
    uint16_t stored = 0;
    const float tried[2] = {step, step + step * change};
    for (const float wanted : tried) {
        // No value is cut off or rounded by more than is allowed.
        const float above = wanted < 0.0f ? -low : high, below = wanted < 0.0f ? high : -low;
        const float up = (above - allowed) * (1.0f / 113.0f), down = (below - allowed) * (1.0f / 127.0f);
        float size = fabsf(wanted), most = allowed * (1.0f / 12.0f);
        size = size > (up > down ? up : down) ? size : (up > down ? up : down);
        size = size < most ? size : most;
        uint16_t half = half_of(size * unit);
        half = half > 0x7bff ? (uint16_t)0x7bff : half == 0 && size != 0.0f ? (uint16_t)1 : half;
        half |= (uint16_t)(signbit(wanted) ? 0x8000 : 0);
        const float value = value_of(half) * per_unit, missed = value * per_step - 1.0f - change;
        const float error = (left + qq * missed * missed) * (step * step);
        if (error < least) least = error, best = value, stored = half;
    }
    const bool vanishes = largest * unit < 0x1p-22f;  // no level is zero
    const float per = vanishes ? 0.0f : inverse_of(best);
    uint8_t codes[kBlock];
    for (int i = 0; i < kBlock; ++i) codes[i] = (uint8_t)nearest_level(x[i] * per);
    store_half(out, vanishes ? (uint16_t)0 : stored);
    store_block(codes, 4, out + 2);
}

void encode_blocks(Row row, const float* x, int dim, uint8_t* out) {
    const RowFormat& format = format_of(row);
    const int64_t size = format.metadata + kBlock * format.bits / 8;
    for (int from = 0; from < dim; from += kBlock, out += size) {
        float block[kBlock];
        for (int i = 0; i < kBlock; ++i) block[i] = x[from + i < dim ? from + i : dim - 1];
        const bool usable = all_finite(block, kBlock);
        if (!usable) memset(block, 0, sizeof block);
        switch (row) {
            case Row::kQ8_0:
                eight_bits(block, out);
                break;
            case Row::kQ5_1:
            case Row::kQ4_1:
                affine(block, format.bits, out);
                break;
            case Row::kIQ4_NL:
                uneven(block, out);
                break;
            default:
                centred(block, format.bits, out);
        }
        if (!usable) store_half(out, kNaN);
    }
}

// Scale and minimum of values `step` apart, and their codes. count: of `group`; a group is filled up with its last one.
void encode_group(const float* x, int count, int step, int group, int bits, uint8_t* out) {
    const bool usable = all_finite(x, count, step);
    const float most = (float)((1 << bits) - 1);
    float low = usable ? x[0] : 0.0f, high = low;
    for (int i = 1; usable && i < count; ++i) {
        low = x[i * step] < low ? x[i * step] : low;
        high = x[i * step] > high ? x[i * step] : high;
    }
    const uint16_t minimum = half_of(low);
    const uint16_t scale = half_of((high - value_of(minimum)) / most);
    const float from = value_of(minimum), unit = value_of(scale);
    uint8_t codes[64];
    for (int i = 0; i < group; ++i) {
        const float value = usable ? x[(i < count ? i : count - 1) * step] : 0.0f;
        const float scaled = unit > 0.0f ? rintf((value - from) / unit) : 0.0f;
        codes[i] = (uint8_t)(scaled > most ? most : scaled > 0.0f ? scaled : 0.0f);
    }
    store_half(out, usable ? scale : kNaN);
    store_half(out + 2, minimum);
    pack(codes, group, bits, out + 4);
}

void encode_symmetric(const float* x, int dim, int bits, uint8_t* out) {
    const float most = (float)((1 << (bits - 1)) - 1);
    const bool usable = all_finite(x, dim);
    float largest = 0.0f;
    for (int i = 0; i < dim; ++i) largest = fabsf(x[i]) > largest ? fabsf(x[i]) : largest;
    uint16_t scale = half_of(largest / most);
    if (scale == 0) scale = half_of(1.0f);
    const float unit = value_of(scale);
    const int together = 8 / bits;
    for (int i = 0; i < dim; i += together) {
        int byte = 0;
        for (int j = 0; j < together && i + j < dim; ++j) {
            float code = usable ? rintf(x[i + j] / unit) : 0.0f;
            code = code > most ? most : code < -most ? -most : code;
            byte |= ((int)code & ((1 << bits) - 1)) << (j * bits);
        }
        out[2 + i / together] = (uint8_t)byte;
    }
    store_half(out, usable ? scale : kNaN);
}

// Four bits, −8 … 7: the extreme value at −8 or past it, whichever of these scales leaves least. count: of `group`.
constexpr float kNarrower[] = {1.0f, 0.95f, 0.9f, 0.85f};
void encode_searched(const float* values, int count, int group, uint8_t* out) {
    float x[64], extreme = 0.0f;
    const bool usable = all_finite(values, count);
    for (int i = 0; i < group; ++i) {
        x[i] = usable ? values[i < count ? i : count - 1] : 0.0f;
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    }
    double least = HUGE_VAL;
    uint16_t best = kNaN;
    memset(out + 2, 0, (size_t)group / 2);
    for (const float share : kNarrower) {
        const uint16_t scale = half_of(extreme * (share / -8.0f));
        const float unit = value_of(scale);
        uint8_t codes[64];
        double error = 0.0;
        for (int i = 0; i < group; ++i) {
            float code = unit != 0.0f ? rintf(x[i] / unit) : 0.0f;
            code = code > 7.0f ? 7.0f : code < -8.0f ? -8.0f : code;
            codes[i] = (uint8_t)((int)code & 15);
            const double missed = (double)(code * unit - x[i]);
            error += missed * missed;
        }
        if (error < least) {
            least = error;
            best = scale;
            pack(codes, group, 4, out + 2);
        }
    }
    store_half(out, usable ? best : kNaN);
}

void encode_levels(const float* x, int dim, int bits, uint8_t* out) {
    double squares = 0.0;
    for (int i = 0; i < dim; ++i) squares += (double)x[i] * (double)x[i];
    const double norm = sqrt(squares);
    const float* levels = normal_levels(bits);
    const float root = (float)sqrt((double)dim);
    uint8_t codes[8];
    store_half(out, half_of((float)norm));
    out += 2;
    for (int from = 0; from < dim; from += 8, out += bits) {
        const int count = dim - from < 8 ? dim - from : 8;
        for (int i = 0; i < count; ++i) {
            const float spread = x[from + i] * root;
            const double unit = norm > 0.0 ? (double)spread / norm : 0.0;
            int code = 0;
            while (code < (1 << bits) - 1 && unit > ((double)levels[code] + (double)levels[code + 1]) / 2.0) ++code;
            codes[i] = (uint8_t)code;
        }
        pack(codes, count, bits, out);
    }
}

// Nearest, ties to even; what is past the largest becomes it. shift: mantissa bits that are lost; least: of normal
// numbers; steps: of subnormal ones in 1.
uint8_t to_float8(float x, int shift, int bias, float least, float steps, float largest) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint8_t sign = (uint8_t)(bits >> 24 & 0x80);
    if (x != x) return sign | 0x7f;
    float size = fabsf(x);
    size = size > largest ? largest : size;
    if (size < least) return (uint8_t)(sign | (int)rintf(size * steps));
    memcpy(&bits, &size, 4);
    const uint32_t up = bits + (1u << (shift - 1)) - 1 + (bits >> shift & 1);
    return (uint8_t)(sign | ((up >> shift) - ((uint32_t)(127 - bias) << (23 - shift))));
}

}  // namespace

const float* normal_levels(int bits) {
    return bits == 4 ? kNormal4 : bits == 3 ? kNormal3 : kNormal2;
}

float rounded_to_f16(float x) {
    return value_of(half_of(x));
}

void encode_row(Row row, const float* x, int dim, float scale, uint8_t* out) {
    const RowFormat& format = format_of(row);
    switch (row) {
        case Row::kF32:
            memcpy(out, x, sizeof(float) * dim);
            return;
        case Row::kF16:
            for (int i = 0; i < dim; ++i) store_half(out + 2 * i, half_of(x[i]));
            return;
        case Row::kBF16:
            for (int i = 0; i < dim; ++i) {
                rows::ops::BF16 half;
                put(&half, x[i]);
                store_half(out + 2 * i, half.bits);
            }
            return;
        case Row::kE4M3:
            for (int i = 0; i < dim; ++i) out[i] = to_float8(x[i] / scale, 20, 7, 0x1p-6f, 0x1p9f, 448.0f);
            return;
        case Row::kE5M2:
            for (int i = 0; i < dim; ++i) out[i] = to_float8(x[i] / scale, 21, 15, 0x1p-14f, 0x1p16f, 57344.0f);
            return;
        case Row::kInt8:
        case Row::kInt4:
            return encode_symmetric(x, dim, format.bits, out);
        case Row::kInt8g64:
            for (int from = 0; from < dim; from += 64, out += 66) {
                float group[64];
                for (int i = 0; i < 64; ++i) group[i] = x[from + i < dim ? from + i : dim - 1];
                encode_symmetric(group, 64, 8, out);
            }
            return;
        case Row::kInt4g64:
        case Row::kInt4g32:
            for (int from = 0; from < dim; from += format.group, out += 2 + format.group / 2)
                encode_searched(x + from, dim - from < format.group ? dim - from : format.group, format.group, out);
            return;
        case Row::kLM4:
        case Row::kLM3:
        case Row::kLM2:
            return encode_levels(x, dim, format.bits, out);
        case Row::kU8g64:
        case Row::kU4g64:
        case Row::kU4g32:
        case Row::kU2g32:
            for (int from = 0; from < dim;
                 from += format.group, out += format.metadata + format.group * format.bits / 8)
                encode_group(x + from, dim - from < format.group ? dim - from : format.group, 1, format.group,
                             format.bits, out);
            return;
        case Row::kU4t32:
        case Row::kU2t32:
            return;  // encode_unit
        default:
            return encode_blocks(row, x, dim, out);
    }
}

void encode_unit(Row row, const float* x, int dim, uint8_t* out) {
    const RowFormat& format = format_of(row);
    for (int c = 0; c < dim; ++c, out += format.bytes(1)) encode_group(x + c, kUnit, dim, kUnit, format.bits, out);
}

void hadamard(float* x, int dim) {
    const int size = dim & -dim;
    double y[kMostTurned];
    const double root = sqrt((double)size);
    for (float* run = x; run < x + dim; run += size) {
        for (int i = 0; i < size; ++i) y[i] = (double)run[i];
        for (int step = 1; step < size; step *= 2)
            for (int i = 0; i < size; i += 2 * step)
                for (int j = i; j < i + step; ++j) {
                    const double a = y[j], b = y[j + step];
                    y[j] = a + b;
                    y[j + step] = a - b;
                }
        for (int i = 0; i < size; ++i) run[i] = (float)(y[i] / root);
    }
}

}  // namespace bitsmith::engine
