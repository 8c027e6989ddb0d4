// Tokens of a panel as integer products read them.
#pragma once
#include "../packed.h"
#include "../simd/simd.h"

namespace bitsmith::engine::BITSMITH_NS {

// Pointers to one panel, at its first step.
struct PanelView {
    const int8_t* codes;
    const float *scales, *products;  // products, sums: of half steps where weights have scales that fine
    const int32_t* sums;
    int width;
};
BITSMITH_INLINE PanelView panel_view(const Act& act, int64_t panel, bool halves) {
    PanelView v = {reinterpret_cast<const int8_t*>(act.codes(panel)), act.scales(panel), nullptr, nullptr,
                   act.width(panel)};
    v.products = halves ? act.half_products(panel) : act.step_products(panel);
    v.sums = halves ? act.half_sums(panel) : act.step_sums(panel);
    return v;
}
// `steps` later.
BITSMITH_INLINE PanelView advanced(PanelView v, int64_t steps, bool halves) {
    v.codes += steps * kStep * v.width;
    v.scales += steps * v.width;
    const int64_t entries = (halves ? 2 : 1) * steps * v.width;
    v.products += entries;
    v.sums += entries;
    return v;
}

}  // namespace bitsmith::engine::BITSMITH_NS
