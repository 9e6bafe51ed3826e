// Scans that no loop of additions makes.
#include <algorithm>
#include <cmath>

#include "library/checks.h"
#include "library/functions.h"
#include "library/keys.h"

namespace ral {

namespace {

constexpr int64_t kCostPerElement = 20 * RAL_COST_PER_NANOSECOND;

// log(exp(a) + exp(b)), by eager's formula.
template <typename T>
T log_sum(T a, T b) {
  const T low = std::isnan(b) ? b : std::min(a, b), high = std::isnan(b) ? b : std::max(a, b);
  if (low == high && std::isinf(low)) return a;
  return std::log1p(std::exp(low - high)) + high;
}

template <typename T>
void scan(LibraryCall& call, const Lines& lines) {
  const auto* source = static_cast<const T*>(call.operands[0].data);
  auto* result = static_cast<T*>(call.results[0].data);
  call.parallel(lines.count(), lines.size * kCostPerElement, 0, [&](int64_t begin, int64_t end, char*) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t start = lines.start(line);
      T sum = -INFINITY;
      for (int64_t i = 0; i < lines.size; ++i) {
        const int64_t place = start + i * lines.inner;
        result[place] = sum = log_sum(source[place], sum);
      }
    }
  });
}

}  // namespace

void logcumsumexp(LibraryCall& call) {
  const ral_tensor& source = call.operands[0];
  if (!demand(call, is_dim(source, call.numbers[0]) && is_like(call.results[0], source, source.dtype))) return;
  const Lines lines(source, call.numbers[0]);
  if (source.dtype == RAL_F32) return scan<float>(call, lines);
  if (source.dtype == RAL_F64) return scan<double>(call, lines);
  call.fail("is computed in f32 and f64 alone", RAL_ERROR_DTYPE);
}

}  // namespace ral
