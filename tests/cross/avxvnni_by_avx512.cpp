// The source of AVX-VNNI's instruction set, whose dot product is taken from AVX-512, where it is encoded otherwise.
#include <immintrin.h>
#undef _mm256_dpbusd_avx_epi32
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#define __AVXVNNI__ 1
#define BITSMITH_AVX2
#define BITSMITH_NS avxvnni_by_avx512
#include "../../kernels/cpu/engine/isa/table.inl"

namespace bitsmith::engine {

const Kernels* kernels_avxvnni_by_avx512();
const Kernels* kernels_avxvnni_by_avx512() {
    return &avxvnni_by_avx512::kKernels<false>;
}

}  // namespace bitsmith::engine
