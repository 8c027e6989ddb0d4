#include "table.h"

#include <string.h>

#include <stdexcept>
#include <string>

#include "../isa/detect.h"
#include "trial.h"

namespace bitsmith::engine {

#if defined(BITSMITH_EMULATED)
// Of a test's build: instruction sets that this CPU lacks, in terms of what it has, and two that have to be refused.
const Kernels* kernels_amx_by_avx512();
const Kernels* kernels_amx_by_avx2();
const Kernels* kernels_avxvnni_by_avx512();
const Kernels* kernels_faulty();
const Kernels* kernels_wrong();
#endif

namespace {

struct Survey {
    std::vector<const Kernels*> usable;
    std::vector<Refused> refused;

    void add(const Kernels* kernels, const std::string& reason) {
        if (reason.empty())
            usable.push_back(kernels);
        else
            refused.push_back({kernels->name, reason});
    }
    void offer(bool listed, const Kernels* kernels) {
        if (listed && kernels) add(kernels, trial(*kernels));
    }
    void offer_amx(const CpuFeatures& cpu) {
        const Kernels* kernels = kernels_amx(cpu.amx_bf16, cpu.pairs_pay);
        if (!cpu.amx || !cpu.avx512vnni || !cpu.avx512bf16 || !kernels) return;
        std::string reason = cpu.amx_state ? ask_for_tiles() : "the system has not switched on the registers of AMX";
        if (reason.empty()) reason = trial_apart(*kernels, "AMX");
        add(kernels, reason);
    }
};

const Survey& survey() {
    static const Survey done = [] {
        CpuFeatures cpu = detect_cpu();
        Survey found;
#if defined(BITSMITH_EMULATED)
        cpu.pairs_pay = !cpu.pairs_pay;
        found.add(kernels_faulty(), trial_apart(*kernels_faulty(), "a test"));
        found.offer(true, kernels_wrong());
        found.offer(cpu.avx512vnni, kernels_amx_by_avx512());
        found.offer(cpu.avx2 && cpu.fma, kernels_amx_by_avx2());
        found.offer(cpu.avx512vnni, kernels_avxvnni_by_avx512());
#endif
        found.offer_amx(cpu);
        found.offer(cpu.avx512vnni && cpu.avx512bf16, kernels_avx512bf16(cpu.pairs_pay));
        found.offer(cpu.avx512vnni, kernels_avx512vnni());
        found.offer(cpu.avxvnni, kernels_avxvnni());
        found.offer(cpu.avx2 && cpu.fma, kernels_avx2());
        found.offer(cpu.i8mm, kernels_i8mm());
        found.offer(cpu.dotprod, kernels_neon());
        found.usable.push_back(kernels_portable());
        return found;
    }();
    return done;
}

}  // namespace

const std::vector<const Kernels*>& usable_kernels() {
    return survey().usable;
}

const std::vector<Refused>& refused_kernels() {
    return survey().refused;
}

const Kernels& kernels_named(const char* name) {
    for (const Kernels* kernels : usable_kernels())
        if (strcmp(kernels->name, name) == 0) return *kernels;
    for (const Refused& refused : refused_kernels())
        if (refused.name == name) throw std::invalid_argument("no " + refused.name + ": " + refused.reason);
    throw std::invalid_argument(std::string("this CPU or build has no instruction set ") + name);
}

}  // namespace bitsmith::engine
