// The library functions by name. A name means the same for ever: what computes something else gets another one, so that old programs run on.
#include <utility>

#include "library/functions.h"

namespace ral {

namespace {

constexpr std::pair<std::string_view, LibraryFunction> kFunctions[] = {
    {"count", count}, {"grouped_dot", grouped_dot}, {"search", search}, {"sort", sort}, {"topk", topk},
};

}  // namespace

LibraryFunction find_function(std::string_view name) noexcept {
  for (const auto& [own, function] : kFunctions) {
    if (own == name) return function;
  }
  return nullptr;
}

}  // namespace ral
