// Statistics of stored values straight from their bits. Without its sign, a float's bits are ordered as its magnitude:
// that integer is its key. Inf and NaN have the largest keys, so that a maximum of keys lets neither disappear.
#pragma once
#include "lanes.h"

namespace bitsmith {
namespace BITSMITH_NS {

// Sixteen doubles, which may be two vectors for each one of floats.
#if defined(__GNUC__)
typedef double NativeD __attribute__((vector_size(kWidth * 4)));
typedef float HalfF __attribute__((vector_size(kWidth * 2)));
typedef uint16_t HalfU __attribute__((vector_size(kWidth * 2)));
typedef int16_t NativeS __attribute__((vector_size(kWidth * 4)));
constexpr int kDoubleParts = 2 * kParts;
#else
typedef double NativeD;
typedef int16_t NativeS;
constexpr int kDoubleParts = kParts;
#endif
struct D {
    NativeD part[kDoubleParts];
};
#define BITSMITH_DOUBLE_PARTS BITSMITH_UNROLL for (int p = 0; p < kDoubleParts; ++p)

BITSMITH_INLINE D to_double(const F& a) {
    D r;
#if defined(__GNUC__)
    BITSMITH_DOUBLE_PARTS {
        HalfF half;
        memcpy(&half, reinterpret_cast<const char*>(&a.part[p / 2]) + p % 2 * sizeof half, sizeof half);
        r.part[p] = __builtin_convertvector(half, NativeD);
    }
#else
    BITSMITH_DOUBLE_PARTS r.part[p] = a.part[p];
#endif
    return r;
}
BITSMITH_INLINE D load_doubles(const double* from) {
    D r;
    BITSMITH_DOUBLE_PARTS memcpy(&r.part[p], from + p * (kLanes / kDoubleParts), sizeof(NativeD));
    return r;
}
BITSMITH_INLINE void store(double* to, const D& a) {
    BITSMITH_DOUBLE_PARTS memcpy(to + p * (kLanes / kDoubleParts), &a.part[p], sizeof(NativeD));
}
#define BITSMITH_OPERATOR(op)                                     \
    BITSMITH_INLINE D operator op(const D& a, const D& b) {       \
        D r;                                                      \
        BITSMITH_DOUBLE_PARTS r.part[p] = a.part[p] op b.part[p]; \
        return r;                                                 \
    }
BITSMITH_OPERATOR(+)
BITSMITH_OPERATOR(-)
BITSMITH_OPERATOR(*)
#undef BITSMITH_OPERATOR
BITSMITH_INLINE double sum_of_lanes(const D& a) {
    double lanes[kLanes];
    store(lanes, a);
    for (int half = kLanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lanes[i] = lanes[i] + lanes[i + half];
    return lanes[0];
}

// The stored types. Key is signed, since SSE2 and AVX2 compare nothing else.
struct TypeBF16 {
    typedef int16_t Key;
    static constexpr Key mask = 0x7FFF, inf = 0x7F80;
    BITSMITH_INLINE static F values(const I& stored) { return as_float(stored << 16); }
};
struct TypeF16 {
    typedef int16_t Key;
    static constexpr Key mask = 0x7FFF, inf = 0x7C00;
    BITSMITH_INLINE static F values(const I& stored) { return from_f16(stored); }
};
struct TypeF32 {
    typedef int32_t Key;
    static constexpr Key mask = 0x7FFFFFFF, inf = 0x7F800000;
    BITSMITH_INLINE static F values(const I& stored) { return as_float(stored); }
};

BITSMITH_INLINE I widen(const int16_t* from) {
    I r;
#if defined(__GNUC__)
    BITSMITH_PARTS {
        HalfU half;
        memcpy(&half, from + p * kWidth, sizeof half);
        r.part[p] = (NativeI) __builtin_convertvector(half, NativeU);
    }
#else
    BITSMITH_PARTS {
        uint16_t one;
        memcpy(&one, from + p, sizeof one);
        r.part[p] = one;
    }
#endif
    return r;
}
BITSMITH_INLINE I widen(const int32_t* from) {
    return load(from);
}
// A stored value's bits. They are copied: the value may be a float, and reading that as an integer is undefined.
template <class Key>
BITSMITH_INLINE Key key_at(const Key* from) {
    Key key;
    memcpy(&key, from, sizeof key);
    return key;
}
// Up to sixteen stored values; those past the end are Inf, which is left out everywhere.
template <class T>
BITSMITH_INLINE F load_values(const void* from, int64_t count) {
    typename T::Key some[kLanes];
    if (count >= kLanes) return T::values(widen(static_cast<const typename T::Key*>(from)));
    for (int i = 0; i < kLanes; ++i) some[i] = T::inf;
    if (count > 0) memcpy(some, from, count * sizeof some[0]);
    return T::values(widen(some));
}
BITSMITH_INLINE F only_finite(const F& a) {
    return select(less(abs(a), as_float(splat(0x7F800000))), a, splat(0.0f));  // not for NaN either
}
template <class T>
inline float key_value(typename T::Key key) {
    const F lanes = T::values(splat(int32_t(key)));
    float first;  // copied from the vector itself: GCC 12 mixes up the arrays of two such calls where it has no vectors
    memcpy(&first, &lanes, sizeof first);
    return first;
}

#define BITSMITH_KEY_PARTS BITSMITH_UNROLL for (int p = 0; p < Keys<Key>::parts; ++p)
// A cache line of keys, 32 of 16 bits or 16 of 32.
template <class Key>
struct Keys;
template <>
struct Keys<int16_t> {
    static constexpr int count = kKeyLine / int(sizeof(int16_t)), parts = kKeyLine / int(sizeof(NativeS));
    NativeS part[parts];
};
template <>
struct Keys<int32_t> {
    static constexpr int count = kKeyLine / int(sizeof(int32_t)), parts = kKeyLine / int(sizeof(NativeI));
    NativeI part[parts];
};
template <class Key>
BITSMITH_INLINE Keys<Key> load_keys(const Key* from) {
    Keys<Key> r;
    constexpr int each = Keys<Key>::count / Keys<Key>::parts;
    BITSMITH_KEY_PARTS memcpy(&r.part[p], from + p * each, sizeof r.part[0]);
    return r;
}
template <class Key>
BITSMITH_INLINE void store_keys(Key* to, const Keys<Key>& a) {
    constexpr int each = Keys<Key>::count / Keys<Key>::parts;
    BITSMITH_KEY_PARTS memcpy(to + p * each, &a.part[p], sizeof a.part[0]);
}
// Adds 1 to the lanes whose key is not above its limit.
template <class Key>
BITSMITH_INLINE void count_within(Keys<Key>& counts, const Keys<Key>& keys, const Keys<Key>& limit) {
#if defined(__GNUC__)
    BITSMITH_KEY_PARTS counts.part[p] -= keys.part[p] <= limit.part[p];  // true is −1
#else
    BITSMITH_KEY_PARTS counts.part[p] += keys.part[p] <= limit.part[p];
#endif
}

constexpr int64_t kCountSteps = 32767;  // before a lane of 16 bits overflows

// How many of each lane's keys are not above its limit; vectors of keys one after another.
template <class Key>
inline void count_lanes(const Key* keys, int64_t vectors, const Key* limit, int64_t* counts) {
    constexpr int width = Keys<Key>::count;
    const Keys<Key> limits = load_keys(limit);
    for (int i = 0; i < width; ++i) counts[i] = 0;
    for (int64_t at = 0; at < vectors;) {
        const int64_t end = vectors - at < kCountSteps ? vectors : at + kCountSteps;
        Keys<Key> sums = {};
        for (; at < end; ++at) count_within(sums, load_keys(keys + at * width), limits);
        Key lanes[width];
        store_keys(lanes, sums);
        for (int i = 0; i < width; ++i) counts[i] += lanes[i];
    }
}
// Each lane's smallest key above its limit; `largest` where there is none.
template <class Key>
inline void next_keys(const Key* keys, int64_t vectors, const Key* limit, Key largest, Key* out) {
    constexpr int width = Keys<Key>::count;
    for (int i = 0; i < width; ++i) out[i] = largest;
    const Keys<Key> limits = load_keys(limit);
    Keys<Key> least = load_keys(out);
    for (int64_t at = 0; at < vectors; ++at) {
        const Keys<Key> key = load_keys(keys + at * width);
        BITSMITH_KEY_PARTS {
            const auto other = key.part[p] > limits.part[p] ? key.part[p] : least.part[p];
            least.part[p] = other < least.part[p] ? other : least.part[p];
        }
    }
    store_keys(out, least);
}

// The mean of the middle two magnitudes, as float32.
template <class T>
inline float middle_value(typename T::Key low, typename T::Key high) {
    return float((double(key_value<T>(low)) + double(key_value<T>(high))) * 0.5);
}

// Where to look for the key of that rank in low … high, `below` keys being under low and `within` not above high: by
// halves, and every other time where it would be if they lay evenly.
template <class Key>
BITSMITH_INLINE Key next_guess(Key low, Key high, int64_t below, int64_t within, int64_t rank, bool evenly) {
    const int64_t span = int64_t(high) - low;
    if (!evenly || within <= below) return Key(low + span / 2);
    const int64_t step = int64_t(double(span) * (double(rank - below) + 0.5) / double(within - below));
    return Key(low + (step < span ? step : span - 1));
}

// Median of one row's finite magnitudes; keys: padded to whole vectors with T::mask. largest: of the finite keys.
template <class T>
inline float row_median(const typename T::Key* keys, int64_t vectors, int64_t finite, typename T::Key largest) {
    typedef typename T::Key Key;
    constexpr int width = Keys<Key>::count;
    if (finite == 0) return 0.0f;
    const int64_t rank = (finite - 1) / 2;
    int64_t below = 0, within = finite, lanes[width];
    Key low = 0, high = largest, limit[width], next[width];
    const auto count = [&](Key up_to) {
        for (int i = 0; i < width; ++i) limit[i] = up_to;
        count_lanes(keys, vectors, limit, lanes);
        int64_t found = 0;
        for (int i = 0; i < width; ++i) found += lanes[i];
        return found;
    };
    const auto above = [&](Key key) {
        for (int i = 0; i < width; ++i) limit[i] = key;
        next_keys(keys, vectors, limit, T::mask, next);
        for (int i = 1; i < width; ++i) next[0] = next[i] < next[0] ? next[i] : next[0];
        return next[0];
    };
    for (bool evenly = false; low < high && below < rank; evenly = !evenly) {
        const Key middle = next_guess(low, high, below, within, rank, evenly);
        const int64_t found = count(middle);
        if (found > rank) {
            high = middle;
            within = found;
        } else {
            low = Key(middle + 1);
            below = found;
        }
    }
    if (low < high) low = above(Key(low - 1));
    return middle_value<T>(low, finite % 2 == 0 && count(low) == rank + 1 ? above(low) : low);
}

// keys: room for n and a vector more.
template <class T>
inline RowFigures row_figures(const void* row, int64_t n, bool median, void* scratch) {
    typedef typename T::Key Key;
    constexpr int width = Keys<Key>::count;
    const Key* x = static_cast<const Key*>(row);
    Key* keys = static_cast<Key*>(scratch);
    const int64_t vectors = (n + width - 1) / width;
    for (int64_t i = 0; i < n; ++i) keys[i] = key_at(x + i) & T::mask;
    for (int64_t i = n; i < vectors * width; ++i) keys[i] = T::mask;
    D squares = {};
    for (int64_t at = 0; at < n; at += kLanes) {
        const D d = to_double(only_finite(load_values<T>(x + at, n - at)));
        squares = squares + d * d;
    }
    Key most = 0;
    for (int64_t i = 0; i < n; ++i) {
        const Key key = keys[i] < T::inf ? keys[i] : Key(0);
        most = key > most ? key : most;
    }
    Key limit[width];
    int64_t counts[width], finite = 0;
    for (int i = 0; i < width; ++i) limit[i] = T::inf - 1;
    count_lanes(keys, vectors, limit, counts);
    for (int i = 0; i < width; ++i) finite += counts[i];
    const float size = key_value<T>(most);
    return {size, median ? row_median<T>(keys, vectors, finite, most) : 0.0f, sum_of_lanes(squares), finite};
}

// kStripColumns columns or fewer of all rows: adds to each column's sums; the largest key of each kCell × kCell values.
// row_finite: how many values of each row are finite, out of row_columns.
template <class T>
inline void column_sums(const void* data, int64_t stride, int64_t rows, int64_t columns, const int64_t* row_finite,
                        float* largest, double* squares, int64_t* bad, float* cells, int64_t cell_stride) {
    typedef typename T::Key Key;
    const Key* x = static_cast<const Key*>(data);
    Key most[kStripColumns] = {};
    double sums[kStripColumns + kLanes] = {};
    memcpy(sums, squares, columns * sizeof(double));
    for (int64_t first = 0; first < rows; first += kCell) {
        const int64_t last = rows - first < kCell ? rows : first + kCell;
        Key peak[kStripColumns] = {};
        bool finite = true;
        for (int64_t row = first; row < last; ++row) {
            const Key* from = x + row * stride;
            finite = finite && row_finite[row] == stride;
            for (int64_t i = 0; i < columns; ++i) {
                const Key key = key_at(from + i) & T::mask;
                peak[i] = key > peak[i] ? key : peak[i];
            }
        }
        for (int64_t at = 0; at < columns; at += kLanes) {
            D sum = load_doubles(sums + at);
            for (int64_t row = first; row < last; ++row) {
                const D d = to_double(only_finite(load_values<T>(x + row * stride + at, columns - at)));
                sum = sum + d * d;
            }
            store(sums + at, sum);
        }
        if (finite) {
            for (int64_t i = 0; i < columns; ++i) most[i] = peak[i] > most[i] ? peak[i] : most[i];
        } else {
            for (int64_t row = first; row < last; ++row)
                for (int64_t i = 0; i < columns; ++i) {
                    const Key key = key_at(x + row * stride + i) & T::mask;
                    if (key < T::inf)
                        most[i] = key > most[i] ? key : most[i];
                    else
                        ++bad[i];
                }
        }
        for (int64_t cell = 0; cell * kCell < columns; ++cell) {
            Key key = 0;
            for (int64_t i = cell * kCell; i < columns && i < (cell + 1) * kCell; ++i)
                key = peak[i] > key ? peak[i] : key;
            cells[first / kCell * cell_stride + cell] = key_value<T>(key);
        }
    }
    memcpy(squares, sums, columns * sizeof(double));
    for (int64_t i = 0; i < columns; ++i) {
        const float value = key_value<T>(most[i]);
        largest[i] = value > largest[i] ? value : largest[i];
    }
}

// Medians of up to a cache line of columns; scratch: a line for each row.
template <class T>
inline void column_medians(const void* data, int64_t stride, int64_t rows, int64_t columns, void* scratch,
                           float* medians) {
    typedef typename T::Key Key;
    constexpr int width = Keys<Key>::count;
    const Key* x = static_cast<const Key*>(data);
    Key* keys = static_cast<Key*>(scratch);
    for (int64_t row = 0; row < rows; ++row) {
        const Key* from = x + row * stride;
        Key* to = keys + row * width;
        if (columns == width)
            for (int i = 0; i < width; ++i) to[i] = key_at(from + i) & T::mask;
        else
            for (int i = 0; i < width; ++i) to[i] = i < columns ? key_at(from + i) & T::mask : T::mask;
    }
    Key low[width] = {}, high[width] = {}, middle[width], next[width];
    int64_t finite[width], below[width] = {}, within[width], counts[width];
    for (int64_t row = 0; row < rows; ++row)
        for (int i = 0; i < width; ++i) {
            const Key key = keys[row * width + i] < T::inf ? keys[row * width + i] : Key(0);
            high[i] = key > high[i] ? key : high[i];
        }
    for (int i = 0; i < width; ++i) middle[i] = T::inf - 1;
    count_lanes(keys, rows, middle, finite);
    for (int i = 0; i < width; ++i) within[i] = finite[i];
    for (bool more = true, evenly = false; more; evenly = !evenly) {
        for (int i = 0; i < width; ++i)
            middle[i] = next_guess(low[i], high[i], below[i], within[i], (finite[i] - 1) / 2, evenly);
        count_lanes(keys, rows, middle, counts);
        more = false;
        for (int i = 0; i < width; ++i) {
            const int64_t rank = (finite[i] - 1) / 2;
            if (low[i] >= high[i] || below[i] >= rank) continue;
            if (counts[i] > rank) {
                high[i] = middle[i];
                within[i] = counts[i];
            } else {
                low[i] = Key(middle[i] + 1);
                below[i] = counts[i];
            }
            more = more || (low[i] < high[i] && below[i] < rank);
        }
    }
    for (int i = 0; i < width; ++i) middle[i] = Key(low[i] - 1);
    next_keys(keys, rows, middle, T::mask, low);
    next_keys(keys, rows, low, T::mask, next);
    count_lanes(keys, rows, low, counts);
    for (int i = 0; i < columns; ++i) {
        const bool apart = finite[i] % 2 == 0 && counts[i] == finite[i] / 2;
        medians[i] = finite[i] ? middle_value<T>(low[i], apart ? next[i] : low[i]) : 0.0f;
    }
}

// The largest |x| of each of `width` cells: columns starts[i] … stops[i] of all rows; scratch: a key for each of the
// `span` columns, the first of which is column 0 of data.
template <class T>
inline void pool_rows(const void* data, int64_t stride, int64_t rows, int64_t span, const int64_t* starts,
                      const int64_t* stops, int64_t width, void* scratch, float* out) {
    typedef typename T::Key Key;
    const Key* x = static_cast<const Key*>(data);
    Key* peak = static_cast<Key*>(scratch);
    for (int64_t i = 0; i < span; ++i) peak[i] = key_at(x + i) & T::mask;
    for (int64_t row = 1; row < rows; ++row) {
        const Key* from = x + row * stride;
        for (int64_t i = 0; i < span; ++i) {
            const Key key = key_at(from + i) & T::mask;
            peak[i] = key > peak[i] ? key : peak[i];
        }
    }
    Key cells[kLanes] = {};
    for (int64_t first = 0; first < width; first += kLanes) {
        const int64_t count = width - first < kLanes ? width - first : kLanes;
        for (int64_t i = 0; i < count; ++i) {
            Key key = 0;
            for (int64_t at = starts[first + i]; at < stops[first + i]; ++at) key = peak[at] > key ? peak[at] : key;
            cells[i] = key;
        }
        float values[kLanes];
        store(values, T::values(widen(cells)));
        memcpy(out + first, values, count * sizeof(float));
    }
}

// Σ(x − pivot)^k of the finite values, k = 1 … 4.
inline void row_powers(const float* x, int64_t n, double pivot, double* sums) {
    double pivots[kLanes];
    for (int i = 0; i < kLanes; ++i) pivots[i] = pivot;
    const D middle = load_doubles(pivots);
    D first = {}, second = {}, third = {}, fourth = {};
    for (int64_t at = 0; at < n; at += kLanes) {
        const F a = load_values<TypeF32>(x + at, n - at);
        const M finite = less(abs(a), as_float(splat(0x7F800000)));
        const D keep = to_double(select(finite, splat(1.0f), splat(0.0f)));
        const D d = (to_double(only_finite(a)) - middle) * keep, square = d * d;
        first = first + d;
        second = second + square;
        third = third + square * d;
        fourth = fourth + square * square;
    }
    sums[0] = sum_of_lanes(first);
    sums[1] = sum_of_lanes(second);
    sums[2] = sum_of_lanes(third);
    sums[3] = sum_of_lanes(fourth);
}

}  // namespace BITSMITH_NS
}  // namespace bitsmith
