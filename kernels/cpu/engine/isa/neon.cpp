#include "../table.h"
#if defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD) && !defined(__ARM_FEATURE_MATMUL_INT8)
#define BITSMITH_NS neon
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_neon() {
    return &bitsmith::engine::neon::kKernels<false>;
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_neon() {
    return nullptr;
}
#endif
