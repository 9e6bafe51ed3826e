// Tests of the tree of traces that run under the sanitizers: `trace_tree_test`. Exits with 1 at the first failure.
#include "core/trace_tree.h"

#include <cmath>
#include <map>
#include <random>
#include <thread>

#include "testing.h"

namespace {

using ral::Call;
using ral::Number;
using ral::TraceTree;

Call call(std::vector<uint64_t> words, std::vector<Number> numbers = {}) { return {std::move(words), std::move(numbers)}; }

void test_calls_are_found_by_their_words() {
  TraceTree tree;
  const int32_t root = tree.add_root(), other_root = tree.add_root();
  CHECK(tree.follow(root, call({1})) == TraceTree::kNone);
  const int32_t first = tree.add(root, call({1, 2}), false);
  const int32_t second = tree.add(first, call({1, 2}), false);
  CHECK(tree.follow(root, call({1, 2})) == first);
  CHECK(tree.follow(first, call({1, 2})) == second);
  CHECK(tree.follow(root, call({1, 3})) == TraceTree::kNone);
  CHECK(tree.follow(root, call({1})) == TraceTree::kNone);
  CHECK(tree.follow(other_root, call({1, 2})) == TraceTree::kNone);
  CHECK(tree.before(second) == first && tree.before(first) == root && tree.before(root) == TraceTree::kNone);
}

void test_integers_become_general_from_two_on() {
  TraceTree tree;
  const int32_t root = tree.add_root();
  const auto with = [](int64_t number) { return call({7}, {Number::of(number)}); };
  const int32_t step = tree.add(root, with(5), false);
  CHECK(tree.follow(root, with(5)) == step && !tree.numbers(step)[0].any);
  CHECK(tree.follow(root, with(1)) == TraceTree::kNone);
  CHECK(tree.follow(root, with(-1)) == TraceTree::kNone);
  CHECK(tree.follow(root, with(6)) == step && tree.numbers(step)[0].any);
  CHECK(tree.follow(root, with(1)) == step);  // a step for any: what its programs guard is theirs
  const int32_t one = tree.add(tree.add_root(), with(1), false);
  CHECK(tree.follow(tree.before(one), with(2)) == TraceTree::kNone);
}

void test_reals_become_general_where_they_may() {
  TraceTree tree;
  const int32_t root = tree.add_root();
  const auto with = [](double number) { return call({7}, {Number::of(number)}); };
  const int32_t fixed = tree.add(root, with(0.5), false);
  CHECK(tree.follow(root, with(0.25)) == TraceTree::kNone);
  const int32_t behind = tree.add(fixed, with(0.5), true);
  CHECK(tree.follow(fixed, with(0.25)) == behind && tree.numbers(behind)[0].any);
  const int32_t nan = tree.add(behind, with(std::nan("")), false);  // the same bits are the same number
  CHECK(tree.follow(behind, with(std::nan(""))) == nan);
  const int32_t zero = tree.add(nan, with(0.0), false);
  CHECK(tree.follow(nan, with(0.0)) == zero && tree.follow(nan, with(-0.0)) == TraceTree::kNone);
}

void test_all_numbers_or_none_become_general() {
  TraceTree tree;
  const int32_t root = tree.add_root();
  const auto with = [](int64_t one, int64_t other) { return call({7}, {Number::of(one), Number::of(other)}); };
  const int32_t step = tree.add(root, with(5, 0), false);
  CHECK(tree.follow(root, with(6, 1)) == TraceTree::kNone);
  CHECK(!tree.numbers(step)[0].any);
  const int32_t second = tree.add(root, with(6, 1), false);
  CHECK(tree.follow(root, with(6, 1)) == second && tree.follow(root, with(5, 0)) == step);
  CHECK(tree.follow(root, with(9, 1)) == second && tree.follow(root, with(9, 0)) == step);
}

// A tree of its own in each thread: nothing is shared.
void test_random_trees_against_a_map(uint32_t seed) {
  std::mt19937 draw(seed);
  TraceTree tree;
  std::map<std::pair<int32_t, std::vector<uint64_t>>, int32_t> expected;
  const int32_t root = tree.add_root();
  int32_t at = root;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<uint64_t> words(1 + draw() % 3);
    for (uint64_t& each : words) each = draw() % 4;
    const auto known = expected.find({at, words});
    const int32_t found = tree.follow(at, call(words));
    CHECK(found == (known == expected.end() ? TraceTree::kNone : known->second));
    if (found == TraceTree::kNone) expected[{at, words}] = tree.add(at, call(words), false);
    at = draw() % 8 == 0 ? root : expected.at({at, words});
  }
  CHECK(tree.size() == expected.size() + 1);
}

}  // namespace

int main() {
  test_calls_are_found_by_their_words();
  test_integers_become_general_from_two_on();
  test_reals_become_general_where_they_may();
  test_all_numbers_or_none_become_general();
  std::vector<std::thread> threads;
  for (uint32_t seed = 0; seed < 4; ++seed) threads.emplace_back(test_random_trees_against_a_map, seed);
  for (std::thread& each : threads) each.join();
  std::puts("ok");
}
