// Exponentials of square matrices: a Taylor polynomial of degree 19 of the matrix divided by a power of 2, squared as often (N. J. Higham,
// "Functions of Matrices", 10.3, with Taylor for Padé; the bounds of the norm are those of P. Bader, S. Blanes and F. Casas, "Computing the
// Matrix Exponential with an Optimized Taylor Polynomial Approximation", 2019, of degree 18).
#include <algorithm>
#include <cmath>

#include "library/functions.h"
#include "library/matrices.h"
#include "library/tiles.h"

namespace ral {

namespace {

constexpr int kTerms = 4;   // of each of the polynomials in A whose coefficients of A^4 make the whole
constexpr int kBlocks = 5;

template <typename T>
constexpr T kLargestNorm = sizeof(T) == 4 ? T(3.010066362817634) : T(1.090863719290036);

// Matrices [n, n] with rows of `step` elements, a multiple of what a tile has; those behind n are 0.
template <typename T>
struct Exponential {
  int64_t n, step;
  T *powers[kTerms], *result, *product;  // A, A^2, A^3, A^4

  static int64_t step_of(int64_t n) { return (n + kPanel<T> - 1) / kPanel<T> * kPanel<T>; }
  static int64_t bytes(int64_t n) { return static_cast<int64_t>(sizeof(T)) * (kTerms + 2) * n * step_of(n); }

  Exponential(char* memory, int64_t size) : n(size), step(step_of(size)) {
    T* next = reinterpret_cast<T*>(memory);
    for (T*& power : powers) power = next, next += n * step;
    result = next;
    product = next + n * step;
  }

  // to += a * b
  void multiply(const T* a, const T* b, T* to) const {
    for (int64_t column = 0; column < step; column += kPanel<T>) {
      for (int64_t i = 0; i < n; i += kTileRows) {
        tile<T>()(std::min(kTileRows, n - i), a + i * step, step, b + column, step, n, to + i * step + column, step);
      }
    }
  }

  void clear(T* matrix) const { std::fill(matrix, matrix + n * step, T{0}); }

  // The largest sum of magnitudes in a column.
  T norm(const T* source) const {
    T largest = 0;
    for (int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (int64_t i = 0; i < n; ++i) sum += std::abs(source[i * n + j]);
      if (!(sum <= largest)) largest = sum;
    }
    return largest;
  }

  void compute(const T* source, T* to) {
    const T size = norm(source);
    const int squarings = std::isfinite(size) && size > kLargestNorm<T> ? std::max(0, std::ilogb(size / kLargestNorm<T>) + 1) : 0;
    for (int64_t i = 0; i < n; ++i) {
      for (int64_t j = 0; j < step; ++j) powers[0][i * step + j] = j < n ? std::scalbn(source[i * n + j], -squarings) : T{0};
    }
    for (int k = 1; k < kTerms; ++k) {
      clear(powers[k]);
      multiply(powers[(k - 1) / 2], powers[k / 2], powers[k]);  // A * A, A * A^2, A^2 * A^2
    }
    evaluate();
    for (int k = 0; k < squarings; ++k) {
      clear(product);
      multiply(result, result, product);
      std::swap(result, product);
    }
    for (int64_t i = 0; i < n; ++i) std::copy(result + i * step, result + i * step + n, to + i * n);
  }

  // The sum of A^k / k!, by Horner's rule in A^4.
  void evaluate() {
    double factorials[kTerms * kBlocks] = {1};
    for (int k = 1; k < kTerms * kBlocks; ++k) factorials[k] = factorials[k - 1] * k;
    clear(result);
    for (int block = kBlocks - 1; block >= 0; --block) {
      clear(product);
      if (block + 1 < kBlocks) multiply(result, powers[kTerms - 1], product);
      for (int term = 0; term < kTerms; ++term) {
        const auto coefficient = static_cast<T>(1 / factorials[block * kTerms + term]);
        for (int64_t i = 0; i < n && term == 0; ++i) product[i * step + i] += coefficient;
        for (int64_t i = 0; i < n * step && term > 0; ++i) product[i] += coefficient * powers[term - 1][i];
      }
      std::swap(result, product);
    }
  }
};

}  // namespace

void matrix_exp(LibraryCall& call) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_matrix(call, matrix)) return;
  const Batch batch(matrix);
  const int64_t n = batch.n;
  if (!demand(call, batch.rows == n && is_like(call.results[0], matrix, matrix.dtype))) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    call.parallel(batch.count, 8 * batch.cost(), Exponential<T>::bytes(n), [&](int64_t begin, int64_t end, char* memory) {
      Exponential<T> exponential(memory, n);
      for (int64_t i = begin; i < end; ++i) {
        exponential.compute(static_cast<const T*>(matrix.data) + i * n * n, static_cast<T*>(call.results[0].data) + i * n * n);
      }
    });
  });
}

}  // namespace ral
