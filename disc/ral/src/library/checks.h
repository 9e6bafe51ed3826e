// What a function asks of its tensors before it reads them: programs may be written by hand. Where they are others, the call has failed.
#pragma once

#include <algorithm>
#include <initializer_list>

#include "core/library.h"

namespace ral {

inline bool demand(LibraryCall& call, bool holds) {
  if (!holds) call.fail("operands and results have ranks, sizes or types that do not belong together", RAL_ERROR_SHAPE);
  return holds;
}

// Whether `tensor` has elements of `dtype` and the dims of `other`.
inline bool is_like(const ral_tensor& tensor, const ral_tensor& other, int32_t dtype) {
  return tensor.dtype == dtype && tensor.rank == other.rank && std::equal(other.dims, other.dims + other.rank, tensor.dims);
}

// The same, but for one dim of both.
inline bool is_like_but(const ral_tensor& tensor, const ral_tensor& other, int32_t dtype, int64_t dim) {
  bool same = tensor.dtype == dtype && tensor.rank == other.rank;
  for (int32_t i = 0; same && i < other.rank; ++i) same = i == dim || tensor.dims[i] == other.dims[i];
  return same;
}

// Whether it is one of a tensor's; one without dims counts as having one.
inline bool is_dim(const ral_tensor& tensor, int64_t dim) { return dim >= 0 && dim < std::max(tensor.rank, 1); }

inline bool is_integer(int32_t dtype) { return dtype == RAL_I32 || dtype == RAL_I64; }

// Whether `tensor` is [..., sizes], with the batch dims of the matrices `matrix`, and elements of `dtype`.
inline bool has_sizes(LibraryCall& call, const ral_tensor& tensor, const ral_tensor& matrix, int32_t dtype, std::initializer_list<int64_t> sizes) {
  const auto own = static_cast<int32_t>(sizes.size());
  return demand(call, tensor.dtype == dtype && tensor.rank == matrix.rank - 2 + own &&
                          std::equal(matrix.dims, matrix.dims + matrix.rank - 2, tensor.dims) &&
                          std::equal(sizes.begin(), sizes.end(), tensor.dims + tensor.rank - own));
}

}  // namespace ral
