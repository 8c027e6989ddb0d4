// The body of the translation units of kernels/families.py. The file that includes it defines BITSMITH_NS.
#include "../decode/families.h"
#include "../encode/affine.h"
#include "../encode/codebook.h"
#include "../encode/half_quadratic.h"
#include "../float8.h"

namespace bitsmith {
namespace BITSMITH_NS {

static const Families kFamilies = {
    encode_codebook,
    encode_affine,
    half_quadratic,
    decode_codebook,
    decode_affine,
    {
        {row_to_float8<E4m3>, row_from_float8<E4m3>, encode_float8<E4m3>, decode_float8<E4m3>},
        {row_to_float8<E5m2>, row_from_float8<E5m2>, encode_float8<E5m2>, decode_float8<E5m2>},
    },
    encode_e2m1,
    round_codes,
    tile_amax,
};

}  // namespace BITSMITH_NS
}  // namespace bitsmith
