// A chunk's scales as float32, sixteen rows at a time.
#pragma once
#include "../packed.h"
#include "../simd/simd.h"

namespace bitsmith::engine::BITSMITH_NS {

BITSMITH_INLINE const uint16_t* halfwords(const uint8_t* p) {
    return reinterpret_cast<const uint16_t*>(p);
}

// store(entry) of each of `entries` scales to out, each for `repeat` steps of the `steps` there are.
template <class Entry>
BITSMITH_INLINE void expand_entries(int steps, int repeat, float* out, const Entry& entry) {
    for (int at = 0, i = 0; at < steps; ++i) {
        const Floats value = entry(i);
        for (int r = 0; r < repeat && at < steps; ++r, ++at) store(out + at * kTile, value);
    }
}

BITSMITH_INLINE Floats half_power(const uint8_t* p) {
    const Ints e = widen_u8(p), normal = shift<23>(e + splat(-1));
    return as_floats(where_equal(e, 0, splat(0x00200000), where_equal(e, 1, splat(0x00400000), normal)));
}

// Sixteen scales, or minimums of their type: entry i of all types but those with two levels, less scale_factor.
BITSMITH_INLINE Floats plain_entry(Scales scales, const uint8_t* p, int i) {
    switch (scales) {
        case Scales::kF16:
            return load_f16(halfwords(p) + i * kTile);
        case Scales::kBF16:
            return load_bf16(halfwords(p) + i * kTile);
        case Scales::kE8M0:
            return half_power(p + i * kTile);
        case Scales::kE4M3:
            return from_f16(shift<7>(widen_u8(p + i * kTile)));
        default:
            return load(reinterpret_cast<const float*>(p) + i * kTile);
    }
}
template <Scales scales>
struct ScaleType {
    static constexpr Scales kScales = scales;
};
// The first `count` of them times the factor: float32 [count][16].
BITSMITH_INLINE void plain_entries(Scales scales, const uint8_t* p, int count, Floats factor, float* out) {
    const auto all = [&](auto type) {
        for (int i = 0; i < count; ++i) store(out + i * kTile, plain_entry(decltype(type)::kScales, p, i) * factor);
    };
    switch (scales) {
        case Scales::kF16:
            return all(ScaleType<Scales::kF16>());
        case Scales::kBF16:
            return all(ScaleType<Scales::kBF16>());
        case Scales::kE8M0:
            return all(ScaleType<Scales::kE8M0>());
        case Scales::kE4M3:
            return all(ScaleType<Scales::kE4M3>());
        default:
            return all(ScaleType<Scales::kF32>());
    }
}
// Of plain entries that are scales. Half of E4M3's value: as a float16 the same bits are 2^8 times smaller.
BITSMITH_INLINE float scale_factor(const Packed& w) {
    return w.scales == Scales::kE4M3 ? 128.0f * w.factor : w.factor;
}
BITSMITH_INLINE int scale_bytes(Scales scales) {
    return scales == Scales::kF32 ? 4 : scales == Scales::kE8M0 || scales == Scales::kE4M3 ? 1 : 2;
}

// The pairs of kPair6 whose bytes are steps 4·g…4·g + 3.
struct Pairs {
    Ints a, b;
};
template <int g>
BITSMITH_INLINE Pairs load_pairs(const uint8_t* head) {
    const Bytes low = splat_byte(15), high = splat_byte(0x30), top = load_bytes(head + 192);
    const Bytes a = shift<-4 * g>(load_bytes(head + 64)) & low, b = shift<-4 * g>(load_bytes(head + 128)) & low;
    return {as_lanes(merge(shift<4 - 2 * g>(top), high, a)), as_lanes(merge(shift<-2 * g>(top), high, b))};
}
// Byte k of every lane.
template <int k>
BITSMITH_INLINE Ints byte_of(Ints lanes) {
    if constexpr (k == 3) return shift<-24>(lanes);
    return shift<-8 * k>(lanes) & splat(255);
}
template <int k>
BITSMITH_INLINE Pairs pair_of(const Pairs& pairs) {
    return {byte_of<k>(pairs.a), byte_of<k>(pairs.b)};
}
template <class Run>
BITSMITH_INLINE void each_pair(const Pairs& pairs, int first, int steps, const Run& run) {
    if (first < steps) run(first, pair_of<0>(pairs));
    if (first + 1 < steps) run(first + 1, pair_of<1>(pairs));
    if (first + 2 < steps) run(first + 2, pair_of<2>(pairs));
    if (first + 3 < steps) run(first + 3, pair_of<3>(pairs));
}

// scale, minimum: float32 [n][16], one entry a step, or one a half step where scales are that fine. What is added to
// the product of a step is minimum · Σx; it is filled only where w.offsets is not kZero.
inline void expand(const Packed& w, const uint8_t* head, int steps, float* scale, float* minimum) {
    const bool halves = w.halves();
    const int n = halves ? 2 * steps : steps, repeat = halves ? 1 : w.granularity / kStep;
    const int entries = kChunk / w.granularity;
    const uint8_t* offsets = head + entries * kTile * scale_bytes(w.scales);
    switch (w.scales) {
        case Scales::kNone:
            return;
        default:
            expand_entries(n, repeat, scale, [&](int i) { return plain_entry(w.scales, head, i); });
            break;
        case Scales::kSub8: {
            const Floats d = load_f16(halfwords(head));
            expand_entries(n, repeat, scale, [&](int i) { return d * to_float(widen_s8(head + 32 + i * kTile)); });
            return;
        }
        case Scales::kSub4: {
            const Floats d = load_f16(halfwords(head)), dmin = load_f16(halfwords(head) + kTile) * splat(-1.0f);
            for (int i = 0; i < n; ++i) {
                const Ints both = widen_u8(head + 64 + i * kTile);
                store(scale + i * kTile, d * to_float(both & splat(15)));
                store(minimum + i * kTile, dmin * to_float(shift<-4>(both)));
            }
            return;
        }
        case Scales::kPair6: {
            const Floats d = load_f16(halfwords(head));
            const bool minimums = w.offsets == Offsets::kMinimums;
            const Floats dmin = minimums ? load_f16(halfwords(head) + kTile) * splat(-1.0f) : d;
            const auto put = [&](int i, const Pairs& pair) {
                if (minimums) {
                    store(scale + i * kTile, d * to_float(pair.a));
                    store(minimum + i * kTile, dmin * to_float(pair.b));
                } else {
                    store(scale + 2 * i * kTile, d * to_float(pair.a - splat(32)));
                    store(scale + (2 * i + 1) * kTile, d * to_float(pair.b - splat(32)));
                }
            };
            each_pair(load_pairs<0>(head), 0, steps, put);
            if (steps > 4) each_pair(load_pairs<1>(head), 4, steps, put);
            return;
        }
    }
    if (const float factor = scale_factor(w); factor != 1.0f)
        for (int i = 0; i < n; ++i) store(scale + i * kTile, load(scale + i * kTile) * splat(factor));
    if (w.offsets == Offsets::kMinimums)
        expand_entries(n, repeat, minimum, [&](int i) { return plain_entry(w.scales, offsets, i); });
    if (w.offsets == Offsets::kZeros) {
        expand_entries(n, repeat, minimum, [&](int i) { return to_float(widen_u8(offsets + i * kTile)); });
        for (int i = 0; i < n; ++i)
            store(minimum + i * kTile, load(minimum + i * kTile) * load(scale + i * kTile) * splat(-1.0f));
    }
}

}  // namespace bitsmith::engine::BITSMITH_NS
