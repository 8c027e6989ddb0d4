#include "pool.h"

#include <algorithm>
#include <chrono>
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace bitsmith::engine {

namespace {

constexpr int kBits = 24;
constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
constexpr int64_t kMaxChunks = int64_t{1} << 23;  // leaves room for claims past the end, one a worker

// How long a worker looks for work before it sleeps: within a run, where a serial part lasts less, and after one, while
// the next token is drawn. Waking up takes about 50 microseconds.
constexpr auto kBusySpin = std::chrono::microseconds(300);
constexpr auto kIdleSpin = std::chrono::microseconds(150);

void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__) && defined(__GNUC__)
    __asm__ volatile("yield");
#endif
}

bool open(uint64_t word) {
    return (word & kMask) < (word >> kBits & kMask);
}

}  // namespace

Pool::Pool(int threads) {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { worker(i); });
}

Pool::~Pool() {
    stop_.store(true);
    wake_.fetch_add(1);
    wake_.notify_all();
    for (std::thread& thread : workers_) thread.join();
}

// Claims chunks until none is left, and returns how many it claimed.
int64_t Pool::work_on(int thread) {
    int64_t mine = 0;
    while (true) {
        const uint64_t word = work_.fetch_add(1, std::memory_order_acq_rel);
        if (!open(word)) return mine;
        // This chunk keeps the region open, so call_ and body_ are its own until it is reported as finished.
        if (!cancelled()) call_(body_, static_cast<int64_t>(word & kMask), thread);
        ++mine;
    }
}

void Pool::run_raw(int64_t count, Call call, const void* body) {
    while (count > kMaxChunks) {  // never in practice; a region's word has no room for more
        struct Shifted {
            Call call;
            const void* body;
            int64_t first;
        };
        const Shifted rest = {call, body, count - kMaxChunks};
        run_raw(
            kMaxChunks,
            [](const void* b, int64_t chunk, int thread) {
                const Shifted& shifted = *static_cast<const Shifted*>(b);
                shifted.call(shifted.body, shifted.first + chunk, thread);
            },
            &rest);
        count -= kMaxChunks;
    }
    if (count <= 0) return;
    if (workers_.empty() || count == 1) {
        for (int64_t chunk = 0; chunk < count && !cancelled(); ++chunk) call(body, chunk, 0);
        return;
    }
    call_ = call;
    body_ = body;
    finished_.store(0, std::memory_order_relaxed);
    const uint64_t epoch = (work_.load(std::memory_order_relaxed) >> 2 * kBits) + 1;
    work_.store(epoch << 2 * kBits | static_cast<uint64_t>(count) << kBits, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) {
        wake_.fetch_add(1);
        wake_.notify_all();
    }
    finished_.fetch_add(work_on(0), std::memory_order_acq_rel);
    for (int spins = 0; finished_.load(std::memory_order_acquire) != count; ++spins) {
        // A worker that lost its core in the middle of a chunk gets it back sooner when this one lets go.
        if (spins < 2000)
            relax();
        else
            std::this_thread::yield();
    }
}

void Pool::wait_for_work() {
    using Clock = std::chrono::steady_clock;
    Clock::time_point started = Clock::now();
    while (true) {
        for (int i = 0; i < 64; ++i) {
            if (open(work_.load(std::memory_order_acquire)) || stop_.load(std::memory_order_relaxed)) return;
            relax();
        }
        const bool busy = busy_.load(std::memory_order_relaxed);
        if (Clock::now() - started < (busy ? Clock::duration(kBusySpin) : Clock::duration(kIdleSpin))) continue;
        const uint32_t seen = wake_.load(std::memory_order_seq_cst);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        if (!open(work_.load(std::memory_order_seq_cst)) && !stop_.load(std::memory_order_seq_cst)) wake_.wait(seen);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
        started = Clock::now();
    }
}

void Pool::worker(int thread) {
    while (true) {
        wait_for_work();
        if (stop_.load(std::memory_order_acquire)) return;
        const int64_t mine = work_on(thread);
        if (mine) finished_.fetch_add(mine, std::memory_order_acq_rel);
    }
}

}  // namespace bitsmith::engine
