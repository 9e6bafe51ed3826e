// Eigenvalues and eigenvectors of any square matrix: Householder's reduction to Hessenberg form, shifted QR steps to a triangle, which real
// matrices reach by way of blocks of two (Francis' double steps as in EISPACK's HQR2; J. H. Wilkinson and C. Reinsch, "Linear Algebra", II/15),
// and substitution. Eigenvalues are in the order in which the steps leave them on the diagonal, pairs with the positive imaginary part first.
#include <algorithm>
#include <cmath>
#include <limits>

#include "library/complex_numbers.h"
#include "library/functions.h"
#include "library/matrices.h"
#include "library/reflections.h"

namespace ral {

namespace {

constexpr int kMostSteps = 60;  // for one eigenvalue
constexpr int kUnusual = 10;    // after so many steps the shift is another one

// What an element below the diagonal is less than where it counts as 0. around: the magnitudes of the two elements beside it; norm: the largest of
// the matrix. Where steps do not get there, as among the rounding errors of a matrix of low rank, what rounding errors of the matrix are counts.
template <typename T>
T negligible(T around, T norm, int steps) {
  return std::numeric_limits<T>::epsilon() * (around == 0 || steps >= kUnusual ? std::max(around, norm) : around);
}

// A real matrix h [n, n] and the orthogonal z with h = z^T * a * z.
template <typename T>
struct RealSchur {
  int64_t n;
  T *h, *z, *work;
  T *re, *im;  // the eigenvalues
  T norm = 0;

  T& at(int64_t i, int64_t j) const { return h[i * n + j]; }

  void reduce() const {
    std::fill(z, z + n * n, T{0});
    for (int64_t i = 0; i < n; ++i) z[i * n + i] = 1;
    for (int64_t m = 1; m + 1 < n; ++m) {
      T scale = 0, square = 0;
      for (int64_t i = m + 1; i < n; ++i) scale += std::abs(at(i, m - 1));
      if (scale == 0) continue;
      scale += std::abs(at(m, m - 1));
      for (int64_t i = m; i < n; ++i) {
        work[i] = at(i, m - 1) / scale;
        square += work[i] * work[i];
      }
      const T g = -std::copysign(std::sqrt(square), work[m]);
      square -= work[m] * g;
      work[m] -= g;
      for (int64_t j = m - 1; j < n; ++j) take(m, square, h + j, n);
      for (int64_t i = 0; i < n; ++i) take(m, square, h + i * n, 1);
      for (int64_t i = 0; i < n; ++i) take(m, square, z + i * n, 1);
      for (int64_t i = m + 1; i < n; ++i) at(i, m - 1) = 0;
    }
  }

  // x -= work * (work . x) / square, of the elements from m on.
  void take(int64_t m, T square, T* x, int64_t step) const {
    T sum = 0;
    for (int64_t i = m; i < n; ++i) sum += work[i] * x[i * step];
    sum /= square;
    for (int64_t i = m; i < n; ++i) x[i * step] -= sum * work[i];
  }

  bool is_small(int64_t l, int steps) const {
    return std::abs(at(l, l - 1)) <= negligible(std::abs(at(l - 1, l - 1)) + std::abs(at(l, l)), norm, steps);
  }

  // To blocks of one and two.
  bool settle() {
    for (int64_t i = 0; i < n * n; ++i) norm = std::max(norm, std::abs(h[i]));
    int steps = 0;
    for (int64_t last = n - 1; last >= 0;) {
      int64_t first = last;
      while (first > 0 && !is_small(first, steps)) --first;
      if (first > 0) at(first, first - 1) = 0;
      if (first == last) {
        re[last] = at(last, last);
        im[last] = 0;
        --last, steps = 0;
      } else if (first == last - 1) {
        split(last);
        last -= 2, steps = 0;
      } else {
        if (steps == kMostSteps) return false;
        step(first, last, ++steps);
      }
    }
    return true;
  }

  // Columns k and k + 1 of h and z, and rows of h, are turned: rows become (p * r0 + q * r1, p * r1 - q * r0).
  void turn(int64_t k, T p, T q) const {
    const auto both = [&](T& a, T& b) {
      const T old = a;
      a = p * old + q * b;
      b = p * b - q * old;
    };
    for (int64_t j = k; j < n; ++j) both(at(k, j), at(k + 1, j));
    for (int64_t i = 0; i <= k + 1; ++i) both(at(i, k), at(i, k + 1));
    for (int64_t i = 0; i < n; ++i) both(z[i * n + k], z[i * n + k + 1]);
  }

  // The block of two that ends at `last`: two real eigenvalues make it a triangle.
  void split(int64_t last) const {
    const int64_t k = last - 1;
    const T w = at(last, k) * at(k, last), p = (at(k, k) - at(last, last)) / 2, square = p * p + w, root = std::sqrt(std::abs(square));
    const T x = at(last, last);
    if (square < 0) {
      re[k] = re[last] = x + p;
      im[k] = root;
      im[last] = -root;
      return;
    }
    const T far = p + std::copysign(root, p);
    re[k] = x + far;
    re[last] = far != 0 ? x - w / far : re[k];
    im[k] = im[last] = 0;
    const T size = std::hypot(at(last, k), far);
    if (size != 0) turn(k, far / size, at(last, k) / size);
    at(last, k) = 0;
  }

  // A double step on rows first to last, by reflections of three.
  void step(int64_t first, int64_t last, int number) const {
    T x = at(last, last), y = at(last - 1, last - 1), w = at(last, last - 1) * at(last - 1, last);
    if (number % kUnusual == 0) {
      const T s = std::abs(at(last, last - 1)) + std::abs(at(last - 1, last - 2));
      w = -T{0.4375} * s * s;
      x = y = T{0.75} * s + at(last, last);
    }
    int64_t m = last - 2;
    T p = 0, q = 0, r = 0;
    for (;; --m) {
      const T own = at(m, m), right = x - own, below = y - own;
      p = (right * below - w) / at(m + 1, m) + at(m, m + 1);
      q = at(m + 1, m + 1) - own - right - below;
      r = at(m + 2, m + 1);
      const T s = std::abs(p) + std::abs(q) + std::abs(r);
      p /= s, q /= s, r /= s;
      if (m == first) break;
      const T around = std::abs(at(m - 1, m - 1)) + std::abs(own) + std::abs(at(m + 1, m + 1));
      if (std::abs(at(m, m - 1)) * (std::abs(q) + std::abs(r)) < std::numeric_limits<T>::epsilon() * std::abs(p) * around) break;
    }
    for (int64_t k = m; k < last; ++k) {
      const bool three = k + 1 < last;
      T size = 1;
      if (k != m) {
        p = at(k, k - 1), q = at(k + 1, k - 1), r = three ? at(k + 2, k - 1) : 0;
        size = std::abs(p) + std::abs(q) + std::abs(r);
        if (size == 0) continue;
        p /= size, q /= size, r /= size;
      }
      const T s = std::copysign(std::sqrt(p * p + q * q + r * r), p);
      if (s == 0) continue;
      if (k != m) {
        at(k, k - 1) = -s * size;
        at(k + 1, k - 1) = 0;
        if (three) at(k + 2, k - 1) = 0;
      } else if (first != m) {
        at(k, k - 1) = -at(k, k - 1);
      }
      p += s;
      reflect(k, three, p / s, q / s, r / s, q / p, r / p, std::min(last, k + 3));
    }
  }

  void reflect(int64_t k, bool three, T x, T y, T w, T q, T r, int64_t past) const {
    for (int64_t j = k; j < n; ++j) {
      const T p = at(k, j) + q * at(k + 1, j) + (three ? r * at(k + 2, j) : 0);
      at(k, j) -= p * x;
      at(k + 1, j) -= p * y;
      if (three) at(k + 2, j) -= p * w;
    }
    const auto columns = [&](T* row) {
      const T p = x * row[k] + y * row[k + 1] + (three ? w * row[k + 2] : 0);
      row[k] -= p;
      row[k + 1] -= p * q;
      if (three) row[k + 2] -= p * r;
    };
    for (int64_t i = 0; i <= past; ++i) columns(h + i * n);
    for (int64_t i = 0; i < n; ++i) columns(z + i * n);
  }
};

// A complex matrix t [n, n] and the unitary q with t = q^H * a * q.
template <typename T>
struct Schur {
  using Number = Complex<T>;

  int64_t n;
  Number *t, *q, *work;

  Number& at(int64_t i, int64_t j) const { return t[i * n + j]; }

  void set_identity() const {
    std::fill(q, q + n * n, Number{});
    for (int64_t i = 0; i < n; ++i) q[i * n + i] = {1};
  }

  void reduce() const {
    set_identity();
    for (int64_t m = 1; m + 1 < n; ++m) {
      T rest = 0;
      for (int64_t i = m + 1; i < n; ++i) rest += at(i, m - 1).square();
      if (rest == 0) continue;
      const Number alpha = at(m, m - 1);
      const T size = alpha.size(), beta = std::sqrt(size * size + rest);
      const Number turn = size == 0 ? Number{1} : alpha / size;
      for (int64_t i = m; i < n; ++i) work[i] = at(i, m - 1);
      work[m] = work[m] + turn * beta;
      const T half = beta * (beta + size);  // half of the square of the vector
      for (int64_t j = m - 1; j < n; ++j) {
        Number sum;
        for (int64_t i = m; i < n; ++i) sum = sum + work[i].conjugate() * at(i, j);
        for (int64_t i = m; i < n; ++i) at(i, j) = at(i, j) - work[i] * (sum / half);
      }
      for (Number* rows : {t, q}) {
        for (int64_t i = 0; i < n; ++i) {
          Number sum;
          for (int64_t j = m; j < n; ++j) sum = sum + rows[i * n + j] * work[j];
          for (int64_t j = m; j < n; ++j) rows[i * n + j] = rows[i * n + j] - (sum / half) * work[j].conjugate();
        }
      }
      for (int64_t i = m + 1; i < n; ++i) at(i, m - 1) = {};
    }
  }

  // Of (a, b), of which b becomes 0, in rows k and k + 1 from column `from` on; then columns up to row `past`, and those of q.
  void turn_rows(int64_t k, Number cosine, Number sine, int64_t from) const {
    for (int64_t j = from; j < n; ++j) {
      const Number a = at(k, j), b = at(k + 1, j);
      at(k, j) = cosine.conjugate() * a + sine.conjugate() * b;
      at(k + 1, j) = cosine * b - sine * a;
    }
  }

  void turn_columns(Number* rows, int64_t count, int64_t k, Number cosine, Number sine) const {
    for (int64_t i = 0; i < count; ++i) {
      const Number a = rows[i * n + k], b = rows[i * n + k + 1];
      rows[i * n + k] = a * cosine + b * sine;
      rows[i * n + k + 1] = b * cosine.conjugate() - a * sine.conjugate();
    }
  }

  bool settle() const {
    T norm = 0;
    for (int64_t i = 0; i < n * n; ++i) norm = std::max(norm, t[i].sum());
    int steps = 0;
    for (int64_t last = n - 1; last > 0;) {
      int64_t first = last;
      for (; first > 0; --first) {
        const T around = at(first - 1, first - 1).sum() + at(first, first).sum();
        if (at(first, first - 1).sum() <= negligible(around, norm, steps)) break;
      }
      if (first > 0) at(first, first - 1) = {};
      if (first == last) {
        --last, steps = 0;
        continue;
      }
      if (steps == kMostSteps) return false;
      step(first, last, ++steps);
    }
    return true;
  }

  // The eigenvalue of the last block of two that is nearer to its last element.
  Number shift(int64_t last) const {
    const Number a = at(last - 1, last - 1), d = at(last, last), product = at(last - 1, last) * at(last, last - 1), half = (a - d) * T{0.5};
    const Number square = half * half + product;
    const T size = square.size(), root = std::sqrt((size + std::abs(square.re)) / 2), other = root == 0 ? 0 : std::abs(square.im) / (2 * root);
    Number found = square.re >= 0 ? Number{root, std::copysign(other, square.im)} : Number{other, std::copysign(root, square.im)};
    if (half.re * found.re + half.im * found.im < 0) found = -found;
    const Number far = half + found;
    return far.sum() == 0 ? d : d - product / far;
  }

  void step(int64_t first, int64_t last, int number) const {
    const Number by = number % kUnusual == 0 ? Number{at(last, last - 1).sum() + at(last - 1, std::max<int64_t>(last - 2, 0)).sum()} + at(last, last)
                                             : shift(last);
    for (int64_t i = first; i <= last; ++i) at(i, i) = at(i, i) - by;
    for (int64_t k = first; k < last; ++k) {
      const T size = std::hypot(at(k, k).size(), at(k + 1, k).size());
      work[2 * k] = size == 0 ? Number{1} : at(k, k) / size;
      work[2 * k + 1] = size == 0 ? Number{} : at(k + 1, k) / size;
      turn_rows(k, work[2 * k], work[2 * k + 1], k);
      at(k + 1, k) = {};
    }
    for (int64_t k = first; k < last; ++k) {
      turn_columns(t, k + 2, k, work[2 * k], work[2 * k + 1]);
      turn_columns(q, n, k, work[2 * k], work[2 * k + 1]);
    }
    for (int64_t i = first; i <= last; ++i) at(i, i) = at(i, i) + by;
  }

  // Eigenvector of t[k][k] to column k of `vectors`: of size 1, its largest element real, as LAPACK's xGEEV has it.
  void substitute(int64_t k, Number* vectors, T norm, bool real) const {
    constexpr T kLarge = 1 / std::numeric_limits<T>::epsilon();
    const Number own = at(k, k);
    work[k] = {1};
    for (int64_t i = k - 1; i >= 0; --i) {
      Number sum, divisor = at(i, i) - own;
      for (int64_t j = i + 1; j <= k; ++j) sum = sum + at(i, j) * work[j];
      if (divisor.sum() < std::numeric_limits<T>::epsilon() * norm) divisor = {std::numeric_limits<T>::epsilon() * norm};
      work[i] = -(sum / divisor);
      if (const T size = work[i].sum(); size > kLarge) {
        for (int64_t j = i; j <= k; ++j) work[j] = work[j] / size;
      }
    }
    Number* found = work + n;
    for (int64_t i = 0; i < n; ++i) {
      found[i] = {};
      for (int64_t j = 0; j <= k; ++j) found[i] = found[i] + q[i * n + j] * work[j];
    }
    Number* largest = std::max_element(found, found + n, [](Number a, Number b) { return a.square() < b.square(); });
    const Number turn = largest->conjugate() / largest->size();
    for (int64_t i = 0; i < n; ++i) {
      found[i] = found[i] * turn;
      if (real) found[i].im = 0;  // the real part of an eigenvector of a real matrix is one, too
    }
    largest->im = 0;
    const T size = std::sqrt(square_sum(n, found));
    for (int64_t i = 0; i < n; ++i) vectors[i * n + k] = found[i] / size;
  }
};

template <typename T>
int64_t scratch_numbers(int64_t n) {
  return 2 * n * n + 2 * n + (n * n + 2 * n) + 2;  // t, q, work; the real matrices and eigenvalues
}

template <typename T>
T largest_of(int64_t n, const Complex<T>* t) {
  T norm = std::numeric_limits<T>::min();
  for (int64_t i = 0; i < n * n; ++i) norm = std::max(norm, t[i].sum());
  return norm;
}

// The blocks of two with a pair of eigenvalues become triangles.
template <typename T>
void make_triangle(const RealSchur<T>& real, const Schur<T>& schur) {
  const int64_t n = real.n;
  for (int64_t i = 0; i < n * n; ++i) schur.t[i] = {real.h[i]}, schur.q[i] = {real.z[i]};
  for (int64_t k = 0; k + 1 < n; ++k) {
    if (!(real.im[k] > 0)) continue;
    const Complex<T> first = Complex<T>{real.re[k], real.im[k]} - schur.at(k + 1, k + 1), second = schur.at(k + 1, k);
    const T size = std::hypot(first.size(), second.size());
    schur.turn_rows(k, first / size, second / size, k);
    schur.turn_columns(schur.t, k + 2, k, first / size, second / size);
    schur.turn_columns(schur.q, n, k, first / size, second / size);
    schur.at(k + 1, k) = {};
  }
  for (int64_t i = 0; i < n; ++i) schur.at(i, i) = {real.re[i], real.im[i]};
}

template <typename T>
void put(const Schur<T>& schur, const T* im, int exponent, Complex<T>* values, Complex<T>* vectors) {
  const int64_t n = schur.n;
  const T norm = largest_of(n, schur.t);
  for (int64_t k = 0; k < n; ++k) {
    const Complex<T> own = schur.at(k, k);
    if (values) values[k] = {std::scalbn(own.re, exponent), std::scalbn(own.im, exponent)};
    if (!vectors) continue;
    if (im && im[k] < 0) {
      for (int64_t i = 0; i < n; ++i) vectors[i * n + k] = vectors[i * n + k - 1].conjugate();
    } else {
      schur.substitute(k, vectors, norm, im && im[k] == 0);
    }
  }
}

template <typename T>
Found solve_one(int64_t n, const T* a, Complex<T>* values, Complex<T>* vectors, Complex<T>* scratch) {
  const Schur<T> schur{n, scratch, scratch + n * n, scratch + 2 * n * n};
  T* rest = reinterpret_cast<T*>(schur.work + 2 * n);
  RealSchur<T> real{n, rest, rest + n * n, rest + 2 * n * n, rest + 2 * n * n + n, rest + 2 * n * n + 2 * n};
  std::copy(a, a + n * n, real.h);
  bool finite = true;
  const int exponent = scale_elements(real.h, n * n, &finite);
  if (!finite) return Found::kNotFinite;
  real.reduce();
  if (!real.settle()) return Found::kNoConvergence;
  make_triangle(real, schur);
  put(schur, real.im, exponent, values, vectors);
  return Found::kResult;
}

template <typename T>
Found solve_one(int64_t n, const Complex<T>* a, Complex<T>* values, Complex<T>* vectors, Complex<T>* scratch) {
  const Schur<T> schur{n, scratch, scratch + n * n, scratch + 2 * n * n};
  std::copy(a, a + n * n, schur.t);
  bool finite = true;
  const int exponent = scale_elements(reinterpret_cast<T*>(schur.t), 2 * n * n, &finite);
  if (!finite) return Found::kNotFinite;
  schur.reduce();
  if (!schur.settle()) return Found::kNoConvergence;
  put(schur, static_cast<const T*>(nullptr), exponent, values, vectors);
  return Found::kResult;
}

// matrix: the operand, without the dim of parts.
template <template <typename> typename Element>
void solve_all(LibraryCall& call, const ral_tensor& matrix) {
  const ral_tensor &values = call.results[0], &vectors = call.results[1];
  const Batch batch(matrix);
  const int64_t n = batch.n;
  if (!demand(call, batch.rows == n) || !has_sizes(call, values, matrix, matrix.dtype, {n, 2})) return;
  if (!has_sizes(call, vectors, matrix, matrix.dtype, {n, n, 2})) return;
  int64_t* found = integers(call, batch.count);
  if (!found) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const auto bytes = scratch_numbers<T>(n) * static_cast<int64_t>(sizeof(Complex<T>));
    const bool done = call.parallel(batch.count, 40 * batch.cost(), bytes, [&](int64_t begin, int64_t end, char* memory) {
      const auto place = [&](const ral_tensor& tensor, int64_t offset) {
        return tensor.data ? static_cast<Complex<T>*>(tensor.data) + offset : nullptr;
      };
      for (int64_t i = begin; i < end; ++i) {
        const auto* own = static_cast<const Element<T>*>(matrix.data) + i * n * n;
        found[i] = static_cast<int64_t>(solve_one(n, own, place(values, i * n), place(vectors, i * n * n), reinterpret_cast<Complex<T>*>(memory)));
      }
    });
    if (done) check_found(call, found, batch.count);
  });
}

template <typename T>
using Plain = T;

}  // namespace

void eig(LibraryCall& call) {
  if (is_matrix(call, call.operands[0])) solve_all<Plain>(call, call.operands[0]);
}

void complex_eig(LibraryCall& call) {
  ral_tensor matrix = call.operands[0];
  if (matrix.rank < 3 || matrix.dims[matrix.rank - 1] != 2) return call.fail("needs complex matrices, whose parts are the last dim", RAL_ERROR_SHAPE);
  --matrix.rank;
  solve_all<Complex>(call, matrix);
}

}  // namespace ral
