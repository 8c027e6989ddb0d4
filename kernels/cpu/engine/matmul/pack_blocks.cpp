// GGML blocks → tiles. Block layouts: kernels/layouts.py.
#include <string.h>

#include "pack.h"
#include "place.h"

namespace bitsmith::engine {

namespace {

constexpr int8_t kIq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
constexpr int8_t kE2M1Doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// Codes of a block as unsigned bytes.
using Unpack = void (*)(const uint8_t* block, uint8_t* codes);
// Scales of a block, `at` columns into its chunk, to the head of the chunk for row r.
using Head = void (*)(const Packed& w, const uint8_t* block, int at, int r, uint8_t* head);

void nibbles(const uint8_t* in, uint8_t* codes, int half) {
    for (int i = 0; i < half; ++i) {
        codes[i] = in[i] & 15;
        codes[i + half] = in[i] >> 4;
    }
}
void high_bits(const uint8_t* in, uint8_t* codes) {
    uint32_t high;
    memcpy(&high, in, 4);
    for (int i = 0; i < 32; ++i) codes[i] |= (high >> i & 1) << 4;
}
template <int kAt>
void nibbles_at(const uint8_t* in, uint8_t* codes) {
    nibbles(in + kAt, codes, 16);
}
template <int kAt>
void five_bits_at(const uint8_t* in, uint8_t* codes) {
    nibbles(in + kAt + 4, codes, 16);
    high_bits(in + kAt, codes);
}
void q8_0(const uint8_t* in, uint8_t* codes) {
    for (int i = 0; i < 32; ++i) codes[i] = in[2 + i] ^ 0x80;
}
// 256 fields of two bits: in each half of 128, field j of byte i is value 32·j + i.
void two_bits(const uint8_t* in, uint8_t* codes) {
    for (int half = 0; half < 2; ++half)
        for (int j = 0; j < 4; ++j)
            for (int i = 0; i < 32; ++i) codes[half * 128 + j * 32 + i] = in[half * 32 + i] >> (2 * j) & 3;
}
void q2_k(const uint8_t* in, uint8_t* codes) {
    two_bits(in + 16, codes);
}
void q3_k(const uint8_t* in, uint8_t* codes) {
    two_bits(in + 32, codes);
    for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 32; ++i) codes[j * 32 + i] |= (in[i] >> j & 1) << 2;
}
template <int kAt>
void k_nibbles(const uint8_t* in, uint8_t* codes) {
    for (int pair = 0; pair < 4; ++pair) nibbles(in + kAt + pair * 32, codes + pair * 64, 32);
}
void q5_k(const uint8_t* in, uint8_t* codes) {
    k_nibbles<48>(in, codes);
    for (int j = 0; j < 8; ++j)
        for (int i = 0; i < 32; ++i) codes[j * 32 + i] |= (in[16 + i] >> j & 1) << 4;
}
void q6_k(const uint8_t* in, uint8_t* codes) {
    uint8_t high[256];
    two_bits(in + 128, high);
    for (int half = 0; half < 2; ++half) nibbles(in + half * 64, codes + half * 128, 64);
    for (int i = 0; i < 256; ++i) codes[i] |= high[i] << 4;
}
void iq4_xs(const uint8_t* in, uint8_t* codes) {
    for (int sub = 0; sub < 8; ++sub) nibbles(in + 8 + sub * 16, codes + sub * 32, 16);
}
void nvfp4(const uint8_t* in, uint8_t* codes) {
    for (int sub = 0; sub < 4; ++sub) nibbles(in + 4 + sub * 8, codes + sub * 16, 8);
}
void tq1_0(const uint8_t* in, uint8_t* codes) {
    constexpr int kParts[3][3] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};  // first byte, bytes, digits a byte
    for (const auto& part : kParts) {
        int power = 1;
        for (int k = 0; k < part[2]; ++k, power *= 3, codes += part[1])
            for (int i = 0; i < part[1]; ++i) codes[i] = uint8_t((uint8_t(in[part[0] + i] * power) * 3) >> 8);
    }
}

// One or two float16 for every block, as they are.
template <bool kMinimums>
void halves(const Packed& w, const uint8_t* in, int at, int r, uint8_t* head) {
    const int entries = kChunk / w.granularity, i = at / w.granularity * kTile + r;
    memcpy(head + 2 * i, in, 2);
    if (kMinimums) memcpy(head + 2 * (entries * kTile + i), in + 2, 2);
}
template <int kAt>
void half_at(const Packed&, const uint8_t* in, int, int r, uint8_t* head) {
    memcpy(head + 2 * r, in + kAt, 2);
}
void q2_k_head(const Packed&, const uint8_t* in, int, int r, uint8_t* head) {
    memcpy(head + 2 * r, in + 80, 2);
    memcpy(head + 32 + 2 * r, in + 82, 2);
    for (int i = 0; i < 16; ++i) head[64 + i * kTile + r] = in[i];
}
// Into zeros; see Scales::kPair6.
void put_pair(uint8_t* head, int step, int r, int a, int b) {
    const int group = step / 4;
    uint8_t* pair = head + 64 + r * 4 + step % 4;
    pair[0] |= uint8_t((a & 15) << (4 * group));
    pair[64] |= uint8_t((b & 15) << (4 * group));
    pair[128] |= uint8_t((a >> 4 | b >> 4 << 4) << (2 * group));
}
void q3_k_head(const Packed&, const uint8_t* in, int, int r, uint8_t* head) {
    memcpy(head + 2 * r, in + 108, 2);
    const uint8_t* packed = in + 96;
    int scale[16];
    for (int i = 0; i < 16; ++i)
        scale[i] = (packed[i % 8] >> (i / 8 * 4) & 15) | (packed[8 + i % 4] >> (i / 4 * 2) & 3) << 4;
    for (int step = 0; step < 8; ++step) put_pair(head, step, r, scale[2 * step], scale[2 * step + 1]);
}
void q45_k_head(const Packed&, const uint8_t* in, int, int r, uint8_t* head) {
    memcpy(head + 2 * r, in, 2);
    memcpy(head + 32 + 2 * r, in + 2, 2);
    const uint8_t* packed = in + 4;
    for (int i = 0; i < 4; ++i) {
        put_pair(head, i, r, packed[i] & 63, packed[i + 4] & 63);
    }
    for (int i = 4; i < 8; ++i) {
        const int low = packed[i + 4];
        put_pair(head, i, r, (low & 15) | packed[i - 4] >> 6 << 4, low >> 4 | packed[i] >> 6 << 4);
    }
}
void q6_k_head(const Packed&, const uint8_t* in, int, int r, uint8_t* head) {
    memcpy(head + 2 * r, in + 208, 2);
    for (int i = 0; i < 16; ++i) head[32 + i * kTile + r] = in[192 + i];
}
void iq4_xs_head(const Packed&, const uint8_t* in, int, int r, uint8_t* head) {
    memcpy(head + 2 * r, in, 2);
    for (int i = 0; i < 8; ++i) {
        const int low = in[4 + i / 2] >> (i % 2 * 4) & 15, high = in[2 + i / 4] >> (i % 4 * 2) & 3;
        head[32 + i * kTile + r] = uint8_t((low | high << 4) - 32);
    }
}
void mxfp4_head(const Packed&, const uint8_t* in, int at, int r, uint8_t* head) {
    head[at / kStep * kTile + r] = in[0];
}
void nvfp4_head(const Packed&, const uint8_t* in, int at, int r, uint8_t* head) {
    for (int sub = 0; sub < 4; ++sub)  // NaN counts as 0
        head[(at / 16 + sub) * kTile + r] = in[sub] == 0x7f ? uint8_t{0} : uint8_t(in[sub] & 0x7f);
}

struct BlockType {
    const char* name;
    int block, bytes;
    Unpack unpack;
    Head head;
    Codes codes;
    Scales scales;
    Offsets offsets;
    int bits, granularity, zero;
    const int8_t* levels;
};
constexpr auto kInteger = Codes::kInteger;
constexpr auto kLevels = Codes::kLevels;
constexpr BlockType kTypes[] = {
    {"Q4_0", 32, 18, nibbles_at<2>, halves<false>, kInteger, Scales::kF16, Offsets::kZero, 4, 32, 8, nullptr},
    {"Q4_1", 32, 20, nibbles_at<4>, halves<true>, kInteger, Scales::kF16, Offsets::kMinimums, 4, 32, 0, nullptr},
    {"Q5_0", 32, 22, five_bits_at<2>, halves<false>, kInteger, Scales::kF16, Offsets::kZero, 5, 32, 16, nullptr},
    {"Q5_1", 32, 24, five_bits_at<4>, halves<true>, kInteger, Scales::kF16, Offsets::kMinimums, 5, 32, 0, nullptr},
    {"Q8_0", 32, 34, q8_0, halves<false>, kInteger, Scales::kF16, Offsets::kZero, 8, 32, 128, nullptr},
    {"Q2_K", 256, 84, q2_k, q2_k_head, kInteger, Scales::kSub4, Offsets::kMinimums, 2, 16, 0, nullptr},
    {"Q3_K", 256, 110, q3_k, q3_k_head, kInteger, Scales::kPair6, Offsets::kZero, 3, 16, 4, nullptr},
    {"Q4_K", 256, 144, k_nibbles<16>, q45_k_head, kInteger, Scales::kPair6, Offsets::kMinimums, 4, 32, 0, nullptr},
    {"Q5_K", 256, 176, q5_k, q45_k_head, kInteger, Scales::kPair6, Offsets::kMinimums, 5, 32, 0, nullptr},
    {"Q6_K", 256, 210, q6_k, q6_k_head, kInteger, Scales::kSub8, Offsets::kZero, 6, 16, 32, nullptr},
    {"IQ4_NL", 32, 18, nibbles_at<2>, halves<false>, kLevels, Scales::kF16, Offsets::kZero, 4, 32, 128, kIq4},
    {"IQ4_XS", 256, 136, iq4_xs, iq4_xs_head, kLevels, Scales::kSub8, Offsets::kZero, 4, 32, 128, kIq4},
    {"TQ1_0", 256, 54, tq1_0, half_at<52>, kInteger, Scales::kF16, Offsets::kZero, 2, 256, 1, nullptr},
    {"TQ2_0", 256, 66, two_bits, half_at<64>, kInteger, Scales::kF16, Offsets::kZero, 2, 256, 1, nullptr},
    {"MXFP4", 32, 17, nibbles_at<1>, mxfp4_head, kLevels, Scales::kE8M0, Offsets::kZero, 4, 32, 128, kE2M1Doubled},
    {"NVFP4", 64, 36, nvfp4, nvfp4_head, kLevels, Scales::kE4M3, Offsets::kZero, 4, 16, 128, kE2M1Doubled},
};

const BlockType* find(const char* kind) {
    for (const BlockType& type : kTypes)
        if (strcmp(type.name, kind) == 0) return &type;
    return nullptr;
}

}  // namespace

bool describe_blocks(const char* kind, Packed& packed) {
    const BlockType* type = find(kind);
    if (!type) return false;
    packed.codes = type->codes;
    packed.scales = type->scales;
    packed.offsets = type->offsets;
    packed.bits = type->bits;
    packed.granularity = type->granularity;
    packed.zero = type->zero;
    packed.factor = 1.0f;
    for (int i = 0; i < 16; ++i) packed.levels[i] = type->levels ? uint8_t(type->levels[i] + 128) : uint8_t{128};
    set_layout(packed);
    return true;
}

void pack_blocks(const char* kind, const Packed& packed, const uint8_t* rows, int64_t first, int64_t count) {
    const BlockType& type = *find(kind);
    for (int64_t row = first; row < first + count; ++row) {
        for (int64_t k = 0; k < packed.columns; k += type.block, rows += type.bytes) {
            uint8_t codes[256];
            type.unpack(rows, codes);
            place_codes(packed, row, k, codes, type.block, 0);
            type.head(packed, rows, int(k % kChunk), int(row % kTile), chunk_at(packed, row, k));
        }
    }
}

}  // namespace bitsmith::engine
