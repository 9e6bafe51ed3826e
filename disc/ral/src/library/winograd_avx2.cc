#include <algorithm>

#include "library/winograd.h"

#define DISC_WINOGRAD_VECTORS 2

namespace ral::winograd {

namespace {
constexpr int kVectorBytes = 32;
constexpr int64_t kVectors = DISC_WINOGRAD_VECTORS;
}  // namespace

#include "library/winograd.inc"

const Functions& for_avx2(int64_t patch, int64_t window) { return functions_for(patch, window); }

}  // namespace ral::winograd
