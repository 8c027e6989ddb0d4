// Q8_0: d float16, then 32 codes of −127…127. Values are d·q.
#pragma once
#include "../transpose.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Nearest integer, ties away from zero, for 0 ≤ a < 2^22.
BITSMITH_INLINE F round_half_up(const F& a) {
    const F r = rint(a);
    return select(equal(a - r, splat(0.5f)), r + splat(1.0f), r);
}

inline void encode_q8_0(const Batch& batch) {
    F x[32];
    load_transposed(batch.x, 0, 32, x);
    F largest = abs(x[0]);
    for (int i = 1; i < 32; ++i) largest = max(largest, abs(x[i]));
    const F scale = largest / splat(127.0f);
    const I stored = to_f16(scale);
    store_u16(batch.out, 0, stored);
    I words[8];
    // ggml divides by the scale before it is rounded to float16; dividing by what a reader will see is more exact.
    const F inverse_scale = inverse(batch.search ? from_f16(stored) : scale);
    for (int i = 0; i < 8; ++i) {
        I code[4];
        for (int k = 0; k < 4; ++k) {
            const F scaled = x[4 * i + k] * inverse_scale;
            if (batch.search) {
                code[k] = rint_to_int(clamp(scaled, -127.0f, 127.0f));
            } else {
                const F magnitude = round_half_up(min(abs(scaled), splat(127.0f)));
                code[k] = rint_to_int(select(less(scaled, splat(0.0f)), negate(magnitude), magnitude));
            }
        }
        const I byte = splat(0xFF);
        words[i] = pack_bytes(code[0] & byte, code[1] & byte, code[2] & byte, code[3]);
    }
    store_words(batch.out, 2, words, 8);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
