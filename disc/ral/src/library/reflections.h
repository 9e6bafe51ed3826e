// Householder reflections H = I - tau * v * v^T, v[0] = 1, as LAPACK makes and stores them (LAPACK Users' Guide, "Representation of Orthogonal
// or Unitary Matrices"; xLARFG): H * x = (beta, 0, ..., 0), beta in the place of x[0] and the rest of v in the place of what becomes 0.
//
// Matrices are held by columns here, each a row of memory, so that all work is on rows.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "library/tiles.h"

namespace ral {

// The Euclidean norm, also where squares of the elements overflow, or are 0.
template <typename T>
T norm_of(int64_t n, const T* x) {
  using Limits = std::numeric_limits<T>;
  const T squares = on_rows<T>().dot(n, x, x);
  if (squares > Limits::min() / Limits::epsilon() && squares < Limits::max()) return std::sqrt(squares);
  T largest = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::abs(x[i]);
    largest = std::max(largest, std::abs(x[i]));
  }
  if (largest == 0) return 0;
  T sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += x[i] / largest * (x[i] / largest);
  return largest * std::sqrt(sum);
}

// Makes the reflection of x, of n > 0 elements, in place; returns tau, 0 where it is the identity.
template <typename T>
T make_reflection(int64_t n, T* x) {
  const T alpha = x[0], rest = norm_of(n - 1, x + 1);
  if (rest == 0) return 0;
  constexpr T kTiny = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
  if (std::hypot(alpha, rest) < kTiny) {  // as in xLARFG: what is near underflow has too few digits for an orthogonal reflection
    for (int64_t i = 0; i < n; ++i) x[i] /= kTiny;
    const T tau = make_reflection(n, x);
    x[0] *= kTiny;
    return tau;
  }
  const T beta = -std::copysign(std::hypot(alpha, rest), alpha), divisor = alpha - beta;
  for (int64_t i = 1; i < n; ++i) x[i] /= divisor;
  x[0] = beta;
  return (beta - alpha) / beta;
}

// x := H * x, of n elements; v has its 1.
template <typename T>
void reflect(int64_t n, const T* v, T tau, T* x) {
  on_rows<T>().add(n, -tau * on_rows<T>().dot(n, v, x), v, x);
}

// While it lives, the place of beta holds the 1 of v.
template <typename T>
class WithOne {
 public:
  explicit WithOne(T* v) : v_(v), beta_(*v) { *v = 1; }
  ~WithOne() { *v_ = beta_; }
  WithOne(const WithOne&) = delete;
  WithOne& operator=(const WithOne&) = delete;

 private:
  T* v_;
  T beta_;
};

// The QR factorization of a matrix of `length` rows: R on and above the diagonal, reflections below it; tau [min(length, count)].
template <typename T>
void reflect_columns(T* columns, int64_t count, int64_t length, T* tau) {
  for (int64_t k = 0; k < std::min(count, length); ++k) {
    T* v = columns + k * length + k;
    tau[k] = make_reflection(length - k, v);
    if (tau[k] == 0) continue;
    const WithOne<T> one(v);
    for (int64_t j = k + 1; j < count; ++j) reflect(length - k, v, tau[k], columns + j * length + k);
  }
}

// x := H_0 * ... * H_(known - 1) * x for each of `count` columns x; column i of `reflections` has reflection i from place i + below on.
// triangular: whether column j of x is 0 behind place j, so that reflections from there on leave it as it is.
template <typename T>
void apply_reflections(T* reflections, int64_t known, int64_t below, const T* tau, T* x, int64_t count, int64_t length, bool triangular) {
  for (int64_t k = known - 1; k >= 0; --k) {
    if (tau[k] == 0) continue;
    T* v = reflections + k * length + k + below;
    const WithOne<T> one(v);
    for (int64_t j = triangular ? k + below : 0; j < count; ++j) {
      reflect(length - k - below, v, tau[k], x + j * length + k + below);
    }
  }
}

// Rows become columns: `to` has `columns` rows of `rows` elements.
template <typename T>
void turn(const T* from, int64_t rows, int64_t columns, T* to) {
  constexpr int64_t kTile = 16;
  for (int64_t i = 0; i < rows; i += kTile) {
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t row = i; row < std::min(rows, i + kTile); ++row) to[j * rows + row] = from[row * columns + j];
    }
  }
}

template <typename T>
void set_identity(T* columns, int64_t count, int64_t length) {
  std::fill(columns, columns + count * length, T{0});
  for (int64_t i = 0; i < std::min(count, length); ++i) columns[i * length + i] = 1;
}

// Divides by a power of 2, so that the largest magnitude is from 1 to 2. Returns its exponent, 0 where all are 0; *finite: whether all are.
template <typename T>
int scale_elements(T* x, int64_t n, bool* finite) {
  T largest = 0;
  *finite = true;
  for (int64_t i = 0; i < n; ++i) {
    *finite &= std::isfinite(x[i]);
    largest = std::max(largest, std::abs(x[i]));
  }
  if (largest == 0 || !*finite) return 0;
  const int exponent = std::ilogb(largest);
  if (exponent == 0) return 0;
  for (int64_t i = 0; i < n; ++i) x[i] = std::scalbn(x[i], -exponent);
  return exponent;
}

}  // namespace ral
