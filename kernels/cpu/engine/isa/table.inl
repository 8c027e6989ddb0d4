// The body of every instruction set's translation unit. The file that includes it defines BITSMITH_NS.
#include "../matmul/floats.h"
#include "../matmul/gram.h"
#include "../matmul/integer.h"
#include "../matmul/prepare.h"
#include "../matmul/wide.h"
#include "../ops/all.h"
#include "../table.h"

namespace bitsmith::engine::BITSMITH_NS {

// kPairs: prompts in bfloat16 are multiplied in pairs, which pays where the processor has instructions for that.
template <bool kPairs>
static void linear(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                   void* scratch) {
    uint8_t* bytes = static_cast<uint8_t*>(scratch);
    if (wide(act, kPairs)) return linear_wide(w, act, out, tile_begin, tile_end, bytes);
    switch (act.kind) {
        case ActKind::kInt8:
        case ActKind::kInt8Token:
            return linear_integer(w, act, out, tile_begin, tile_end, bytes);
        case ActKind::kBF16:
            return linear_stored<DotBF16>(w, act, out, tile_begin, tile_end);
        case ActKind::kF32:
            if (w.codes == Codes::kF32) return linear_stored<DotF32>(w, act, out, tile_begin, tile_end);
            if (w.codes == Codes::kF16 && kFused) return linear_stored<DotF16>(w, act, out, tile_begin, tile_end);
            if (kFused) {
                if (w.codes == Codes::kE4M3) return linear_float8<true>(w, act, out, tile_begin, tile_end);
                if (w.codes == Codes::kFloatTable) return linear_table(w, act, out, tile_begin, tile_end);
                if (w.codes == Codes::kE5M2) return linear_float8<false>(w, act, out, tile_begin, tile_end);
            }
            return linear_decoded(w, act, out, tile_begin, tile_end, bytes);
    }
}

template <bool kPairs>
static void prepare(const Act& act, const float* x, int64_t x_stride, int64_t panel_begin, int64_t panel_end) {
    if (by_token(act) || wide(act, kPairs)) return prepare_panels<true>(act, x, x_stride, panel_begin, panel_end);
    prepare_panels<false>(act, x, x_stride, panel_begin, panel_end);
}

#define BITSMITH_STRING_(text) #text
#define BITSMITH_STRING(text) BITSMITH_STRING_(text)

template <bool kPairs>
static const Kernels kKernels = {
    BITSMITH_STRING(BITSMITH_NS), prepare<kPairs>, linear<kPairs>, &kOps, kGram<kPairs>,
};

}  // namespace bitsmith::engine::BITSMITH_NS
