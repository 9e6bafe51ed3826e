// Singular values and vectors: a QR factorization, Householder's reduction of its square factor to a bidiagonal matrix, then implicit QR steps
// (G. H. Golub and C. Reinsch, "Singular Value Decomposition and Least Squares Solutions", 1970; the steps as in LINPACK's xSVDC).
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "library/functions.h"
#include "library/matrices.h"
#include "library/reflections.h"

namespace ral {

namespace {

constexpr int kMostSteps = 100;  // for one singular value; few need more than three

template <typename T>
struct Rotation {
  T cosine = 1, sine = 0, length = 0;
  Rotation(T x, T y) : length(std::hypot(x, y)) {
    if (length == 0) return;
    cosine = x / length;
    sine = y / length;
  }
};

// A bidiagonal matrix [n, n]: its diagonal, and above[i] at (i, i + 1); above[n - 1] is 0. Vectors are rows, of which those on the left have
// left_step elements; null where they are not wanted.
template <typename T>
struct Bidiagonal {
  int64_t n;
  T *diagonal, *above;
  T *left, *right;
  int64_t left_step;

  void turn_left(const Rotation<T>& by, int64_t i, int64_t j) const {
    if (left) on_rows<T>().rotate(n, by.cosine, by.sine, left + i * left_step, left + j * left_step);
  }
  void turn_right(const Rotation<T>& by, int64_t i, int64_t j) const {
    if (right) on_rows<T>().rotate(n, by.cosine, by.sine, right + i * n, right + j * n);
  }

  // To a diagonal matrix, whose elements are not negative and descend. False where the steps do not converge.
  bool solve() const {
    int steps = 0;
    for (int64_t past = n; past > 0;) {
      int64_t first = past - 1;  // of the block that ends before `past`
      for (; first > 0; --first) {
        if (is_negligible(above[first - 1], std::abs(diagonal[first - 1]) + std::abs(diagonal[first]))) {
          above[first - 1] = 0;
          break;
        }
      }
      if (first == past - 1) {
        put_in_order(first);
        --past;
        steps = 0;
        continue;
      }
      const int64_t zero = zero_between(first, past);
      if (zero == past - 1) {
        chase_up(first, past);
      } else if (zero >= 0) {
        chase_down(zero + 1, past);
      } else if (++steps > kMostSteps) {
        return false;
      } else {
        step(first, past);
      }
    }
    return true;
  }

  static bool is_negligible(T x, T around) { return std::abs(x) <= std::numeric_limits<T>::min() + std::numeric_limits<T>::epsilon() * around; }

  // The last place of the block with a negligible element on the diagonal, which becomes 0; -1 where there is none.
  int64_t zero_between(int64_t first, int64_t past) const {
    for (int64_t k = past - 1; k >= first; --k) {
      const T around = (k + 1 < past ? std::abs(above[k]) : T{0}) + (k > first ? std::abs(above[k - 1]) : T{0});
      if (!is_negligible(diagonal[k], around)) continue;
      diagonal[k] = 0;
      return k;
    }
    return -1;
  }

  // diagonal[past - 1] is 0: what is above it goes away by rotations of columns.
  void chase_up(int64_t first, int64_t past) const {
    T f = std::exchange(above[past - 2], T{0});
    for (int64_t j = past - 2; j >= first; --j) {
      const Rotation<T> by(diagonal[j], f);
      diagonal[j] = by.length;
      if (j > first) {
        f = -by.sine * above[j - 1];
        above[j - 1] *= by.cosine;
      }
      turn_right(by, j, past - 1);
    }
  }

  // diagonal[first - 1] is 0: what is beside it goes away by rotations of rows.
  void chase_down(int64_t first, int64_t past) const {
    T f = std::exchange(above[first - 1], T{0});
    for (int64_t j = first; j < past; ++j) {
      const Rotation<T> by(diagonal[j], f);
      diagonal[j] = by.length;
      f = -by.sine * above[j];
      above[j] *= by.cosine;
      turn_left(by, j, first - 1);
    }
  }

  // The shift is the eigenvalue nearest to the last of the last two rows' squares.
  void step(int64_t first, int64_t past) const {
    const int64_t end = past - 1;
    const T scale = std::max({std::abs(diagonal[end]), std::abs(diagonal[end - 1]), std::abs(above[end - 1]), std::abs(diagonal[first]),
                              std::abs(above[first])});
    const T last = diagonal[end] / scale, before = diagonal[end - 1] / scale, beside = above[end - 1] / scale;
    const T top = diagonal[first] / scale, next = above[first] / scale;
    const T half = ((before + last) * (before - last) + beside * beside) / 2, square = last * beside * (last * beside);
    T shift = 0;
    if (half != 0 || square != 0) shift = square / (half + std::copysign(std::sqrt(half * half + square), half));
    T f = (top + last) * (top - last) + shift, g = top * next;
    for (int64_t j = first; j < end; ++j) {
      const Rotation<T> columns(f, g);
      if (j > first) above[j - 1] = columns.length;
      f = columns.cosine * diagonal[j] + columns.sine * above[j];
      above[j] = columns.cosine * above[j] - columns.sine * diagonal[j];
      g = columns.sine * diagonal[j + 1];
      diagonal[j + 1] *= columns.cosine;
      turn_right(columns, j, j + 1);
      const Rotation<T> across(f, g);
      diagonal[j] = across.length;
      f = across.cosine * above[j] + across.sine * diagonal[j + 1];
      diagonal[j + 1] = across.cosine * diagonal[j + 1] - across.sine * above[j];
      g = across.sine * above[j + 1];
      above[j + 1] *= across.cosine;
      turn_left(across, j, j + 1);
    }
    above[end - 1] = f;
  }

  // diagonal[k], which is a singular value but for its sign, goes down to where it belongs among those behind it.
  void put_in_order(int64_t k) const {
    if (std::signbit(diagonal[k])) {
      diagonal[k] = -diagonal[k];
      for (int64_t i = 0; right && i < n; ++i) right[k * n + i] = -right[k * n + i];
    }
    for (; k + 1 < n && diagonal[k] < diagonal[k + 1]; ++k) {
      std::swap(diagonal[k], diagonal[k + 1]);
      if (right) std::swap_ranges(right + k * n, right + (k + 1) * n, right + (k + 1) * n);
      if (left) std::swap_ranges(left + k * left_step, left + k * left_step + n, left + (k + 1) * left_step);
    }
  }
};

// One matrix with at least as many rows as columns, held by columns; of another one the transpose, with left and right exchanged.
template <typename T>
struct Decomposition {
  int64_t length, n;  // of a column; columns
  int64_t wanted;     // vectors on the left: n, or `length`; 0 where no vectors are wanted
  T* columns;         // [n, length]; then the reflections of the QR factorization
  T* square;          // [n, n], by columns: R; then the reflections from the left
  T* across;          // [n, n]: reflections from the right
  T *left, *right;    // [wanted, length]; [n, n]
  T *diagonal, *above, *tau, *tau_left, *tau_right, *row;  // [n] each

  static int64_t bytes(int64_t length, int64_t n, int64_t wanted) {
    return static_cast<int64_t>(sizeof(T)) * (n * length + 3 * n * n + wanted * length + 6 * n);
  }

  Decomposition(char* memory, int64_t rows, int64_t count, int64_t vectors) : length(rows), n(count), wanted(vectors) {
    columns = reinterpret_cast<T*>(memory);
    square = columns + n * length;
    across = square + n * n;
    right = across + n * n;
    left = right + n * n;
    diagonal = left + wanted * length;
    above = diagonal + n;
    tau = above + n;
    tau_left = tau + n;
    tau_right = tau_left + n;
    row = tau_right + n;
  }

  // Of the matrix in `columns`. The values are in `diagonal`, less the exponent of 2.
  Found solve(int* exponent) const {
    bool finite = true;
    *exponent = scale_elements(columns, n * length, &finite);
    if (!finite) return Found::kNotFinite;
    if (length > n) {
      reflect_columns(columns, n, length, tau);
      for (int64_t j = 0; j < n; ++j) {
        std::copy(columns + j * length, columns + j * length + j + 1, square + j * n);
        std::fill(square + j * n + j + 1, square + (j + 1) * n, T{0});
      }
    } else {
      std::copy(columns, columns + n * n, square);
    }
    reduce();
    if (wanted > 0) start_vectors();
    const Bidiagonal<T> found{n, diagonal, above, wanted > 0 ? left : nullptr, wanted > 0 ? right : nullptr, length};
    if (!found.solve()) return Found::kNoConvergence;
    if (wanted > 0 && length > n) apply_reflections(columns, n, 0, tau, left, wanted, length, false);
    return Found::kResult;
  }

  // Square to bidiagonal, by reflections of columns and rows in turn.
  void reduce() const {
    for (int64_t k = 0; k < n; ++k) {
      T* v = square + k * n + k;
      tau_left[k] = make_reflection(n - k, v);
      diagonal[k] = v[0];
      if (tau_left[k] != 0) {
        const WithOne<T> one(v);
        for (int64_t j = k + 1; j < n; ++j) reflect(n - k, v, tau_left[k], square + j * n + k);
      }
      above[k] = tau_right[k] = 0;
      if (k + 1 < n) reduce_row(k, n - k - 1);
    }
  }

  // Row k, behind the diagonal, to one element.
  void reduce_row(int64_t k, int64_t count) const {
    T* v = across + k * n + k + 1;
    for (int64_t j = 0; j < count; ++j) v[j] = square[(k + 1 + j) * n + k];
    tau_right[k] = make_reflection(count, v);
    above[k] = v[0];
    if (tau_right[k] == 0) return;
    const WithOne<T> one(v);
    const int64_t below = n - k - 1;
    std::fill(row, row + below, T{0});
    for (int64_t j = 0; j < count; ++j) on_rows<T>().add(below, v[j], square + (k + 1 + j) * n + k + 1, row);
    for (int64_t j = 0; j < count; ++j) on_rows<T>().add(below, -tau_right[k] * v[j], row, square + (k + 1 + j) * n + k + 1);
  }

  // Those of the bidiagonal matrix as vectors of the square one; behind them on the left, the rest of a basis.
  void start_vectors() const {
    set_identity(left, wanted, length);
    set_identity(right, n, n);
    for (int64_t k = n - 1; k >= 0; --k) {
      if (tau_left[k] != 0) {
        T* v = square + k * n + k;
        const WithOne<T> one(v);
        for (int64_t j = k; j < n; ++j) reflect(n - k, v, tau_left[k], left + j * length + k);
      }
    }
    if (n > 1) apply_reflections(across, n - 1, 1, tau_right, right, n, n, true);
  }
};

}  // namespace

void svd(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &left = call.results[0], &values = call.results[1], &right = call.results[2];
  if (!is_matrix(call, matrix) || !is_matrix(call, left) || !is_matrix(call, right)) return;
  const Batch batch(matrix);
  const int64_t least = batch.least(), most = std::max(batch.rows, batch.n);
  const bool full = left.dims[left.rank - 1] == batch.rows && right.dims[right.rank - 2] == batch.n;
  if (!has_sizes(call, left, matrix, matrix.dtype, {batch.rows, full ? batch.rows : least})) return;
  if (!has_sizes(call, values, matrix, matrix.dtype, {least}) || !has_sizes(call, right, matrix, matrix.dtype, {full ? batch.n : least, batch.n})) return;
  int64_t* found = integers(call, batch.count);
  if (!found) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const int64_t wanted = left.data || right.data ? (full ? most : least) : 0;
    const int64_t cost = (12 * most * least * least / kMacsPerNanosecond + 100) * RAL_COST_PER_NANOSECOND;
    const bool tall = batch.rows >= batch.n;
    const bool done = call.parallel(batch.count, cost, Decomposition<T>::bytes(most, least, wanted), [&](int64_t begin, int64_t end, char* memory) {
      const Decomposition<T> own(memory, most, least, wanted);
      const auto put = [&](const T* vectors, int64_t count, int64_t length, const ral_tensor& to, int64_t i, bool by_columns) {
        if (!to.data) return;
        T* place = static_cast<T*>(to.data) + i * count * length;
        by_columns ? turn(vectors, count, length, place) : void(std::copy(vectors, vectors + count * length, place));
      };
      for (int64_t i = begin; i < end; ++i) {
        const T* source = static_cast<const T*>(matrix.data) + i * batch.size();
        tall ? turn(source, batch.rows, batch.n, own.columns) : void(std::copy(source, source + batch.size(), own.columns));
        int exponent = 0;
        found[i] = static_cast<int64_t>(own.solve(&exponent));
        for (int64_t k = 0; values.data && k < least; ++k) static_cast<T*>(values.data)[i * least + k] = std::scalbn(own.diagonal[k], exponent);
        put(tall ? own.left : own.right, tall ? wanted : least, tall ? most : least, left, i, true);
        put(tall ? own.right : own.left, tall ? least : wanted, tall ? least : most, right, i, false);
      }
    });
    if (done) check_found(call, found, batch.count);
  });
}

}  // namespace ral
