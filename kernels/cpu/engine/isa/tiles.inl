// The body of a translation unit whose products of more than kFew tokens run in a matrix unit, and everything else as
// in another instruction set. The file that includes it defines BITSMITH_NS.
#include "../matmul/prepare.h"
#include "../matmul/tiles.h"
#include "../table.h"

namespace bitsmith::engine::BITSMITH_NS {

static const Kernels* rest;  // the other instruction set
static bool bf16_tiles;      // the unit multiplies bfloat16, too

static bool in_tiles(const Act& act) {
    if (act.rows <= kFew) return false;
    return act.kind == ActKind::kBF16 ? bf16_tiles : act.kind != ActKind::kF32;
}

static void prepare(const Act& act, const float* x, int64_t x_stride, int64_t panel_begin, int64_t panel_end) {
    if (in_tiles(act)) return prepare_panels<true>(act, x, x_stride, panel_begin, panel_end);
    rest->prepare(act, x, x_stride, panel_begin, panel_end);
}

static void linear(const Packed& w, const Act& act, const Output& out, int64_t tile_begin, int64_t tile_end,
                   void* scratch) {
    if (!in_tiles(act)) return rest->linear(w, act, out, tile_begin, tile_end, scratch);
    if (act.kind == ActKind::kBF16) return linear_bf16_tiles(w, act, out, tile_begin, tile_end);
    linear_integer_tiles(w, act, out, tile_begin, tile_end, static_cast<uint8_t*>(scratch));
}

// Null without the other instruction set. Called once.
static const Kernels* tile_kernels(const char* name, const Kernels* other, bool bf16) {
    if (!other) return nullptr;
    static Kernels kernels;
    rest = other;
    bf16_tiles = bf16;
    kernels = {name, prepare, linear, other->ops, other->gram};
    return &kernels;
}

}  // namespace bitsmith::engine::BITSMITH_NS
