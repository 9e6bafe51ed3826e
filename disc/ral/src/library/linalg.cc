// Factorizations and solutions of square matrices, f32 and f64, in panels of columns so that nearly all of the work is done by tiles. Matrices
// of a batch, and panels of right sides, are tasks.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <type_traits>
#include <vector>

#include "library/elements.h"
#include "library/functions.h"
#include "library/matrices.h"
#include "library/tiles.h"

namespace ral {

namespace {

constexpr int64_t kBlock = 32;  // rows of a panel that are solved before those behind them are updated

// Columns of a matrix side by side, rows of kPanel<T> elements.
template <typename T>
struct Panel {
  T* rows;       // [n]
  T* negated;    // [kBlock], of the block that is being solved
  static constexpr int64_t kWidth = kPanel<T>;

  static int64_t bytes(int64_t n) { return (n + kBlock) * kPanelBytes; }
  Panel(char* memory, int64_t n) : rows(reinterpret_cast<T*>(memory)), negated(rows + n * kWidth) {}

  T* row(int64_t i) const { return rows + i * kWidth; }

  void load(const T* source, int64_t step, int64_t n, int64_t columns, const int64_t* order) const {
    for (int64_t i = 0; i < n; ++i) {
      std::copy(source + (order ? order[i] : i) * step, source + (order ? order[i] : i) * step + columns, row(i));
      std::fill(row(i) + columns, row(i) + kWidth, T{0});
    }
  }

  void store(T* result, int64_t step, int64_t n, int64_t columns) const {
    for (int64_t i = 0; i < n; ++i) std::copy(row(i), row(i) + columns, result + i * step);
  }

  void solve_row(const T* matrix, int64_t n, int64_t i, int64_t from, int64_t known, int64_t place, bool unit) const {
    tile<T>()(1, matrix + i * n + from, n, negated + (from < i ? 0 : place + 1) * kWidth, kWidth, known, row(i), kWidth);
    const T divisor = unit ? T{1} : matrix[i * n + i];
    for (int64_t j = 0; j < kWidth; ++j) row(i)[j] /= divisor;
    for (int64_t j = 0; j < kWidth; ++j) negated[place * kWidth + j] = -row(i)[j];
  }

  // rows [begin, end) -= matrix[rows, from : from + count] * what was just solved.
  void update(const T* matrix, int64_t n, int64_t begin, int64_t end, int64_t from, int64_t count) const {
    for (int64_t i = begin; i < end; i += kTileRows) {
      tile<T>()(std::min(kTileRows, end - i), matrix + i * n + from, n, negated, kWidth, count, row(i), kWidth);
    }
  }

  // The first `known` of `past` rows are solved with the lower triangle of the matrix, in rows of n, and those behind are updated.
  void solve_lower(const T* matrix, int64_t n, int64_t past, int64_t known, bool unit) const {
    for (int64_t first = 0; first < known; first += kBlock) {
      const int64_t count = std::min(kBlock, known - first);
      for (int64_t i = 0; i < count; ++i) solve_row(matrix, n, first + i, first, i, i, unit);
      update(matrix, n, first + count, past, first, count);
    }
  }

  void solve_upper(const T* matrix, int64_t n, bool unit) const {
    for (int64_t past = n; past > 0; past -= std::min(kBlock, past)) {
      const int64_t count = std::min(kBlock, past), first = past - count;
      for (int64_t i = count - 1; i >= 0; --i) solve_row(matrix, n, first + i, first + i + 1, count - 1 - i, i, unit);
      update(matrix, n, 0, first, first, count);
    }
  }
};

// L of A = L * L^T, from the lower triangle of A; zeros above. Returns the order of the leading minor that is not positive, 0 where all are.
// By blocks of kPanel<T> columns: what the columns before take away by tiles, the block on the diagonal, and those below it times its inverse.
template <typename T>
struct Cholesky {
  static constexpr int64_t kWidth = kPanel<T>;

  const T* source;
  T* lower;
  int64_t n;
  Panel<T> inverse;  // of the block on the diagonal
  T *left, *corner, *sums;  // [n, kWidth]: the rows of the block so far, transposed and negated; [kWidth, kWidth]; [kTileRows, kWidth]

  static int64_t bytes(int64_t n) { return Panel<T>::bytes(kWidth) + (n + kWidth + kTileRows) * kPanelBytes; }

  Cholesky(const T* from, T* to, int64_t size, char* memory)
      : source(from), lower(to), n(size), inverse(memory, kWidth), left(reinterpret_cast<T*>(memory + Panel<T>::bytes(kWidth))),
        corner(left + n * kWidth), sums(corner + kWidth * kWidth) {}

  int64_t factor() const {
    for (int64_t column = 0; column < n; column += kWidth) {
      const int64_t width = std::min(kWidth, n - column), below = column + width;
      turn(column, width);
      for (int64_t i = 0; i < width; i += kTileRows) load(column, width, column + i, std::min(kTileRows, width - i), corner + i * kWidth);
      if (const int64_t bad = factor_corner(lower + column * n + column, width)) return column + bad;
      for (int64_t i = column; i < below; ++i) std::fill(lower + i * n + i + 1, lower + (i + 1) * n, T{0});
      if (below < n) invert(lower + column * n + column, width);
      for (int64_t i = below; i < n; i += kTileRows) {
        const int64_t rows = std::min(kTileRows, n - i);
        T solved[kTileRows * kWidth] = {};
        load(column, width, i, rows, sums);
        tile<T>()(rows, sums, kWidth, inverse.rows, kWidth, width, solved, kWidth);
        for (int64_t row = 0; row < rows; ++row) std::copy(solved + row * kWidth, solved + row * kWidth + width, lower + (i + row) * n + column);
      }
    }
    return 0;
  }

  // What LAPACK without blocks leaves where the leading minor of order `bad` is not positive-definite: the columns before it, its last pivot,
  // which is no positive number, and the source in the columns behind. Returns the minor at which it ends itself.
  int64_t leave(int64_t bad) const {
    const auto rest = [&](int64_t i, int64_t j) {
      T sum = source[i * n + j];
      for (int64_t p = 0; p < j; ++p) sum -= lower[i * n + p] * lower[j * n + p];
      return sum;
    };
    int64_t done = 0;
    for (; done + 1 < bad && rest(done, done) > 0; ++done) {
      const T root = lower[done * n + done] = std::sqrt(rest(done, done));
      for (int64_t i = done + 1; i < n; ++i) lower[i * n + done] = rest(i, done) / root;
    }
    const T pivot = rest(done, done);
    for (int64_t i = 0; i < n; ++i) {
      if (i >= done) std::copy(source + i * n + done, source + i * n + i + 1, lower + i * n + done);
      std::fill(lower + i * n + i + 1, lower + (i + 1) * n, T{0});
    }
    lower[done * n + done] = pivot;
    return done + 1;
  }

  void turn(int64_t column, int64_t width) const {
    for (int64_t first = 0; first < column; first += kBlock) {  // so that what is written stays in L1
      for (int64_t j = 0; j < width; ++j) {
        const T* row = lower + (column + j) * n;
        for (int64_t p = first; p < std::min(column, first + kBlock); ++p) left[p * kWidth + j] = -row[p];
      }
    }
    for (int64_t p = 0; p < column && width < kWidth; ++p) std::fill(left + p * kWidth + width, left + (p + 1) * kWidth, T{0});
  }

  // Rows [i, i + rows) of the block's columns, less what the columns before take away.
  void load(int64_t column, int64_t width, int64_t i, int64_t rows, T* to) const {
    for (int64_t row = 0; row < rows; ++row) {
      const T* from = source + (i + row) * n + column;
      std::copy(from, from + width, to + row * kWidth);
      std::fill(to + row * kWidth + width, to + (row + 1) * kWidth, T{0});
    }
    if (column > 0) tile<T>()(rows, lower + i * n, n, left, kWidth, column, to, kWidth);
  }

  // Of the lower triangle in the corner, to rows of n elements.
  int64_t factor_corner(T* to, int64_t width) const {
    T* turned = inverse.rows;
    std::fill(turned, turned + width * kWidth, T{0});
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j <= i; ++j) turned[j * kWidth + i] = corner[i * kWidth + j];
    }
    if (const int64_t bad = upper_factor<T>()(turned, width)) return bad;
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j <= i; ++j) to[i * n + j] = turned[j * kWidth + i];
    }
    return 0;
  }

  // Of a lower triangle in rows of n elements; the transpose.
  void invert(const T* triangle, int64_t width) const {
    std::fill(inverse.row(0), inverse.row(kWidth), T{0});
    for (int64_t i = 0; i < width; ++i) inverse.row(i)[i] = 1;
    inverse.solve_lower(triangle, n, width, width, false);
    for (int64_t i = 0; i < width; ++i) {
      for (int64_t j = 0; j < i; ++j) std::swap(inverse.row(i)[j], inverse.row(j)[i]);
    }
  }
};

// P * A = L * U with partial pivoting of a matrix [rows, n]: L, whose diagonal is 1, and U in `factors`; row i of P * A is row order[i] of A,
// and step i exchanged rows i and pivots[i]. Returns the place of the first zero on the diagonal of U, from 1, or 0 where there is none.
template <typename T>
int64_t factor_lu(const T* source, T* factors, int64_t rows, int64_t n, int64_t* order, int64_t* pivots, char* memory) {
  const Panel<T> panel(memory, rows);
  int64_t zero = 0;
  std::iota(order, order + rows, int64_t{0});
  for (int64_t column = 0; column < n; column += panel.kWidth) {
    const int64_t width = std::min(panel.kWidth, n - column);
    panel.load(source + column, n, rows, width, order);
    panel.solve_lower(factors, n, rows, std::min(column, rows), true);
    for (int64_t j = 0; j < width && column + j < rows; ++j) {
      const int64_t at = column + j;
      int64_t best = at;
      for (int64_t i = at; i < rows; ++i) {
        if (std::abs(panel.row(i)[j]) > std::abs(panel.row(best)[j])) best = i;
      }
      pivots[at] = best;
      if (best != at) {
        std::swap_ranges(panel.row(at), panel.row(at) + panel.kWidth, panel.row(best));
        std::swap_ranges(factors + at * n, factors + at * n + column, factors + best * n);
        std::swap(order[at], order[best]);
      }
      const T pivot = panel.row(at)[j];
      if (pivot == 0) {
        zero = zero ? zero : at + 1;
        continue;
      }
      const T* above = panel.row(at);
      for (int64_t i = at + 1; i < rows; ++i) {
        T* own = panel.row(i);
        const T factor = own[j] /= pivot;
        for (int64_t k = j + 1; k < panel.kWidth; ++k) own[k] -= factor * above[k];
      }
    }
    panel.store(factors + column, n, rows, width);
  }
  return zero;
}

bool is_square(LibraryCall& call, const ral_tensor& matrix, const ral_tensor* right) {
  bool good = matrix.rank >= 2 && matrix.dims[matrix.rank - 1] == matrix.dims[matrix.rank - 2];
  if (good && right) good = right->rank == matrix.rank && std::equal(matrix.dims, matrix.dims + matrix.rank - 1, right->dims);
  if (!good) call.fail("needs square matrices, and right sides of as many rows and the same batch", RAL_ERROR_SHAPE);
  return good && (!right || demand(call, right->dtype == matrix.dtype && is_like(call.results[0], *right, right->dtype)));
}

// The factors of every matrix of a batch, [count, rows, n], with their orders [count, rows], exchanges [count, least] and the places of zeros.
template <typename T>
struct Factors {
  T* factors = nullptr;
  int64_t *orders = nullptr, *pivots = nullptr, *zeros = nullptr;

  // to: where the factors are put; null: in memory of the call.
  bool make(LibraryCall& call, const ral_tensor& matrix, void* to = nullptr) {
    const Batch batch(matrix);
    const int64_t size = batch.size(), rows = batch.rows, least = batch.least();
    factors = static_cast<T*>(to ? to : call.memory(batch.count * size * static_cast<int64_t>(sizeof(T)) + 64));
    orders = integers(call, batch.count * rows);
    pivots = integers(call, batch.count * least);
    zeros = integers(call, batch.count);
    if (call.failed()) return false;
    const auto* source = static_cast<const T*>(matrix.data);
    const int64_t cost = (rows * batch.n * least / 3 / kMacsPerNanosecond + 100) * RAL_COST_PER_NANOSECOND;
    return call.parallel(batch.count, cost, Panel<T>::bytes(rows), [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t i = begin; i < end; ++i) {
        zeros[i] = factor_lu(source + i * size, factors + i * size, rows, batch.n, orders + i * rows, pivots + i * least, memory);
      }
    });
  }
};

// Runs `solve(panel, matrix number, first column, columns)` on every panel of `columns` right sides of every matrix.
template <typename T, typename Body>
void each_panel(LibraryCall& call, const Batch& batch, int64_t columns, const Body& solve) {
  const int64_t panels = (columns + kPanel<T> - 1) / kPanel<T>;
  const int64_t cost = (batch.n * batch.n * kPanel<T> / kMacsPerNanosecond + 100) * RAL_COST_PER_NANOSECOND;
  call.parallel(batch.count * panels, cost, Panel<T>::bytes(batch.n), [&](int64_t begin, int64_t end, char* memory) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t first = task % panels * kPanel<T>;
      solve(Panel<T>(memory, batch.n), task / panels, first, std::min(kPanel<T>, columns - first));
    }
  });
}

// X of A * X = B; without B, the inverse of A.
template <typename T>
void solve_all(LibraryCall& call, const ral_tensor& matrix, const T* right, int64_t columns) {
  const Batch batch(matrix);
  Factors<T> made;
  if (!made.make(call, matrix)) return;
  if (!check(call, made.zeros, batch.count, "the matrix is singular (diagonal element ", " of U is zero)")) return;
  auto* result = static_cast<T*>(call.results[0].data);
  each_panel<T>(call, batch, columns, [&](const Panel<T>& panel, int64_t number, int64_t first, int64_t width) {
    const int64_t n = batch.n, *order = made.orders + number * n;
    if (right) {
      panel.load(right + number * n * columns + first, columns, n, width, order);
    } else {
      std::fill(panel.row(0), panel.row(n), T{0});
      for (int64_t i = 0; i < n; ++i) {
        if (order[i] >= first && order[i] < first + width) panel.row(i)[order[i] - first] = 1;
      }
    }
    panel.solve_lower(made.factors + number * n * n, n, n, n, true);
    panel.solve_upper(made.factors + number * n * n, n, false);
    panel.store(result + number * n * columns + first, columns, n, width);
  });
}

// The lower factors; `finish(minors, count)` gets for each matrix the order of its leading minor that is not positive-definite, or 0.
template <typename Finish>
void factor_all(LibraryCall& call, const Finish& finish) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_square(call, matrix, nullptr) || !demand(call, is_like(call.results[0], matrix, matrix.dtype))) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const Batch batch(call.operands[0]);
    const int64_t size = batch.n * batch.n;
    int64_t* minors = integers(call, batch.count);
    auto* result = static_cast<T*>(call.results[0].data ? call.results[0].data : call.memory(batch.count * size * static_cast<int64_t>(sizeof(T))));
    if (!minors || !result) return;
    const auto* source = static_cast<const T*>(call.operands[0].data);
    const bool done = call.parallel(batch.count, batch.cost() / 6, Cholesky<T>::bytes(batch.n), [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t i = begin; i < end; ++i) {
        const Cholesky<T> matrix(source + i * size, result + i * size, batch.n, memory);
        minors[i] = matrix.factor();
        if (minors[i]) minors[i] = matrix.leave(minors[i]);
      }
    });
    if (done) finish(minors, batch.count);
  });
}

// The factors, where `accept(zeros, count)` takes the places of the zeros on the diagonals of U.
template <typename Accept>
void factor_by_rows(LibraryCall& call, const Accept& accept) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_matrix(call, matrix)) return;
  const Batch batch(matrix);
  const int64_t rows = batch.rows, least = batch.least();
  const ral_tensor &pivots = call.results[1], &order = call.results[2], &zeros = call.results[3];
  if (!has_sizes(call, call.results[0], matrix, matrix.dtype, {rows, batch.n}) || !has_sizes(call, pivots, matrix, RAL_I32, {least})) return;
  if (!has_sizes(call, order, matrix, RAL_I32, {rows}) || !has_sizes(call, zeros, matrix, RAL_I32, {})) return;
  with_real(call, [&](auto zero) {
    Factors<decltype(zero)> made;
    if (!made.make(call, matrix, call.results[0].data) || !accept(made.zeros, batch.count)) return;
    const auto put = [](const ral_tensor& to, const int64_t* numbers, int64_t count, int32_t offset) {
      for (int64_t i = 0; to.data && i < count; ++i) static_cast<int32_t*>(to.data)[i] = static_cast<int32_t>(numbers[i]) + offset;
    };
    put(pivots, made.pivots, batch.count * least, 1);
    put(order, made.orders, batch.count * rows, 0);
    put(zeros, made.zeros, batch.count, 0);
  });
}

}  // namespace

void cholesky(LibraryCall& call) {
  factor_all(call, [&](const int64_t* minors, int64_t count) {
    check(call, minors, count, "the input is not positive-definite (the leading minor of order ", " is not positive-definite)");
  });
}

void cholesky_ex(LibraryCall& call) {
  const ral_tensor& orders = call.results[1];
  if (!is_square(call, call.operands[0], nullptr) || !has_sizes(call, orders, call.operands[0], RAL_I32, {})) return;
  factor_all(call, [&](const int64_t* minors, int64_t count) {
    for (int64_t i = 0; orders.data && i < count; ++i) static_cast<int32_t*>(orders.data)[i] = static_cast<int32_t>(minors[i]);
  });
}

void triangular_solve(LibraryCall& call) {
  const ral_tensor &right = call.operands[0], &matrix = call.operands[1];
  if (!is_square(call, matrix, &right)) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const Batch batch(matrix);
    const int64_t columns = right.dims[right.rank - 1];
    const auto *sides = static_cast<const T*>(right.data), *triangles = static_cast<const T*>(matrix.data);
    each_panel<T>(call, batch, columns, [&](const Panel<T>& panel, int64_t number, int64_t first, int64_t width) {
      const T* triangle = triangles + number * batch.n * batch.n;
      const int64_t start = number * batch.n * columns + first;
      panel.load(sides + start, columns, batch.n, width, nullptr);
      if (call.numbers[0]) {
        panel.solve_upper(triangle, batch.n, call.numbers[1] != 0);
      } else {
        panel.solve_lower(triangle, batch.n, batch.n, batch.n, call.numbers[1] != 0);
      }
      panel.store(static_cast<T*>(call.results[0].data) + start, columns, batch.n, width);
    });
  });
}

void solve(LibraryCall& call) {
  const ral_tensor &right = call.operands[0], &matrix = call.operands[1];
  if (!is_square(call, matrix, &right)) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    solve_all<T>(call, matrix, static_cast<const T*>(right.data), right.dims[right.rank - 1]);
  });
}

void inverse(LibraryCall& call) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_square(call, matrix, nullptr) || !demand(call, is_like(call.results[0], matrix, matrix.dtype))) return;
  with_real(call, [&](auto zero) { solve_all<decltype(zero)>(call, matrix, nullptr, matrix.dims[matrix.rank - 1]); });
}

void lu(LibraryCall& call) {
  factor_by_rows(call, [](const int64_t*, int64_t) { return true; });
}

void lu_checked(LibraryCall& call) {
  factor_by_rows(call, [&](const int64_t* zeros, int64_t count) { return check_diagonals(call, zeros, count); });
}

void permutation(LibraryCall& call) {
  const ral_tensor &pivots = call.operands[0], &order = call.results[0];
  const bool fits = pivots.rank > 0 && order.rank == pivots.rank && pivots.dtype == RAL_I32 && order.dtype == RAL_I32 &&
                    std::equal(pivots.dims, pivots.dims + pivots.rank - 1, order.dims);
  if (!fits) return call.fail("exchanges and the order that they make have sizes that do not belong together", RAL_ERROR_SHAPE);
  const int64_t steps = pivots.dims[pivots.rank - 1], rows = order.dims[order.rank - 1], count = rows ? element_count(order) / rows : 0;
  for (int64_t i = 0; i < count; ++i) {
    int32_t* own = static_cast<int32_t*>(order.data) + i * rows;
    std::iota(own, own + rows, 0);
    for (int64_t step = 0; step < steps; ++step) {
      const int64_t with = static_cast<const int32_t*>(pivots.data)[i * steps + step] - 1;
      if (with < step || with >= rows) {
        return call.fail("exchange " + std::to_string(step) + " is with row " + std::to_string(with + 1) + ", which must be from " +
                         std::to_string(step + 1) + " to " + std::to_string(rows));
      }
      std::swap(own[step], own[with]);
    }
  }
}

void determinant(LibraryCall& call) {
  const ral_tensor& matrix = call.operands[0];
  if (!is_square(call, matrix, nullptr)) return;
  for (const ral_tensor& result : call.results) {
    if (!has_sizes(call, result, matrix, matrix.dtype, {})) return;
  }
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const Batch batch(matrix);
    Factors<T> made;
    if (!made.make(call, matrix)) return;
    for (int64_t number = 0; number < batch.count; ++number) {
      T product = 1, sign = 1, logarithm = 0;
      for (int64_t i = 0; i < batch.n; ++i) {
        if (made.pivots[number * batch.n + i] != i) product = -product, sign = -sign;
        const T own = made.factors[(number * batch.n + i) * batch.n + i];
        product *= own;
        sign *= own < 0 ? T{-1} : own > 0 ? T{1} : own;
        logarithm += std::log(std::abs(own));
      }
      const T values[] = {product, sign, logarithm};
      for (size_t i = 0; i < 3; ++i) {
        if (call.results[i].data) static_cast<T*>(call.results[i].data)[number] = values[i];
      }
    }
  });
}

}  // namespace ral
