#include <algorithm>

#include "library/winograd.h"

#define DISC_WINOGRAD_VECTORS 4

namespace ral::winograd {

namespace {
constexpr int kVectorBytes = 64;
constexpr int64_t kVectors = DISC_WINOGRAD_VECTORS;
}  // namespace

#include "library/winograd.inc"

const Functions kAvx512 = kFunctions;

}  // namespace ral::winograd
