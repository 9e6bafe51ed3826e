#include "core/trace_tree.h"

#include <cstring>
#include <algorithm>

namespace ral {

bool Number::same(const Number& other) const {
  if (kind == kInteger) return integer == other.integer;
  return std::memcmp(&real, &other.real, sizeof real) == 0;
}

int32_t TraceTree::add_root() {
  steps_.push_back({{}, kNone, false, kNone, {}});
  return static_cast<int32_t>(steps_.size()) - 1;
}

int32_t TraceTree::add(int32_t before, const Call& call, bool reals_vary) {
  const int32_t made = add_root();
  Step& step = steps_.back();
  step.call = call;
  step.before = before;
  step.reals_vary = reals_vary;
  steps_[static_cast<size_t>(before)].next.emplace(hash(call), made);
  return made;
}

int32_t TraceTree::follow(int32_t at, const Call& call) {
  Step& from = steps_[static_cast<size_t>(at)];
  if (from.last != kNone) {
    const Step& step = steps_[static_cast<size_t>(from.last)];
    if (step.call.words == call.words && takes(step, call)) return from.last;
  }
  const auto [begin, end] = from.next.equal_range(hash(call));
  const auto find = [&](auto suits) {
    for (auto each = begin; each != end; ++each) {
      Step& step = steps_[static_cast<size_t>(each->second)];
      if (step.call.words == call.words && suits(step, call)) return from.last = each->second;
    }
    return kNone;
  };
  const int32_t known = find(takes);
  return known != kNone ? known : find(admits);
}

uint64_t TraceTree::hash(const Call& call) {
  uint64_t hash = call.words.size();
  for (const uint64_t word : call.words) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

bool TraceTree::takes(const Step& step, const Call& call) {
  return std::equal(step.call.numbers.begin(), step.call.numbers.end(), call.numbers.begin(), call.numbers.end(),
                    [](const Number& mine, const Number& given) { return mine.any || mine.same(given); });
}

bool TraceTree::admits(Step& step, const Call& call) {
  std::vector<Number>& numbers = step.call.numbers;
  if (numbers.size() != call.numbers.size()) return false;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Number &mine = numbers[i], &given = call.numbers[i];
    if (mine.any || mine.same(given)) continue;
    if (mine.kind == Number::kReal ? !step.reals_vary : std::min(mine.integer, given.integer) < kFewestGeneral) return false;
  }
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i].any |= !numbers[i].same(call.numbers[i]);
  return true;
}

}  // namespace ral
