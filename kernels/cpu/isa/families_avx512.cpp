#include "../families_table.h"
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define BITSMITH_NS avx512
#include "families.inl"

const bitsmith::Families* bitsmith::families_avx512() {
    return &bitsmith::avx512::kFamilies;
}
#else
const bitsmith::Families* bitsmith::families_avx512() {
    return nullptr;
}
#endif
