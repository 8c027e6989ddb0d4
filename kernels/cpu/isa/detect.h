// Which instruction sets this CPU has and the operating system has switched on.
#pragma once

namespace bitsmith {

struct CpuFeatures {
    bool avx2;        // with F16C
    bool avx512;      // F, BW, DQ, VL
    bool fma;         // with avx2
    bool avxvnni;     // 256 bits, with avx2 and fma
    bool avx512vnni;  // with avx512 and fma
    bool avx512bf16;
    bool pairs_pay;      // its products are taken to be faster than as many of float32: they are half as fast on one of
                         // Intel's
    bool amx;            // tiles and products of int8 in them; they may be used only once the system has granted it
    bool amx_bf16;       // of bfloat16, too
    bool amx_state;      // the system saves the tiles
    bool dotprod, i8mm;  // arm64
};
CpuFeatures detect_cpu();

}  // namespace bitsmith
