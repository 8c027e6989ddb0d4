// IQ2_XXS … IQ3_S: which points of the grid, signs and scales; kernels/reference/grids.py says how they are chosen.
//
// One lane holds one super-block. For a given scale every point of the grid is tried: a table has the cost of every
// combination of levels of half a point, so that a point costs one addition.
#pragma once
#include "../grids.h"
#include "../transpose.h"
#include "search.h"

namespace bitsmith {
namespace BITSMITH_NS {

template <class T>
constexpr float kFirstReach = T::kValues == 8 ? 0.18f : 0.066f;
template <class T>
constexpr float kReachRatio = T::kValues == 8 ? 1.12f : 1.13f;
template <class T>
constexpr int kReachCount = T::kValues == 8 ? 16 : 18;
constexpr int kGridRefits = 2, kGridSteps = 32;
constexpr float kOwnReach = 2.0f, kFurthest = 2.5f;
constexpr float kVanishes = 1.0f / (1 << 24);

// Which combination of levels each half of a point is; the first value's level counts fastest.
template <class T>
struct GridHalves {
    uint8_t low[T::kPoints], high[T::kPoints];
};
template <class T>
constexpr GridHalves<T> make_grid_halves() {
    GridHalves<T> halves = {};
    for (int k = 0; k < T::kPoints; ++k) {
        int low = 0, high = 0;
        for (int i = T::kValues / 2 - 1; i >= 0; --i) {
            low = low * T::kLevels + T::level_of(T::point(k), i);
            high = high * T::kLevels + T::level_of(T::point(k), T::kValues / 2 + i);
        }
        halves.low[k] = static_cast<uint8_t>(low);
        halves.high[k] = static_cast<uint8_t>(high);
    }
    return halves;
}
template <class T>
constexpr GridHalves<T> kGridHalves = make_grid_halves<T>();

// Costs of the halves of one point, for every combination of levels: with the signs as they are, and with the one wrong
// sign that costs least.
template <class T>
struct GridCosts {
    static constexpr int kPairs = T::kLevels * T::kLevels, kEntries = T::kValues == 8 ? kPairs * kPairs : kPairs;
    F even[2][kEntries];
    F odd[2][T::kEvenSigns ? kEntries : 1];
};

// 4 · w · |x| · scale: times its level, what the wrong sign costs a value.
template <bool kWeighted>
BITSMITH_INLINE F grid_penalty(const F& x, const F* w, int i, const F& scale) {
    return weigh<kWeighted>(w, i, abs(x)) * scale * splat(4.0f);
}

template <class T, bool kWeighted>
inline void fill_grid_costs(const F* x, const F* w, const F& scale, GridCosts<T>& costs) {
    constexpr int kLevels = T::kLevels, kPairs = GridCosts<T>::kPairs;
    F cost_pair[2][kPairs], flip_pair[2][kPairs];
    for (int half = 0; half < 2; ++half) {
        F* const even = costs.even[half];
        F* const odd = costs.odd[half];
        for (int pair = 0; pair < T::kValues / 4; ++pair) {
            F cost[2][kLevels], flip[2][kLevels];
            for (int k = 0; k < 2; ++k) {
                const int i = half * (T::kValues / 2) + 2 * pair + k;
                const F size = abs(x[i]), penalty = grid_penalty<kWeighted>(x[i], w, i, scale);
                for (int l = 0; l < kLevels; ++l) {
                    const F e = size - scale * splat(grid_level<T>(l));
                    cost[k][l] = weigh<kWeighted>(w, i, e) * e;
                    if constexpr (T::kEvenSigns) flip[k][l] = penalty * splat(grid_level<T>(l));
                }
            }
            for (int b = 0; b < kLevels; ++b) {
                for (int a = 0; a < kLevels; ++a) {
                    cost_pair[pair][b * kLevels + a] = cost[1][b] + cost[0][a];
                    if constexpr (T::kEvenSigns) flip_pair[pair][b * kLevels + a] = min(flip[0][a], flip[1][b]);
                }
            }
        }
        for (int k = 0; k < GridCosts<T>::kEntries; ++k) {
            const int a = k % kPairs, b = k / kPairs;
            even[k] = T::kValues == 8 ? cost_pair[1][b] + cost_pair[0][a] : cost_pair[0][a];
            if constexpr (T::kEvenSigns) {
                odd[k] = even[k] + (T::kValues == 8 ? min(flip_pair[0][a], flip_pair[1][b]) : flip_pair[0][a]);
            }
        }
    }
}

// The least cost over all points, and with kPoint which point has it, the first of equals. One wrong sign is in half
// `low` or in half `high`; without any, both name the same tables.
template <class T, bool kFlipped, bool kPoint>
inline F least_of_points(const F* low, const F* high, const F* flipped_low, const F* flipped_high, I& point) {
    constexpr const GridHalves<T>& halves = kGridHalves<T>;
    constexpr int kChains = kPoint ? 1 : 4;  // the next minimum need not wait for the one before
    F least[kChains];
    for (int c = 0; c < kChains; ++c) least[c] = splat(kLargestSum);
    for (int k = 0; k < T::kPoints; k += kChains) {
        BITSMITH_UNROLL for (int c = 0; c < kChains; ++c) {
            const int a = halves.low[k + c], b = halves.high[k + c];
            F cost = low[a] + (kFlipped ? flipped_high : high)[b];
            if constexpr (kFlipped) cost = min(cost, flipped_low[a] + high[b]);
            if constexpr (kPoint) point = select(less(cost, least[c]), splat(k), point);
            least[c] = min(cost, least[c]);
        }
    }
    F all = least[0];
    for (int c = 1; c < kChains; ++c) all = min(all, least[c]);
    return all;
}

// All bits where an odd number of eight values is negative.
BITSMITH_INLINE M odd_signs(const F x[8]) {
    I sign = bits(x[0]);
    for (int i = 1; i < 8; ++i) sign = sign ^ bits(x[i]);
    return less(sign, splat(0));
}

// What is best for eight values: their cost, and with kPoint the points and where a sign is wrong: in point 0 or 1.
struct BestEight {
    F cost;
    I point[2];
    M flip[2];
};
template <class T, bool kWeighted, bool kPoint>
inline BestEight best_eight(const F x[8], const F* w, const F& scale) {
    constexpr int kCount = 8 / T::kValues;
    BestEight best = {};
    GridCosts<T> costs;
    F straight[2], flipped[2];
    I flipped_point[2] = {};
    const M odd = odd_signs(x);
    for (int k = 0; k < kCount; ++k) {
        fill_grid_costs<T, kWeighted>(x + k * T::kValues, kWeighted ? w + k * T::kValues : w, scale, costs);
        const F *const low = costs.even[0], *const high = costs.even[1];
        if constexpr (T::kEvenSigns && kCount == 1) {
            for (int half = 0; half < 2; ++half)
                for (int i = 0; i < GridCosts<T>::kEntries; ++i)
                    costs.odd[half][i] = select(odd, costs.odd[half][i], costs.even[half][i]);
            straight[0] = least_of_points<T, true, kPoint>(low, high, costs.odd[0], costs.odd[1], best.point[0]);
            best.flip[0] = odd;
        } else {
            straight[k] = least_of_points<T, false, kPoint>(low, high, nullptr, nullptr, best.point[k]);
            if constexpr (T::kEvenSigns) {
                flipped[k] = least_of_points<T, true, kPoint>(low, high, costs.odd[0], costs.odd[1], flipped_point[k]);
            }
        }
    }
    best.cost = kCount == 1 ? straight[0] : straight[0] + straight[1];
    if constexpr (T::kEvenSigns && kCount == 2) {
        const F with_first = flipped[0] + straight[1], with_second = straight[0] + flipped[1];
        const M first = less(with_first, with_second);
        best.cost = select(odd, select(first, with_first, with_second), best.cost);
        if constexpr (kPoint) {
            best.flip[0] = odd & first;
            best.flip[1] = odd & less(splat(0), select(first, splat(0), splat(1)));
            for (int k = 0; k < 2; ++k) best.point[k] = select(best.flip[k], flipped_point[k], best.point[k]);
        }
    }
    return best;
}

// Σ w·(x − decoded)² of a sub-block with this scale.
template <class T, bool kWeighted>
inline F grid_cost(const F* x, const F* w, const F& scale) {
    F cost = splat(0.0f);
    for (int i = 0; i < T::kSubBlock; i += 8)
        cost = cost + best_eight<T, kWeighted, false>(x + i, kWeighted ? w + i : w, scale).cost;
    return cost;
}

// Each lane's point, as the numbers of its levels.
template <class T>
inline I look_up_points(const I& point) {
    int32_t lanes[kLanes];
    store(lanes, point);
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = T::point(lanes[lane]);
    return load(lanes);
}

// The best points of a sub-block with this scale; q: decoded / scale, with its sign.
template <class T, bool kWeighted>
inline void grid_codes(const F* x, const F* w, const F& scale, I* point, F* q) {
    for (int i = 0; i < T::kSubBlock; i += T::kValues) {
        BestEight best;
        const int k = i % 8 / T::kValues;
        if (k == 0) best = best_eight<T, kWeighted, true>(x + i, kWeighted ? w + i : w, scale);
        point[i / T::kValues] = best.point[k];
        const I levels = look_up_points<T>(best.point[k]);
        F least = splat(kLargestSum);
        I at = splat(-1);
        for (int v = 0; v < T::kValues; ++v) {
            const I number = (levels >> (T::kLevelBits * v)) & splat((1 << T::kLevelBits) - 1);
            const F level = select(equal(number, splat(T::kLevels - 1)), splat(T::kTop),
                                   splat(T::kLowest) + splat(T::kGap) * to_float(number));
            const F penalty = grid_penalty<kWeighted>(x[i + v], w, i + v, scale) * level;
            at = select(less(penalty, least), splat(v), at);
            least = min(penalty, least);
            q[i + v] = as_float(bits(level) | (bits(x[i + v]) & splat(INT32_MIN)));
        }
        if constexpr (T::kEvenSigns) {
            for (int v = 0; v < T::kValues; ++v)
                q[i + v] = select(best.flip[k] & equal(at, splat(v)), negate(q[i + v]), q[i + v]);
        }
    }
}

struct GridSums {
    F xq, qq;  // Σ w·x·q, Σ w·q²
};
template <class T, bool kWeighted>
inline GridSums grid_sums(const F* x, const F* w, const F& scale) {
    I point[T::kSubBlock / T::kValues];
    F q[T::kSubBlock];
    grid_codes<T, kWeighted>(x, w, scale, point, q);
    GridSums sums = {splat(0.0f), splat(0.0f)};
    for (int i = 0; i < T::kSubBlock; ++i) {
        const F wq = weigh<kWeighted>(w, i, q[i]);
        sums.xq = sums.xq + wq * x[i];
        sums.qq = sums.qq + wq * q[i];
    }
    return sums;
}

// A sub-block's best real-valued scale, and Σ w·q² of its codes.
struct GridOwn {
    F scale, qq;
};
template <class T, bool kWeighted>
inline GridOwn own_grid_scale(const F* x, const F* w, const F& cap, bool search) {
    GridOwn own = {splat(0.0f), splat(1.0f)};
    if (!search) {
        for (int i = 0; i < T::kSubBlock; ++i) own.scale = max(own.scale, abs(x[i]));
        own.scale = own.scale * splat(1.0f / T::kTop);
        return own;
    }
    F squares = splat(0.0f), weights = kWeighted ? splat(0.0f) : splat(float(T::kSubBlock));
    for (int i = 0; i < T::kSubBlock; ++i) {
        squares = squares + weigh<kWeighted>(w, i, x[i]) * x[i];
        if constexpr (kWeighted) weights = weights + w[i];
    }
    F reach = sqrt(squares * inverse(weights)) * splat(kFirstReach<T>), least = splat(kLargestSum);
    for (int k = 0; k < kReachCount<T>; ++k) {
        const F scale = min(reach, cap), cost = grid_cost<T, kWeighted>(x, w, scale);
        own.scale = select(less(cost, least), scale, own.scale);
        least = min(cost, least);
        reach = reach * splat(kReachRatio<T>);
    }
    for (int k = 0; k < kGridRefits; ++k) {
        const GridSums sums = grid_sums<T, kWeighted>(x, w, own.scale);
        own.scale = min(max(sums.xq * inverse(sums.qq), splat(0.0f)), cap);
        own.qq = sums.qq;
    }
    return own;
}

// d and every L, as a float.
template <class T>
struct GridScales {
    StoredScale d;
    F sub[T::kSubBlocks];
    F cost;
};

BITSMITH_INLINE F nearest_odd(const F& scale, const F& inverse_d) {
    const F half = rint(clamp((scale * inverse_d - splat(1.0f)) * splat(0.5f), 0.0f, 15.0f));
    return half + half + splat(1.0f);
}

// With codes fixed, missing a scale by δ costs δ² · Σ w·q².
template <class T, class Block>
inline GridScales<T> choose_grid_d(const GridOwn* own, const Block& block, int steps) {
    F widest = splat(0.0f);
    for (int j = 0; j < T::kSubBlocks; ++j) widest = max(widest, own[j].scale);
    GridScales<T> best = {{splat(0), splat(0.0f)}, {}, splat(kLargestSum)};
    for (int k = 0; k < steps; ++k) {
        const StoredScale d = store_scale(widest * splat(1.0f / (31.0f - 0.5f * float(k))), block);
        const F inverse_d = inverse(d.value);
        F cost = splat(0.0f);
        for (int j = 0; j < T::kSubBlocks; ++j) {
            const F missed = own[j].scale - d.value * nearest_odd(own[j].scale, inverse_d);
            cost = cost + own[j].qq * missed * missed;
        }
        const M better = less(cost, best.cost);
        best.d.bits = select(better, d.bits, best.d.bits);
        best.d.value = select(better, d.value, best.d.value);
        best.cost = min(cost, best.cost);
    }
    for (int j = 0; j < T::kSubBlocks; ++j) best.sub[j] = nearest_odd(own[j].scale, inverse(best.d.value));
    return best;
}

// The best of L, and with `neighbours` of L − 2 and L + 2, for each sub-block, by its error.
template <class T, class Block>
inline GridScales<T> settle_grid(const Block& block, const StoredScale& d, const F* sub, const F& cap,
                                 bool neighbours) {
    constexpr float kSteps[] = {0.0f, -2.0f, 2.0f};
    const F limit = cap * splat(kFurthest / kOwnReach);
    GridScales<T> best = {d, {}, splat(0.0f)};
    for (int j = 0; j < T::kSubBlocks; ++j) {
        const F* const x = block.x + j * T::kSubBlock;
        const F* const w = Block::weighted ? block.w + j * T::kSubBlock : block.w;
        F least = splat(kLargestSum);
        best.sub[j] = sub[j];
        for (int k = 0; k < (neighbours ? 3 : 1); ++k) {
            const F tried = clamp(sub[j] + splat(kSteps[k]), 1.0f, 31.0f), scale = d.value * tried;
            const F broken = select(less(limit, scale), splat(kBroken), splat(0.0f));
            const F cost = grid_cost<T, Block::weighted>(x, w, scale) + broken;
            best.sub[j] = select(less(cost, least), tried, best.sub[j]);
            least = min(cost, least);
        }
        best.cost = best.cost + least;
    }
    return best;
}

// d by least squares, the codes of all sub-blocks given.
template <class T, class Block>
inline F fit_grid_d(const Block& block, const GridScales<T>& scales) {
    F xq = splat(0.0f), qq = splat(0.0f);
    for (int j = 0; j < T::kSubBlocks; ++j) {
        const F* const w = Block::weighted ? block.w + j * T::kSubBlock : block.w;
        const F sub = scales.sub[j];
        const GridSums sums = grid_sums<T, Block::weighted>(block.x + j * T::kSubBlock, w, scales.d.value * sub);
        xq = xq + sub * sums.xq;
        qq = qq + sub * sub * sums.qq;
    }
    return max(xq * inverse(qq), splat(0.0f));
}

template <class T, class Block>
inline GridScales<T> search_grid(const Block& block, bool search) {
    const F cap = block.largest * splat(kOwnReach / T::kTop);
    GridOwn own[T::kSubBlocks];
    for (int j = 0; j < T::kSubBlocks; ++j) {
        const F* const w = Block::weighted ? block.w + j * T::kSubBlock : block.w;
        own[j] = own_grid_scale<T, Block::weighted>(block.x + j * T::kSubBlock, w, cap, search);
    }
    GridScales<T> best = choose_grid_d<T>(own, block, search ? kGridSteps : 1);
    if (!search) return best;
    best = settle_grid<T>(block, best.d, best.sub, cap, true);
    for (int attempt = 0; attempt < kGridRefits; ++attempt) {
        const StoredScale d = store_scale(fit_grid_d<T>(block, best), block);
        const GridScales<T> now = settle_grid<T>(block, d, best.sub, cap, attempt == 0);
        const M better = less(now.cost, best.cost);
        best.d.bits = select(better, now.d.bits, best.d.bits);
        best.d.value = select(better, now.d.value, best.d.value);
        for (int j = 0; j < T::kSubBlocks; ++j) best.sub[j] = select(better, now.sub[j], best.sub[j]);
        best.cost = min(now.cost, best.cost);
    }
    return best;
}

// What is stored. sub: (L − 1) / 2; signs: of eight values, one bit each, set for negative ones.
template <class T>
struct GridChosen {
    I d, sub[T::kSubBlocks], point[256 / T::kValues], signs[32];
};
template <class T, bool kWeighted>
inline void choose_grid(const Batch& batch, GridChosen<T>& chosen) {
    Normalised<256, kWeighted> block;
    load_normalised(batch, block);
    const GridScales<T> scales = search_grid<T>(block, batch.search);
    chosen.d = select(less(block.largest * block.unit, splat(kVanishes)), splat(0), scales.d.bits);
    for (int j = 0; j < T::kSubBlocks; ++j) {
        const int first = j * T::kSubBlock;
        F q[T::kSubBlock];
        grid_codes<T, kWeighted>(block.x + first, kWeighted ? block.w + first : block.w, scales.d.value * scales.sub[j],
                                 chosen.point + first / T::kValues, q);
        for (int i = 0; i < T::kSubBlock; i += 8) {
            I signs = splat(0);
            for (int v = 0; v < 8; ++v) signs = signs | ((bits(q[i + v]) >> 31) << v);
            chosen.signs[(first + i) / 8] = signs;
        }
        chosen.sub[j] = rint_to_int((scales.sub[j] - splat(1.0f)) * splat(0.5f));
    }
}

// 4 · n bytes, each of 8 / kBits fields of the values, `shift` bits down, the first lowest.
template <int kBits>
BITSMITH_INLINE void store_fields(uint8_t* const out[kLanes], int at, const I* values, int shift, int n) {
    constexpr int kCount = 8 / kBits;
    for (int word = 0; word < n; ++word) {
        I byte[4];
        for (int k = 0; k < 4; ++k) {
            byte[k] = splat(0);
            for (int f = 0; f < kCount; ++f) {
                const I field = (values[(4 * word + k) * kCount + f] >> shift) & splat((1 << kBits) - 1);
                byte[k] = byte[k] | (field << (kBits * f));
            }
        }
        const I packed = pack_bytes(byte[0], byte[1], byte[2], byte[3]);
        store_words(out, at + 4 * word, &packed, 1);
    }
}
// For each 32 values the signs of seven of every eight, seven bits apart, and the scale in the top four bits.
template <class T>
BITSMITH_INLINE I signs_and_scale(const GridChosen<T>& chosen, int j) {
    I word = chosen.sub[j] << 28;
    for (int k = 0; k < 4; ++k) word = word | ((chosen.signs[4 * j + k] & splat(127)) << (7 * k));
    return word;
}

BITSMITH_INLINE void store_grid(uint8_t* const out[kLanes], const GridChosen<GridIq2Xxs>& chosen) {
    for (int j = 0; j < 8; ++j) {
        store_fields<8>(out, 2 + 8 * j, chosen.point + 4 * j, 0, 1);
        const I word = signs_and_scale(chosen, j);
        store_words(out, 6 + 8 * j, &word, 1);
    }
}
BITSMITH_INLINE void store_grid(uint8_t* const out[kLanes], const GridChosen<GridIq2Xs>& chosen) {
    for (int k = 0; k < 32; ++k) store_u16(out, 2 + 2 * k, chosen.point[k] | ((chosen.signs[k] & splat(127)) << 9));
    store_fields<4>(out, 66, chosen.sub, 0, 2);
}
BITSMITH_INLINE void store_grid(uint8_t* const out[kLanes], const GridChosen<GridIq2S>& chosen) {
    store_fields<8>(out, 2, chosen.point, 0, 8);
    store_fields<8>(out, 34, chosen.signs, 0, 8);
    store_fields<2>(out, 66, chosen.point, 8, 2);
    store_fields<4>(out, 74, chosen.sub, 0, 2);
}
BITSMITH_INLINE void store_grid(uint8_t* const out[kLanes], const GridChosen<GridIq3Xxs>& chosen) {
    store_fields<8>(out, 2, chosen.point, 0, 16);
    for (int j = 0; j < 8; ++j) {
        const I word = signs_and_scale(chosen, j);
        store_words(out, 66 + 4 * j, &word, 1);
    }
}
BITSMITH_INLINE void store_grid(uint8_t* const out[kLanes], const GridChosen<GridIq3S>& chosen) {
    store_fields<8>(out, 2, chosen.point, 0, 16);
    store_fields<1>(out, 66, chosen.point, 8, 2);
    store_fields<8>(out, 74, chosen.signs, 0, 8);
    store_fields<4>(out, 106, chosen.sub, 0, 1);
}

template <class T>
inline void encode_grid(const Batch& batch) {
    GridChosen<T> chosen;
    batch.weighted ? choose_grid<T, true>(batch, chosen) : choose_grid<T, false>(batch, chosen);
    store_u16(batch.out, 0, chosen.d);
    store_grid(batch.out, chosen);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
