// AMX's tiles in plain C++, under the names of the compiler's functions, so that the very source of isa/amx.cpp runs on
// processors without them. Strict: what a processor answers with a fault ends the program. After Intel's Software
// Developer's Manual, volume 2: LDTILECFG, TDPBSSD and its kin, TDPBF16PS.
#pragma once
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace emulated_tiles {

struct Tile {
    int rows, row_bytes;
    uint8_t data[16][64];
};
struct Unit {
    bool configured;
    Tile tiles[8];
};
inline thread_local Unit unit;

inline void need(bool held, const char* what) {
    if (held) return;
    fprintf(stderr, "emulated tiles: %s\n", what);
    abort();
}
inline Tile& tile(int i) {
    need(unit.configured, "a tile is used without a configuration");
    need(i >= 0 && i < 8 && unit.tiles[i].rows > 0, "a tile without a shape is used");
    return unit.tiles[i];
}

inline void load_config(const void* from) {
    const uint8_t* bytes = static_cast<const uint8_t*>(from);
    need(bytes[0] == 1 && bytes[1] == 0, "palette 1 from row 0");
    for (int i = 2; i < 16; ++i) need(bytes[i] == 0, "reserved bytes are zeros");
    unit = {};
    unit.configured = true;
    for (int i = 0; i < 16; ++i) {
        uint16_t row_bytes;
        memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
        const int rows = bytes[48 + i];
        need(i < 8 || (rows == 0 && row_bytes == 0), "there are eight tiles");
        need(row_bytes <= 64 && rows <= 16 && (rows == 0) == (row_bytes == 0), "16 rows of 64 bytes at most");
        if (i < 8) unit.tiles[i] = {rows, row_bytes, {}};
    }
}
inline void release() {
    unit = {};
}
inline void zero(int i) {
    memset(tile(i).data, 0, sizeof(Tile::data));
}
inline void load(int i, const void* base, long stride) {
    Tile& t = tile(i);
    memset(t.data, 0, sizeof(t.data));
    for (int r = 0; r < t.rows; ++r)
        memcpy(t.data[r], static_cast<const uint8_t*>(base) + r * stride, size_t(t.row_bytes));
}
inline void stored(int i, void* base, long stride) {
    const Tile& t = tile(i);
    for (int r = 0; r < t.rows; ++r) memcpy(static_cast<uint8_t*>(base) + r * stride, t.data[r], size_t(t.row_bytes));
}

// The three shapes fit together, and no tile is its own operand.
inline void check(int to, int a, int b) {
    need(to != a && to != b && a != b, "three different tiles");
    const Tile &c = tile(to), &x = tile(a), &w = tile(b);
    need(c.rows == x.rows && c.row_bytes == w.row_bytes, "sums have the rows of one factor and columns of the other");
    need(x.row_bytes % 4 == 0 && w.row_bytes % 4 == 0 && x.row_bytes / 4 == w.rows, "the factors' inner sizes agree");
}

template <class A, class B>
void dot_bytes(int to, int a, int b) {
    check(to, a, b);
    Tile &c = tile(to), &x = tile(a), &w = tile(b);
    for (int m = 0; m < c.rows; ++m) {
        for (int n = 0; n < c.row_bytes / 4; ++n) {
            int32_t sum;
            memcpy(&sum, &c.data[m][4 * n], 4);
            for (int k = 0; k < x.row_bytes; ++k)
                sum += int32_t(A(x.data[m][k])) * int32_t(B(w.data[k / 4][4 * n + k % 4]));
            memcpy(&c.data[m][4 * n], &sum, 4);
        }
    }
}

inline float flushed(float value) {
    return fabsf(value) < 1.17549435e-38f ? copysignf(0.0f, value) : value;
}
inline float from_bf16(const uint8_t* p) {
    uint16_t half;
    memcpy(&half, p, 2);
    const uint32_t word = uint32_t(half) << 16;
    float value;
    memcpy(&value, &word, 4);
    return flushed(value);
}
// Even and odd columns are summed apart, each with one rounding a column; subnormal numbers count as 0.
inline void dot_bf16(int to, int a, int b) {
    check(to, a, b);
    Tile &c = tile(to), &x = tile(a), &w = tile(b);
    for (int m = 0; m < c.rows; ++m) {
        for (int n = 0; n < c.row_bytes / 4; ++n) {
            float sums[2] = {0.0f, 0.0f}, sum;
            for (int k = 0; k < x.row_bytes / 2; ++k)
                sums[k % 2] = flushed(
                    fmaf(from_bf16(&x.data[m][2 * k]), from_bf16(&w.data[k / 2][4 * n + k % 2 * 2]), sums[k % 2]));
            memcpy(&sum, &c.data[m][4 * n], 4);
            sum = flushed(flushed(sum) + flushed(sums[0] + sums[1]));
            memcpy(&c.data[m][4 * n], &sum, 4);
        }
    }
}

}  // namespace emulated_tiles

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_dpbf16ps
#define _tile_loadconfig(shapes) ::emulated_tiles::load_config(shapes)
#define _tile_release() ::emulated_tiles::release()
#define _tile_zero(tile) ::emulated_tiles::zero(tile)
#define _tile_loadd(tile, base, stride) ::emulated_tiles::load(tile, base, stride)
#define _tile_stored(tile, base, stride) ::emulated_tiles::stored(tile, base, stride)
#define _tile_dpbssd(sums, a, b) ::emulated_tiles::dot_bytes<int8_t, int8_t>(sums, a, b)
#define _tile_dpbsud(sums, a, b) ::emulated_tiles::dot_bytes<int8_t, uint8_t>(sums, a, b)
#define _tile_dpbf16ps(sums, a, b) ::emulated_tiles::dot_bf16(sums, a, b)
