// Complex matrices in the last three dims of tensors, f32 and f64, as pairs: what their factorizations share. The algorithms are LAPACK's, without
// blocks.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>

#include "library/complex_numbers.h"
#include "library/matrices.h"
#include "library/reflections.h"

namespace ral {

constexpr int64_t kComplexMacs = 4;

// The tensor of complex numbers without the dim of their parts.
inline ral_tensor by_numbers(const ral_tensor& tensor) {
  ral_tensor found = tensor;
  if (found.rank > 0) --found.rank;
  return found;
}

inline bool are_complex(LibraryCall& call, const ral_tensor& tensor, int32_t rank) {
  const bool good = tensor.rank > rank && tensor.dims[tensor.rank - 1] == 2;
  if (!good) call.fail("needs complex matrices, whose parts are the last dim", RAL_ERROR_SHAPE);
  return good;
}

inline bool is_complex_square(LibraryCall& call, const ral_tensor& matrix) {
  if (!are_complex(call, matrix, 2)) return false;
  const bool good = matrix.dims[matrix.rank - 2] == matrix.dims[matrix.rank - 3];
  if (!good) call.fail("needs square matrices", RAL_ERROR_SHAPE);
  return good;
}

// Whether `right` [..., n, c, 2], and a result like it, are of systems with the matrices `matrix`.
inline bool is_complex_system(LibraryCall& call, const ral_tensor& matrix, const ral_tensor& right) {
  if (!is_complex_square(call, matrix) || !are_complex(call, right, 2)) return false;
  const bool fits = right.rank == matrix.rank && std::equal(matrix.dims, matrix.dims + matrix.rank - 2, right.dims);
  return demand(call, fits && right.dtype == matrix.dtype && is_like(call.results[0], right, right.dtype));
}

// A batch of complex matrices, each of which is computed by one thread, with `scratch` numbers of its own.
template <typename T>
struct Matrices {
  using Number = Complex<T>;

  LibraryCall& call;
  Batch batch;

  explicit Matrices(LibraryCall& own, const ral_tensor& matrix) : call(own), batch(by_numbers(matrix)) {}

  static Number* at(const ral_tensor& tensor, int64_t number, int64_t size) {
    return tensor.data ? static_cast<Number*>(tensor.data) + number * size : nullptr;
  }

  // found: 0, or what `check` or `check_found` is told.
  template <typename Body>
  int64_t* each(int64_t scratch, int64_t work, const Body& body) {
    int64_t* found = integers(call, batch.count);
    if (!found) return nullptr;
    const int64_t cost = (work * kComplexMacs / kMacsPerNanosecond + 100) * RAL_COST_PER_NANOSECOND;
    const bool done = call.parallel(batch.count, cost, (scratch + 1) * static_cast<int64_t>(sizeof(Number)), [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t i = begin; i < end; ++i) found[i] = body(i, reinterpret_cast<Number*>(memory));
    });
    return done ? found : nullptr;
  }
};

// L, whose diagonal is 1, and U of a [rows, n] in its place, with partial pivoting by the sum of the parts; order: of the rows; pivots, or null:
// the row that step i exchanged with row i. Returns the first zero on the diagonal of U, from 1, or 0; odd: whether the exchanges are an odd
// number.
template <typename T, typename Place>
int64_t factor_by_rows(int64_t rows, int64_t n, Complex<T>* a, Place* order, Place* pivots, bool* odd) {
  int64_t zero = 0;
  *odd = false;
  std::iota(order, order + rows, Place{0});
  for (int64_t k = 0; k < std::min(rows, n); ++k) {
    int64_t best = k;
    for (int64_t i = k + 1; i < rows; ++i) {
      if (a[i * n + k].sum() > a[best * n + k].sum()) best = i;
    }
    if (pivots) pivots[k] = static_cast<Place>(best);
    if (best != k) {
      std::swap_ranges(a + k * n, a + (k + 1) * n, a + best * n);
      std::swap(order[k], order[best]);
      *odd = !*odd;
    }
    const Complex<T> pivot = a[k * n + k];
    if (pivot.re == 0 && pivot.im == 0) {
      zero = zero ? zero : k + 1;
      continue;
    }
    for (int64_t i = k + 1; i < rows; ++i) {
      const Complex<T> ratio = a[i * n + k] = a[i * n + k] / pivot;
      for (int64_t j = k + 1; j < n; ++j) a[i * n + j] = a[i * n + j] - ratio * a[k * n + j];
    }
  }
  return zero;
}

// Row i of x, [n, columns], less that with the elements [first, past) of row i of a; then by the diagonal, unless it is 1.
template <typename T>
void solve_row(int64_t n, const Complex<T>* a, Complex<T>* x, int64_t columns, int64_t i, int64_t first, int64_t past, bool unit) {
  for (int64_t j = first; j < past; ++j) {
    for (int64_t k = 0; k < columns; ++k) x[i * columns + k] = x[i * columns + k] - a[i * n + j] * x[j * columns + k];
  }
  for (int64_t k = 0; !unit && k < columns; ++k) x[i * columns + k] = x[i * columns + k] / a[i * n + i];
}

template <typename T>
void solve_lower(int64_t n, const Complex<T>* a, Complex<T>* x, int64_t columns, bool unit) {
  for (int64_t i = 0; i < n; ++i) solve_row(n, a, x, columns, i, 0, i, unit);
}

template <typename T>
void solve_upper(int64_t n, const Complex<T>* a, Complex<T>* x, int64_t columns, bool unit) {
  for (int64_t i = n - 1; i >= 0; --i) solve_row(n, a, x, columns, i, i + 1, n, unit);
}

// A reflection I - tau * v * v^H, v[0] = 1, whose conjugate transpose makes (x[0], 0, ...) of x, for a real x[0] (LAPACK's xLARFG); x becomes
// that number and the rest of v.
template <typename T>
Complex<T> make_complex_reflection(int64_t length, Complex<T>* x) {
  const T rest = square_sum(length - 1, x + 1);
  const Complex<T> alpha = x[0];
  if (rest == 0 && alpha.im == 0) return {};
  const T beta = -std::copysign(std::sqrt(alpha.square() + rest), alpha.re);
  const Complex<T> divisor = alpha - Complex<T>{beta};
  for (int64_t i = 1; i < length; ++i) x[i] = x[i] / divisor;
  x[0] = {beta};
  return {(beta - alpha.re) / beta, -alpha.im / beta};
}

// column -= factor * v * (v^H * column), v[0] being 1.
template <typename T>
void reflect(int64_t length, const Complex<T>* v, Complex<T> factor, Complex<T>* column) {
  const Complex<T> sum = factor * (column[0] + inner_product(length - 1, v + 1, column + 1));
  column[0] = column[0] - sum;
  for (int64_t i = 1; i < length; ++i) column[i] = column[i] - v[i] * sum;
}

// Of a [rows, n], by columns [n, rows]: R on and above the diagonal, reflections below it, and their factors [least].
template <typename T>
void reflect_columns(const Batch& batch, const Complex<T>* a, Complex<T>* columns, Complex<T>* factors) {
  const int64_t rows = batch.rows, n = batch.n;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) columns[j * rows + i] = a[i * n + j];
  }
  bool finite = true;
  const int exponent = scale_elements(reinterpret_cast<T*>(columns), 2 * rows * n, &finite);
  for (int64_t k = 0; k < batch.least(); ++k) {
    Complex<T>* v = columns + k * rows + k;
    factors[k] = make_complex_reflection(rows - k, v);
    for (int64_t j = k + 1; j < n; ++j) reflect(rows - k, v, factors[k].conjugate(), columns + j * rows + k);
  }
  for (int64_t j = 0; exponent != 0 && j < n; ++j) {
    for (int64_t i = 0; i < std::min(j + 1, rows); ++i) {
      Complex<T>& own = columns[j * rows + i];
      own = {std::scalbn(own.re, exponent), std::scalbn(own.im, exponent)};
    }
  }
}

// The first `wanted` columns of the product of `known` reflections, to q [rows, wanted]. scratch: [wanted, rows].
template <typename T>
void multiply_reflections(int64_t rows, int64_t known, const Complex<T>* columns, const Complex<T>* factors, int64_t wanted, Complex<T>* scratch,
                          Complex<T>* q) {
  std::fill(scratch, scratch + wanted * rows, Complex<T>{});
  for (int64_t j = 0; j < wanted; ++j) scratch[j * rows + j] = {1};
  for (int64_t k = known - 1; k >= 0; --k) {
    for (int64_t j = k; j < wanted; ++j) reflect(rows - k, columns + k * rows + k, factors[k], scratch + j * rows + k);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < wanted; ++j) q[i * wanted + j] = scratch[j * rows + i];
  }
}

}  // namespace ral
