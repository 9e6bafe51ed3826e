// Stable sort of lines: by comparisons where a line is short, else by digits (LSD radix sort, Knuth, TAOCP vol. 3, 5.2.5).
#include <algorithm>

#include "library/functions.h"
#include "library/keys.h"
#include "library/records.h"

namespace ral {

namespace {

constexpr int64_t kCostPerElement = 10 * RAL_COST_PER_NANOSECOND;

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
    write(start, sort_records(records, records + lines.size, lines.size, sizeof(Bits)));
  }

  void write(int64_t start, const Entry* sorted) const {
    for (int64_t i = 0; indices && i < lines.size; ++i) indices[start + i * lines.inner] = sorted[i].place();
    for (int64_t i = 0; values && i < lines.size; ++i) {
      const auto key = static_cast<Bits>(static_cast<Bits>(sorted[i].key()) ^ flip);
      values[start + i * lines.inner] = Order::exact(key) ? Order::bits(key) : source[start + sorted[i].place() * lines.inner];
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
    const int64_t scratch = 2 * lines.size * static_cast<int64_t>(sizeof(typename Own::Entry));
    call.parallel(lines.count(), lines.size * kCostPerElement, scratch, [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t line = begin; line < end; ++line) sorter.sort_line(line, reinterpret_cast<typename Own::Entry*>(memory));
    });
  });
}

}  // namespace ral
