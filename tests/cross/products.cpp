// Every format through every instruction set that this machine has, against sums in float64 of the decoded weights.
// For machines without Python: built for arm64 by run_neon.sh. Arguments: the instruction sets, which have to be
// there; all that are there without any.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "matmul/pack.h"
#include "table.h"

using namespace bitsmith::engine;

namespace {

std::mt19937 generator(7);

struct Aligned {
    explicit Aligned(int64_t bytes) : data(static_cast<uint8_t*>(::operator new(size_t(bytes), std::align_val_t(64)))) {
        memset(data, 0, size_t(bytes));
    }
    ~Aligned() { ::operator delete(data, std::align_val_t(64)); }
    uint8_t* data;
};

// float16 near 1 at a byte offset of every block: random bits would be Inf or NaN now and then.
void put_half(uint8_t* p) {
    const uint16_t half = uint16_t(0x3800 + generator() % 0x400);
    memcpy(p, &half, 2);
}

struct Case {
    std::string name;
    Packed packed;
};

int check(const Case& c, const Kernels& kernels, Contract contract, int64_t m) {
    const Packed& w = c.packed;
    std::vector<float> x(size_t(m * w.columns)), row(size_t(w.columns)), out(size_t(m * w.rows), 0.0f);
    std::normal_distribution<float> normal;
    for (float& value : x) value = normal(generator);
    Act act = {act_kind(w, contract), m, w.columns, w.steps, nullptr};
    const Aligned data(act.bytes()), scratch(kScratch);
    act.data = data.data;
    kernels.prepare(act, x.data(), w.columns, 0, act.panels());
    kernels.linear(w, act, Output{out.data(), w.rows, nullptr, false}, 0, w.tiles, scratch.data);
    if (act.kind != ActKind::kF32) {  // what the activations stand for
        for (int64_t t = 0; t < m; ++t) {
            for (int64_t k = 0; k < w.columns; ++k) {
                float& value = x[size_t(t * w.columns + k)];
                const int64_t block = act.kind == ActKind::kInt8 ? k / 32 * 32 : 0;
                const int64_t end = act.kind == ActKind::kInt8 ? std::min(block + 32, w.columns) : w.columns;
                if (act.kind == ActKind::kBF16) {
                    uint32_t word;
                    memcpy(&word, &value, 4);
                    word = (word + 0x7fff + (word >> 16 & 1)) & 0xffff0000;
                    memcpy(&value, &word, 4);
                } else if (k == block) {
                    float amax = 0.0f;
                    for (int64_t i = block; i < end; ++i) amax = fmaxf(amax, fabsf(x[size_t(t * w.columns + i)]));
                    for (int64_t i = block; i < end; ++i) {
                        float& v = x[size_t(t * w.columns + i)];
                        v = nearbyintf(v * (127.0f / amax)) * (amax / 127.0f);
                    }
                }
            }
        }
    }
    double worst = 0.0;
    for (int64_t n = 0; n < w.rows; ++n) {
        read_row(w, n, row.data());
        for (int64_t t = 0; t < m; ++t) {
            double sum = 0.0, size = 1e-30;
            for (int64_t k = 0; k < w.columns; ++k) {
                const double product = double(x[size_t(t * w.columns + k)]) * row[size_t(k)];
                sum += product;
                size += fabs(product);
            }
            worst = fmax(worst, fabs(out[size_t(t * w.rows + n)] - sum) / size);
        }
    }
    if (worst < 4e-6) return 0;  // of Σ |x · w|: float32 sums of some hundred terms
    printf("%s %s contract %d tokens %d: error %.2e\n", kernels.name, c.name.c_str(), int(contract), int(m), worst);
    return 1;
}

}  // namespace

int main(int count, char** wanted) {
    struct Type {
        const char* name;
        int block, bytes;
        std::vector<int> halves;  // where float16 stand
    };
    const std::vector<Type> types = {
        {"Q4_0", 32, 18, {0}},      {"Q4_1", 32, 20, {0, 2}},    {"Q5_0", 32, 22, {0}},     {"Q5_1", 32, 24, {0, 2}},
        {"Q8_0", 32, 34, {0}},      {"Q2_K", 256, 84, {80, 82}}, {"Q3_K", 256, 110, {108}}, {"Q4_K", 256, 144, {0, 2}},
        {"Q5_K", 256, 176, {0, 2}}, {"Q6_K", 256, 210, {208}},   {"IQ4_NL", 32, 18, {0}},   {"IQ4_XS", 256, 136, {0}},
        {"TQ1_0", 256, 54, {52}},   {"TQ2_0", 256, 66, {64}},    {"MXFP4", 32, 17, {}},     {"NVFP4", 64, 36, {}},
    };
    std::vector<Case> cases;
    std::vector<Aligned*> held;
    const auto add = [&](const std::string& name, Packed& packed) {
        held.push_back(new Aligned(packed.tiles * packed.tile_bytes));
        packed.data = held.back()->data;
        cases.push_back({name, packed});
    };
    for (const Type& type : types) {
        Packed packed = {};
        packed.rows = 19;
        packed.columns = 768;
        describe_blocks(type.name, packed);
        add(type.name, packed);
        std::vector<uint8_t> rows(size_t(19 * 768 / type.block * type.bytes));
        for (uint8_t& byte : rows) byte = uint8_t(generator());
        for (size_t at = 0; at < rows.size(); at += size_t(type.bytes)) {
            for (int offset : type.halves) put_half(&rows[at + size_t(offset)]);
            if (type.block == 64)
                for (int i = 0; i < 4; ++i) rows[at + size_t(i)] = uint8_t(generator() % 0x60);
            if (type.bytes == 17) rows[at] = uint8_t(120 + generator() % 16);
        }
        pack_blocks(type.name, packed, rows.data(), 0, 19);
    }
    for (int bits = 1; bits <= 8; ++bits) {
        for (int kind = 0; kind < 3; ++kind) {  // one zero, zeros, and offsets
            const int64_t columns = 416,
                          group = kind == 0   ? 208
                                  : kind == 1 ? 16
                                              : 64,
                          groups = (columns + group - 1) / group;
            Packed packed = {};
            packed.rows = 19;
            packed.columns = columns;
            packed.bits = bits;
            packed.granularity = kind == 2 ? 64 : 16;
            packed.scales = kind == 0 ? Scales::kBF16 : kind == 1 ? Scales::kF32 : Scales::kF16;
            packed.offsets = kind == 0 ? Offsets::kZero : kind == 1 ? Offsets::kZeros : Offsets::kMinimums;
            packed.zero = kind ? 0 : 1 << (bits - 1);
            packed.factor = 1.0f;
            set_layout(packed);
            add("int" + std::to_string(bits) + (kind == 1 ? " zeros" : kind == 2 ? " offsets" : ""), packed);
            std::vector<uint8_t> codes(size_t(19 * columns)), zeros(size_t(19 * groups));
            std::vector<float> scales(size_t(19 * groups)), offsets(size_t(19 * groups));
            for (uint8_t& code : codes) code = uint8_t(generator() & ((1u << bits) - 1));
            for (uint8_t& zero : zeros) zero = uint8_t(generator() & ((1u << bits) - 1));
            for (float& scale : scales) scale = float(generator() % 64 + 1) / 64.0f;
            for (float& offset : offsets) offset = -float(generator() % 64) / 64.0f;
            pack_groups(packed,
                        {codes.data(), scales.data(), kind == 1 ? zeros.data() : nullptr, group, groups,
                         kind == 2 ? offsets.data() : nullptr},
                        0, 19);
        }
    }
    const std::pair<const char*, Codes> elements[] = {{"F32", Codes::kF32},
                                                      {"F16", Codes::kF16},
                                                      {"BF16", Codes::kBF16},
                                                      {"E4M3", Codes::kE4M3},
                                                      {"E5M2", Codes::kE5M2}};
    for (const auto& [name, codes] : elements) {
        Packed packed = {};
        packed.rows = 19;
        packed.columns = 333;
        packed.codes = codes;
        packed.granularity = kChunk;
        packed.factor = 1.0f;
        set_layout(packed);
        add(name, packed);
        const int size = codes == Codes::kF32 ? 4 : codes == Codes::kF16 || codes == Codes::kBF16 ? 2 : 1;
        std::vector<uint8_t> rows(size_t(19 * 333 * size));
        for (uint8_t& byte : rows) byte = uint8_t(generator());
        for (size_t i = size_t(size) - 1; i < rows.size(); i += size_t(size))
            rows[i] = uint8_t((rows[i] & 0x83) | 0x30);
        pack_elements(packed, rows.data(), nullptr, 333, 1, 0, 19);
    }
    int failed = 0, checked = 0;
    std::vector<const Kernels*> sets;
    for (int i = 1; i < count; ++i) sets.push_back(&kernels_named(wanted[i]));
    for (const Refused& refused : refused_kernels())
        printf("not %s: %s\n", refused.name.c_str(), refused.reason.c_str());
    for (const Kernels* kernels : sets.empty() ? usable_kernels() : sets) {
        printf("%s\n", kernels->name);
        fflush(stdout);
        for (const Case& c : cases)
            for (Contract contract : {Contract::kFast, Contract::kExact, Contract::kToken})
                for (int64_t m : {1, 2, 3, 5, 14, 29}) {
                    failed += check(c, *kernels, contract, m);
                    ++checked;
                }
    }
    printf("%d products, %d wrong\n", checked, failed);
    return failed != 0;
}
