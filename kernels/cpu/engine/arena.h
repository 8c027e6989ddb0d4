// Memory for weights: matrices lie one after the other in chunks of huge pages, however small each of them is.
#pragma once
#include <stdint.h>

#include <memory>
#include <utility>

namespace bitsmith::engine {

class ArenaChunk;

// Zeroed bytes at a multiple of 64, for as long as this lives. Nothing is touched before its user touches it. What no
// slice uses any more goes back to the system page by page, and a chunk that is empty goes back whole.
class Slice {
public:
    Slice() = default;
    // From any thread. Throws std::bad_alloc.
    explicit Slice(int64_t bytes);
    Slice(Slice&& other) noexcept { *this = std::move(other); }
    Slice& operator=(Slice&& other) noexcept {
        std::swap(chunk_, other.chunk_);
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Slice();

    uint8_t* data() const { return reinterpret_cast<uint8_t*>(data_); }

private:
    std::shared_ptr<ArenaChunk> chunk_;
    char* data_ = nullptr;
    int64_t bytes_ = 0;
};

}  // namespace bitsmith::engine
