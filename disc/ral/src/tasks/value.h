// Values of a skeleton: what is left of a model's Python when its tensor code has become blocks.
#pragma once

#include <cstdint>
#include <memory_resource>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ral::tasks {

enum class Tag : uint8_t {
  kUnset,   // a name that is not bound
  kNone,
  kBool,    // i
  kInt,     // i
  kFloat,   // f
  kText,    // i: number of a string; kOtherText: one that an instance holds, and the code does not have
  kRow,     // i: number of a row that a launch computes, or that is given
  kList,    // i: number of a list of the heap
  kTuple,   // i: the same, never changed
  kRange,   // i: number of a range of the heap
  kIter,    // i: number of an iterator of the heap
  kNode,    // i: number of a node of the structure
  kPart,    // i: position; aux: the slot of the structure whose list or tuple it is
  kObject,  // i: number of a constant object: a module, a function, a constant container
  kDict,    // i: number of a dict of the heap
};

inline constexpr int64_t kOtherText = -1;

struct Value {
  Tag tag = Tag::kUnset;
  int32_t aux = 0;
  union {
    int64_t i = 0;
    double f;
  };

  static Value none() { return {Tag::kNone, 0, {0}}; }
  static Value of(Tag tag, int64_t i, int32_t aux = 0) { return {tag, aux, {i}}; }
  static Value boolean(bool b) { return of(Tag::kBool, b); }
  static Value integer(int64_t i) { return of(Tag::kInt, i); }
  static Value real(double f) {
    Value value{Tag::kFloat, 0, {0}};
    value.f = f;
    return value;
  }
  bool is_number() const { return tag == Tag::kBool || tag == Tag::kInt || tag == Tag::kFloat; }
  bool is_integer() const { return tag == Tag::kBool || tag == Tag::kInt; }
  double as_real() const { return tag == Tag::kFloat ? f : static_cast<double>(i); }
  bool same(const Value& other) const { return tag == other.tag && aux == other.aux && i == other.i; }
};
static_assert(sizeof(Value) == 16);

const char* name_of(Tag tag);

// What went wrong in one instance: the name of Python's error and its words.
struct Failure {
  std::string kind;
  std::string words;
};

struct Range {
  int64_t start, stop, step;

  int64_t count() const {
    if (step > 0) return stop > start ? (stop - start - 1) / step + 1 : 0;
    return start > stop ? (start - stop - 1) / -step + 1 : 0;
  }
};

enum class Walk : uint8_t { kItems, kReversed, kEnumerate, kZip, kStrictZip };

using Items = std::pmr::vector<Value>;

// An iterator: over the items of `parts[0]`, or of other iterators.
struct Iterator {
  Walk walk;
  int64_t next = 0;
  Items parts;
};

// A dict that the model makes: keys in the order in which they came, and their places by what tells them apart.
struct Dict {
  Items keys, values;
  std::unordered_map<std::string, size_t> places;
};

}  // namespace ral::tasks
