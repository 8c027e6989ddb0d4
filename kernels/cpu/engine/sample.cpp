#include "sample.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

namespace bitsmith::engine {

namespace {

constexpr int64_t kFew = 2048;      // candidates that are simply sorted
constexpr double kNegligible = 60;  // e^−60 times any vocabulary is below the last bit of the sum

// SplitMix64 (Steele, Lea, Flood 2014): its mixing function.
uint64_t mix(uint64_t z) {
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double uniform(uint64_t seed, uint64_t step) {
    constexpr uint64_t golden = 0x9e3779b97f4a7c15u;
    return static_cast<double>(mix(mix(seed + golden) + (step + 1) * golden) >> 11) * 0x1p-53;
}

struct MoreLikely {
    const float* logits;
    bool operator()(int32_t a, int32_t b) const { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; }
};

// The k most likely tokens, in no order.
std::vector<int32_t> most_likely(const OpTable& ops, const float* logits, int64_t count, int64_t k) {
    const MoreLikely more = {logits};
    constexpr int64_t kPiece = 16384;
    std::vector<int32_t> kept;
    float floor = -HUGE_VALF;
    const auto shrink = [&] {
        if (static_cast<int64_t>(kept.size()) <= k) return;
        std::nth_element(kept.begin(), kept.begin() + k - 1, kept.end(), more);
        kept.resize(static_cast<size_t>(k));
        floor = logits[kept.back()];
    };
    for (int64_t at = 0; at < count; at += kPiece) {
        const int64_t length = std::min(kPiece, count - at), before = static_cast<int64_t>(kept.size());
        kept.resize(static_cast<size_t>(before + length));
        const int64_t found =
            ops.gather_above(logits + at, length, floor, static_cast<int32_t>(at), kept.data() + before);
        kept.resize(static_cast<size_t>(before + found));
        if (static_cast<int64_t>(kept.size()) > 2 * k + kFew || at == 0) shrink();
    }
    shrink();
    return kept;
}

// Of these tokens, the most likely ones whose shares first reach `needed`. Many tokens are divided by logit into
// buckets, and only the bucket where the sum is reached is looked into.
void most_likely_mass(const float* logits, const std::vector<double>& share, std::vector<int32_t> ids, double needed,
                      std::vector<int32_t>& kept) {
    constexpr int kBuckets = 512;
    while (static_cast<int64_t>(ids.size()) > kFew) {
        float low = HUGE_VALF, high = -HUGE_VALF;
        for (int32_t id : ids) {
            low = std::min(low, logits[id]);
            high = std::max(high, logits[id]);
        }
        if (low == high) break;
        const double factor = kBuckets / (static_cast<double>(high) - low);
        const auto bucket_of = [&](int32_t id) {
            return std::min(kBuckets - 1, static_cast<int>((static_cast<double>(high) - logits[id]) * factor));
        };
        double mass[kBuckets] = {};
        for (int32_t id : ids) mass[bucket_of(id)] += share[id];
        int edge = 0;
        while (edge + 1 < kBuckets && mass[edge] < needed) needed -= mass[edge++];
        std::vector<int32_t> inside;
        for (int32_t id : ids) {
            const int bucket = bucket_of(id);
            if (bucket < edge) kept.push_back(id);
            else if (bucket == edge) inside.push_back(id);
        }
        ids = std::move(inside);
    }
    std::sort(ids.begin(), ids.end(), MoreLikely{logits});
    double sum = 0.0;
    for (int32_t id : ids) {
        kept.push_back(id);
        sum += share[id];
        if (sum >= needed) return;
    }
}

}  // namespace

int32_t sample(const OpTable& ops, const float* logits, int64_t count, const int32_t* previous, int64_t previous_count,
               const Sampling& sampling) {
    std::vector<float> changed;
    if (sampling.repetition != 1.0f && previous_count > 0) {
        changed.assign(logits, logits + count);
        std::vector<int32_t> seen(previous, previous + previous_count);
        std::sort(seen.begin(), seen.end());
        seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
        for (int32_t id : seen) {
            if (id < 0 || id >= count) continue;
            float& value = changed[static_cast<size_t>(id)];
            value = value > 0.0f ? value / sampling.repetition : value * sampling.repetition;
        }
        logits = changed.data();
    }
    const float largest = ops.largest(logits, count);
    if (!std::isfinite(largest)) throw std::invalid_argument("the logits have no finite largest value");
    if (sampling.temperature <= 0.0) {
        for (int64_t i = 0; i < count; ++i)
            if (logits[i] == largest) return static_cast<int32_t>(i);
    }

    // Shares relative to the most likely token's; of the top k alone where that is asked for.
    const double factor = 1.0 / sampling.temperature;
    const bool some = sampling.top_k > 0 && sampling.top_k < count;
    static thread_local std::vector<double> share;
    if (static_cast<int64_t>(share.size()) != count) share.assign(static_cast<size_t>(count), 0.0);
    std::vector<int32_t> ids;
    double total = 0.0;
    const float floor = static_cast<float>(largest - kNegligible * sampling.temperature);
    if (some) {
        ids = most_likely(ops, logits, count, sampling.top_k);
        for (int32_t id : ids) {
            share[id] = std::exp((static_cast<double>(logits[id]) - largest) * factor);
            total += share[id];
        }
    } else {
        total = ops.exp_sum(logits, largest, factor, floor, count, share.data());
    }
    if (sampling.top_p < 1.0) {
        const double needed = sampling.top_p * total;
        std::vector<int32_t> kept;
        if (!some) {
            // Looks among the most likely first, and further only where they are not enough.
            ids.resize(static_cast<size_t>(count));
            double reach = 4.0;
            while (true) {
                const float edge = static_cast<float>(largest - reach * sampling.temperature);
                ids.resize(static_cast<size_t>(count));
                ids.resize(static_cast<size_t>(ops.gather_above(logits, count, std::max(edge, floor), 0, ids.data())));
                double mass = 0.0;
                for (int32_t id : ids) mass += share[id];
                if (mass >= needed || edge <= floor) break;
                reach *= 2;
            }
        }
        most_likely_mass(logits, share, std::move(ids), needed, kept);
        ids = std::move(kept);
    }
    const double u = uniform(sampling.seed, sampling.step);
    if (some || sampling.top_p < 1.0) {
        std::sort(ids.begin(), ids.end());
        double left = 0.0;
        for (int32_t id : ids)
            if (share[id] >= sampling.min_p) left += share[id];
        double target = u * left;
        int32_t last = -1;
        for (int32_t id : ids) {
            if (!(share[id] >= sampling.min_p)) continue;
            last = id;
            target -= share[id];
            if (target < 0.0) break;
        }
        return last;
    }
    // The whole vocabulary: sums of pieces first, then the piece where the draw falls.
    constexpr int64_t kPiece = 512;
    std::vector<double> sums;
    double left = 0.0;
    for (int64_t at = 0; at < count; at += kPiece) {
        const int64_t end = std::min(at + kPiece, count);
        double part[4] = {};
        for (int64_t i = at; i < end; ++i) part[i & 3] += share[i] >= sampling.min_p ? share[i] : 0.0;
        sums.push_back((part[0] + part[1]) + (part[2] + part[3]));
        left += sums.back();
    }
    double target = u * left;
    size_t piece = 0;
    while (piece + 1 < sums.size() && target >= sums[piece]) target -= sums[piece++];
    int32_t last = -1;
    for (int64_t i = static_cast<int64_t>(piece) * kPiece; i < count; ++i) {
        if (!(share[i] >= sampling.min_p) || share[i] == 0.0) continue;
        last = static_cast<int32_t>(i);
        target -= share[i];
        if (target < 0.0) break;
    }
    if (last >= 0) return last;
    for (int64_t i = count - 1; i >= 0; --i)  // rounding carried the draw past the end
        if (share[i] >= sampling.min_p && share[i] > 0.0) return static_cast<int32_t>(i);
    throw std::invalid_argument("no token is left to draw");
}

}  // namespace bitsmith::engine
