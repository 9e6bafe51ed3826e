// Elements with their places, as records that sort stably.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace ral {

// A key and the place of its element in the line: of up to 32 bits in one word, so that comparing words also keeps equal ones in order.
struct Narrow {
  uint64_t word;
  using Key = uint32_t;
  static Narrow make(Key key, uint32_t place) { return {uint64_t{key} << 32 | place}; }
  Key key() const { return static_cast<Key>(word >> 32); }
  uint32_t place() const { return static_cast<uint32_t>(word); }
  bool operator<(const Narrow& other) const { return word < other.word; }
};

struct Wide {
  uint64_t word;
  uint64_t at;
  using Key = uint64_t;
  static Wide make(Key key, uint32_t place) { return {key, place}; }
  Key key() const { return word; }
  uint32_t place() const { return static_cast<uint32_t>(at); }
  bool operator<(const Wide& other) const { return word != other.word ? word < other.word : at < other.at; }
};

template <typename Key>
using Record = std::conditional_t<(sizeof(Key) <= 4), Narrow, Wide>;

constexpr int64_t kLongestLine = int64_t{1} << 32;  // places of records have 32 bits

// Below this many records comparisons are faster than counting digits.
constexpr int64_t kFewRecords = 96;

// Sorts records whose places ascend, by keys of `key_bytes` bytes; `other` has room for as many. Returns where they then are: there, or at
// `records`. Digits of 8 bits, the lowest first, without those that are the same in all records.
template <typename R>
R* sort_records(R* records, R* other, int64_t count, int key_bytes) {
  if (count < kFewRecords) {
    std::sort(records, records + count);
    return records;
  }
  uint32_t counts[8][256];
  std::memset(counts, 0, static_cast<size_t>(key_bytes) * sizeof counts[0]);
  for (int64_t i = 0; i < count; ++i) {
    const auto key = records[i].key();
    for (int digit = 0; digit < key_bytes; ++digit) ++counts[digit][key >> (8 * digit) & 0xff];
  }
  for (int digit = 0; digit < key_bytes; ++digit) {
    uint32_t* own = counts[digit];
    if (own[records[0].key() >> (8 * digit) & 0xff] == count) continue;
    uint32_t total = 0;
    for (int value = 0; value < 256; ++value) {
      const uint32_t here = own[value];
      own[value] = total;
      total += here;
    }
    for (int64_t i = 0; i < count; ++i) other[own[records[i].key() >> (8 * digit) & 0xff]++] = records[i];
    std::swap(records, other);
  }
  return records;
}

}  // namespace ral
