// Matrices in the last two dims of tensors, f32 and f64: what the functions of linear algebra share.
#pragma once

#include <algorithm>
#include <string>

#include "core/library.h"
#include "library/checks.h"

namespace ral {

constexpr int64_t kMacsPerNanosecond = 8;

// A batch of matrices [..., rows, n].
struct Batch {
  int64_t count = 1, rows = 0, n = 0;

  explicit Batch(const ral_tensor& matrix) : rows(matrix.dims[matrix.rank - 2]), n(matrix.dims[matrix.rank - 1]) {
    for (int32_t i = 0; i + 2 < matrix.rank; ++i) count *= matrix.dims[i];
  }
  int64_t size() const { return rows * n; }
  int64_t least() const { return std::min(rows, n); }
  // Of n * n * n multiplications and additions.
  int64_t cost() const { return (n * n * n / kMacsPerNanosecond + 100) * RAL_COST_PER_NANOSECOND; }
};

template <typename Body>
void with_real(LibraryCall& call, const Body& body) {
  if (call.operands[0].dtype == RAL_F32) return body(float{});
  if (call.operands[0].dtype == RAL_F64) return body(double{});
  call.fail("is computed in f32 and f64 alone", RAL_ERROR_DTYPE);
}

inline bool is_matrix(LibraryCall& call, const ral_tensor& tensor) {
  if (tensor.rank < 2) call.fail("needs matrices", RAL_ERROR_SHAPE);
  return tensor.rank >= 2;
}

// Fails the call for the first matrix with a number other than 0; says which, where there are several.
inline bool check(LibraryCall& call, const int64_t* numbers, int64_t count, const std::string& before, const std::string& after,
                  ral_status code = RAL_ERROR_SINGULAR) {
  for (int64_t i = 0; i < count; ++i) {
    if (!numbers[i]) continue;
    call.fail((count > 1 ? "(batch element " + std::to_string(i) + ") " : "") + before + std::to_string(numbers[i]) + after, code);
    return false;
  }
  return true;
}

// The same for LU factors: the place, from 1, of the first zero on the diagonal of U, or 0.
inline bool check_diagonals(LibraryCall& call, const int64_t* zeros, int64_t count) {
  return check(call, zeros, count, "diagonal element ", " of U is zero: the factors solve no system");
}

// Whether `known` reflections of `rows` elements, stored in n columns, make so many columns.
inline bool make_columns(LibraryCall& call, int64_t known, int64_t rows, int64_t n, int64_t wanted) {
  if (known <= std::min(n, wanted) && wanted <= rows) return true;
  call.fail(std::to_string(known) + " reflections of " + std::to_string(rows) + " elements make no " + std::to_string(wanted) + " columns",
            RAL_ERROR_SHAPE);
  return false;
}

// What was found of each matrix that is computed by iterations: 0, or why there is no result.
enum class Found : int64_t { kResult = 0, kNotFinite = 1, kNoConvergence = 2 };

// Fails the call for the first matrix without a result.
inline void check_found(LibraryCall& call, const int64_t* found, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (found[i] == static_cast<int64_t>(Found::kResult)) continue;
    const char* reason = found[i] == static_cast<int64_t>(Found::kNotFinite) ? "the matrix has elements that are infinite or NaN"
                                                                             : "the iterations do not converge";
    return call.fail((count > 1 ? "(batch element " + std::to_string(i) + ") " : "") + std::string(reason));
  }
}

inline int64_t* integers(LibraryCall& call, int64_t count) {
  return reinterpret_cast<int64_t*>(call.memory((count + 1) * static_cast<int64_t>(sizeof(int64_t))));
}

}  // namespace ral
