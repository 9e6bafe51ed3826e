// Functions of rows as wholes: their order, and whether they are weights, or finite.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"
#include "library/keys.h"

namespace ral {

void order_rows(LibraryCall& call) {
  const ral_tensor &source = call.operands[0], &result = call.results[0];
  if (!demand(call, source.rank == 2 && result.rank == 1 && result.dims[0] == source.dims[0] && result.dtype == RAL_I64)) return;
  const int64_t count = source.dims[0], size = source.dims[1];
  auto* places = static_cast<int64_t*>(result.data);
  std::iota(places, places + count, int64_t{0});
  with_order(source.dtype, [&](auto order) {
    using Order = decltype(order);
    const auto* rows = static_cast<const typename Order::Key*>(source.data);
    std::sort(places, places + count, [&](int64_t a, int64_t b) {
      for (int64_t i = 0; i < size; ++i) {
        const auto left = Order::key(rows[a * size + i]), right = Order::key(rows[b * size + i]);
        if (left != right) return left < right;
      }
      return a < b;
    });
  });
}

void check_weights(LibraryCall& call) {
  const ral_tensor &source = call.operands[0], &result = call.results[0];
  const int64_t total = element_count(source), size = source.rank ? source.dims[source.rank - 1] : 1;
  if (!demand(call, is_like(result, source, source.dtype))) return;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const auto* weights = static_cast<const T*>(source.data);
    for (int64_t line = 0; line * size < total; ++line) {
      T sum = 0;
      for (int64_t i = 0; i < size; ++i) {
        const T weight = weights[line * size + i];
        if (!(weight >= 0) || std::isinf(weight)) {
          return call.fail("a weight is " + std::to_string(weight) + ": weights must be finite, and none negative");
        }
        sum += weight;
      }
      if (!(sum > 0)) return call.fail("all weights of a distribution are 0");
    }
    std::copy(weights, weights + total, static_cast<T*>(result.data));
  };
  if (source.dtype == RAL_F32) return run(float{});
  if (source.dtype == RAL_F64) return run(double{});
  call.fail("is computed in f32 and f64 alone", RAL_ERROR_DTYPE);
}

namespace {

// The numbers themselves, of which all must be accepted. what: they, and what they must be.
template <typename Accept>
void check_numbers(LibraryCall& call, const char* what, const char* demanded, const Accept& accept) {
  const ral_tensor &source = call.operands[0], &result = call.results[0];
  if (!demand(call, is_like(result, source, source.dtype))) return;
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    const auto *begin = static_cast<const T*>(source.data), *end = begin + element_count(source);
    const auto* found = std::find_if_not(begin, end, accept);
    if (found != end) return call.fail(std::string(what) + std::to_string(*found) + demanded);
    std::copy(begin, end, static_cast<T*>(result.data));
  };
  if (source.dtype == RAL_F32) return run(float{});
  if (source.dtype == RAL_F64) return run(double{});
  call.fail("is computed in f32 and f64 alone", RAL_ERROR_DTYPE);
}

}  // namespace

void check_finite(LibraryCall& call) {
  check_numbers(call, "a number is ", ": it must be finite", [](auto value) { return std::isfinite(value); });
}

void check_rates(LibraryCall& call) {
  check_numbers(call, "a rate is ", ": it must be finite, and not negative", [](auto value) { return std::isfinite(value) && value >= 0; });
}

}  // namespace ral
