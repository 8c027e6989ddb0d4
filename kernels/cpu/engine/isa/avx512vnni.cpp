#include "../table.h"
#if defined(__AVX512VNNI__) && !defined(__AVX512BF16__)
#define BITSMITH_NS avx512vnni
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_avx512vnni() {
    return &bitsmith::engine::avx512vnni::kKernels<false>;
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_avx512vnni() {
    return nullptr;
}
#endif
