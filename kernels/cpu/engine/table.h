// What every instruction set of the engine offers: one table of plain functions, filled in isa/table.inl. No function
// starts a thread; a caller may run disjoint ranges on as many threads as it likes.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "ops/table.h"
#include "packed.h"

namespace bitsmith::engine {

struct Output {
    float* data;        // [tokens][stride], rows of weights are columns here
    int64_t stride;     // floats
    const float* bias;  // [rows of weights] or null
    bool accumulate;    // += instead of =
};

// Σ x xᵀ (matmul/gram.h).
constexpr int kGramPanel = 64;
struct Gram {
    int rows_a_word;  // two: they are rounded to bfloat16
    // Rows of x float32 [rows][columns] into one panel of words, [ceil(rows / rows_a_word)][kGramPanel].
    void (*panel)(const float* x, int64_t rows, int64_t columns, int64_t panel, float* to);
    // total [columns][columns] += one tile of panels [panel][words][kGramPanel].
    void (*tile)(const float* panels, int64_t words, int64_t columns, int64_t row_panel, int64_t column_panel,
                 float* total);
};

struct Kernels {
    const char* name;
    // Rounds panels [panel_begin, panel_end) of x float32 [act.rows][x_stride] into act.data.
    void (*prepare)(const Act& act, const float* x, int64_t x_stride, int64_t panel_begin, int64_t panel_end);
    // out = act · weightsᵀ for the rows of tiles [tile_begin, tile_end). act.kind is act_kind(weights, contract) or
    // kF32; scratch: kScratch bytes of the calling thread.
    void (*linear)(const Packed& weights, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                   void* scratch);
    const OpTable* ops;  // everything besides products: ops/table.h
    Gram gram;
};

// Null where this compiler or architecture has none.
const Kernels* kernels_portable();
const Kernels* kernels_avx2();
const Kernels* kernels_avxvnni();
const Kernels* kernels_avx512vnni();
const Kernels* kernels_avx512bf16(bool pairs_pay);      // pairs of bfloat16 are multiplied faster than as many float32
const Kernels* kernels_amx(bool bf16, bool pairs_pay);  // bf16: the CPU multiplies bfloat16 in tiles, too
const Kernels* kernels_neon();
const Kernels* kernels_i8mm();

// What the CPU lists and this process can not run, and why in words: it has failed its trial (trial.h), or the system
// refuses it.
struct Refused {
    std::string name, reason;
};
const std::vector<Refused>& refused_kernels();
// What this CPU can run and has passed its trial, best first; the last is portable.
const std::vector<const Kernels*>& usable_kernels();
// Throws std::invalid_argument for what is not in that list.
const Kernels& kernels_named(const char* name);

}  // namespace bitsmith::engine
