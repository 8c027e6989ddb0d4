// Rows or blocks split over threads. Results never depend on how they are split.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace bitsmith {

// body(begin, end) over [0, count), each piece but the last a multiple of `grain`. Runs on the caller's thread too.
template <class Body>
void parallel_for(int64_t count, int64_t grain, int threads, const Body& body) {
    const int64_t pieces = (count + grain - 1) / grain;
    const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(threads, pieces));
    if (workers == 1) {
        if (count > 0) body(int64_t{0}, count);
        return;
    }
    std::vector<std::thread> pool;
    for (int64_t i = 0; i < workers; ++i) {
        const int64_t begin = pieces * i / workers * grain, end = std::min(count, pieces * (i + 1) / workers * grain);
        if (i + 1 < workers)
            pool.emplace_back([&body, begin, end] { body(begin, end); });
        else
            body(begin, end);
    }
    for (std::thread& thread : pool) thread.join();
}

}  // namespace bitsmith
