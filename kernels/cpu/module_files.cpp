// Stretches of a file at equal distances, read or written in one go: a thousand short system calls without Python
// between.
#include <errno.h>

#include "arrays.h"

#if !defined(_WIN32)
#include <unistd.h>

// call(row, already done of it) moves bytes as pread and pwrite do. Bytes moved until the first end of file.
template <class Call>
static int64_t over_stretches(int64_t rows, int64_t nbytes, const Call& call) {
    int64_t moved = 0;
    int problem = 0;
    {
        nb::gil_scoped_release released;
        for (int64_t row = 0; row < rows && !problem; ++row) {
            int64_t done = 0;
            while (done < nbytes) {
                const ssize_t count = call(row, done);
                if (count < 0 && errno == EINTR) continue;
                if (count < 0) problem = errno;
                if (count <= 0) break;
                done += count;
            }
            moved += done;
            if (done < nbytes) break;
        }
    }
    if (problem) {
        errno = problem;
        PyErr_SetFromErrno(PyExc_OSError);
        throw nb::python_error();
    }
    return moved;
}

static int64_t write_stretches(int file, int64_t offset, int64_t stride, Bytes rows) {
    const int64_t nbytes = rows.shape(1);
    const uint8_t* from = rows.data();
    return over_stretches(rows.shape(0), nbytes, [&](int64_t row, int64_t done) {
        return pwrite(file, from + row * nbytes + done, nbytes - done, offset + row * stride + done);
    });
}
static int64_t read_stretches(int file, int64_t offset, int64_t stride, BytesOut rows) {
    const int64_t nbytes = rows.shape(1);
    uint8_t* to = rows.data();
    return over_stretches(rows.shape(0), nbytes, [&](int64_t row, int64_t done) {
        return pread(file, to + row * nbytes + done, nbytes - done, offset + row * stride + done);
    });
}
#endif

// zlib's checksum of the bytes. Raises ValueError for a set without it; `has_crc32` tells.
static uint32_t crc32_of(const std::string& isa, Flat bytes, uint32_t before) {
    const Crc32 function = kernels_named(isa).crc32;
    require(function != nullptr, "this instruction set has no carry-less product");
    const uint8_t* data = bytes.data();
    const int64_t n = static_cast<int64_t>(bytes.size());
    nb::gil_scoped_release released;
    return function(before, data, n);
}

namespace bitsmith {

void add_files(nb::module_& m) {
    m.def("crc32", &crc32_of);
    m.def("has_crc32", [](const std::string& isa) { return kernels_named(isa).crc32 != nullptr; });
#if !defined(_WIN32)
    m.def("write_stretches", &write_stretches);
    m.def("read_stretches", &read_stretches);
#endif
}

}  // namespace bitsmith
