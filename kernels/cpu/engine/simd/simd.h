// Sixteen rows at once: Bytes (16 × 4 uint8), Ints and Floats (16 lanes), in the widest registers of the translation
// unit's instruction set. Every translation unit of isa/ compiles this in its own namespace BITSMITH_NS. Nothing here
// uses the standard library, whose inline functions would be shared between translation units with different flags.
#pragma once
#include <stdint.h>
#include <string.h>

#if defined(BITSMITH_PORTABLE)
#define BITSMITH_INLINE inline  // its structs do not fit registers, and inlining all of them takes minutes
#define BITSMITH_UNROLL
#elif defined(__GNUC__)
#define BITSMITH_INLINE inline __attribute__((always_inline))
#define BITSMITH_UNROLL _Pragma("GCC unroll 16")
#elif defined(_MSC_VER)
#define BITSMITH_INLINE __forceinline
#define BITSMITH_UNROLL
#else
#define BITSMITH_INLINE inline
#define BITSMITH_UNROLL
#endif

#if defined(BITSMITH_PORTABLE)
#include "portable.h"
#elif defined(__AVX512F__) && defined(__AVX512VNNI__) && !defined(BITSMITH_AVX2)
#include "avx512.h"
#elif defined(__AVX2__)
#include "avx2.h"
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include "neon.h"
#else
#include "portable.h"
#endif

namespace bitsmith::engine::BITSMITH_NS {

BITSMITH_INLINE Floats load_bf16(const uint16_t* p) {
    return as_floats(shift<16>(widen_u16(p)));
}

// Eight-bit floats by way of float16, whose exponent has room for both: E5M2 is its upper byte, E4M3 comes out
// kE4M3Factor times too small.
constexpr float kE4M3Factor = 256.0f;
#if !defined(BITSMITH_OWN_FLOAT8)
BITSMITH_INLINE Floats load_e5m2(const uint8_t* p) {
    return from_f16(shift<8>(widen_u8(p)));
}
BITSMITH_INLINE Floats load_e4m3_small(const uint8_t* p) {
    const Ints code = widen_u8(p), magnitude = code & splat(0x7f), sign = shift<8>(code & splat(0x80));
    return from_f16(where_equal(magnitude, 0x7f, splat(0x7e00), shift<7>(magnitude)) | sign);
}
#endif

}  // namespace bitsmith::engine::BITSMITH_NS
