// Sums and maxima over the rows of each of several segments.
#include <algorithm>
#include <array>
#include <limits>
#include <type_traits>

#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"

namespace ral {

namespace {

constexpr int64_t kColumns = 64;  // of a task: cache lines of a row, whose sums stay in registers and L1

// Sums of integers wrap around; those of floats are of double precision, so that long segments lose nothing.
template <typename Number>
struct Sum {
  using Total = std::conditional_t<std::is_integral_v<Number>, uint64_t, double>;
  static constexpr Total kStart = 0;
  static Total add(Total total, Number value) { return total + static_cast<Total>(value); }
};

// NaN is larger than all other numbers.
template <typename Number>
struct Maximum {
  using Total = Number;
  static constexpr Total kStart =
      std::is_integral_v<Number> ? std::numeric_limits<Number>::lowest() : -std::numeric_limits<Number>::infinity();
  static Total add(Total total, Number value) { return value > total || value != value ? value : total; }
};

struct Segments {
  const ral_tensor &source, &starts, &ends, &result;
  int64_t rows, columns, count;

  template <typename Element, typename Reduction>
  void reduce(LibraryCall& call) const {
    using Stored = typename Element::Stored;
    const int64_t blocks = (columns + kColumns - 1) / kColumns;
    const int64_t cost = (1 + rows / count) * std::min(columns, kColumns) * RAL_COST_PER_NANOSECOND / 2;
    call.parallel(count * blocks, cost, 0, [&](int64_t first, int64_t past, char*) {
      for (int64_t task = first; task < past; ++task) {
        const int64_t segment = task / blocks, column = task % blocks * kColumns, width = std::min(kColumns, columns - column);
        // Bounds are data: what lies outside of the rows is cut.
        const int64_t begin = std::clamp(static_cast<const int64_t*>(starts.data)[segment], int64_t{0}, rows);
        const int64_t end = std::min(static_cast<const int64_t*>(ends.data)[segment], rows);
        std::array<typename Reduction::Total, kColumns> totals;
        totals.fill(Reduction::kStart);
        for (int64_t row = begin; row < end; ++row) {
          const Stored* values = static_cast<const Stored*>(source.data) + row * columns + column;
          for (int64_t i = 0; i < width; ++i) totals[i] = Reduction::add(totals[i], Element::load(values[i]));
        }
        Stored* results = static_cast<Stored*>(result.data) + segment * columns + column;
        for (int64_t i = 0; i < width; ++i) results[i] = Element::store(static_cast<typename Element::Number>(totals[i]));
      }
    });
  }
};

}  // namespace

void reduce_segments(LibraryCall& call) {
  const ral_tensor &source = call.operands[0], &starts = call.operands[1], &ends = call.operands[2], &result = call.results[0];
  const bool bounds = starts.rank == 1 && starts.dtype == RAL_I64 && is_like(ends, starts, RAL_I64);
  if (!demand(call, bounds && source.rank > 0 && is_like_but(result, source, source.dtype, 0) && result.dims[0] == starts.dims[0])) return;
  const int64_t count = starts.dims[0];
  if (element_count(result) == 0) return;
  const Segments segments{source, starts, ends, result, source.dims[0], element_count(result) / count, count};
  with_element(source.dtype, [&](auto element) {
    using Element = decltype(element);
    using Number = typename Element::Number;
    if (call.numbers[0] != 0) {
      segments.reduce<Element, Maximum<Number>>(call);
    } else {
      segments.reduce<Element, Sum<Number>>(call);
    }
  });
}

}  // namespace ral
