// The body of every instruction set's translation unit. The file that includes it defines BITSMITH_NS.
#include "../checksum.h"
#include "../convert.h"
#include "../decode/grids.h"
#include "../decode/groups.h"
#include "../decode/kquants.h"
#include "../decode/legacy.h"
#include "../decode/levels.h"
#include "../encode/fp4.h"
#include "../encode/grids.h"
#include "../encode/groups.h"
#include "../encode/iq4.h"
#include "../encode/kquants.h"
#include "../encode/legacy.h"
#include "../encode/ternary.h"
#include "../inspect.h"
#include "../statistics.h"

namespace bitsmith {
namespace BITSMITH_NS {

#define BITSMITH_STRING_(text) #text
#define BITSMITH_STRING(text) BITSMITH_STRING_(text)

static const Kernels kKernels = {
    BITSMITH_STRING(BITSMITH_NS),
    all_finite,
    // encode, in the order of Kind
    {
        encode_q4_0,    // Q4_0
        encode_q4_1,    // Q4_1
        encode_q5_0,    // Q5_0
        encode_q5_1,    // Q5_1
        encode_q8_0,    // Q8_0
        encode_q2_k,    // Q2_K
        encode_q3_k,    // Q3_K
        encode_q4_k,    // Q4_K
        encode_q5_k,    // Q5_K
        encode_q6_k,    // Q6_K
        encode_iq4_nl,  // IQ4_NL
        encode_iq4_xs,  // IQ4_XS
        encode_tq1_0,   // TQ1_0
        encode_tq2_0,   // TQ2_0
        encode_mxfp4,   // MXFP4
        encode_nvfp4,   // NVFP4
        encode_grid<GridIq2Xxs>,
        encode_grid<GridIq2Xs>,
        encode_grid<GridIq2S>,
        encode_grid<GridIq3Xxs>,
        encode_grid<GridIq3S>,
    },
    // decode
    {
        decode_nibbles<4, true>,   // Q4_0
        decode_nibbles<4, false>,  // Q4_1
        decode_nibbles<5, true>,   // Q5_0
        decode_nibbles<5, false>,  // Q5_1
        decode_q8_0,
        decode_q2_k,
        decode_q3_k,
        decode_q45_k<4>,  // Q4_K
        decode_q45_k<5>,  // Q5_K
        decode_q6_k,
        decode_iq4_nl,
        decode_iq4_xs,
        decode_tq1_0,
        decode_tq2_0,
        decode_mxfp4,
        decode_nvfp4,
        decode_iq2_xxs,
        decode_iq2_xs,
        decode_iq2_s,
        decode_iq3_xxs,
        decode_iq3_s,
    },
    encode_groups,
    group_sums,
    group_codes,
    decode_group,
    row_to_f16,
    row_from_f16,
    row_to_bf16,
    row_from_bf16,
    row_error,
    row_histogram,
    row_scan,
    group_error_ratio,
    {
        {row_figures<TypeBF16>, column_sums<TypeBF16>, column_medians<TypeBF16>, pool_rows<TypeBF16>},
        {row_figures<TypeF16>, column_sums<TypeF16>, column_medians<TypeF16>, pool_rows<TypeF16>},
        {row_figures<TypeF32>, column_sums<TypeF32>, column_medians<TypeF32>, pool_rows<TypeF32>},
    },
    row_powers,
    kCrc32,
};

}  // namespace BITSMITH_NS
}  // namespace bitsmith
