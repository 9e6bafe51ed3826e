// Stable sort of lines. Short ones, of which there are several, are sorted eight at once by a network; others alone, by comparisons where
// they are short, else by digits (LSD radix sort, Knuth, TAOCP vol. 3, 5.2.5).
#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "cpu/cpu.h"
#include "library/checks.h"
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
constexpr int64_t kCostOfMerge = 3 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kCostInLanes = 3 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kLongestInLanes = 512;  // from there on, digits are faster than a network
constexpr int64_t kFewLines = 3;          // which are faster alone
constexpr int64_t kTiesInRuns = 4;        // one of so many records in a run: from there on, the digits left out are faster than comparisons
constexpr int64_t kLeastPart = 1 << 15;   // elements of a line that are worth a part of their own

template <typename Order>
struct Sorter {
  using Bits = typename Order::Key;
  using Entry = Record<Bits>;

  const Bits* source;
  Bits* values;      // or null
  int64_t* indices;  // or null
  Lines lines;
  Bits flip;  // all ones where the order is descending

  Bits key(int64_t start, int64_t place) const { return static_cast<Bits>(Order::key(source[start + place * lines.inner]) ^ flip); }
  Entry record(int64_t start, int64_t place) const { return Entry::make(key(start, place), static_cast<uint32_t>(place)); }

  void sort_line(int64_t line, Entry* records) const {
    const int64_t start = lines.start(line);
    if constexpr (sizeof(Bits) > sizeof(Narrow::Key)) {
      if (sort_narrow(start, reinterpret_cast<Narrow*>(records))) return;
    }
    for (int64_t i = 0; i < lines.size; ++i) records[i] = record(start, i);
    const Entry* sorted = sort_records(records, records + lines.size, lines.size, sizeof(Bits));
    write(start, 0, lines.size, [&](int64_t i) { return sorted[i]; });
  }

  // A line of 64 bits by what its keys are more than the least, or by the first 32 bits of that, which few share: these are put in order
  // afterwards. False, and nothing written, where many do.
  bool sort_narrow(int64_t start, Narrow* records) const {
    const auto [least, most] = ends(start);
    const int width = std::bit_width(static_cast<uint64_t>(most - least)), shift = std::max(0, width - 32);
    for (int64_t i = 0; i < lines.size; ++i) {
      records[i] = Narrow::make(static_cast<Narrow::Key>((key(start, i) - least) >> shift), static_cast<uint32_t>(i));
    }
    Narrow* const sorted = sort_records(records, records + lines.size, lines.size, (width - shift + 7) / 8);
    if (shift != 0 && !untie(start, sorted)) return false;
    for (int64_t i = 0; indices && i < lines.size; ++i) indices[start + i * lines.inner] = sorted[i].place();
    for (int64_t i = 0; values && i < lines.size; ++i) values[start + i * lines.inner] = source[start + sorted[i].place() * lines.inner];
    return true;
  }

  // Puts runs of records with equal keys in the order of the whole keys, equal ones of these in that of their places.
  bool untie(int64_t start, Narrow* sorted) const {
    int64_t ties = 0;
    for (int64_t i = 1; i < lines.size; ++i) ties += sorted[i].key() == sorted[i - 1].key();
    if (ties > lines.size / kTiesInRuns) return false;
    const auto before = [&](const Narrow& left, const Narrow& right) {
      const Bits own = key(start, left.place()), other = key(start, right.place());
      return own != other ? own < other : left.place() < right.place();
    };
    for (int64_t i = 0, past; ties != 0 && i < lines.size; i = past) {
      for (past = i + 1; past < lines.size && sorted[past].key() == sorted[i].key();) ++past;
      if (past - i > 1) std::sort(sorted + i, sorted + past, before);
    }
    return true;
  }

  // The least and the largest key of a line.
  std::pair<Bits, Bits> ends(int64_t start) const {
    Bits least = key(start, 0), most = least;
    for (int64_t i = 1; i < lines.size; ++i) {
      least = std::min(least, key(start, i));
      most = std::max(most, key(start, i));
    }
    return {least, most};
  }

  // A line by all threads, in memory for twice its records: `parts` of it (a power of 2) are sorted, then merged two at a time. Every merge is
  // cut where its result is, into as many tasks as it has parts (S. Odeh et al., "Merge Path", 2012).
  bool sort_long(LibraryCall& call, int64_t line, Entry* records, int64_t parts) const {
    const int64_t start = lines.start(line);
    const auto border = [&](int64_t part) { return part * lines.size / parts; };
    Entry *from = records, *to = records + lines.size;
    const bool sorted = call.parallel(parts, lines.size / parts * kCostPerElement, 0, [&](int64_t begin, int64_t end, char*) {
      for (int64_t part = begin; part < end; ++part) {
        const int64_t first = border(part), past = border(part + 1);
        for (int64_t i = first; i < past; ++i) from[i] = record(start, i);
        const Entry* own = sort_records(from + first, to + first, past - first, sizeof(Bits));
        if (own != from + first) std::copy(own, own + (past - first), from + first);
      }
    });
    if (!sorted) return false;
    for (int64_t width = 1; width < parts; width *= 2) {
      const bool merged = call.parallel(parts, lines.size / parts * kCostOfMerge, 0, [&](int64_t begin, int64_t end, char*) {
        for (int64_t part = begin; part < end; ++part) {
          const int64_t pair = part / (2 * width) * 2 * width;
          const Entry *left = from + border(pair), *right = from + border(pair + width), *last = from + border(pair + 2 * width);
          const int64_t first = border(part) - border(pair), past = border(part + 1) - border(pair);
          const int64_t i = split(left, right - left, right, last - right, first), j = split(left, right - left, right, last - right, past);
          std::merge(left + i, left + j, right + (first - i), right + (past - j), to + border(part));
        }
      });
      if (!merged) return false;
      std::swap(from, to);
    }
    return call.parallel(parts, lines.size / parts * kCostOfMerge, 0, [&](int64_t begin, int64_t end, char*) {
      write(start, border(begin), border(end), [&](int64_t i) { return from[i]; });
    });
  }

  // How many of the first `count` records of a merge are of the left.
  static int64_t split(const Entry* left, int64_t lefts, const Entry* right, int64_t rights, int64_t count) {
    int64_t low = std::max(int64_t{0}, count - rights), high = std::min(count, lefts);
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (left[middle] < right[count - 1 - middle]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
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
      write(lines.start(first + lane), 0, lines.size, [&](int64_t i) { return records.get(i, lane); });
    }
  }

  // sorted(i): record i in the order, from `first` to `past`.
  template <typename Sorted>
  void write(int64_t start, int64_t first, int64_t past, const Sorted& sorted) const {
    for (int64_t i = first; indices && i < past; ++i) indices[start + i * lines.inner] = sorted(i).place();
    for (int64_t i = first; values && i < past; ++i) {
      const auto key = static_cast<Bits>(static_cast<Bits>(sorted(i).key()) ^ flip);
      values[start + i * lines.inner] = Order::exact(key) ? Order::bits(key) : source[start + sorted(i).place() * lines.inner];
    }
  }
};

}  // namespace

void sort(LibraryCall& call) {
  const ral_tensor& source = call.operands[0];
  const bool fits = is_dim(source, call.numbers[0]) && is_like(call.results[0], source, source.dtype) && is_like(call.results[1], source, RAL_I64);
  if (!demand(call, fits)) return;
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
    const int64_t parts = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::min(int64_t{call.threads()}, lines.size / kLeastPart))));
    if (parts > 1 && lines.count() < call.threads()) {
      auto* records = reinterpret_cast<typename Own::Entry*>(call.memory(scratch));
      for (int64_t line = 0; records && line < lines.count(); ++line) {
        if (!sorter.sort_long(call, line, records, parts)) return;
      }
      return;
    }
    call.parallel(lines.count(), lines.size * kCostPerElement, scratch, [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t line = begin; line < end; ++line) sorter.sort_line(line, reinterpret_cast<typename Own::Entry*>(memory));
    });
  });
}

}  // namespace ral
