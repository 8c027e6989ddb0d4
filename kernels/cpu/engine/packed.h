// Weights as the products read them, and activations as the weights meet them.
//
// Weights: tiles of 16 rows; a tile is one stream of chunks of 256 columns: a head with the chunk's scales, then its
// codes in steps of 32 columns. In a step, codes lie as quads: 64 bytes = 16 rows × 4 neighbouring columns, eight quads
// a step. Codes of b bits take b vectors of 64 bytes: quads that have a vector to themselves lie in its low bits, the
// others are put together from the bits above those, so that most codes take one mask, and vectors are read in order.
// code_bits.h says which bits are where. Float weights: F32, F16 and 8-bit floats are [column][16
// rows]; BF16 is [pair of columns][16 rows][2]. Rows past the last are zeros, and so are columns that fill up a step.
//
// Activations: panels of up to 12 tokens, so that a product reads them as one stream. See Act.
#pragma once
#include <stdint.h>

namespace bitsmith::engine {

constexpr int kTile = 16;              // rows of a tile
constexpr int kStep = 32;              // columns of a step
constexpr int kQuads = 8;              // quads of a step
constexpr int kChunk = 256;            // columns of a chunk
constexpr int kChunkSteps = 8;         // steps of a chunk
constexpr int kPanel = 12;             // tokens of a panel
constexpr int kFew = 4;                // tokens that are multiplied with codes straight from their planes
constexpr int64_t kAlign = 64;         // bytes; of Packed::data, Act::data and scratch
constexpr int64_t kScratch = 1 << 19;  // bytes of scratch that a thread gives to `linear`

enum class Codes : uint8_t {
    kInteger,     // bits 1…8, minus a zero
    kLevels,      // 4 bits: int8 levels
    kFloatTable,  // 4 bits: float levels
    kF32,
    kF16,
    kBF16,
    kE4M3,
    kE5M2,
};

// What a chunk's head holds. [n]: one entry for every `granularity` columns of the chunk; every entry has 16 rows.
enum class Scales : uint8_t {
    kNone,
    kF16,    // [n]
    kBF16,   // [n]
    kF32,    // [n]
    kE8M0,   // [n], half of 2^(e − 127)
    kE4M3,   // [n], unsigned, without NaN; half of it
    kSub8,   // d F16, then [n] int8
    kPair6,  // d F16, dmin F16 (zeros without minimums), then pairs (a, b) of 6 bits, one a step. Three vectors whose
             // byte 4·row + s % 4 is of step s: low four bits of a, in nibble s / 4; of b; and the top bits,
             // a >> 4 at bit 2·(s / 4) and b >> 4 at bit 4 + 2·(s / 4). With minimums, a is the scale and b the
             // minimum of a step; without, a and b are the scales + 32 of its halves
    kSub4,   // d, dmin F16, then [n] scale | minimum << 4
};
// What is subtracted or added. In the head after the scales, where it is not part of them.
enum class Offsets : uint8_t {
    kZero,      // the same code `zero` for all
    kZeros,     // [n] uint8 codes that stand for 0
    kMinimums,  // added: [n] of the scales' type; or −dmin · b of the two-level scales
};

struct Packed {
    int64_t rows, columns;
    int64_t tiles, steps;  // ⌈rows / 16⌉, ⌈columns / 32⌉
    Codes codes;
    Scales scales;
    Offsets offsets;
    int bits;                                    // of a stored code
    int granularity;                             // columns with one scale: 16, 32, 64, 128 or 256
    int zero;                                    // 0 or a power of two
    float factor;                                // of the whole tensor
    int64_t head_bytes, step_bytes, tile_bytes;  // head of a full chunk, padded to 64; what a step and a tile take
    alignas(16) uint8_t levels[16];              // kLevels: level + 128
    alignas(64) float table[16];                 // kFloatTable
    uint8_t* data;                               // tiles · tile_bytes
    // Column c is multiplied with value order[c] of a token; rows that are read have it there, too. place is the
    // inverse. Null: columns are in their own order. Equal orders are one array.
    const int32_t *order, *place;

    bool integer() const { return codes == Codes::kInteger || codes == Codes::kLevels; }
    bool halves() const { return granularity == kStep / 2; }
    int chunk_steps(int64_t chunk) const {
        const int64_t left = steps - chunk * kChunkSteps;
        return left < kChunkSteps ? int(left) : kChunkSteps;
    }
    const uint8_t* tile(int64_t t) const { return data + t * tile_bytes; }
    // A short last chunk has the head of a full one.
    int64_t chunk_bytes() const { return head_bytes + kChunkSteps * step_bytes; }
};

// Fills what follows from rows, columns, codes, scales, offsets, bits and granularity.
void set_layout(Packed& packed);
// One row, float32 [columns], as any reader of the format decodes it, in the order of the activations.
void read_row(const Packed& packed, int64_t row, float* out);
// out[m · out_stride + n] += Σ over the `count` columns c of x[m · x_stride + c] · w[n][c], for rows of tiles
// [tile_begin, tile_end): the float part of LLM.int8().
void add_columns(const Packed& packed, const int32_t* columns, int count, const float* x, int64_t x_stride, int64_t m,
                 float* out, int64_t out_stride, int64_t tile_begin, int64_t tile_end);

enum class Contract : uint8_t { kFast, kExact, kToken };  // kernels.matrix.Activations
enum class ActKind : uint8_t { kInt8, kInt8Token, kBF16, kF32 };

inline ActKind act_kind(const Packed& packed, Contract contract) {
    if (packed.integer() && contract != Contract::kExact)
        return contract == Contract::kFast ? ActKind::kInt8 : ActKind::kInt8Token;
    return packed.codes == Codes::kBF16 && contract == Contract::kFast ? ActKind::kBF16 : ActKind::kF32;
}

// Tokens as products read them. Panel p has w = width(p) columns, the last ones zeros where w is more than there are.
//   codes  int8: [panel][step][quad][w][4], bfloat16: [panel][pair][w][2], float32: [panel][column][w]
//   or, where an instruction set multiplies whole rows of a token (matrix units), for more than kFew tokens: int8 and
//   bfloat16 [panel][step][w][32]
//   scales float32 [panel][step][w] (int8 only; one value a token for kInt8Token)
//   sums   int32 of codes: [panel][step][w] and [panel][half step][w], and float32 sum · scale of the same shapes
struct Act {
    ActKind kind;
    int64_t rows, columns, steps;
    uint8_t* data;
    const int32_t* order = nullptr;  // Packed::order of the weights

    int64_t panels() const { return (rows + kPanel - 1) / kPanel; }
    static int64_t first(int64_t panel) { return panel * kPanel; }
    int count(int64_t panel) const {
        const int64_t left = rows - first(panel);
        return left < kPanel ? int(left) : kPanel;
    }
    int width(int64_t panel) const { return padded(count(panel)); }
    static int padded(int count) {
        return count <= 2 ? count : count <= 4 ? 4 : count <= 6 ? 6 : count <= 8 ? 8 : kPanel;
    }

    int64_t code_bytes() const {  // of one token
        return steps * kStep * (kind == ActKind::kF32 ? 4 : kind == ActKind::kBF16 ? 2 : 1);
    }
    uint8_t* codes(int64_t panel) const { return data + first(panel) * code_bytes(); }
    float* scales(int64_t panel) const { return part(0) + first(panel) * steps; }
    int32_t* step_sums(int64_t panel) const { return reinterpret_cast<int32_t*>(part(1) + first(panel) * steps); }
    float* step_products(int64_t panel) const { return part(2) + first(panel) * steps; }
    int32_t* half_sums(int64_t panel) const { return reinterpret_cast<int32_t*>(part(3) + first(panel) * 2 * steps); }
    float* half_products(int64_t panel) const { return part(5) + first(panel) * 2 * steps; }
    // What `data` needs.
    int64_t bytes() const {
        const bool integer = kind == ActKind::kInt8 || kind == ActKind::kInt8Token;
        return capacity() * (code_bytes() + (integer ? 7 * steps * int64_t{sizeof(float)} : 0));
    }

private:
    int64_t capacity() const { return panels() * kPanel; }
    float* part(int i) const {
        return reinterpret_cast<float*>(data + capacity() * code_bytes()) + i * capacity() * steps;
    }
};

}  // namespace bitsmith::engine
