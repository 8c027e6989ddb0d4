// Python's door to matrices and their products.
#pragma once
#include <nanobind/nanobind.h>

#include "packed.h"

namespace bitsmith::engine {

void bind_matmul(nanobind::module_& m);
// The weights behind a `kernels.matrix.Matrix.stored` of this extension. Throws nanobind::cast_error for anything else.
const Packed& packed_of(nanobind::handle stored);

}  // namespace bitsmith::engine
