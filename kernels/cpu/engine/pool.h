// Threads that stay: the caller and its workers share one region of work at a time.
//
// Chunks are handed out one by one, so a core that is busy elsewhere takes fewer of them, and a worker that wakes up
// late finds nothing left to do: the caller waits only for chunks that somebody has begun. Workers spin while a run is
// under way, because the next region follows within microseconds, and sleep otherwise.
#pragma once
#include <stdint.h>

#include <atomic>
#include <thread>
#include <vector>

namespace bitsmith::engine {

class Pool {
public:
    // threads: the caller counts as one.
    explicit Pool(int threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int threads() const { return static_cast<int>(workers_.size()) + 1; }

    // body(chunk, thread) for every chunk in [0, count), thread in [0, threads()). After a cancel the chunks that are
    // left are passed over. One caller at a time; body must not throw and must not call run.
    template <class Body>
    void run(int64_t count, const Body& body) {
        run_raw(
            count, [](const void* b, int64_t chunk, int thread) { (*static_cast<const Body*>(b))(chunk, thread); },
            &body);
    }

    // Between begin and end workers spin for the next region instead of sleeping.
    void begin() { busy_.store(true, std::memory_order_relaxed); }
    void end() { busy_.store(false, std::memory_order_relaxed); }

    void cancel() { cancelled_.store(true, std::memory_order_relaxed); }
    bool cancelled() const { return cancelled_.load(std::memory_order_relaxed); }
    bool take_cancel() { return cancelled_.exchange(false, std::memory_order_relaxed); }

private:
    using Call = void (*)(const void* body, int64_t chunk, int thread);

    void run_raw(int64_t count, Call call, const void* body);
    int64_t work_on(int thread);
    void worker(int thread);
    void wait_for_work();

    // epoch (16 bits), chunks of the region (24), next chunk (24): one word, so that a claim is one addition and can
    // not mix two regions. The epoch only makes the word change.
    alignas(64) std::atomic<uint64_t> work_{0};
    alignas(64) std::atomic<int64_t> finished_{0};
    alignas(64) std::atomic<uint32_t> wake_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> busy_{false}, cancelled_{false}, stop_{false};
    Call call_ = nullptr;  // written only while no chunk of any region is open
    const void* body_ = nullptr;
    std::vector<std::thread> workers_;
};

}  // namespace bitsmith::engine
