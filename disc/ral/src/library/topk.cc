// The k first of each line in an order, sorted: candidates are those below the worst of the k best so far, which is found again whenever as
// many candidates have come together as were kept; a line of n elements costs little more than reading it where k is small. Short lines, of
// which there are several, eight at once.
#include <algorithm>

#include "library/checks.h"
#include "library/functions.h"
#include "library/keys.h"
#include "library/lanes.h"
#include "library/records.h"

namespace ral {

namespace {

constexpr int64_t kCostPerElement = 2 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kCostPerResult = 20 * RAL_COST_PER_NANOSECOND;
constexpr int64_t kFewKept = 16;         // what is put in its place one by one
constexpr int64_t kLengthPerKept = 64;   // shorter lines are faster in lanes
constexpr int64_t kLongestSorted = 256;  // from there on, lines are not sorted whole where more is kept
constexpr int64_t kFewLines = 3;         // which are faster alone
constexpr int64_t kBlock = 64;           // elements that are compared before any is looked at

template <typename Order>
struct Selection {
  using Bits = typename Order::Key;
  using Entry = Record<Bits>;

  const Bits* source;
  Bits* values;      // or null
  int64_t* indices;  // or null
  Lines lines, result;
  Bits flip;  // all ones where the largest are wanted

  int64_t kept() const { return result.size; }
  // Room for the candidates: those kept, as many again, and a block.
  int64_t room() const { return std::min(lines.size, 2 * kept() + kBlock) + kBlock; }

  Bits key(int64_t start, int64_t place) const { return static_cast<Bits>(Order::key(source[start + place * lines.inner]) ^ flip); }

  // Keeps the best `kept()` of the candidates; returns the worst of them.
  Entry keep_best(Entry* candidates, int64_t count) const {
    Entry* worst = candidates + kept() - 1;
    std::nth_element(candidates, worst, candidates + count);
    return *worst;
  }

  // Whether an element of a block may be better than `worst`; where this says no, none is.
  bool any_better(int64_t start, int64_t place, int64_t end, const Entry& worst) const {
    using Native = typename Order::Native;
    if constexpr (std::is_void_v<Native>) {
      return true;
    } else {
      if (lines.inner != 1) return true;
      const auto* line = reinterpret_cast<const Native*>(source + start);
      const Native limit = line[worst.place()];
      if (const Beyond<Native> any = beyond<Native>()) return any(line + place, end - place, limit, flip != 0);
      bool any = false;
      for (int64_t i = place; i < end; ++i) any |= flip ? line[i] > limit : line[i] < limit;
      return any;
    }
  }

  // Where few are kept, they are held in their order, and each element that is better than the last of them is put in its place.
  void select_few(int64_t line, Entry* best) const {
    const int64_t start = lines.start(line);
    const auto insert = [&](int64_t place, int64_t count) {
      const Entry own = Entry::make(key(start, place), static_cast<uint32_t>(place));
      for (; count > 0 && own < best[count - 1]; --count) best[count] = best[count - 1];
      best[count] = own;
    };
    for (int64_t i = 0; i < kept(); ++i) insert(i, i);
    const Entry& worst = best[kept() - 1];
    for (int64_t place = kept(); place < lines.size; place += kBlock) {
      const int64_t end = std::min(lines.size, place + kBlock);
      if (!any_better(start, place, end, worst)) continue;
      for (int64_t i = place; i < end; ++i) {
        if (key(start, i) < worst.key()) insert(i, kept() - 1);
      }
    }
    write(line, [&](int64_t i) { return best[i]; });
  }

  void select_line(int64_t line, Entry* candidates) const {
    const int64_t start = lines.start(line), first = std::min(lines.size, room() - kBlock);
    int64_t count = first;
    for (int64_t i = 0; i < first; ++i) candidates[i] = Entry::make(key(start, i), static_cast<uint32_t>(i));
    Entry worst{};
    if (first < lines.size) {
      worst = keep_best(candidates, count);
      count = kept();
    }
    for (int64_t place = first; place < lines.size; place += kBlock) {
      const int64_t end = std::min(lines.size, place + kBlock);
      if (!any_better(start, place, end, worst)) continue;
      for (int64_t i = place; i < end; ++i) {
        const Bits own = key(start, i);  // an equal one comes too late
        if (own < worst.key()) candidates[count++] = Entry::make(own, static_cast<uint32_t>(i));
      }
      if (count + kBlock > room()) {
        worst = keep_best(candidates, count);
        count = kept();
      }
    }
    if (count > kept()) keep_best(candidates, count);
    std::sort(candidates, candidates + kept());
    write(line, [&](int64_t i) { return candidates[i]; });
  }

  // Lines [first, first + kLanes), without those that there are not.
  void select_lanes(int64_t first, const LaneRecords<Entry>& records) const {
    const int64_t own = std::min(kLanes, lines.count() - first);
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t start = lines.start(first + std::min(lane, own - 1));
      for (int64_t i = 0; i < lines.size; ++i) records.put(i, lane, Entry::make(key(start, i), static_cast<uint32_t>(i)));
    }
    kept() <= kFewKept ? records.select(lines.size, kept()) : records.sort(lines.size);
    for (int64_t lane = 0; lane < own; ++lane) {
      write(first + lane, [&](int64_t i) { return records.get(i, lane); });
    }
  }

  // sorted(i): record i in the order.
  template <typename Sorted>
  void write(int64_t line, const Sorted& sorted) const {
    const int64_t start = lines.start(line), to = result.start(line);
    for (int64_t i = 0; i < kept(); ++i) {
      const int64_t place = sorted(i).place();
      if (indices) indices[to + i * result.inner] = place;
      if (values) values[to + i * result.inner] = source[start + place * lines.inner];
    }
  }
};

}  // namespace

void topk(LibraryCall& call) {
  const ral_tensor& source = call.operands[0];
  const int64_t dim = call.numbers[0];
  const bool fits = is_dim(source, dim) && is_like_but(call.results[0], source, source.dtype, dim) && is_like_but(call.results[1], call.results[0], RAL_I64, -1);
  if (!demand(call, fits)) return;
  const Lines lines(source, dim), result(call.results[0], dim);
  if (result.size > lines.size) {
    return call.fail("k = " + std::to_string(result.size) + " is above the size " + std::to_string(lines.size) + " of dim " +
                         std::to_string(dim),
                     RAL_ERROR_SHAPE);
  }
  if (result.count() == 0 || result.size == 0) return;
  if (lines.size >= kLongestLine) return call.fail("lines of " + std::to_string(lines.size) + " elements are too long", RAL_ERROR_SHAPE);
  with_order(source.dtype, [&](auto order) {
    using Own = Selection<decltype(order)>;
    using Bits = typename Own::Bits;
    const Bits flip = call.numbers[1] ? static_cast<Bits>(~Bits{0}) : Bits{0};
    const Own selection{static_cast<const Bits*>(source.data), static_cast<Bits*>(call.results[0].data),
                        static_cast<int64_t*>(call.results[1].data), lines, result, flip};
    const bool few = result.size <= kFewKept;
    if (lines.size < (few ? kLengthPerKept * result.size : kLongestSorted) && lines.count() > kFewLines) {
      using Records = LaneRecords<typename Own::Entry>;
      const int64_t groups = (lines.count() + kLanes - 1) / kLanes, cost = kLanes * lines.size * kCostPerElement;
      call.parallel(groups, cost, Records::bytes(lines.size), [&](int64_t begin, int64_t end, char* memory) {
        for (int64_t group = begin; group < end; ++group) {
          selection.select_lanes(group * kLanes, Records{reinterpret_cast<uint64_t*>(memory)});
        }
      });
      return;
    }
    const int64_t scratch = selection.room() * static_cast<int64_t>(sizeof(typename Own::Entry));
    const int64_t cost = lines.size * kCostPerElement + result.size * kCostPerResult;
    call.parallel(lines.count(), cost, scratch, [&](int64_t begin, int64_t end, char* memory) {
      for (int64_t line = begin; line < end; ++line) {
        auto* candidates = reinterpret_cast<typename Own::Entry*>(memory);
        few ? selection.select_few(line, candidates) : selection.select_line(line, candidates);
      }
    });
  });
}

}  // namespace ral
