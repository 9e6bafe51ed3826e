// Traces of recorded calls as a tree: programs that begin alike share their first calls. A call is a sequence of words, which says all that
// makes it another call, and numbers, which may come to differ.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace ral {

// A Python number among the arguments of a call.
struct Number {
  enum Kind : uint8_t { kInteger, kReal };

  Kind kind;
  bool any = false;  // in a tree: it has not always been the same
  union {
    int64_t integer;
    double real;
  };

  static Number of(int64_t value) {
    Number number{kInteger, false, {}};
    number.integer = value;
    return number;
  }
  static Number of(double value) {
    Number number{kReal, false, {}};
    number.real = value;
    return number;
  }
  bool same(const Number& other) const;  // bit by bit; kinds are in the words
};

struct Call {
  std::vector<uint64_t> words;
  std::vector<Number> numbers;

  void clear() {
    words.clear();
    numbers.clear();
  }
};

class TraceTree {
 public:
  static constexpr int32_t kNone = -1;
  static constexpr int64_t kFewestGeneral = 2;  // integers below stay what they are: PyTorch decides by 0 and 1, and -1 has a meaning

  // Where traces begin.
  int32_t add_root();

  // A new call behind another one. reals_vary: whether reals among its numbers may come to differ.
  int32_t add(int32_t before, const Call& call, bool reals_vary);

  // The call that comes next, kNone if it is not known. A known call whose numbers may come to differ, and do, is for these from now on.
  int32_t follow(int32_t at, const Call& call);

  int32_t before(int32_t step) const { return steps_[static_cast<size_t>(step)].before; }
  const std::vector<Number>& numbers(int32_t step) const { return steps_[static_cast<size_t>(step)].call.numbers; }
  // The roots among them.
  size_t size() const { return steps_.size(); }

 private:
  struct Step {
    Call call;
    int32_t before;
    bool reals_vary;
    int32_t last = kNone;  // that came next
    std::unordered_multimap<uint64_t, int32_t> next;
  };

  static uint64_t hash(const Call& call);
  static bool takes(const Step& step, const Call& call);
  static bool admits(Step& step, const Call& call);

  std::deque<Step> steps_;
};

}  // namespace ral
