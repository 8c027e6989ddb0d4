// Which instruction sets this CPU has and the operating system has switched on.
#pragma once

namespace bitsmith {

struct CpuFeatures {
    bool avx2;    // with F16C
    bool avx512;  // F, BW, DQ, VL
};
CpuFeatures detect_cpu();

}  // namespace bitsmith
