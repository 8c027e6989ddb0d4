#include "../table.h"
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define BITSMITH_NS avx2
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_avx2() {
    return &bitsmith::engine::avx2::kKernels<false>;
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_avx2() {
    return nullptr;
}
#endif
