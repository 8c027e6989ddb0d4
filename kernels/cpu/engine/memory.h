// Large zeroed memory straight from the system: pages cost nothing before they are used, and go back when it is freed.
#pragma once
#include <stdint.h>

#include <utility>

namespace bitsmith::engine {

// Where the system has them, a page of this size takes one entry of the processor's address cache instead of 512, and
// reading gets more than twice as fast.
constexpr int64_t kHugePage = int64_t{2} << 20;

// Zeroed; at a multiple of 64, and of kHugePage from that size on. bytes > 0. Throws std::bad_alloc.
char* map_pages(int64_t bytes);
void unmap_pages(char* data, int64_t bytes) noexcept;
// These pages are not needed any more: they are zeros when they are looked at again, or stay as they are.
void drop_pages(char* data, int64_t bytes) noexcept;

class Memory {
public:
    Memory() = default;
    explicit Memory(int64_t bytes) {
        if (bytes <= 0) return;
        data_ = map_pages(bytes);
        bytes_ = bytes;
    }
    Memory(Memory&& other) noexcept { swap(other); }
    Memory& operator=(Memory&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Memory() {
        if (data_ != nullptr) unmap_pages(data_, bytes_);
    }

    int64_t bytes() const { return bytes_; }
    char* data() const { return data_; }
    float* floats() const { return reinterpret_cast<float*>(data_); }
    // Makes room for `bytes`; what was there is lost when it grows.
    void reserve(int64_t bytes) {
        if (bytes > bytes_) {
            Memory().swap(*this);
            Memory(bytes).swap(*this);
        }
    }

private:
    void swap(Memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    char* data_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace bitsmith::engine
