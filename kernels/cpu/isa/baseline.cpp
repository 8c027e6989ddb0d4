// SSE2 on x86-64, NEON on arm64, plain code elsewhere: what every CPU of the architecture has.
#define BITSMITH_NS baseline
#include "kernels.inl"

const bitsmith::Kernels* bitsmith::kernels_baseline() {
    return &bitsmith::baseline::kKernels;
}
