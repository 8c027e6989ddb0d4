#include "table.h"

#include <string.h>

#include <stdexcept>
#include <string>

#include "../isa/detect.h"

namespace bitsmith::engine {

const std::vector<const Kernels*>& usable_kernels() {
    static const std::vector<const Kernels*> usable = [] {
        const CpuFeatures cpu = detect_cpu();
        std::vector<const Kernels*> found;
        const auto offer = [&found](bool runs, const Kernels* kernels) {
            if (runs && kernels) found.push_back(kernels);
        };
        offer(cpu.avx512vnni && cpu.avx512bf16, kernels_avx512bf16());
        offer(cpu.avx512vnni, kernels_avx512vnni());
        offer(cpu.avxvnni, kernels_avxvnni());
        offer(cpu.avx2 && cpu.fma, kernels_avx2());
        offer(cpu.i8mm, kernels_i8mm());
        offer(cpu.dotprod, kernels_neon());
        found.push_back(kernels_portable());
        return found;
    }();
    return usable;
}

const Kernels& kernels_named(const char* name) {
    for (const Kernels* kernels : usable_kernels())
        if (strcmp(kernels->name, name) == 0) return *kernels;
    throw std::invalid_argument(std::string("this CPU or build has no instruction set ") + name);
}

}  // namespace bitsmith::engine
