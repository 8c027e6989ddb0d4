// What the parts of the module share: numpy's arrays, and the kernels of an instruction set by its name.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "table.h"

namespace nb = nanobind;
using namespace bitsmith;

using Floats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatsOut = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Weights = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoublesOut = nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Flat = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Halves = nb::ndarray<const uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using HalvesOut = nb::ndarray<uint16_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Counts = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Stored = nb::ndarray<nb::ro, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using FloatRow = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using DoubleRow = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Edges = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using BytesOut = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

namespace bitsmith {

// Raises ValueError for a set that this CPU or build has not.
const Kernels& kernels_named(const std::string& isa);
ScaleType scale_type_named(const std::string& name);
void add_inspect(nb::module_& m);   // module_inspect.cpp
void add_families(nb::module_& m);  // module_families.cpp
void add_solve(nb::module_& m);     // module_solve.cpp
void add_files(nb::module_& m);     // module_files.cpp

inline void require(bool ok, const char* message) {
    if (!ok) throw std::invalid_argument(message);
}

}  // namespace bitsmith
