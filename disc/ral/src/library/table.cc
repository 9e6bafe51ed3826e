// The library functions by name. A name means the same for ever: what computes something else gets another one, so that old programs run on.
#include <utility>

#include "library/functions.h"

namespace ral {

namespace {

constexpr std::pair<std::string_view, LibraryFunction> kFunctions[] = {
    {"cholesky", cholesky}, {"count", count},   {"determinant", determinant}, {"fft", fft},
    {"grouped_dot", grouped_dot}, {"inverse", inverse}, {"irfft", irfft}, {"rfft", rfft},
    {"search", search},     {"solve", solve},   {"sort", sort},               {"topk", topk},               {"triangular_solve", triangular_solve},
};

}  // namespace

LibraryFunction find_function(std::string_view name) noexcept {
  for (const auto& [own, function] : kFunctions) {
    if (own == name) return function;
  }
  return nullptr;
}

}  // namespace ral
