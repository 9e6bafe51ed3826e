// Overflow-safe size arithmetic and row-major shapes.
#pragma once

#include <cstdint>
#include <string>

#include "ral.h"

namespace ral {

constexpr int64_t kAlignment = 64;  // bytes: a cache line and a 512-bit vector

constexpr int64_t round_up(int64_t bytes, int64_t alignment = kAlignment) { return (bytes + alignment - 1) / alignment * alignment; }

// Sets *bytes = element size * product of dims. False if a dim is negative or the size cannot be held by any machine.
inline bool tensor_bytes(const int64_t* dims, int32_t rank, int64_t element, int64_t* bytes) {
  bool empty = false;
  for (int32_t i = 0; i < rank; ++i) {
    if (dims[i] < 0) return false;
    empty |= dims[i] == 0;
  }
  *bytes = empty ? 0 : element;
  if (empty) return true;
  for (int32_t i = 0; i < rank; ++i) {
    if (__builtin_mul_overflow(*bytes, dims[i], bytes)) return false;
  }
  return *bytes < INT64_MAX / 4;  // room for alignment and headers
}

inline void row_major_strides(const int64_t* dims, int32_t rank, int64_t* strides) {
  uint64_t stride = 1;  // unsigned: a size-0 tensor may have dims whose product wraps, and its strides are never used
  for (int32_t i = rank - 1; i >= 0; --i) {
    strides[i] = static_cast<int64_t>(stride);
    stride *= static_cast<uint64_t>(dims[i]);
  }
}

inline std::string dims_text(const int64_t* dims, int32_t rank) {
  std::string text = "[";
  for (int32_t i = 0; i < rank; ++i) text += (i ? ", " : "") + std::to_string(dims[i]);
  return text + "]";
}

}  // namespace ral
