// How a tensor lies in memory, and making a row-major copy of it.
#pragma once

#include <vector>

#include "ral.h"

namespace ral {

// Of its elements; 0 where the size does not fit in memory.
int64_t bytes_of(const ral_tensor& tensor);

// Row-major without gaps, and aligned to its element.
bool is_row_major(const ral_tensor& tensor, int64_t element);

struct Axis {
  int64_t size;
  int64_t stride;  // bytes
};

// The axes of a tensor that matter, the innermost last: those of size 1 are dropped, neighbors that lie as one are joined. At
// least one remains.
std::vector<Axis> joined_axes(const ral_tensor& tensor, int64_t element);

// Writes the elements of `from` (any strides) to `to`, row-major. `to` does not overlap `from`.
void copy_row_major(const ral_tensor& from, int64_t element, void* to);

// The address range [begin, end) that the tensor touches; empty for size 0. Dims are not negative and the size fits in memory.
struct Extent {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};
Extent extent(const ral_tensor& tensor, int64_t element);

}  // namespace ral
