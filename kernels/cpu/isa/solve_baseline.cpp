// SSE2 on x86-64, NEON on arm64, plain code elsewhere: what every CPU of the architecture has.
#define BITSMITH_NS baseline
#include "solve.inl"

const bitsmith::Solve* bitsmith::solve_baseline() {
    return &bitsmith::baseline::kSolve;
}
