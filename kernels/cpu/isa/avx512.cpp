#include "../table.h"
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BITSMITH_NS avx512
#include "kernels.inl"

const bitsmith::Kernels* bitsmith::kernels_avx512() {
    return &bitsmith::avx512::kKernels;
}
#else
const bitsmith::Kernels* bitsmith::kernels_avx512() {
    return nullptr;
}
#endif
