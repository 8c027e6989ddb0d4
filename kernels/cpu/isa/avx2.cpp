#include "../table.h"
#if defined(__AVX2__) && defined(__F16C__) && !defined(__AVX512F__)
#define BITSMITH_NS avx2
#include "kernels.inl"

const bitsmith::Kernels* bitsmith::kernels_avx2() {
    return &bitsmith::avx2::kKernels;
}
#else
const bitsmith::Kernels* bitsmith::kernels_avx2() {
    return nullptr;
}
#endif
