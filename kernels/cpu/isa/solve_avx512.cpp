#include "../solve_table.h"
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BITSMITH_NS avx512
#include "solve.inl"

const bitsmith::Solve* bitsmith::solve_avx512() {
    return &bitsmith::avx512::kSolve;
}
#else
const bitsmith::Solve* bitsmith::solve_avx512() {
    return nullptr;
}
#endif
