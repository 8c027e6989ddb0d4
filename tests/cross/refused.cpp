// Instruction sets that fail their trial: one stops the program, as AMX does in some virtual machines, one is wrong.
#include "../../kernels/cpu/engine/table.h"

namespace bitsmith::engine {

static void fault(const Packed&, const Act&, const Output&, int64_t, int64_t, void*) {
#if defined(__GNUC__) && defined(__x86_64__)
    __asm__ volatile("ud2");
#else
    __builtin_trap();
#endif
}
static void wrong(const Packed& w, const Act& act, const Output& out, int64_t begin, int64_t end, void* scratch) {
    kernels_portable()->linear(w, act, out, begin, end, scratch);
    out.data[0] += 1.0f;
}

const Kernels* kernels_faulty();
const Kernels* kernels_faulty() {
    static const Kernels kernels = {"faulty", kernels_portable()->prepare, fault, kernels_portable()->ops};
    return &kernels;
}
const Kernels* kernels_wrong();
const Kernels* kernels_wrong() {
    static const Kernels kernels = {"wrong", kernels_portable()->prepare, wrong, kernels_portable()->ops};
    return &kernels;
}

}  // namespace bitsmith::engine
