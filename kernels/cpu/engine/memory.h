// Large zeroed memory straight from the system: pages cost nothing before they are used, and go back when it is freed.
#pragma once
#include <stdint.h>
#include <stdlib.h>

#include <new>
#include <utility>
#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#endif

namespace bitsmith::engine {

class Memory {
public:
    Memory() = default;
    explicit Memory(int64_t bytes) : bytes_(bytes) {
        if (bytes <= 0) return;
#if defined(__unix__) || defined(__APPLE__)
        void* mapped =
            mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED) throw std::bad_alloc();
        base_ = mapped;
        data_ = static_cast<char*>(mapped);
#else
        base_ = calloc(static_cast<size_t>(bytes) + 64, 1);
        if (base_ == nullptr) throw std::bad_alloc();
        data_ = static_cast<char*>(base_) + (64 - reinterpret_cast<uintptr_t>(base_) % 64) % 64;
#endif
    }
    Memory(Memory&& other) noexcept { *this = std::move(other); }
    Memory& operator=(Memory&& other) noexcept {
        std::swap(base_, other.base_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Memory() {
#if defined(__unix__) || defined(__APPLE__)
        if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
#else
        free(base_);
#endif
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
        std::swap(base_, other.base_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
    }

    void* base_ = nullptr;
    char* data_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace bitsmith::engine
