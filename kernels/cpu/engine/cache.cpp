#include "cache.h"

#include <algorithm>
#include <stdexcept>

namespace bitsmith::engine {

namespace {

const SideScheme& side_of(const LayerScheme& scheme, bool keys) {
    return keys ? scheme.keys : scheme.values;
}
int64_t up(int64_t x, int64_t unit) {
    return (x + unit - 1) / unit * unit;
}

}  // namespace

SideScheme SideScheme::of(const std::string& name, bool rows) {
    SideScheme side;
    const std::string plain = name.size() > 5 && name.substr(name.size() - 5) == "-head"
                                  ? name.substr(0, name.size() - 5)  // which scales there are is told apart
                                  : name;
    for (size_t i = 0; i < sizeof kRowFormats / sizeof *kRowFormats; ++i) {
        if (plain != kRowFormats[i].name) continue;
        side.row = static_cast<Row>(i);
        side.coded = side.row > Row::kF32;
        side.type = CacheType::kRows;
        if (side.row == Row::kF16) side.type = CacheType::kF16;
        if (side.row == Row::kBF16) side.type = CacheType::kBF16;
        if (side.row == Row::kF32) side.type = CacheType::kF32;
        if (side.row == Row::kQ8_0 && !rows) side.type = CacheType::kQ8_0;
        if (side.row == Row::kQ4_0 && !rows) side.type = CacheType::kQ4_0;
        return side;
    }
    throw std::invalid_argument("keys and values are not kept in " + name);
}

int64_t Cache::first_coded(int layer, bool keys) const {
    const LayerScheme& scheme = layers_[layer].scheme;
    return up(scheme.sinks, side_of(scheme, keys).waits());
}
int64_t Cache::last_coded(int layer, bool keys, int64_t count) const {
    const LayerScheme& scheme = layers_[layer].scheme;
    const int waits = side_of(scheme, keys).waits();
    return std::max(first_coded(layer, keys), std::max<int64_t>(count - scheme.window, 0) / waits * waits);
}

int64_t Cache::code_bytes(const Layer& layer, bool keys) const {
    const SideScheme& side = side_of(layer.scheme, keys);
    const bool waits = layer.scheme.waits(side);
    const int64_t positions = waits ? std::max<int64_t>(capacity_ - layer.scheme.window, 0) : capacity_;
    if (side.type == CacheType::kRows) return positions / side.waits() * format_of(side.row).bytes(layer.dim);
    const int width = keys ? key_width(side.type, layer.dim) : value_width(side.type, layer.dim);
    return up(positions, kKeyBlock) / kKeyTile * tile_bytes(side.type, width);
}
int64_t Cache::sink_count(const Layer& layer, bool keys) const {
    const SideScheme& side = side_of(layer.scheme, keys);
    return layer.scheme.waits(side) ? std::min(up(layer.scheme.sinks, side.waits()), capacity_) : 0;
}
int64_t Cache::ring_size(const Layer& layer, bool keys) const {
    const SideScheme& side = side_of(layer.scheme, keys);
    return layer.scheme.waits(side) ? std::min(layer.scheme.window + side.waits() - 1, capacity_) : 0;
}

Cache::Parts Cache::parts(const Layer& layer) const {
    constexpr int64_t line = 64;
    const int64_t row = 2 * layer.dim;
    Parts at;
    at.values = up(code_bytes(layer, true), line);
    at.key_sinks = at.values + up(code_bytes(layer, false), line);
    at.key_ring = at.key_sinks + sink_count(layer, true) * row;
    at.value_sinks = at.key_ring + ring_size(layer, true) * row;
    at.value_ring = at.value_sinks + sink_count(layer, false) * row;
    at.end = up(at.value_ring + ring_size(layer, false) * row, line);
    return at;
}

void Cache::add_layer(int heads, int dim, LayerScheme scheme) {
    if (heads < 1 || dim < 1) throw std::invalid_argument("a layer of the cache has heads and values");
    if (scheme.window < 0 || scheme.sinks < 0) throw std::invalid_argument("a window and sinks are not negative");
    for (const SideScheme* side : {&scheme.keys, &scheme.values}) {
        if (side->turned && (dim & -dim) > kMostTurned) throw std::invalid_argument("heads are too large to be turned");
        if (side->scales.size() > 1 && side->scales.size() != (size_t)heads)
            throw std::invalid_argument("a scale for each head, or one for all");
    }
    scheme.window = std::min(scheme.window, capacity_);
    Layer layer{heads, dim, std::move(scheme), {}, std::vector<Held>((size_t)sequences_)};
    layer.memory = Memory(sequences_ * heads * parts(layer).end + 64);  // rows are read a little past their end
    layers_.push_back(std::move(layer));
    const int at = layers() - 1;
    for (Held& held : layers_.back().held) held = {0, first_coded(at, true), first_coded(at, false)};
}

CacheView Cache::view(int layer, int64_t sequence, int head) const {
    const Layer& l = layers_[layer];
    const SideScheme &keys = l.scheme.keys, &values = l.scheme.values;
    const Parts at = parts(l);
    char* data = l.memory.data() + (sequence * l.heads + head) * at.end;
    const auto floats = [&](int64_t sinks, int64_t ring, bool of_keys) {
        return FloatRows{reinterpret_cast<uint8_t*>(data + sinks),
                         sink_count(l, of_keys),
                         reinterpret_cast<uint8_t*>(data + ring),
                         ring_size(l, of_keys),
                         nullptr,
                         0,
                         nullptr,
                         INT64_MAX};
    };
    return {data,
            data + at.values,
            l.dim,
            stride(layer),
            keys.type,
            values.type,
            keys.row,
            values.row,
            keys.scale(head),
            values.scale(head),
            keys.turned,
            {nullptr, 0, false},
            floats(at.key_sinks, at.key_ring, true),
            floats(at.value_sinks, at.value_ring, false)};
}

bool Cache::waits() const {
    for (const Layer& layer : layers_)
        if (layer.scheme.waits()) return true;
    return false;
}

int64_t Cache::nbytes() const {
    int64_t total = 0;
    for (const Layer& layer : layers_) total += layer.memory.bytes();
    return total;
}

}  // namespace bitsmith::engine
