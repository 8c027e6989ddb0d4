// Keys and values that are kept as codes: value = scale · (code − offset), one float16 scale for kCodeBlock neighbours
// of a head; a last block that is not whole is filled up with zeros. The bytes of a position are those of ggml's block
// types, laid out by tiles:
//
//   keys    [tile][block][scale of 16 positions][two dims, or four][position][dim]: neighbouring dims share a lane, so
//           that a product of 16-bit pairs adds both; of four dims in nibbles, two are the low and two the high halves
//   values  [tile]([block][scale of 16 positions])([position][block][codes]); nibbles as ggml has them, 16 apart
//
// Nothing is expanded: codes meet queries as integers, and values as floats in registers.
#pragma once
#include "codes.h"
#include "groups.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {
namespace ops {

struct Q8_0 {
    static constexpr CacheType type = CacheType::kQ8_0;
    static constexpr int bits = 8, offset = 0;
};
struct Q4_0 {
    static constexpr CacheType type = CacheType::kQ4_0;
    static constexpr int bits = 4, offset = 8;
};

template <class T>
constexpr bool kHasCodes = false;
template <>
constexpr bool kHasCodes<Q8_0> = true;
template <>
constexpr bool kHasCodes<Q4_0> = true;

constexpr int kScaleBytes = 2 * kKeyTile;  // of a block of a tile
template <class Q>
constexpr int kRowBytes = kCodeBlock * Q::bits / 8;  // codes of a block of one position
template <class Q>
constexpr int kTileCodes = kKeyTile * kRowBytes<Q>;

// a · b rounded before anything else is done with it, whatever the compiler may fuse.
BITSMITH_OP float product(float a, float b) {
    return (float)((double)a * (double)b);
}
BITSMITH_OP float inverse_of(float x) {
    const float largest = 3.4028234663852886e38f;
    if (x == 0.0f) return 0.0f;
    const float inverse = 1.0f / x;
    return inverse > largest ? largest : inverse < -largest ? -largest : inverse;
}

// Codes of a block and its scale, as ggml's plain encoders have them. count: of kCodeBlock. What is not finite makes
// the scale not-a-number, so that it is seen.
template <class Q>
static void encode_block(const float* x, int count, F16* scale, uint8_t* codes) {
    float extreme = 0.0f, odd = 0.0f;  // the value of largest magnitude, the first of equals
    for (int i = 0; i < count; ++i) {
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
        odd += x[i] - x[i];
    }
    if (odd != 0.0f) {
        scale->bits = 0x7e00;
        memset(codes, 0, kCodeBlock);
        return;
    }
    const float step = Q::bits == 8 ? fabsf(extreme) / 127.0f : extreme / (float)-Q::offset;
    put(scale, step);
    const float inverse = inverse_of(step);
    for (int i = 0; i < kCodeBlock; ++i) {
        const float scaled = i < count ? product(x[i], inverse) : 0.0f;
        if constexpr (Q::bits == 8) {  // nearest, ties away from zero: the half is just below one
            codes[i] = (uint8_t)(int8_t)(int)(scaled + (scaled < 0.0f ? -0.49999997f : 0.49999997f));
        } else {
            const int code = (int)(scaled + (Q::offset + 0.5f));
            codes[i] = (uint8_t)(code < 15 ? code : 15);
        }
    }
}

template <class Q>
static void put_code_key(const CacheView& cache, int64_t position, const float* key) {
    const int lane = position % kKeyTile, width = key_width(Q::type, cache.dim);
    uint8_t* at = static_cast<uint8_t*>(cache.keys) + position / kKeyTile * tile_bytes(Q::type, width);
    for (int from = 0; from < cache.dim; from += kCodeBlock) {
        uint8_t codes[kCodeBlock];
        const int count = cache.dim - from < kCodeBlock ? cache.dim - from : kCodeBlock;
        F16 scale;
        encode_block<Q>(key + from, count, &scale, codes);
        memcpy(at + 2 * lane, &scale, 2);
        at += kScaleBytes;
        if constexpr (Q::bits == 8) {
            for (int d = 0; d < kCodeBlock; ++d) at[d / 2 * 2 * kKeyTile + 2 * lane + d % 2] = codes[d];
        } else {
            for (int d = 0; d < kCodeBlock; d += 4)
                for (int i = d; i < d + 2; ++i)
                    at[d / 4 * 2 * kKeyTile + 2 * lane + i % 2] = (uint8_t)(codes[i] | codes[i + 2] << 4);
        }
        at += kTileCodes<Q>;
    }
}

template <class Q>
static void put_code_value(const CacheView& cache, int64_t position, const float* value) {
    const int lane = position % kKeyTile, blocks = cache.stride / kCodeBlock;
    uint8_t* tile = static_cast<uint8_t*>(cache.values) + position / kKeyTile * tile_bytes(Q::type, cache.stride);
    uint8_t* at = tile + blocks * kScaleBytes + (int64_t)lane * blocks * kRowBytes<Q>;
    for (int b = 0; b < blocks; ++b, at += kRowBytes<Q>) {
        uint8_t codes[kCodeBlock];
        const int from = b * kCodeBlock, count = cache.dim - from < kCodeBlock ? cache.dim - from : kCodeBlock;
        F16 scale;
        encode_block<Q>(value + from, count, &scale, codes);
        memcpy(tile + b * kScaleBytes + 2 * lane, &scale, 2);
        if constexpr (Q::bits == 8) {
            memcpy(at, codes, kCodeBlock);
        } else {
            for (int i = 0; i < kRowBytes<Q>; ++i) at[i] = (uint8_t)(codes[i] | codes[i + kRowBytes<Q>] << 4);
        }
    }
}

// Queries of a task as 16-bit integers, which loses 2⁻¹⁶ of the largest of each.
struct Rounded {
    int16_t* values;  // [rows][width]
    int32_t* totals;  // [rows][blocks]
    float* scales;    // [rows]

    Rounded(char* memory, int rows, int width)
        : values(reinterpret_cast<int16_t*>(memory)),
          totals(reinterpret_cast<int32_t*>(memory + (int64_t)2 * rows * width)),
          scales(reinterpret_cast<float*>(totals + rows * (width / kCodeBlock))) {}
};

static void round_queries(const Attend& task) {
    const int dim = task.cache.dim, width = key_width(task.cache.key_type, dim), blocks = width / kCodeBlock;
    const Rounded rounded(task.codes, task.rows, width);
    for (int r = 0; r < task.rows; ++r) {
        const float* query = task.queries + (int64_t)r * dim;
        float largest = 0.0f, odd = 0.0f;
        for (int d = 0; d < dim; ++d) {
            largest = fabsf(query[d]) > largest ? fabsf(query[d]) : largest;
            odd += query[d] - query[d];
        }
        const float inverse = odd == 0.0f && largest > 0.0f ? 32767.0f / largest : 0.0f;
        const bool usable = inverse > 0.0f && inverse < kInfinity;
        rounded.scales[r] = odd != 0.0f ? odd : largest * (1.0f / 32767.0f);
        int16_t* values = rounded.values + (int64_t)r * width;
        for (int d = 0; d < width; ++d) {
            const float x = d < dim && usable ? query[d] * inverse : 0.0f;
            values[d] = (int16_t)(int)(x + (x < 0.0f ? -0.5f : 0.5f));
        }
        for (int b = 0; b < blocks; ++b) {
            int32_t total = 0;
            for (int d = 0; d < kCodeBlock; ++d) total += values[b * kCodeBlock + d];
            rounded.totals[r * blocks + b] = total;
        }
    }
}

// scores[r][i] = queries[first + r] · key at position + i, for one group of vectors.
template <int rows, class Q>
static void score_codes(const Attend& task, int64_t position, int first, float* scores) {
    constexpr int vectors = vectors_for(rows);
    const int width = key_width(Q::type, task.cache.dim), blocks = width / kCodeBlock;
    const Rounded rounded(task.codes, task.rows, width);
    const int16_t* queries = rounded.values + (int64_t)first * width;
    const int32_t* totals = rounded.totals + first * blocks;
    const uint8_t* keys[vectors];
    BITSMITH_EACH for (int v = 0; v < vectors; ++v) {
        const int64_t at = position + v * W;
        keys[v] = static_cast<const uint8_t*>(task.cache.keys) + at / kKeyTile * tile_bytes(Q::type, width) +
                  at % kKeyTile * 2;
    }
    V sums[rows][vectors] = {};
    for (int b = 0; b < blocks; ++b) {
        VI dots[rows][vectors];
        BITSMITH_EACH for (int r = 0; r < rows; ++r) BITSMITH_EACH for (int v = 0; v < vectors; ++v) dots[r][v] =
            splat_int(-Q::offset * totals[r * blocks + b]);
        const int16_t* query = queries + b * kCodeBlock;
        for (int i = 0; i < kTileCodes<Q>; i += 2 * kKeyTile) {  // one step has 2 or 4 dims
            BITSMITH_EACH for (int v = 0; v < vectors; ++v) {
                const uint8_t* codes = keys[v] + kScaleBytes + i;
                if constexpr (Q::bits == 8) {
                    const Pairs pairs = load_pairs(codes);
                    BITSMITH_EACH for (int r = 0; r < rows; ++r) dots[r][v] =
                        add_products(dots[r][v], pairs, splat_int(pair_of(query + r * width)));
                } else {
                    Pairs low, high;
                    load_nibble_pairs(codes, low, high);
                    BITSMITH_EACH for (int r = 0; r < rows; ++r) {
                        const VI part = add_products(dots[r][v], low, splat_int(pair_of(query + r * width)));
                        dots[r][v] = add_products(part, high, splat_int(pair_of(query + r * width + 2)));
                    }
                }
            }
            query += 16 / Q::bits;
        }
        BITSMITH_EACH for (int v = 0; v < vectors; ++v) {
            const V scale = load(reinterpret_cast<const F16*>(keys[v]));
            BITSMITH_EACH for (int r = 0; r < rows; ++r) sums[r][v] = fma(to_float(dots[r][v]), scale, sums[r][v]);
            keys[v] += kScaleBytes + kTileCodes<Q>;
        }
    }
    BITSMITH_EACH for (int r = 0; r < rows; ++r) BITSMITH_EACH for (int v = 0; v < vectors; ++v)
        store(scores + r * kKeyBlock + v * W, sums[r][v] * splat(rounded.scales[first + r]));
}

// Two vectors of a block's values, `piece` of kCodeBlock / (2 · W); the second is kApart after the first.
template <class Q>
constexpr int kApart = Q::bits == 8 ? W : kCodeBlock / 2;

template <class Q>
BITSMITH_OP void load_piece(const uint8_t* codes, int piece, V& first, V& second) {
    if constexpr (Q::bits == 8) {
        first = load_bytes(codes + piece * 2 * W);
        second = load_bytes(codes + piece * 2 * W + W);
    } else {
        load_nibbles(codes + piece * W, first, second);
    }
}

// sums[r] += Σ over positions of the block of shares[r][i] · value, for `together` blocks of each head from `block` on.
template <int rows, int together, class Q>
static void add_blocks(const uint8_t* tiles, int64_t tile_size, int blocks, int block, int from, int to,
                       const float* shares, float* sums, int stride) {
    // Scales go into the shares. A share of 0 stays 0, whatever was left at a position that is not seen.
    float folded[together][rows][kKeyBlock];
    V offsets[together][rows] = {};
    for (int n = 0; n < together; ++n) {
        for (int i = from / W * W; i < to; i += W) {
            const uint8_t* scales = tiles + i / kKeyTile * tile_size + (block + n) * kScaleBytes + i % kKeyTile * 2;
            const V scale = load(reinterpret_cast<const F16*>(scales));
            BITSMITH_EACH for (int r = 0; r < rows; ++r) {
                const V share = load(shares + r * kKeyBlock + i), zero = splat(0.0f);
                const V both = select_less(zero, share, share * scale, zero);
                store(folded[n][r] + i, both);
                if (Q::offset) offsets[n][r] += both;
            }
        }
    }
    for (int piece = 0; piece < kCodeBlock / (2 * W); ++piece) {
        float* to_sums = sums + block * kCodeBlock + (Q::bits == 8 ? 2 : 1) * piece * W;
        V total[together][rows][2];
        BITSMITH_EACH for (int n = 0; n < together; ++n) BITSMITH_EACH for (int r = 0; r < rows; ++r) {
            const V offset = splat(Q::offset ? (float)Q::offset * sum(offsets[n][r]) : 0.0f);
            const float* before = to_sums + n * kCodeBlock + r * stride;
            total[n][r][0] = load(before) - offset;
            total[n][r][1] = load(before + kApart<Q>) - offset;
        }
        for (int tile = from / kKeyTile; tile * kKeyTile < to; ++tile) {
            const int start = tile * kKeyTile, first = from > start ? from : start;
            const int last = to < start + kKeyTile ? to : start + kKeyTile;
            const uint8_t* codes = tiles + tile * tile_size + blocks * kScaleBytes + block * kRowBytes<Q>;
            for (int i = first; i < last; ++i) {
                const uint8_t* row = codes + (i - start) * blocks * kRowBytes<Q>;
                BITSMITH_EACH for (int n = 0; n < together; ++n) {
                    V one, two;
                    load_piece<Q>(row + n * kRowBytes<Q>, piece, one, two);
                    BITSMITH_EACH for (int r = 0; r < rows; ++r) {
                        const V share = splat(folded[n][r][i]);
                        total[n][r][0] = fma(one, share, total[n][r][0]);
                        total[n][r][1] = fma(two, share, total[n][r][1]);
                    }
                }
            }
        }
        BITSMITH_EACH for (int n = 0; n < together; ++n) BITSMITH_EACH for (int r = 0; r < rows; ++r) {
            float* after = to_sums + n * kCodeBlock + r * stride;
            store(after, total[n][r][0]);
            store(after + kApart<Q>, total[n][r][1]);
        }
    }
}

template <int rows, class Q>
static void add_codes(const CacheView& cache, int64_t block, int from, int to, const float* shares, float* sums) {
    const int64_t size = tile_bytes(Q::type, cache.stride);
    const uint8_t* tiles = static_cast<const uint8_t*>(cache.values) + block / kKeyTile * size;
    const int blocks = cache.stride / kCodeBlock;
    int b = 0;
    if constexpr (rows <= 2)  // two at a time, so that enough sums are under way
        for (; b + 2 <= blocks; b += 2)
            add_blocks<rows, 2, Q>(tiles, size, blocks, b, from, to, shares, sums, cache.stride);
    for (; b < blocks; ++b) add_blocks<rows, 1, Q>(tiles, size, blocks, b, from, to, shares, sums, cache.stride);
}

}  // namespace ops
}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
