// Stable sort of lines. Short ones, of which there are several, are sorted eight at once by a network; others alone, by comparisons where
// they are short, else by digits (LSD radix sort, Knuth, TAOCP vol. 3, 5.2.5).
#include <algorithm>

#include "cpu/cpu.h"
#include "library/functions.h"
#include "library/keys.h"
#include "library/lanes.h"
#include "library/records.h"

namespace ral {

const LaneFunctions& lane_functions() {
  static const LaneFunctions& own = missing_feature("x86-64-v4").empty() ? kLanesAvx512 : kLanesAvx2;
  return own;
}

namespace {

constexpr int64_t kCostPerElement = 10 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kCostInLanes = 3 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kLongestInLanes = 512;  // from there on, digits are faster than a network
constexpr int64_t kFewLines = 3;          // which are faster alone

template <typename Order>
struct Sorter {
  using Bits = typename Order::Key;
  using Entry = Record<Bits>;

  const Bits* source;
  Bits* values;      // or null
  int64_t* indices;  // or null
  Lines lines;
  Bits flip;  // all ones where the order is descending

  Entry record(int64_t start, int64_t place) const {
    const Bits key = static_cast<Bits>(Order::key(source[start + place * lines.inner]) ^ flip);
    return Entry::make(key, static_cast<uint32_t>(place));
  }

  void sort_line(int64_t line, Entry* records) const {
    const int64_t start = lines.start(line);
    for (int64_t i = 0; i < lines.size; ++i) records[i] = record(start, i);
    const Entry* sorted = sort_records(records, records + lines.size, lines.size, sizeof(Bits));
    write(start, [&](int64_t i) { return sorted[i]; });
  }

  // Lines [first, first + kLanes), without those that there are not.
  void sort_lanes(int64_t first, const LaneRecords<Entry>& records) const {
    const int64_t own = std::min(kLanes, lines.count() - first);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t start = lines.start(first + std::min(lane, own - 1));
      for (int64_t i = 0; i < lines.size; ++i) records.put(i, lane, record(start, i));
    }
    records.sort(lines.size);
    for (int64_t lane = 0; lane < own; ++lane) {
      write(lines.start(first + lane), [&](int64_t i) { return records.get(i, lane); });
    }
  }

  // sorted(i): record i in the order.
  template <typename Sorted>
  void write(int64_t start, const Sorted& sorted) const {
    for (int64_t i = 0; indices && i < lines.size; ++i) indices[start + i * lines.inner] = sorted(i).place();
    for (int64_t i = 0; values && i < lines.size; ++i) {
      const auto key = static_cast<Bits>(static_cast<Bits>(sorted(i).key()) ^ flip);
      values[start + i * lines.inner] = Order::exact(key) ? Order::bits(key) : source[start + sorted(i).place() * lines.inner];
    }
  }
};

}  // namespace

void sort(LibraryCall& call) {
  const ral_tensor& source = call.operands[0];
  const Lines lines(source, call.numbers[0]);
  if (lines.count() == 0 || lines.size == 0) return;
  if (lines.size >= kLongestLine) return call.fail("lines of " + std::to_string(lines.size) + " elements are too long to be sorted", RAL_ERROR_SHAPE);
  with_order(source.dtype, [&](auto order) {
    using Own = Sorter<decltype(order)>;
    using Bits = typename Own::Bits;
    const Bits flip = call.numbers[1] ? static_cast<Bits>(~Bits{0}) : Bits{0};
    const Own sorter{static_cast<const Bits*>(source.data), static_cast<Bits*>(call.results[0].data),
                     static_cast<int64_t*>(call.results[1].data), lines, flip};
    if (lines.size <= kLongestInLanes && lines.count() > kFewLines) {
      using Records = LaneRecords<typename Own::Entry>;
      const int64_t groups = (lines.count() + kLanes - 1) / kLanes;
      call.parallel(groups, kLanes * lines.size * kCostInLanes, Records::bytes(lines.size), [&](int64_t begin, int64_t end, char* memory) {
        for (int64_t group = begin; group < end; ++group) sorter.sort_lanes(group * kLanes, Records{reinterpret_cast<uint64_t*>(memory)});
      });
      return;
    }
    const int64_t scratch = 2 * lines.size * static_cast<int64_t>(sizeof(typename Own::Entry));
    call.parallel(lines.count(), lines.size * kCostPerElement, scratch, [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t line = begin; line < end; ++line) sorter.sort_line(line, reinterpret_cast<typename Own::Entry*>(memory));
    });
  });
}

}  // namespace ral
