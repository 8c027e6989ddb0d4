#include "../table.h"
#if defined(__AVXVNNI__)
#define BITSMITH_NS avxvnni
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_avxvnni() {
    return &bitsmith::engine::avxvnni::kKernels<false>;
}
#else
const bitsmith::engine::Kernels* bitsmith::engine::kernels_avxvnni() {
    return nullptr;
}
#endif
