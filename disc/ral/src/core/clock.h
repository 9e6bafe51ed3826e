// Time that passes.
#pragma once

#include <chrono>
#include <cstdint>

namespace ral {

inline int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace ral
