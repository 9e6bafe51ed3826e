// QR factorizations by Householder reflections, and the orthogonal matrices that these are (LAPACK's xGEQRF, xORGQR).
#include <algorithm>

#include "library/functions.h"
#include "library/matrices.h"
#include "library/reflections.h"

namespace ral {

namespace {

// Multiplications of `reflections` on `columns` columns of `length` elements.
int64_t cost_of(int64_t reflections, int64_t columns, int64_t length) {
  return (2 * reflections * columns * length / kMacsPerNanosecond + 100) * RAL_COST_PER_NANOSECOND;
}

}  // namespace

void householder(LibraryCall& call) {
  const ral_tensor &matrix = call.operands[0], &packed = call.results[0], &factors = call.results[1];
  if (!is_matrix(call, matrix)) return;
  const Batch batch(matrix);
  const int64_t rows = batch.rows, n = batch.n, least = batch.least();
  if (!has_sizes(call, packed, matrix, matrix.dtype, {rows, n}) || !has_sizes(call, factors, matrix, matrix.dtype, {least})) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const auto bytes = static_cast<int64_t>(sizeof(T)) * (batch.size() + least);
    call.parallel(batch.count, cost_of(least, n, rows), bytes, [&](int64_t begin, int64_t end, char* memory) {
      T *columns = reinterpret_cast<T*>(memory), *tau = columns + batch.size();
      for (int64_t i = begin; i < end; ++i) {
        turn(static_cast<const T*>(matrix.data) + i * batch.size(), rows, n, columns);
        reflect_columns(columns, n, rows, tau);
        if (packed.data) turn(columns, n, rows, static_cast<T*>(packed.data) + i * batch.size());
        if (factors.data) std::copy(tau, tau + least, static_cast<T*>(factors.data) + i * least);
      }
    });
  });
}

void householder_product(LibraryCall& call) {
  const ral_tensor &packed = call.operands[0], &factors = call.operands[1], &result = call.results[0];
  if (!is_matrix(call, packed) || !is_matrix(call, result)) return;
  const Batch batch(packed);
  const int64_t rows = batch.rows, n = batch.n, wanted = result.dims[result.rank - 1];
  const int64_t known = factors.rank > 0 ? factors.dims[factors.rank - 1] : 0;
  if (!has_sizes(call, factors, packed, packed.dtype, {known}) || !has_sizes(call, result, packed, packed.dtype, {rows, wanted})) return;
  if (!make_columns(call, known, rows, n, wanted)) return;
  with_real(call, [&](auto zero) {
    using T = decltype(zero);
    const auto bytes = static_cast<int64_t>(sizeof(T)) * (batch.size() + rows * wanted);
    call.parallel(batch.count, cost_of(known, wanted, rows), bytes, [&](int64_t begin, int64_t end, char* memory) {
      T *reflections = reinterpret_cast<T*>(memory), *columns = reflections + batch.size();
      for (int64_t i = begin; i < end; ++i) {
        turn(static_cast<const T*>(packed.data) + i * batch.size(), rows, n, reflections);
        set_identity(columns, wanted, rows);
        apply_reflections(reflections, known, 0, static_cast<const T*>(factors.data) + i * known, columns, wanted, rows, true);
        turn(columns, wanted, rows, static_cast<T*>(result.data) + i * rows * wanted);
      }
    });
  });
}

}  // namespace ral
