// Codes of kernels/families.py back to values.
#pragma once
#include "../encode/family.h"

namespace bitsmith {
namespace BITSMITH_NS {

// (table[code] · scale) · factor of codes 0 … 15.
inline void decode_codebook(const uint8_t* codes, int64_t n, float scale, float factor, const float* table,
                            float* out) {
    const F products = load(table) * splat(scale) * splat(factor);
#if defined(__AVX512F__)
    row_from_bytes(codes, n, out, [&](const I& code) {  // the permutation looks at four bits only
        return F{{(NativeF)_mm512_permutexvar_ps((__m512i)code.part[0], (__m512)products.part[0])}};
    });
#else
    float product[16];
    store(product, products);
    for (int64_t i = 0; i < n; ++i) out[i] = product[codes[i] & 15];
#endif
}

// scale · code + offset, each rounded.
inline void decode_affine(const uint8_t* codes, int64_t n, float scale, float offset, float* out) {
    const F s = splat(scale), o = splat(offset);
    row_from_bytes(codes, n, out, [&](const I& code) { return to_float(code) * s + o; });
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
