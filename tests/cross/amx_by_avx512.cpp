// The source of AMX's products, with emulated tiles.
#define BITSMITH_EMULATED_TILES
#define BITSMITH_NS amx_by_avx512
#include "../../kernels/cpu/engine/isa/tiles.inl"

namespace bitsmith::engine {

const Kernels* kernels_amx_by_avx512();
const Kernels* kernels_amx_by_avx512() {
    return amx_by_avx512::tile_kernels("amx_by_avx512", kernels_avx512vnni(), true);
}

}  // namespace bitsmith::engine
