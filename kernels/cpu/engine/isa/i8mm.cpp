#include "../table.h"
#if defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD) && defined(__ARM_FEATURE_MATMUL_INT8)
#define BITSMITH_NS i8mm
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_i8mm() {
    return &bitsmith::engine::i8mm::kKernels<false>;
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_i8mm() {
    return nullptr;
}
#endif
