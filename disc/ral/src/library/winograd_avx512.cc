#include <algorithm>

#include "library/winograd.h"

#define DISC_WINOGRAD_VECTORS 4

namespace ral::winograd {

namespace {
constexpr int kVectorBytes = 64;
constexpr int64_t kVectors = DISC_WINOGRAD_VECTORS;
}  // namespace

#include "library/winograd.inc"

const Functions& for_avx512(int64_t patch, int64_t window) { return functions_for(patch, window); }

}  // namespace ral::winograd
