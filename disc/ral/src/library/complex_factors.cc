// LU, Cholesky and QR factors of complex matrices, [..., 2] in f32 and f64, as LAPACK stores them, and systems with triangles.
#include <algorithm>
#include <cmath>

#include "library/complex_matrices.h"
#include "library/functions.h"

namespace ral {

namespace {

// The lower factor of the lower triangle of a. Returns 0, or the order of the first minor that is not positive: then its columns are the factor's,
// and what is behind is as LAPACK leaves it, the pivot and the matrix's own elements.
template <typename T>
int64_t factor_positive(int64_t n, const Complex<T>* a, Complex<T>* lower) {
  std::fill(lower, lower + n * n, Complex<T>{});
  int64_t known = n;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < std::min(i, known); ++j) {
      const Complex<T> sum = inner_product(j, lower + j * n, lower + i * n);
      lower[i * n + j] = (a[i * n + j] - sum) / lower[j * n + j].re;
    }
    if (known < n) {
      std::copy(a + i * n + known, a + i * n + i + 1, lower + i * n + known);
      continue;
    }
    const T rest = a[i * n + i].re - square_sum(i, lower + i * n);
    if (!(rest > 0)) known = i;
    lower[i * n + i].re = rest > 0 ? std::sqrt(rest) : rest;
  }
  return known < n ? known + 1 : 0;
}

// The lower factors, to results[0]; returns what `factor_positive` does for each matrix; null where the call has failed.
template <typename T>
const int64_t* factor_all(LibraryCall& call, Matrices<T>& all) {
  const int64_t n = all.batch.n;
  const ral_tensor &matrix = call.operands[0], &result = call.results[0];
  return all.each(n * n, n * n * n / 6, [&](int64_t i, Complex<T>* memory) {
    return factor_positive(n, all.at(matrix, i, n * n), result.data ? all.at(result, i, n * n) : memory);
  });
}

// accept: takes the places of zeros, and says whether there are results.
template <typename Accept>
void factor_rows(LibraryCall& call, const Accept& accept) {
  const ral_tensor& matrix = call.operands[0];
  if (!are_complex(call, matrix, 2)) return;
  const ral_tensor plain = by_numbers(matrix);
  const Batch batch(plain);
  const int64_t rows = batch.rows, n = batch.n, least = batch.least();
  const ral_tensor &factors = call.results[0], &pivots = call.results[1], &order = call.results[2], &zeros = call.results[3];
  if (!has_sizes(call, factors, plain, plain.dtype, {rows, n, 2}) || !has_sizes(call, pivots, plain, RAL_I32, {least})) return;
  if (!has_sizes(call, order, plain, RAL_I32, {rows}) || !has_sizes(call, zeros, plain, RAL_I32, {})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    const int64_t* found = all.each(rows * n + rows + least, rows * n * least / 3, [&](int64_t i, Complex<T>* memory) {
      auto* own = reinterpret_cast<int32_t*>(memory + rows * n);
      bool odd = false;
      std::copy(all.at(matrix, i, rows * n), all.at(matrix, i + 1, rows * n), memory);
      const int64_t place = factor_by_rows(rows, n, memory, own, own + rows, &odd);
      if (factors.data) std::copy(memory, memory + rows * n, all.at(factors, i, rows * n));
      if (order.data) std::copy(own, own + rows, static_cast<int32_t*>(order.data) + i * rows);
      for (int64_t k = 0; pivots.data && k < least; ++k) static_cast<int32_t*>(pivots.data)[i * least + k] = own[rows + k] + 1;
      return place;
    });
    if (!found || !accept(found, batch.count)) return;
    for (int64_t i = 0; zeros.data && i < batch.count; ++i) static_cast<int32_t*>(zeros.data)[i] = static_cast<int32_t>(found[i]);
  });
}

}  // namespace

void complex_lu(LibraryCall& call) {
  factor_rows(call, [](const int64_t*, int64_t) { return true; });
}

void complex_lu_checked(LibraryCall& call) {
  factor_rows(call, [&](const int64_t* zeros, int64_t count) { return check_diagonals(call, zeros, count); });
}

void complex_triangular_solve(LibraryCall& call) {
  const ral_tensor &right = call.operands[0], &matrix = call.operands[1], &result = call.results[0];
  if (!is_complex_system(call, matrix, right)) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    const int64_t n = all.batch.n, columns = right.dims[right.rank - 2];
    const bool unit = call.numbers[1] != 0;
    all.each(0, n * n * columns / 2, [&](int64_t i, Complex<T>*) -> int64_t {
      Complex<T>* to = all.at(result, i, n * columns);
      std::copy(all.at(right, i, n * columns), all.at(right, i + 1, n * columns), to);
      if (call.numbers[0]) {
        solve_upper(n, all.at(matrix, i, n * n), to, columns, unit);
      } else {
        solve_lower(n, all.at(matrix, i, n * n), to, columns, unit);
      }
      return 0;
    });
  });
}

void complex_cholesky(LibraryCall& call) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_complex_square(call, matrix) || !demand(call, is_like(call.results[0], matrix, matrix.dtype))) return;
  with_real(call, [&](auto zero) {
    Matrices<decltype(zero)> all(call, matrix);
    const int64_t* minors = factor_all(call, all);
    if (minors) check(call, minors, all.batch.count, "the input is not positive-definite (the leading minor of order ", " is not positive-definite)");
  });
}

void complex_cholesky_ex(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &orders = call.results[1];
  if (!is_complex_square(call, matrix) || !demand(call, is_like(call.results[0], matrix, matrix.dtype))) return;
  if (!has_sizes(call, orders, by_numbers(matrix), RAL_I32, {})) return;
  with_real(call, [&](auto zero) {
    Matrices<decltype(zero)> all(call, matrix);
    const int64_t* minors = factor_all(call, all);
    for (int64_t i = 0; minors && orders.data && i < all.batch.count; ++i) static_cast<int32_t*>(orders.data)[i] = static_cast<int32_t>(minors[i]);
  });
}

void complex_householder(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &packed = call.results[0], &factors = call.results[1];
  if (!are_complex(call, matrix, 2)) return;
  const ral_tensor plain = by_numbers(matrix);
  const Batch batch(plain);
  const int64_t rows = batch.rows, n = batch.n, least = batch.least();
  if (!has_sizes(call, packed, plain, plain.dtype, {rows, n, 2}) || !has_sizes(call, factors, plain, plain.dtype, {least, 2})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    all.each(rows * n + least, 2 * rows * n * least, [&](int64_t i, Complex<T>* memory) -> int64_t {
      Complex<T>* own = memory + rows * n;
      reflect_columns(batch, all.at(matrix, i, rows * n), memory, own);
      if (packed.data) turn(memory, n, rows, all.at(packed, i, rows * n));
      if (factors.data) std::copy(own, own + least, all.at(factors, i, least));
      return 0;
    });
  });
}

void complex_householder_product(LibraryCall& call) {
  const ral_tensor &packed = call.operands[0], &factors = call.operands[1], &result = call.results[0];
  if (!are_complex(call, packed, 2) || !are_complex(call, factors, 1) || !are_complex(call, result, 2)) return;
  const ral_tensor plain = by_numbers(packed);
  const Batch batch(plain);
  const int64_t rows = batch.rows, n = batch.n, wanted = result.dims[result.rank - 2], known = factors.dims[factors.rank - 2];
  if (!has_sizes(call, factors, plain, plain.dtype, {known, 2}) || !has_sizes(call, result, plain, plain.dtype, {rows, wanted, 2})) return;
  if (!make_columns(call, known, rows, n, wanted)) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, packed);
    all.each(rows * n + rows * wanted, 2 * known * wanted * rows, [&](int64_t i, Complex<T>* memory) -> int64_t {
      turn(all.at(packed, i, rows * n), rows, n, memory);
      if (result.data) multiply_reflections(rows, known, memory, all.at(factors, i, known), wanted, memory + rows * n, all.at(result, i, rows * wanted));
      return 0;
    });
  });
}

}  // namespace ral
