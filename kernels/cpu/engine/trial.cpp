#include "trial.h"

#include <string.h>

#include <algorithm>
#include <vector>

#include "matmul/pack.h"
#include "memory.h"

#if defined(__linux__) || defined(__APPLE__)
#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#define BITSMITH_FORK
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#endif

namespace bitsmith::engine {

namespace {

constexpr int kRows = 21, kColumns = 3 * kStep, kTokens = 2 * kPanel + 5;

// Weights with their codes as plain integers.
struct Weights {
    Packed packed;
    Memory memory;
    std::vector<int32_t> values;  // [kRows][kColumns]
};

class Trial {
public:
    Trial() : x_(kTokens * kColumns), out_(kTokens * kRows), scratch_(kScratch) {
        for (int i = 0; i < kTokens * kColumns; ++i) x_[i] = float(mixed(i) % 255) - 127.0f;
        for (int i = 0; i < kTokens * kColumns; i += kStep)
            x_[i + mixed(i) % kStep] = 127.0f;  // so that the scale is 1
        for (int bits : {4, 8}) {
            weights_.push_back(start(Codes::kInteger));
            Weights& w = weights_.back();
            w.packed.bits = bits;
            w.packed.zero = 1 << (bits - 1);
            w.packed.scales = Scales::kF32;
            fill(w);
            const std::vector<float> scales(kRows, 1.0f);
            std::vector<uint8_t> codes;
            for (int32_t value : w.values) codes.push_back(uint8_t(value + w.packed.zero));
            pack_groups(w.packed, {codes.data(), scales.data(), nullptr, kColumns, 1}, 0, kRows);
        }
        weights_.push_back(start(Codes::kBF16));
        Weights& w = weights_.back();
        fill(w);
        std::vector<uint16_t> halves;
        for (int32_t value : w.values) {
            const float number = float(value);
            uint32_t word;
            memcpy(&word, &number, 4);
            halves.push_back(uint16_t(word >> 16));  // exact: eight bits at most
        }
        pack_elements(w.packed, reinterpret_cast<const uint8_t*>(halves.data()), nullptr, kColumns, 1, 0, kRows);
        for (const Weights& each : weights_) {
            const Act act = {act_kind(each.packed, Contract::kFast), kTokens, kColumns, each.packed.steps, nullptr};
            act_.reserve(act.bytes());
        }
    }

    // Allocates nothing, so that a child process may call it.
    bool passed(const Kernels& kernels) {
        for (const Weights& w : weights_) {
            for (int tokens : {1, 2, 4, 5, kPanel, kTokens}) {
                const Act act = {act_kind(w.packed, Contract::kFast), tokens, kColumns, w.packed.steps,
                                 reinterpret_cast<uint8_t*>(act_.data())};
                kernels.prepare(act, x_.data(), kColumns, 0, act.panels());
                kernels.linear(w.packed, act, {out_.data(), kRows, nullptr, false}, 0, w.packed.tiles, scratch_.data());
                for (int t = 0; t < tokens; ++t)
                    for (int n = 0; n < kRows; ++n)
                        if (out_[t * kRows + n] != wanted(w, t, n)) return false;
            }
        }
        return true;
    }

private:
    static uint32_t mixed(int i) { return (uint32_t(i) * 2654435761u + 12345u) >> 11; }

    static Weights start(Codes codes) {
        Weights w = {};
        w.packed.rows = kRows;
        w.packed.columns = kColumns;
        w.packed.codes = codes;
        w.packed.granularity = kChunk;
        w.packed.factor = 1.0f;
        w.packed.bits = 8;
        return w;
    }
    static void fill(Weights& w) {
        set_layout(w.packed);
        w.memory.reserve(w.packed.tiles * w.packed.tile_bytes);
        w.packed.data = reinterpret_cast<uint8_t*>(w.memory.data());
        const int32_t count = 1 << w.packed.bits;
        for (int i = 0; i < kRows * kColumns; ++i) w.values.push_back(int32_t(mixed(3 * i)) % count - count / 2);
        w.values[0] = count / 2 - 1;
        w.values[1] = -count / 2;
    }
    float wanted(const Weights& w, int token, int row) const {
        int32_t sum = 0;
        for (int k = 0; k < kColumns; ++k) sum += int32_t(x_[token * kColumns + k]) * w.values[row * kColumns + k];
        return float(sum);
    }

    std::vector<float> x_, out_;
    std::vector<Weights> weights_;
    Memory act_, scratch_;
};

#if defined(BITSMITH_FORK)
const char* signal_name(int number) {
    switch (number) {
        case SIGILL:
            return "SIGILL";
        case SIGSEGV:
            return "SIGSEGV";
        case SIGBUS:
            return "SIGBUS";
        case SIGFPE:
            return "SIGFPE";
        case SIGTRAP:
            return "SIGTRAP";
        case SIGALRM:
            return "no answer within five seconds";
        default:
            return "another signal";
    }
}

// A child that faults ends, and says nothing: not by Python's fault handler, and not by a core file.
void become_a_child() {
    for (int number : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP, SIGABRT, SIGALRM}) signal(number, SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    const rlimit nothing = {0, 0};
    setrlimit(RLIMIT_CORE, &nothing);
    alarm(5);
}
#endif

const char kWrong[] = "its products are wrong on this processor";

}  // namespace

std::string trial(const Kernels& kernels) {
    return Trial().passed(kernels) ? "" : kWrong;
}

#if defined(BITSMITH_FORK)
std::string trial_apart(const Kernels& kernels, const char* what) {
    Trial prepared;
    const pid_t child = fork();
    if (child < 0) return std::string("no process can be started to try ") + what;
    if (child == 0) {
        become_a_child();
        _exit(prepared.passed(kernels) ? 0 : 1);
    }
    int status = 0;
    pid_t ended;
    do ended = waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    if (ended != child) return std::string("the process that tried ") + what + " did not tell how it ended";
    if (WIFSIGNALED(status))
        return std::string("the CPU lists ") + what + ", but executing it ends with " + signal_name(WTERMSIG(status)) +
               ", as in some virtual machines";
    return WEXITSTATUS(status) == 0 ? "" : kWrong;
}
#else
std::string trial_apart(const Kernels&, const char* what) {
    return std::string("this system has no way to try ") + what + " in a process apart";
}
#endif

#if defined(__linux__) && defined(__x86_64__) && defined(SYS_arch_prctl)
std::string ask_for_tiles() {
    constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM and XFEATURE_XTILEDATA
    if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return "";
    if (errno == ENOSPC)
        return "the stack for signals of one of this program's threads is too small for AMX's registers";
    return std::string("Linux does not grant AMX's registers (") + strerror(errno) + ")";
}
#else
std::string ask_for_tiles() {
    return "AMX is used on Linux only";
}
#endif

}  // namespace bitsmith::engine
