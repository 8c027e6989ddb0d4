// The body of every instruction set's translation unit. The file that includes it defines BITSMITH_NS.
#include "../encode/legacy.h"
#include "../finite.h"

namespace bitsmith {
namespace BITSMITH_NS {

#define BITSMITH_STRING_(text) #text
#define BITSMITH_STRING(text) BITSMITH_STRING_(text)

static const Kernels kKernels = {
    BITSMITH_STRING(BITSMITH_NS),
    all_finite,
    // encode, in the order of Kind
    {
        nullptr,      // Q4_0
        nullptr,      // Q4_1
        nullptr,      // Q5_0
        nullptr,      // Q5_1
        encode_q8_0,  // Q8_0
        nullptr,      // Q2_K
        nullptr,      // Q3_K
        nullptr,      // Q4_K
        nullptr,      // Q5_K
        nullptr,      // Q6_K
        nullptr,      // IQ4_NL
        nullptr,      // IQ4_XS
        nullptr,      // TQ1_0
        nullptr,      // TQ2_0
        nullptr,      // MXFP4
        nullptr,      // NVFP4
    },
    // decode
    {},
};

}  // namespace BITSMITH_NS
}  // namespace bitsmith
