#include "memory.h"

#include <new>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <unistd.h>
#else
#include <stdlib.h>
#endif

namespace bitsmith::engine {

#if defined(__unix__) || defined(__APPLE__)

static int64_t page_bytes() {
    static const int64_t bytes = sysconf(_SC_PAGESIZE);
    return bytes;
}
static int64_t up(int64_t value, int64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

char* map_pages(int64_t bytes) {
    const int64_t slack = bytes >= kHugePage ? kHugePage : 0;
    if (bytes > INT64_MAX / 2) throw std::bad_alloc();
    const int64_t size = up(bytes, page_bytes());
    void* mapped =
        mmap(nullptr, static_cast<size_t>(size + slack), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) throw std::bad_alloc();
    char* data = static_cast<char*>(mapped);
    if (slack) {
        const int64_t before = static_cast<int64_t>(-reinterpret_cast<uintptr_t>(data) & (kHugePage - 1));
        if (before) munmap(data, static_cast<size_t>(before));
        if (slack > before) munmap(data + before + size, static_cast<size_t>(slack - before));
        data += before;
#if defined(MADV_HUGEPAGE)
        // A wish. Whole pages only: the system rounds up, and the rest may be somebody else's.
        madvise(data, static_cast<size_t>(size / kHugePage * kHugePage), MADV_HUGEPAGE);
#endif
    }
    return data;
}

void unmap_pages(char* data, int64_t bytes) noexcept {
    munmap(data, static_cast<size_t>(up(bytes, page_bytes())));
}

void drop_pages([[maybe_unused]] char* data, [[maybe_unused]] int64_t bytes) noexcept {
#if defined(__linux__)
    madvise(data, static_cast<size_t>(bytes), MADV_DONTNEED);
#endif
}

#else

// Before the data stands where the block begins.
char* map_pages(int64_t bytes) {
    const int64_t align = bytes >= kHugePage ? kHugePage : 64;
    char* block = static_cast<char*>(calloc(static_cast<size_t>(bytes + align + 64), 1));
    if (block == nullptr) throw std::bad_alloc();
    char* data = block + 64;
    data += -reinterpret_cast<uintptr_t>(data) & static_cast<uintptr_t>(align - 1);
    reinterpret_cast<char**>(data)[-1] = block;
    return data;
}

void unmap_pages(char* data, int64_t) noexcept {
    free(reinterpret_cast<char**>(data)[-1]);
}

void drop_pages(char*, int64_t) noexcept {}

#endif

}  // namespace bitsmith::engine
