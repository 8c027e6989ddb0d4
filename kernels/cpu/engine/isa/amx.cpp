// AMX for prompts, AVX-512 for the rest.
#include "../table.h"
#if defined(__AMX_TILE__) && defined(__AMX_INT8__) && defined(__AMX_BF16__) && defined(__AVX512BF16__)
#define BITSMITH_NS amx
#include "tiles.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_amx(bool bf16, bool pairs_pay) {
    return amx::tile_kernels("amx", kernels_avx512bf16(pairs_pay), bf16);
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_amx(bool, bool) {
    return nullptr;
}
#endif
