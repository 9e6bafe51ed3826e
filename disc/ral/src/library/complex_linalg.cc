// Solutions, determinants and orthogonal factors of complex matrices, [..., 2] in f32 and f64; Jacobi's rotations for eigenvalues of Hermitian
// matrices and for singular values (G. H. Golub and C. F. Van Loan, "Matrix Computations", 8.5, 8.6).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "library/complex_matrices.h"
#include "library/functions.h"
#include "library/matrices.h"
#include "library/reflections.h"

namespace ral {

namespace {

constexpr int kMostSweeps = 60;  // few matrices take more than ten
// Of a [rows, n]: Q [rows, wanted] and R [wanted, n]; either may be null. scratch: columns [n, rows], factors [least], product [wanted, rows].
template <typename T>
void factor_orthogonal(const Batch& batch, const Complex<T>* a, Complex<T>* q, Complex<T>* r, int64_t wanted, Complex<T>* scratch) {
  const int64_t rows = batch.rows, n = batch.n, least = batch.least();
  Complex<T>*columns = scratch, *factors = columns + rows * n, *product = factors + least;
  reflect_columns(batch, a, columns, factors);
  for (int64_t i = 0; r && i < wanted; ++i) {
    for (int64_t j = 0; j < n; ++j) r[i * n + j] = j < i ? Complex<T>{} : columns[j * rows + i];
  }
  if (q) multiply_reflections(rows, least, columns, factors, wanted, product, q);
}

// The rotation that makes orthogonal what has squares a and b and the product c: (cosine, sine, turn).
template <typename T>
struct Rotation {
  T cosine, sine;
  Complex<T> turn;

  Rotation(T a, T b, Complex<T> c) {
    const T size = c.size(), zeta = (b - a) / (2 * size), t = std::copysign(1 / (std::abs(zeta) + std::hypot(zeta, T{1})), zeta);
    cosine = 1 / std::hypot(t, T{1});
    sine = t * cosine;
    turn = c.conjugate() / size;
  }
};

// Of the lower triangle. values [n], ascending; vectors in columns; either may be null. scratch: matrix and vectors (in rows), [n, n] each.
template <typename T>
Found solve_hermitian(int64_t n, const Complex<T>* a, T* values, Complex<T>* vectors, Complex<T>* scratch, int64_t* order) {
  Complex<T>*matrix = scratch, *turned = scratch + n * n;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < i; ++j) {
      matrix[i * n + j] = a[i * n + j];
      matrix[j * n + i] = a[i * n + j].conjugate();
    }
    matrix[i * n + i] = {a[i * n + i].re};
  }
  bool finite = true;
  const int exponent = scale_elements(reinterpret_cast<T*>(matrix), 2 * n * n, &finite);
  if (!finite) return Found::kNotFinite;
  std::fill(turned, turned + n * n, Complex<T>{});
  for (int64_t i = 0; i < n; ++i) turned[i * n + i] = {1};
  const T negligible = std::numeric_limits<T>::epsilon() / 4 * std::sqrt(square_sum(n * n, matrix)) / static_cast<T>(n + 1);
  int sweep = 0;
  for (bool moved = true; moved; ++sweep) {
    if (sweep == kMostSweeps) return Found::kNoConvergence;
    moved = false;
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        const Complex<T> beside = matrix[p * n + q];
        if (!(beside.size() > negligible)) continue;
        moved = true;
        const Rotation<T> own(matrix[p * n + p].re, matrix[q * n + q].re, beside);
        rotate_pair(n, own.cosine, own.sine, own.turn, matrix + p, matrix + q, n);
        rotate_pair(n, own.cosine, own.sine, own.turn.conjugate(), matrix + p * n, matrix + q * n);
        rotate_pair(n, own.cosine, own.sine, own.turn, turned + p * n, turned + q * n);
        matrix[p * n + q] = matrix[q * n + p] = {};
        matrix[p * n + p].im = matrix[q * n + q].im = 0;
      }
    }
  }
  std::iota(order, order + n, int64_t{0});
  std::stable_sort(order, order + n, [&](int64_t i, int64_t j) { return matrix[i * n + i].re < matrix[j * n + j].re; });
  for (int64_t j = 0; j < n; ++j) {
    if (values) values[j] = std::scalbn(matrix[order[j] * n + order[j]].re, exponent);
    for (int64_t i = 0; vectors && i < n; ++i) vectors[i * n + j] = turned[order[j] * n + i];
  }
  return Found::kResult;
}

// Row `count` of `rows`, [.., length], becomes one of size 1 that is orthogonal to those before it.
template <typename T>
void complete(Complex<T>* rows, int64_t count, int64_t length) {
  Complex<T>* own = rows + count * length;
  for (int64_t unit = 0; unit < length; ++unit) {
    std::fill(own, own + length, Complex<T>{});
    own[unit] = {1};
    for (int pass = 0; pass < 2; ++pass) {
      for (int64_t other = 0; other < count; ++other) {
        const Complex<T> part = inner_product(length, rows + other * length, own);
        for (int64_t i = 0; i < length; ++i) own[i] = own[i] - rows[other * length + i] * part;
      }
      const T rest = square_sum(length, own);
      if (pass == 0 && !(rest * 2 * static_cast<T>(length) >= 1)) break;
      const T size = std::sqrt(rest);
      for (int64_t i = 0; i < length; ++i) own[i] = own[i] / size;
      if (pass == 1) return;
    }
  }
}

// One-sided rotations of the columns of a matrix that has as many rows as columns, or more. columns [n, rows]: U, in rows, the first n of
// [rows, rows] with `full`; turned [n, n]: V, in rows; values [n], descending.
template <typename T>
Found solve_singular(int64_t n, int64_t rows, bool full, Complex<T>* columns, Complex<T>* turned, T* values, Complex<T>* spare, int64_t* order) {
  bool finite = true;
  const int exponent = scale_elements(reinterpret_cast<T*>(columns), 2 * n * rows, &finite);
  if (!finite) return Found::kNotFinite;
  std::fill(turned, turned + n * n, Complex<T>{});
  for (int64_t i = 0; i < n; ++i) turned[i * n + i] = {1};
  constexpr T kLeast = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  int sweep = 0;
  for (bool moved = true; moved; ++sweep) {
    if (sweep == kMostSweeps) return Found::kNoConvergence;
    moved = false;
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t q = p + 1; q < n; ++q) {
        Complex<T>*first = columns + p * rows, *second = columns + q * rows;
        const T a = square_sum(rows, first), b = square_sum(rows, second);
        const Complex<T> product = inner_product(rows, first, second);
        const T limit = std::numeric_limits<T>::epsilon() * std::sqrt(static_cast<T>(rows)) * std::sqrt(a) * std::sqrt(b);
        if (!(product.size() > std::max(limit, kLeast))) continue;
        moved = true;
        const Rotation<T> own(a, b, product);
        rotate_pair(rows, own.cosine, own.sine, own.turn, first, second);
        rotate_pair(n, own.cosine, own.sine, own.turn, turned + p * n, turned + q * n);
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) values[i] = std::sqrt(square_sum(rows, columns + i * rows));
  std::iota(order, order + n, int64_t{0});
  std::stable_sort(order, order + n, [&](int64_t i, int64_t j) { return values[i] > values[j]; });
  const auto arrange = [&](Complex<T>* lines, int64_t length) {
    for (int64_t i = 0; i < n; ++i) std::copy(lines + order[i] * length, lines + (order[i] + 1) * length, spare + i * length);
    std::copy(spare, spare + n * length, lines);
  };
  arrange(columns, rows);
  arrange(turned, n);
  std::sort(values, values + n, std::greater<T>());
  for (int64_t i = 0; i < (full ? rows : n); ++i) {
    if (i >= n || values[i] * values[i] < kLeast) {
      complete(columns, i, rows);
      continue;
    }
    for (int64_t j = 0; j < rows; ++j) columns[i * rows + j] = columns[i * rows + j] / values[i];
  }
  for (int64_t i = 0; i < n; ++i) values[i] = std::scalbn(values[i], exponent);
  return Found::kResult;
}

// The larger of m and n, and the numbers of scratch of `complex_svd`.
struct SingularSizes {
  int64_t rows, n, numbers;

  explicit SingularSizes(const Batch& batch) : rows(std::max(batch.rows, batch.n)), n(batch.least()), numbers(rows * rows + n * n + n * rows + 2 * n + 2) {}
};

template <typename T>
Found factor_singular(const Batch& batch, const Complex<T>* a, Complex<T>* left, T* values, Complex<T>* right, bool full, Complex<T>* scratch) {
  const SingularSizes sizes(batch);
  const int64_t n = sizes.n, rows = sizes.rows;
  const bool wide = batch.n > batch.rows;  // then of the conjugate transpose
  Complex<T>*columns = scratch, *turned = columns + rows * rows, *spare = turned + n * n;
  auto* found = reinterpret_cast<T*>(spare + n * rows);
  auto* order = reinterpret_cast<int64_t*>(found + 2 * (n / 2 + 1));
  for (int64_t i = 0; i < batch.rows; ++i) {
    for (int64_t j = 0; j < batch.n; ++j) {
      const Complex<T> own = a[i * batch.n + j];
      if (wide) columns[i * rows + j] = own.conjugate();
      else columns[j * rows + i] = own;
    }
  }
  const Found result = solve_singular(n, rows, full, columns, turned, found, spare, order);
  if (result != Found::kResult) return result;
  if (values) std::copy(found, found + n, values);
  const int64_t tall = full ? rows : n;
  Complex<T>*of_columns = wide ? turned : columns, *of_rows = wide ? columns : turned;
  const int64_t left_count = wide ? n : tall, right_count = wide ? tall : n;
  for (int64_t i = 0; left && i < batch.rows; ++i) {
    for (int64_t j = 0; j < left_count; ++j) left[i * left_count + j] = of_columns[j * batch.rows + i];
  }
  for (int64_t i = 0; right && i < right_count; ++i) {
    for (int64_t j = 0; j < batch.n; ++j) right[i * batch.n + j] = of_rows[i * batch.n + j].conjugate();
  }
  return Found::kResult;
}

}  // namespace

void complex_solve(LibraryCall& call) {
  const ral_tensor &right = call.operands[0], &matrix = call.operands[1], &result = call.results[0];
  if (!is_complex_system(call, matrix, right)) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    const int64_t n = all.batch.n, columns = right.dims[right.rank - 2];
    const int64_t* zeros = all.each(n * n + n, n * n * (n / 3 + columns), [&](int64_t i, Complex<T>* memory) -> int64_t {
      auto* order = reinterpret_cast<int64_t*>(memory + n * n);
      bool odd = false;
      std::copy(all.at(matrix, i, n * n), all.at(matrix, i + 1, n * n), memory);
      if (const int64_t place = factor_by_rows(n, n, memory, order, static_cast<int64_t*>(nullptr), &odd)) return place;
      const Complex<T>* from = all.at(right, i, n * columns);
      Complex<T>* to = all.at(result, i, n * columns);
      for (int64_t row = 0; row < n; ++row) std::copy(from + order[row] * columns, from + (order[row] + 1) * columns, to + row * columns);
      solve_lower(n, memory, to, columns, true);
      solve_upper(n, memory, to, columns, false);
      return 0;
    });
    if (zeros) check(call, zeros, all.batch.count, "the matrix is singular (diagonal element ", " of U is zero)");
  });
}

void complex_determinant(LibraryCall& call) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_complex_square(call, matrix)) return;
  const ral_tensor plain = by_numbers(matrix);
  if (!has_sizes(call, call.results[0], plain, plain.dtype, {2}) || !has_sizes(call, call.results[1], plain, plain.dtype, {2})) return;
  if (!has_sizes(call, call.results[2], plain, plain.dtype, {})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    const int64_t n = all.batch.n;
    all.each(n * n + n, n * n * n / 3, [&](int64_t i, Complex<T>* memory) -> int64_t {
      bool odd = false;
      std::copy(all.at(matrix, i, n * n), all.at(matrix, i + 1, n * n), memory);
      factor_by_rows(n, n, memory, reinterpret_cast<int64_t*>(memory + n * n), static_cast<int64_t*>(nullptr), &odd);
      Complex<T> product{odd ? T{-1} : T{1}}, sign = product;
      T logarithm = 0;
      for (int64_t k = 0; k < n; ++k) {
        const Complex<T> own = memory[k * n + k];
        const T size = own.size();
        product = product * own;
        sign = size == 0 ? Complex<T>{} : sign * (own / size);
        logarithm += std::log(size);
      }
      if (Complex<T>* to = all.at(call.results[0], i, 1)) *to = product;
      if (Complex<T>* to = all.at(call.results[1], i, 1)) *to = sign;
      if (call.results[2].data) static_cast<T*>(call.results[2].data)[i] = logarithm;
      return 0;
    });
  });
}

void complex_qr(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &q = call.results[0], &r = call.results[1];
  if (!are_complex(call, matrix, 2) || !are_complex(call, q, 2)) return;
  const ral_tensor plain = by_numbers(matrix);
  const Batch batch(plain);
  const int64_t wanted = q.dims[q.rank - 2];
  if (!demand(call, wanted == batch.least() || wanted == batch.rows)) return;
  if (!has_sizes(call, q, plain, plain.dtype, {batch.rows, wanted, 2}) || !has_sizes(call, r, plain, plain.dtype, {wanted, batch.n, 2})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    all.each(batch.size() + batch.least() + wanted * batch.rows, 2 * batch.size() * batch.least(), [&](int64_t i, Complex<T>* memory) -> int64_t {
      factor_orthogonal(batch, all.at(matrix, i, batch.size()), all.at(q, i, batch.rows * wanted), all.at(r, i, wanted * batch.n), wanted, memory);
      return 0;
    });
  });
}

void complex_eigh(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &values = call.results[0], &vectors = call.results[1];
  if (!is_complex_square(call, matrix)) return;
  const ral_tensor plain = by_numbers(matrix);
  const int64_t n = plain.dims[plain.rank - 1];
  if (!has_sizes(call, values, plain, plain.dtype, {n}) || !has_sizes(call, vectors, plain, plain.dtype, {n, n, 2})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    const int64_t* found = all.each(2 * n * n + n, 20 * n * n * n, [&](int64_t i, Complex<T>* memory) {
      T* to = values.data ? static_cast<T*>(values.data) + i * n : nullptr;
      auto* order = reinterpret_cast<int64_t*>(memory + 2 * n * n);
      return static_cast<int64_t>(solve_hermitian(n, all.at(matrix, i, n * n), to, all.at(vectors, i, n * n), memory, order));
    });
    if (found) check_found(call, found, all.batch.count);
  });
}

void complex_svd(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &left = call.results[0], &values = call.results[1], &right = call.results[2];
  if (!are_complex(call, matrix, 2) || !are_complex(call, left, 2)) return;
  const ral_tensor plain = by_numbers(matrix);
  const Batch batch(plain);
  const bool full = left.dims[left.rank - 2] != batch.least() || right.dims[right.rank - 3] != batch.least();
  const int64_t rows = full ? batch.rows : batch.least(), n = full ? batch.n : batch.least();
  if (!has_sizes(call, left, plain, plain.dtype, {batch.rows, rows, 2}) || !has_sizes(call, values, plain, plain.dtype, {batch.least()})) return;
  if (!has_sizes(call, right, plain, plain.dtype, {n, batch.n, 2})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    Matrices<T> all(call, matrix);
    const SingularSizes sizes(batch);
    const int64_t* found = all.each(sizes.numbers + 2, 20 * sizes.rows * sizes.n * sizes.n, [&](int64_t i, Complex<T>* memory) {
      T* to = values.data ? static_cast<T*>(values.data) + i * batch.least() : nullptr;
      return static_cast<int64_t>(factor_singular(batch, all.at(matrix, i, batch.size()), all.at(left, i, batch.rows * rows), to,
                                                  all.at(right, i, n * batch.n), full, memory));
    });
    if (found) check_found(call, found, all.batch.count);
  });
}

}  // namespace ral
