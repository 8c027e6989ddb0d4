#include "../table.h"
#if defined(__AVX512VNNI__) && defined(__AVX512BF16__)
#define BITSMITH_NS avx512bf16
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_avx512bf16(bool pairs_pay) {
    using bitsmith::engine::avx512bf16::kKernels;
    return pairs_pay ? &kKernels<true> : &kKernels<false>;
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_avx512bf16(bool) {
    return nullptr;
}
#endif
