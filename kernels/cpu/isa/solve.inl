// The body of the translation units of kernels/solve.py. The file that includes it defines BITSMITH_NS.
#include "../solve/descend.h"
#include "../solve/feedback.h"
#include "../solve/learn.h"

namespace bitsmith {
namespace BITSMITH_NS {

static const Solve kSolve = {feedback, descend, learn_step, learned_weight};

}  // namespace BITSMITH_NS
}  // namespace bitsmith
