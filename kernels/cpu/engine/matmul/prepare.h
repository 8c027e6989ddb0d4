// Activations rounded to what a product takes, and laid out as it reads them. See Act.
#pragma once
#include "../packed.h"
#include "../simd/simd.h"

namespace bitsmith::engine::BITSMITH_NS {

BITSMITH_INLINE float from_bits(int32_t word) {
    float value;
    memcpy(&value, &word, 4);
    return value;
}

// amax / 127, what x is multiplied with, both 0 for blocks too small for 127 / amax to be finite.
struct Rounding {
    float scale, inverse;
};
BITSMITH_INLINE Rounding rounding(Ints largest_bits) {
    const int32_t word = largest(largest_bits);
    const float amax = from_bits(word), inverse = 127.0f / amax;
    if (word >= 0x7f800000) return {from_bits(0x7fc00000), 0.0f};  // NaN
    if (!(inverse < 3.4028235e38f)) return {0.0f, 0.0f};
    return {amax / 127.0f, inverse};
}

// Columns [at, at + 16) of a row in the weights' order; zeros past its end, and of a row that is not there.
BITSMITH_INLINE Floats columns_at(const Act& act, const float* row, int64_t at) {
    const int64_t left = row ? act.columns - at : 0;
    if (act.order && left > 0) {
        alignas(64) float values[kTile] = {};
        for (int i = 0; i < kTile && i < left; ++i) values[i] = row[act.order[at + i]];
        return load(values);
    }
    return left >= kTile ? load(row + at) : left > 0 ? load_first(row + at, int(left)) : zero_floats();
}

// kByToken: the order of token rows, see Act.
template <bool kByToken>
void prepare_int8_token(const Act& act, const float* x, int64_t panel, int lane, int width) {
    int8_t* codes = reinterpret_cast<int8_t*>(act.codes(panel)) + lane * (kByToken ? kStep : 4);
    float *scales = act.scales(panel) + lane, *products = act.step_products(panel) + lane,
          *half_products = act.half_products(panel) + lane;
    int32_t *sums = act.step_sums(panel) + lane, *half_sums = act.half_sums(panel) + lane;
    const bool whole = act.kind == ActKind::kInt8Token;
    Rounding r = {0.0f, 0.0f};
    if (whole && x) {
        Ints most = zero_ints();
        for (int64_t k = 0; k < act.columns; k += kTile) {
            most = max(most, magnitude_bits(columns_at(act, x, k)));
        }
        r = rounding(most);
    }
    for (int64_t step = 0; step < act.steps; ++step) {
        const Floats part[2] = {columns_at(act, x, step * kStep), columns_at(act, x, step * kStep + kTile)};
        if (!whole) r = rounding(max(magnitude_bits(part[0]), magnitude_bits(part[1])));
        int8_t rounded[kStep];
        int32_t sum[2];
        for (int h = 0; h < 2; ++h) {
            const Ints code = r.inverse != 0.0f ? nearest(part[h] * splat(r.inverse)) : zero_ints();
            store_int8(rounded + h * kTile, code);
            sum[h] = total(code);
        }
        if (kByToken) {
            memcpy(codes + step * kStep * width, rounded, kStep);
        } else {
            for (int q = 0; q < kQuads; ++q) memcpy(codes + ((step * kQuads + q) * width) * 4, rounded + q * 4, 4);
        }
        scales[step * width] = r.scale;
        sums[step * width] = sum[0] + sum[1];
        products[step * width] = r.scale * float(sum[0] + sum[1]);
        for (int h = 0; h < 2; ++h) {
            half_sums[(step * 2 + h) * width] = sum[h];
            half_products[(step * 2 + h) * width] = r.scale * float(sum[h]);
        }
    }
}

// float32 → bfloat16 in the low halves of the lanes: nearest, ties to even, NaN made quiet.
BITSMITH_INLINE Ints to_bf16(Floats a) {
    const Ints word = as_ints(a), is_nan = shift<-31>(splat(0x7f800000) - magnitude_bits(a));
    const Ints rounded = shift<-16>(word + splat(0x7fff) + (shift<-16>(word) & splat(1)));
    return where_equal(is_nan, 1, shift<-16>(word) | splat(0x40), rounded);
}
template <bool kByToken>
void prepare_bf16_token(const Act& act, const float* row, uint16_t* out, int lane, int width) {
    for (int64_t at = 0; at < act.steps * kStep; at += kTile) {
        alignas(64) int32_t halves[kTile];
        store(halves, to_bf16(columns_at(act, row, at)));
        if (kByToken) {
            uint16_t* to = out + (at / kStep * width + lane) * kStep + at % kStep;
            for (int i = 0; i < kTile; ++i) to[i] = uint16_t(halves[i]);
            continue;
        }
        for (int i = 0; i < kTile; i += 2) {
            const int32_t pair = halves[i] | int32_t(uint32_t(halves[i + 1]) << 16);
            memcpy(out + (at + i) * width + lane * 2, &pair, 4);
        }
    }
}
template <bool kByToken>
void prepare_f32_token(const Act& act, const float* row, float* out, int lane, int width) {
    if (kByToken) {
        for (int64_t at = 0; at < act.steps * kStep; at += kTile)
            store(out + (at / kStep * width + lane) * kStep + at % kStep, columns_at(act, row, at));
        return;
    }
    for (int64_t k = 0; k < act.steps * kStep; ++k)
        out[k * width + lane] = row && k < act.columns ? row[act.order ? act.order[k] : k] : 0.0f;
}

template <bool kByToken>
void prepare_panels(const Act& act, const float* x, int64_t x_stride, int64_t panel_begin, int64_t panel_end) {
    for (int64_t panel = panel_begin; panel < panel_end; ++panel) {
        const int width = act.width(panel), count = act.count(panel);
        for (int lane = 0; lane < width; ++lane) {
            const float* row = lane < count ? x + (Act::first(panel) + lane) * x_stride : nullptr;
            if (act.kind == ActKind::kInt8 || act.kind == ActKind::kInt8Token) {
                prepare_int8_token<kByToken>(act, row, panel, lane, width);
            } else if (act.kind == ActKind::kBF16) {
                prepare_bf16_token<kByToken>(act, row, reinterpret_cast<uint16_t*>(act.codes(panel)), lane, width);
            } else {
                prepare_f32_token<kByToken>(act, row, reinterpret_cast<float*>(act.codes(panel)), lane, width);
            }
        }
    }
}

}  // namespace bitsmith::engine::BITSMITH_NS
