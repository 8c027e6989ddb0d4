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

// The least likely token that is kept: everything more likely is kept, too.
struct Cut {
    float logit;
    int64_t id;
};

// The first of these tokens, most likely first, where the sum of shares reaches `needed`.
Cut cut_sorted(const float* logits, const double* share, std::vector<int32_t>& ids, double needed) {
    std::sort(ids.begin(), ids.end(), MoreLikely{logits});
    double sum = 0.0;
    for (int32_t id : ids) {
        sum += share[id];
        if (sum >= needed) return {logits[id], id};
    }
    return {logits[ids.back()], ids.back()};
}

// The same for the whole vocabulary: tokens are divided into buckets by their logits, and only the bucket where the
// sum is reached is sorted, or divided again. low: the least logit with a share.
Cut cut_mass(const OpTable& ops, const float* logits, const double* share, int64_t count, float largest, float low,
             double needed) {
    std::vector<double> mass(kBuckets, 0.0);
    float scale = largest > low ? kBuckets / (largest - low) : 0.0f;
    if (!std::isfinite(scale)) scale = 0.0f;
    ops.bucket_mass(logits, share, count, largest, scale, mass.data());
    int edge = 0;
    const auto descend = [&] {
        edge = 0;
        while (edge + 1 < kBuckets && mass[edge] < needed) needed -= mass[edge++];
    };
    descend();
    std::vector<int32_t> ids(static_cast<size_t>(count));
    ids.resize(static_cast<size_t>(ops.gather_bucket(logits, count, largest, scale, edge, ids.data())));
    while (static_cast<int64_t>(ids.size()) > kFew) {
        const auto [lowest, highest] =
            std::minmax_element(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return logits[a] < logits[b]; });
        const float top = logits[*highest], bottom = std::max(logits[*lowest], low);
        scale = top > bottom ? kBuckets / (top - bottom) : 0.0f;
        if (!(scale > 0.0f) || !std::isfinite(scale)) break;
        const auto bucket = [&](int32_t id) {
            return static_cast<int>(std::min((top - logits[id]) * scale, static_cast<float>(kBuckets - 1)));
        };
        std::fill(mass.begin(), mass.end(), 0.0);
        for (int32_t id : ids) mass[bucket(id)] += share[id];
        descend();
        std::erase_if(ids, [&](int32_t id) { return bucket(id) != edge; });
    }
    if (ids.empty()) return {low, count};  // rounding: everything is needed
    return cut_sorted(logits, share, ids, needed);
}

// The first token whose sum of shares, in the order of tokens, exceeds target.
int32_t draw(const std::vector<double>& share, const std::vector<double>& sums, int64_t piece_size, double target) {
    size_t piece = 0;
    while (piece + 1 < sums.size() && target >= sums[piece]) target -= sums[piece++];
    const int64_t count = static_cast<int64_t>(share.size());
    for (int64_t i = static_cast<int64_t>(piece) * piece_size; i < count; ++i) {
        target -= share[i];
        if (target < 0.0) return static_cast<int32_t>(i);
    }
    for (int64_t i = count - 1; i >= 0; --i)  // rounding carried it past the end
        if (share[i] > 0.0) return static_cast<int32_t>(i);
    throw std::invalid_argument("no token is left to draw");
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

    // Shares relative to the most likely token's, in pieces with their sums, or of the top k alone.
    const double factor = 1.0 / sampling.temperature, u = uniform(sampling.seed, sampling.step);
    static thread_local std::vector<double> share;
    share.resize(static_cast<size_t>(count));
    if (sampling.top_k > 0 && sampling.top_k < count) {
        std::vector<int32_t> ids = most_likely(ops, logits, count, sampling.top_k);
        std::sort(ids.begin(), ids.end());
        double total = 0.0;
        for (int32_t id : ids) total += share[id] = std::exp((static_cast<double>(logits[id]) - largest) * factor);
        if (sampling.top_p < 1.0) {
            std::vector<int32_t> ordered = ids;
            const Cut cut = cut_sorted(logits, share.data(), ordered, sampling.top_p * total);
            std::erase_if(
                ids, [&](int32_t id) { return logits[id] < cut.logit || (logits[id] == cut.logit && id > cut.id); });
        }
        std::erase_if(ids, [&](int32_t id) { return share[id] < sampling.min_p; });
        total = 0.0;
        for (int32_t id : ids) total += share[id];
        double target = u * total;
        for (int32_t id : ids) {
            target -= share[id];
            if (target < 0.0) return id;
        }
        return ids.back();
    }
    constexpr int64_t kPiece = 512;
    const float floor = static_cast<float>(largest - kNegligible * sampling.temperature);
    std::vector<double> sums;
    double total = 0.0;
    for (int64_t at = 0; at < count; at += kPiece) {
        sums.push_back(
            ops.exp_sum(logits + at, largest, factor, floor, std::min(kPiece, count - at), share.data() + at));
        total += sums.back();
    }
    if (sampling.top_p < 1.0 || sampling.min_p > 0.0) {
        Cut cut = {floor, count};
        if (sampling.top_p < 1.0)
            cut = cut_mass(ops, logits, share.data(), count, largest, floor, sampling.top_p * total);
        total = 0.0;
        for (int64_t at = 0, piece = 0; at < count; at += kPiece, ++piece) {
            sums[piece] = ops.keep_above(logits + at, cut.logit, cut.id - at, sampling.min_p,
                                         std::min(kPiece, count - at), share.data() + at);
            total += sums[piece];
        }
    }
    return draw(share, sums, kPiece, u * total);
}

}  // namespace bitsmith::engine
