// The table of this instruction set. The file that includes it defines BITSMITH_NS.
#pragma once
#include "attention.h"
#include "rows.h"
#include "sampling.h"

namespace bitsmith::engine {
namespace BITSMITH_NS {

static const OpTable kOps = {
    ops::norm,        ops::rope,        ops::act_mul,       ops::rotate_run,   ops::add,
    ops::add_scaled,  ops::scale,       ops::softcap,       ops::exp_row,      ops::store_key,
    ops::store_value, ops::read_rows,   ops::attend,        ops::largest_of,   ops::exp_sum,
    ops::keep_above,  ops::bucket_mass, ops::gather_bucket, ops::gather_above,
};

}  // namespace BITSMITH_NS
}  // namespace bitsmith::engine
