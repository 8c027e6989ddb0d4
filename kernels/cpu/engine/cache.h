// The cache of keys and values: for each layer, sequence and key head what its scheme keeps, and what is where.
#pragma once
#include <stdint.h>

#include <string>
#include <vector>

#include "memory.h"
#include "ops/table.h"

namespace bitsmith::engine {

// How one side (keys, or values) of a layer is kept. turned: by hadamard before it is stored. coded: not as floats.
struct SideScheme {
    CacheType type = CacheType::kF16;
    Row row = Row::kF16;
    bool turned = false;
    bool coded = false;
    std::vector<float> scales;  // that are given, of each head or one for all; none: 1

    // name: of a format of kernels/kv.py. rows: not in tiles. Throws std::invalid_argument.
    static SideScheme of(const std::string& name, bool rows = false);
    int waits() const { return type == CacheType::kRows ? format_of(row).waits() : 1; }
    float scale(int head) const { return scales.empty() ? 1.0f : scales[scales.size() > 1 ? (size_t)head : 0]; }
};

// window, sinks: the last and the first tokens, which stay in float16 where a side is coded.
struct LayerScheme {
    SideScheme keys, values;
    int64_t window = 0, sinks = 0;

    // Whether tokens of a side are codes only some time after they came.
    bool waits(const SideScheme& side) const { return side.coded && (window || sinks || side.waits() > 1); }
    bool waits() const { return waits(keys) || waits(values); }
};

// Tokens [first, key_end) and [first, value_end) are codes, in a layer that waits; `first` follows from the sinks.
struct Held {
    int64_t count = 0, key_end = 0, value_end = 0;
};

class Cache {
public:
    Cache(int64_t sequences, int64_t capacity) : sequences_(sequences), capacity_(capacity) {}
    void add_layer(int heads, int dim, LayerScheme scheme);
    CacheView view(int layer, int64_t sequence, int head) const;
    int64_t sequences() const { return sequences_; }
    int64_t capacity() const { return capacity_; }
    const LayerScheme& scheme(int layer) const { return layers_[layer].scheme; }
    int heads(int layer) const { return layers_[layer].heads; }
    int dim(int layer) const { return layers_[layer].dim; }
    int stride(int layer) const { return value_width(scheme(layer).values.type, dim(layer)); }
    int layers() const { return static_cast<int>(layers_.size()); }
    bool waits() const;
    Held& held(int layer, int64_t sequence) { return layers_[layer].held[(size_t)sequence]; }
    // The first token that may become a code, and the first that does not with `count` tokens.
    int64_t first_coded(int layer, bool keys) const;
    int64_t last_coded(int layer, bool keys, int64_t count) const;
    int64_t nbytes() const;

private:
    struct Layer {
        int heads, dim;
        LayerScheme scheme;
        Memory memory;  // [sequence][head]: codes of keys and of values, then the floats beside them
        std::vector<Held> held;
    };
    // Where the parts of a head begin, in bytes.
    struct Parts {
        int64_t values, key_sinks, key_ring, value_sinks, value_ring, end;
    };
    Parts parts(const Layer& layer) const;
    int64_t code_bytes(const Layer& layer, bool keys) const;
    int64_t sink_count(const Layer& layer, bool keys) const;
    int64_t ring_size(const Layer& layer, bool keys) const;

    int64_t sequences_, capacity_;
    std::vector<Layer> layers_;
};

}  // namespace bitsmith::engine
