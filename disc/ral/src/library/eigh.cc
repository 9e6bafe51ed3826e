// Eigenvalues and eigenvectors of symmetric matrices: Householder's reduction to a tridiagonal matrix, then implicit QL steps (G. H. Golub and
// C. F. Van Loan, "Matrix Computations", 8.3; the steps as in EISPACK's TQL2).
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "library/functions.h"
#include "library/matrices.h"
#include "library/reflections.h"

namespace ral {

namespace {

constexpr int kMostSteps = 60;  // for one eigenvalue; few need more than three

template <typename T>
struct Symmetric {
  int64_t n;
  T* matrix;      // [n, n]; then reflection k from place k + 1 of row k on
  T* vectors;     // [n, n], one in each row
  T *diagonal, *beside, *tau, *work;  // [n] each
  int64_t* order;                     // [n]

  static int64_t bytes(int64_t n) {
    return static_cast<int64_t>(sizeof(T)) * (2 * n * n + 4 * n) + static_cast<int64_t>(sizeof(int64_t)) * (n + 1);
  }

  Symmetric(char* memory, int64_t size) : n(size), order(reinterpret_cast<int64_t*>(memory)) {
    matrix = reinterpret_cast<T*>(order + n + 1);
    vectors = matrix + n * n;
    diagonal = vectors + n * n;
    beside = diagonal + n;
    tau = beside + n;
    work = tau + n;
  }

  // Of the lower triangle of `source`. values [n], ascending; results [n, n], one vector in each column; either may be null.
  Found solve(const T* source, T* values, T* results) const {
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j <= i; ++j) matrix[i * n + j] = matrix[j * n + i] = source[i * n + j];
    }
    bool finite = true;
    const int exponent = scale_elements(matrix, n * n, &finite);
    if (!finite) return Found::kNotFinite;
    reduce();
    if (results) {
      set_identity(vectors, n, n);
      if (n > 2) apply_reflections(matrix, n - 2, 1, tau, vectors, n, n, true);
    }
    const T negligible = negligible_beside();
    for (int64_t first = 0; first < n; ++first) {
      if (!settle(first, negligible, results != nullptr)) return Found::kNoConvergence;
    }
    std::iota(order, order + n, int64_t{0});
    std::sort(order, order + n, [&](int64_t a, int64_t b) { return diagonal[a] < diagonal[b] || (diagonal[a] == diagonal[b] && a < b); });
    for (int64_t j = 0; values && j < n; ++j) values[j] = std::scalbn(diagonal[order[j]], exponent);
    for (int64_t i = 0; results && i < n; ++i) {
      for (int64_t j = 0; j < n; ++j) results[i * n + j] = vectors[order[j] * n + i];
    }
    return Found::kResult;
  }

  // To a tridiagonal matrix: its diagonal, and beside[i] between rows i and i + 1.
  void reduce() const {
    for (int64_t k = 0; k + 2 < n; ++k) {
      const int64_t length = n - k - 1;
      T* v = matrix + k * n + k + 1;
      diagonal[k] = matrix[k * n + k];
      tau[k] = make_reflection(length, v);
      beside[k] = v[0];
      if (tau[k] == 0) continue;
      const WithOne<T> one(v);
      for (int64_t i = 0; i < length; ++i) work[i] = tau[k] * on_rows<T>().dot(length, matrix + (k + 1 + i) * n + k + 1, v);
      on_rows<T>().add(length, -tau[k] / 2 * on_rows<T>().dot(length, work, v), v, work);
      for (int64_t i = 0; i < length; ++i) {
        T* row = matrix + (k + 1 + i) * n + k + 1;
        on_rows<T>().add(length, -v[i], work, row);
        on_rows<T>().add(length, -work[i], v, row);
      }
    }
    for (int64_t k = std::max(n - 2, int64_t{0}); k < n; ++k) diagonal[k] = matrix[k * n + k];
    if (n > 1) beside[n - 2] = matrix[(n - 2) * n + n - 1];
    if (n > 0) beside[n - 1] = 0;
  }

  // What moves no eigenvalue by more than rounding errors of the whole matrix do. A limit by the two elements around would keep steps going
  // among the rounding errors of a matrix of low rank.
  T negligible_beside() const {
    T largest = 0;
    for (int64_t i = 0; i < n; ++i) largest = std::max({largest, std::abs(diagonal[i]), std::abs(beside[i])});
    return std::numeric_limits<T>::epsilon() * largest;
  }

  // The first place from `first` on that has nothing beside it.
  int64_t end_of_block(int64_t first, T negligible) const {
    int64_t last = first;
    while (last + 1 < n && std::abs(beside[last]) > negligible) ++last;
    return last;
  }

  // Steps until diagonal[first] is an eigenvalue.
  bool settle(int64_t first, T negligible, bool with_vectors) const {
    for (int step = 0; step < kMostSteps; ++step) {
      const int64_t last = end_of_block(first, negligible);
      if (last == first) return true;
      T g = (diagonal[first + 1] - diagonal[first]) / (2 * beside[first]);
      g = diagonal[last] - diagonal[first] + beside[first] / (g + std::copysign(std::hypot(g, T{1}), g));
      T sine = 1, cosine = 1, moved = 0;
      int64_t i = last - 1;
      for (; i >= first; --i) {
        const T f = sine * beside[i], b = cosine * beside[i], r = std::hypot(f, g);
        beside[i + 1] = r;
        if (r == 0) {  // the matrix falls apart here
          diagonal[i + 1] -= moved;
          beside[last] = 0;
          break;
        }
        sine = f / r;
        cosine = g / r;
        g = diagonal[i + 1] - moved;
        const T sum = (diagonal[i] - g) * sine + 2 * cosine * b;
        moved = sine * sum;
        diagonal[i + 1] = g + moved;
        g = cosine * sum - b;
        if (with_vectors) on_rows<T>().rotate(n, cosine, sine, vectors + (i + 1) * n, vectors + i * n);
      }
      if (i >= first) continue;
      diagonal[first] -= moved;
      beside[first] = g;
      beside[last] = 0;
    }
    return false;
  }
};

}  // namespace

void eigh(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &values = call.results[0], &vectors = call.results[1];
  if (!is_matrix(call, matrix)) return;
  const Batch batch(matrix);
  const int64_t n = batch.n;
  if (!demand(call, batch.rows == n) || !has_sizes(call, values, matrix, matrix.dtype, {n}) || !has_sizes(call, vectors, matrix, matrix.dtype, {n, n})) return;
  int64_t* found = integers(call, batch.count);
  if (!found) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const bool done = call.parallel(batch.count, 6 * batch.cost(), Symmetric<T>::bytes(n), [&](int64_t begin, int64_t end, char* memory) {
      const Symmetric<T> symmetric(memory, n);
      for (int64_t i = begin; i < end; ++i) {
        found[i] = static_cast<int64_t>(symmetric.solve(static_cast<const T*>(matrix.data) + i * n * n,
                                                        values.data ? static_cast<T*>(values.data) + i * n : nullptr,
                                                        vectors.data ? static_cast<T*>(vectors.data) + i * n * n : nullptr));
      }
    });
    if (done) check_found(call, found, batch.count);
  });
}

}  // namespace ral
