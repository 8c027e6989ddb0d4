#include "detect.h"

#include <stdint.h>
#if defined(_MSC_VER) && (defined(_M_X64) || defined(_M_IX86))
#include <intrin.h>
#define BITSMITH_X86 1
#elif defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define BITSMITH_X86 1
#endif

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
static bool has(const char* feature) {
    int value = 0;
    size_t size = sizeof value;
    return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value != 0;
}
#endif

namespace bitsmith {

#if defined(BITSMITH_X86)

struct Registers {
    uint32_t a, b, c, d;
};

static Registers cpuid(uint32_t leaf, uint32_t subleaf = 0) {
    Registers r = {0, 0, 0, 0};
#if defined(_MSC_VER) && !defined(__clang__)
    int out[4];
    __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
    r = {static_cast<uint32_t>(out[0]), static_cast<uint32_t>(out[1]), static_cast<uint32_t>(out[2]),
         static_cast<uint32_t>(out[3])};
#else
    __cpuid_count(leaf, subleaf, r.a, r.b, r.c, r.d);
#endif
    return r;
}

// Register state that the operating system saves: bit 1 SSE, 2 AVX, 5…7 AVX-512, 17 and 18 AMX.
static uint64_t saved_state() {
#if defined(_MSC_VER) && !defined(__clang__)
    return _xgetbv(0);
#else
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low | static_cast<uint64_t>(high) << 32;
#endif
}

CpuFeatures detect_cpu() {
    CpuFeatures features = {};
    if (cpuid(0).a < 7) return features;
    const uint32_t first = cpuid(1).c;
    const bool os_saves = first >> 27 & 1;
    if (!os_saves) return features;
    const uint64_t state = saved_state();
    const Registers leaf = cpuid(7), more = leaf.a >= 1 ? cpuid(7, 1) : Registers{0, 0, 0, 0};
    const uint32_t seventh = leaf.b;
    const bool clmul = first >> 1 & 1;
    features.avx2 = (state & 0x6) == 0x6 && clmul && (first >> 28 & 1) && (first >> 29 & 1) && (seventh >> 5 & 1);
    const uint32_t needed = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;  // F, DQ, BW, VL
    features.avx512 = features.avx2 && (state & 0xE6) == 0xE6 && (seventh & needed) == needed;
    features.fma = features.avx2 && (first >> 12 & 1);
    features.avxvnni = features.fma && (more.a >> 4 & 1);
    features.avx512vnni = features.avx512 && features.fma && (leaf.c >> 11 & 1);
    features.avx512bf16 = features.avx512 && (more.a >> 5 & 1);
    const bool intel = cpuid(0).b == 0x756e6547;  // "Genu"
    features.pairs_pay = features.avx512bf16 && !intel;
    features.amx = (leaf.d >> 24 & 1) && (leaf.d >> 25 & 1);
    features.amx_bf16 = features.amx && (leaf.d >> 22 & 1);
    features.amx_state = (state >> 17 & 3) == 3;
    return features;
}

#elif defined(__aarch64__) || defined(_M_ARM64)

CpuFeatures detect_cpu() {
    CpuFeatures features = {};
#if defined(__linux__)
    features.dotprod = getauxval(AT_HWCAP) >> 20 & 1;  // HWCAP_ASIMDDP
    features.i8mm = getauxval(AT_HWCAP2) >> 13 & 1;    // HWCAP2_I8MM
#elif defined(__APPLE__)
    features.dotprod = has("hw.optional.arm.FEAT_DotProd");
    features.i8mm = has("hw.optional.arm.FEAT_I8MM");
#endif
    return features;
}

#else

CpuFeatures detect_cpu() {
    return {};
}

#endif

}  // namespace bitsmith
