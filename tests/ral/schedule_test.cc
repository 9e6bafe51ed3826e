// Tests of ordering and linearizing that run under the sanitizers: `schedule_test`. Exits with 1 at the first failure.
#include <algorithm>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "ral.h"
#include "testing.h"

namespace {

using Numbers = std::vector<int64_t>;

// --- orders of calls ------------------------------------------------------------------------------------------------------------

struct Calls {
  std::vector<int32_t> kinds, depths;
  Numbers first_read = {0}, reads;
  std::vector<double> costs;
  std::vector<uint8_t> last;

  int64_t add(int32_t kind, const Numbers& read) {
    int32_t depth = 1;
    for (const int64_t each : read) depth = std::max(depth, depths[static_cast<size_t>(each)] + 1);
    kinds.push_back(kind);
    depths.push_back(depth);
    reads.insert(reads.end(), read.begin(), read.end());
    first_read.push_back(static_cast<int64_t>(reads.size()));
    return static_cast<int64_t>(kinds.size()) - 1;
  }
  ral_calls view() const {
    return {static_cast<int64_t>(kinds.size()), kinds.data(), depths.data(), first_read.data(), reads.data(), costs.data(), last.data(),
            static_cast<int32_t>(costs.size())};
  }
};

// What the batches cost. They hold every call once, each behind what it reads, and only calls of one kind.
double checked_cost(const Calls& calls, int32_t policy) {
  const size_t count = calls.kinds.size();
  Numbers order(count), ends(count), batch_of(count, -1);
  int64_t batches = 0;
  const ral_calls view = calls.view();
  CHECK(ral_order_calls(&view, policy, order.data(), ends.data(), &batches) == RAL_OK);
  double cost = 0;
  int64_t at = 0;
  for (int64_t i = 0; i < batches; ++i) {
    CHECK(at < ends[static_cast<size_t>(i)]);
    const int32_t kind = calls.kinds[static_cast<size_t>(order[static_cast<size_t>(at)])];
    cost += calls.costs[static_cast<size_t>(kind)];
    for (; at < ends[static_cast<size_t>(i)]; ++at) {
      const auto call = static_cast<size_t>(order[static_cast<size_t>(at)]);
      CHECK(calls.kinds[call] == kind);
      CHECK(batch_of[call] == -1);
      batch_of[call] = i;
      for (int64_t j = calls.first_read[call]; j < calls.first_read[call + 1]; ++j) {
        const int64_t before = batch_of[static_cast<size_t>(calls.reads[static_cast<size_t>(j)])];
        CHECK(before >= 0 && before < i);
      }
    }
  }
  CHECK(at == static_cast<int64_t>(count));
  return cost;
}

void check_orders(const Calls& calls) {
  const double by_depth = checked_cost(calls, RAL_ORDER_DEPTH);
  const double agenda = checked_cost(calls, RAL_ORDER_AGENDA), most = checked_cost(calls, RAL_ORDER_MOST);
  const double least = std::min({by_depth, agenda, most});
  CHECK(checked_cost(calls, RAL_ORDER_CHEAPEST) <= 1.02 * least + 1e-9);
}

void random_orders(unsigned seed) {
  std::mt19937 draw(seed);
  Calls calls;
  const auto kinds = static_cast<int32_t>(draw() % 20 + 1);  // more than those for which a bound is computed, too
  for (int32_t i = 0; i < kinds; ++i) {
    calls.costs.push_back(1.0 + draw() % 30);
    calls.last.push_back(i > 0 && draw() % 4 == 0);
  }
  const size_t count = draw() % 400;
  Numbers readable;
  for (size_t i = 0; i < count; ++i) {
    Numbers read;
    for (size_t j = draw() % 4; j > 0 && !readable.empty(); --j) {
      const size_t near = std::min<size_t>(readable.size(), 12);
      read.push_back(readable[readable.size() - 1 - draw() % near]);
    }
    const auto kind = static_cast<int32_t>(draw() % static_cast<unsigned>(kinds));
    const int64_t made = calls.add(kind, read);
    if (!calls.last[static_cast<size_t>(kind)]) readable.push_back(made);
  }
  check_orders(calls);
}

// Loops of different lengths inside of a loop: by depth, the outer calls of the instances never meet.
void drifting_loops() {
  Calls calls;
  calls.costs = {10, 1};
  calls.last = {0, 0};
  std::mt19937 draw(0);
  for (int instance = 0; instance < 8; ++instance) {
    int64_t state = calls.add(0, {});
    for (int outer = 0; outer < 20; ++outer) {
      for (unsigned inner = 5 + draw() % 10; inner > 0; --inner) state = calls.add(1, {state});
      state = calls.add(0, {state});
    }
  }
  check_orders(calls);
  CHECK(checked_cost(calls, RAL_ORDER_CHEAPEST) < 0.7 * checked_cost(calls, RAL_ORDER_DEPTH));
}

void refused_calls() {
  Calls calls;
  calls.costs = {1, 1};
  calls.last = {0, 1};
  calls.add(0, {});
  calls.add(1, {0});
  Numbers order(2), ends(2);
  int64_t batches = 0;
  const auto status = [&] {
    const ral_calls view = calls.view();
    return ral_order_calls(&view, RAL_ORDER_CHEAPEST, order.data(), ends.data(), &batches);
  };
  CHECK(status() == RAL_OK && batches == 2);
  calls.reads[0] = 1;  // itself
  CHECK(status() == RAL_ERROR_INTERNAL);
  calls.reads[0] = -1;
  CHECK(status() == RAL_ERROR_INTERNAL);
  calls.reads[0] = 0;
  calls.last = {1, 1};
  CHECK(status() == RAL_ERROR_INTERNAL);
  calls.last = {0, 1};
  calls.kinds[1] = 2;
  CHECK(status() == RAL_ERROR_INTERNAL);
}

// --- structures -----------------------------------------------------------------------------------------------------------------

struct Graph {
  Numbers kinds, left, right, words;
};

// Nodes in any order; those of kind 1 have two children, which several may share.
Graph random_graph(unsigned seed) {
  std::mt19937 draw(seed);
  const size_t count = draw() % 200 + 1;
  Numbers name(count);
  std::iota(name.begin(), name.end(), 0);
  if (seed % 3 == 0) std::shuffle(name.begin(), name.end(), draw);
  if (seed % 3 == 1) std::reverse(name.begin(), name.end());
  Graph graph{Numbers(count), Numbers(count, -1), Numbers(count, -1), Numbers(count)};
  for (size_t i = 0; i < count; ++i) {
    const auto node = static_cast<size_t>(name[i]);
    graph.words[node] = static_cast<int64_t>(draw() % 100);
    graph.kinds[node] = i > 0 && draw() % 2;
    if (!graph.kinds[node]) continue;
    graph.left[node] = name[i - 1 - draw() % std::min<size_t>(i, 9)];
    graph.right[node] = name[draw() % i];
  }
  return graph;
}

// Blocks that are not run: 0 reads a word, 1 reads two rows.
struct Linear {
  const int32_t table = 0;
  const int32_t rows[2] = {0, 0};
  const ral_block blocks[2] = {{nullptr, nullptr, nullptr, &table, 0, 0, 1, 1}, {nullptr, &table, rows, &table, 1, 2, 0, 1}};
  const ral_node_row reads[2] = {{0, 0}, {1, 0}};
  const int32_t column = 0;
  const ral_node_kind kinds[2] = {{0, nullptr, &column, 0, 1}, {1, reads, nullptr, 2, 0}};
  const uint8_t present[4] = {0, 0, 1, 1};
  const char* const names[2] = {"left", "right"};
  std::vector<ral_batch> batches;
  Numbers indices, places;
  int64_t used = 0, batch_count = 0;

  ral_status run(const Graph& graph) {
    const size_t count = graph.kinds.size();
    const int64_t* children[2] = {graph.left.data(), graph.right.data()};
    const int64_t* columns[1] = {graph.words.data()};
    const ral_structure structure{static_cast<int64_t>(count), graph.kinds.data(), children, columns, kinds, present, names, 2, 2, 1};
    batches.resize(count);
    indices.assign(2 * count, -1);
    places.assign(count, -1);
    used = 0;
    return ral_linearize(&structure, blocks, 2, &used, 1, batches.data(), &batch_count, indices.data(), places.data());
  }
};

void random_structures(unsigned seed) {
  const Graph graph = random_graph(seed);
  const size_t count = graph.kinds.size();
  Linear linear;
  CHECK(linear.run(graph) == RAL_OK);
  CHECK(linear.used == static_cast<int64_t>(count));
  Numbers node_at(count, -1);
  for (size_t node = 0; node < count; ++node) node_at[static_cast<size_t>(linear.places[node])] = static_cast<int64_t>(node);
  int64_t row = 0;
  for (int64_t i = 0; i < linear.batch_count; ++i) {
    const ral_batch& batch = linear.batches[static_cast<size_t>(i)];
    for (int64_t j = 0; j < batch.count; ++j) {
      const auto node = static_cast<size_t>(node_at[static_cast<size_t>(row + j)]);
      const int64_t* numbers = linear.indices.data() + batch.offset + j;
      CHECK(graph.kinds[node] == batch.block);
      if (batch.block == 0) {
        CHECK(numbers[0] == graph.words[node]);
      } else {
        CHECK(numbers[0] == linear.places[static_cast<size_t>(graph.left[node])] && numbers[0] < row);
        CHECK(numbers[batch.count] == linear.places[static_cast<size_t>(graph.right[node])] && numbers[batch.count] < row);
      }
    }
    row += batch.count;
  }
  CHECK(row == static_cast<int64_t>(count));
}

void refused_structures() {
  Linear linear;
  CHECK(linear.run({{0, 0, 1}, {-1, -1, 0}, {-1, -1, 1}, {5, 6, 0}}) == RAL_OK);
  CHECK(linear.run({{0, 0, 1}, {-1, -1, 2}, {-1, -1, 1}, {5, 6, 0}}) == RAL_ERROR_CYCLE);  // its own child
  CHECK(linear.run({{1, 0, 1}, {2, -1, 0}, {1, -1, 1}, {5, 6, 0}}) == RAL_ERROR_CYCLE);    // of two
  CHECK(linear.run({{0, 0, 1}, {-1, -1, 3}, {-1, -1, 1}, {5, 6, 0}}) == RAL_ERROR_NODE_INDEX);
  CHECK(linear.run({{0, 0, 1}, {-1, -1, -1}, {-1, -1, 1}, {5, 6, 0}}) == RAL_ERROR_MISSING);
  CHECK(linear.run({{0, 0, 1}, {1, -1, 0}, {-1, -1, 1}, {5, 6, 0}}) == RAL_ERROR_NODE_KIND);
  CHECK(linear.run({{0, 0, 2}, {-1, -1, 0}, {-1, -1, 1}, {5, 6, 0}}) == RAL_ERROR_NODE_KIND);
}

}  // namespace

int main() {
  std::vector<std::thread> threads;
  for (unsigned part = 0; part < 3; ++part) {
    threads.emplace_back([part] {
      for (unsigned seed = part; seed < 300; seed += 3) {
        random_orders(seed);
        random_structures(seed);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  drifting_loops();
  refused_calls();
  refused_structures();
  return 0;
}
