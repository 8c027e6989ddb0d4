#include "../solve_table.h"
#if defined(__AVX2__) && defined(__F16C__) && !defined(__AVX512F__)
#define BITSMITH_NS avx2
#include "solve.inl"

const bitsmith::Solve* bitsmith::solve_avx2() {
    return &bitsmith::avx2::kSolve;
}
#else
const bitsmith::Solve* bitsmith::solve_avx2() {
    return nullptr;
}
#endif
