// Short lines, eight at once: records of line l are in lane l. Record i of all lines is one vector of words (`Narrow`), or two, the keys and the
// places (`Wide`).
#pragma once

#include <cstdint>

#include "library/records.h"

namespace ral {

constexpr int64_t kLanes = 8;

template <typename T>
using Beyond = bool (*)(const T* elements, int64_t count, T limit, bool above);

struct LaneFunctions {
  // Sorts the records of every line.
  void (*sort_narrow)(uint64_t* records, int64_t count);
  void (*sort_wide)(uint64_t* records, int64_t count);
  // Moves the `kept` first of every line, in their order, to the front; what is behind them is undefined. 0 < kept <= count.
  void (*select_narrow)(uint64_t* records, int64_t count, int64_t kept);
  void (*select_wide)(uint64_t* records, int64_t count, int64_t kept);
  // Whether any element is above the limit, or below it; NaN counts as both.
  Beyond<float> f32;
  Beyond<double> f64;
  Beyond<int32_t> i32;
  Beyond<int64_t> i64;
};

extern const LaneFunctions kLanesAvx2, kLanesAvx512;  // for a processor that has x86-64-v3, x86-64-v4

// The best that this processor has.
const LaneFunctions& lane_functions();

// `any_beyond` for elements of a type, null where there is none.
template <typename T>
Beyond<T> beyond() {
  const LaneFunctions& own = lane_functions();
  if constexpr (std::is_same_v<T, float>) return own.f32;
  if constexpr (std::is_same_v<T, double>) return own.f64;
  if constexpr (std::is_same_v<T, int32_t>) return own.i32;
  if constexpr (std::is_same_v<T, int64_t>) return own.i64;
  return nullptr;
}

// The records of eight lines of `count` elements in memory of `bytes(count)`.
template <typename Entry>
struct LaneRecords {
  static constexpr bool kNarrow = std::is_same_v<Entry, Narrow>;
  static constexpr int64_t kWords = kNarrow ? kLanes : 2 * kLanes;  // of all lines' record

  uint64_t* words;

  static int64_t bytes(int64_t count) { return count * kWords * static_cast<int64_t>(sizeof(uint64_t)); }

  void put(int64_t place, int64_t lane, const Entry& entry) const {
    words[place * kWords + lane] = entry.word;
    if constexpr (!kNarrow) words[place * kWords + kLanes + lane] = entry.at;
  }
  Entry get(int64_t place, int64_t lane) const {
    if constexpr (kNarrow) {
      return {words[place * kWords + lane]};
    } else {
      return {words[place * kWords + lane], words[place * kWords + kLanes + lane]};
    }
  }
  void sort(int64_t count) const {
    const LaneFunctions& own = lane_functions();
    (kNarrow ? own.sort_narrow : own.sort_wide)(words, count);
  }
  void select(int64_t count, int64_t kept) const {
    const LaneFunctions& own = lane_functions();
    (kNarrow ? own.select_narrow : own.select_wide)(words, count, kept);
  }
};

}  // namespace ral
