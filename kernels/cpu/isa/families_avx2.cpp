#include "../families_table.h"
#if defined(__AVX2__) && defined(__F16C__) && !defined(__AVX512F__)
#define BITSMITH_NS avx2
#include "families.inl"

const bitsmith::Families* bitsmith::families_avx2() {
    return &bitsmith::avx2::kFamilies;
}
#else
const bitsmith::Families* bitsmith::families_avx2() {
    return nullptr;
}
#endif
