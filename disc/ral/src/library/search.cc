// Where values belong in sorted lines, and how often places occur.
#include <algorithm>
#include <vector>

#include "library/checks.h"
#include "library/elements.h"
#include "library/functions.h"

namespace ral {

namespace {

constexpr int64_t kBlock = 256;  // values of a task
constexpr int64_t kCostPerStep = 3 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kLeastPart = 1 << 14;  // places that are worth a part of their own

// How many elements come before `value`: those that are not `>= value`, or, with `right`, not `> value`. As in PyTorch, that is asked of an
// element in the middle of what is left, also where NaN leaves open what the answer is.
template <typename Element>
int64_t position(const typename Element::Stored* line, int64_t size, typename Element::Number value, bool right) {
  int64_t begin = 0, end = size;
  while (begin < end) {
    const int64_t middle = begin + (end - begin) / 2;
    const auto found = Element::load(line[middle]);
    const bool before = right ? !(found > value) : !(found >= value);
    begin = before ? middle + 1 : begin;
    end = before ? end : middle;
  }
  return begin;
}

}  // namespace

void search(LibraryCall& call) {
  const ral_tensor &values = call.operands[0], &lines = call.operands[1], &result = call.results[0];
  if (!demand(call, lines.dtype == values.dtype && is_integer(result.dtype) && is_like(result, values, result.dtype))) return;
  const bool right = call.numbers[0] != 0;
  const int64_t size = lines.rank ? lines.dims[lines.rank - 1] : 1, count = element_count(values);
  if (count == 0) return;
  const bool several = lines.rank > 1;
  const int64_t across = several ? values.dims[values.rank - 1] : count;  // values of a line
  if (several && (values.rank != lines.rank || !std::equal(lines.dims, lines.dims + lines.rank - 1, values.dims))) {
    return call.fail("the dims of the sorted lines and of the values differ before the last one", RAL_ERROR_SHAPE);
  }
  int64_t steps = 2;
  while (steps < 64 && size >> (steps - 2)) ++steps;
  with_element(values.dtype, [&](auto element) {
    using Element = decltype(element);
    using Stored = typename Element::Stored;
    call.parallel((count + kBlock - 1) / kBlock, kBlock * steps * kCostPerStep, 0, [&](int64_t begin, int64_t end, char*) {
      for (int64_t i = begin * kBlock; i < std::min(count, end * kBlock); ++i) {
        const Stored* line = static_cast<const Stored*>(lines.data) + (several ? i / across * size : 0);
        const int64_t found = position<Element>(line, size, Element::load(static_cast<const Stored*>(values.data)[i]), right);
        if (result.dtype == RAL_I32) {
          static_cast<int32_t*>(result.data)[i] = static_cast<int32_t>(found);
        } else {
          static_cast<int64_t*>(result.data)[i] = found;
        }
      }
    });
  });
}

void count(LibraryCall& call) {
  const ral_tensor &places = call.operands[0], &result = call.results[0];
  if (!demand(call, is_integer(places.dtype) && result.dtype == RAL_I64)) return;
  const int64_t bins = element_count(result), total = element_count(places);
  const int64_t parts = std::clamp(total / std::max(kLeastPart, bins), int64_t{1}, int64_t{call.threads()});
  auto* counts = static_cast<int64_t*>(result.data);
  if (parts > 1) counts = reinterpret_cast<int64_t*>(call.memory(parts * bins * static_cast<int64_t>(sizeof(int64_t))));
  if (!counts || bins == 0) return;
  call.parallel(parts, total / parts * RAL_COST_PER_NANOSECOND, 0, [&](int64_t begin, int64_t end, char*) {
    for (int64_t part = begin; part < end; ++part) {
      int64_t* own = counts + part * bins;
      std::fill(own, own + bins, 0);
      for (int64_t i = part * total / parts; i < (part + 1) * total / parts; ++i) {
        const int64_t place = integer_at(places, i);
        if (place >= 0 && place < bins) own[place] += 1;
      }
    }
  });
  if (parts == 1) return;
  for (int64_t bin = 0; bin < bins; ++bin) {
    int64_t sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += counts[part * bins + bin];
    static_cast<int64_t*>(result.data)[bin] = sum;
  }
}

}  // namespace ral
