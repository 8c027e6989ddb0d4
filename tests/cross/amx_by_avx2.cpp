// The source of AMX's products, with emulated tiles, on processors without AVX-512.
#define BITSMITH_EMULATED_TILES
#define BITSMITH_NS amx_by_avx2
#include "../../kernels/cpu/engine/isa/tiles.inl"

namespace bitsmith::engine {

const Kernels* kernels_amx_by_avx2();
const Kernels* kernels_amx_by_avx2() {
    return amx_by_avx2::tile_kernels("amx_by_avx2", kernels_avx2(), true);
}

}  // namespace bitsmith::engine
