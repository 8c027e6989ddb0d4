// Every instruction set computes a small product before it is chosen.
#pragma once
#include <string>

#include "table.h"

namespace bitsmith::engine {

// '' where products of small integers and of bfloat16, whose sums are exact, come out as plain loops have them; else a
// clause that says what is wrong.
std::string trial(const Kernels& kernels);
// The same in a child process, which may fault: some virtual machines list instructions and then stop the program.
// `what` is the name in the clause. On systems without fork, a clause that says so.
std::string trial_apart(const Kernels& kernels, const char* what);
// Asks Linux for AMX's tile registers, which are saved for this process from then on. '' or why there are none.
std::string ask_for_tiles();

}  // namespace bitsmith::engine
