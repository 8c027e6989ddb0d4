// Plain C++, which every CPU runs.
#define BITSMITH_NS portable
#define BITSMITH_PORTABLE
#include "table.inl"

const bitsmith::engine::Kernels* bitsmith::engine::kernels_portable() {
    return &bitsmith::engine::portable::kKernels<false>;
}
