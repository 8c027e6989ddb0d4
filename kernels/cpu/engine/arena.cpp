#include "arena.h"

#include <algorithm>
#include <mutex>
#include <vector>

#include "memory.h"

namespace bitsmith::engine {

namespace {

constexpr int64_t kChunkBytes = int64_t{64} << 20;  // of addresses; what is never used takes no memory
constexpr int64_t kSliceAlign = 64;

// What follows is a matter of microseconds and happens under one lock.
std::mutex& arena_lock() {
    static std::mutex* lock = new std::mutex;  // never destroyed: matrices may go after static destructors have run
    return *lock;
}

}  // namespace

class ArenaChunk {
public:
    explicit ArenaChunk(int64_t bytes)
        : memory_(bytes), users_(static_cast<size_t>((bytes + kHugePage - 1) / kHugePage), 0) {}

    int64_t left() const { return memory_.bytes() - used_; }
    char* take(int64_t bytes) {
        char* data = memory_.data() + used_;
        used_ += bytes;
        each_page(data, bytes, [this](int64_t page) { ++users_[static_cast<size_t>(page)]; });
        return data;
    }
    void give_back(const char* data, int64_t bytes) {
        each_page(data, bytes, [this](int64_t page) {
            if (--users_[static_cast<size_t>(page)]) return;
            const int64_t from = page * kHugePage;
            drop_pages(memory_.data() + from, std::min(kHugePage, memory_.bytes() - from));
        });
    }

private:
    template <class Body>
    void each_page(const char* data, int64_t bytes, const Body& body) const {
        const int64_t from = data - memory_.data();
        for (int64_t page = from / kHugePage; page <= (from + bytes - 1) / kHugePage; ++page) body(page);
    }

    Memory memory_;
    int64_t used_ = 0;
    std::vector<int> users_;  // slices on each page
};

Slice::Slice(int64_t bytes) : bytes_((std::max<int64_t>(bytes, 1) + kSliceAlign - 1) / kSliceAlign * kSliceAlign) {
    static std::weak_ptr<ArenaChunk>* current = new std::weak_ptr<ArenaChunk>;  // the chunk that is being filled
    const std::lock_guard<std::mutex> guard(arena_lock());
    chunk_ = current->lock();
    if (!chunk_ || chunk_->left() < bytes_) {
        const int64_t left = chunk_ ? chunk_->left() : 0;
        const int64_t size = std::max(kChunkBytes, (bytes_ + kHugePage - 1) / kHugePage * kHugePage);
        chunk_ = std::make_shared<ArenaChunk>(size);
        if (size - bytes_ >= left) *current = chunk_;
    }
    data_ = chunk_->take(bytes_);
}

Slice::~Slice() {
    if (!chunk_) return;
    const std::lock_guard<std::mutex> guard(arena_lock());
    chunk_->give_back(data_, bytes_);
    chunk_.reset();
}

}  // namespace bitsmith::engine
