// Orders of calls that wait: by depth (ACROBAT, section 4.1), or from an agenda of what is ready (Neubig et al., On-the-fly Operation
// Batching in Dynamic Computation Graphs, section 3.2) where that takes fewer launches. Instances that have drifted apart, as loops of
// different lengths inside of a loop let them, have calls of one kind at many depths.
#include "core/agenda.h"

#include <algorithm>
#include <string>
#include <vector>

namespace ral {

namespace {

constexpr double kClose = 1.02;        // times the least cost: not worth a search for a better order
constexpr int32_t kBoundedKinds = 16;  // for more kinds than these the least cost is not computed

struct Order {
  std::vector<int64_t> calls, ends;  // batch i is calls[ends[i - 1], ends[i])
  double cost = 0;
};

Status misuse(const std::string& what) { return error(RAL_ERROR_INTERNAL, "ral_order_calls: " + what); }

Status check_calls(const ral_calls& calls) {
  for (int64_t i = 0; i < calls.call_count; ++i) {
    if (calls.kinds[i] < 0 || calls.kinds[i] >= calls.kind_count) return misuse("call " + std::to_string(i) + " is of no kind");
    if (calls.first_read[i] > calls.first_read[i + 1]) return misuse("call " + std::to_string(i) + " reads fewer calls than none");
    for (int64_t j = calls.first_read[i]; j < calls.first_read[i + 1]; ++j) {
      const int64_t read = calls.reads[j];
      if (read < 0 || read >= i || calls.depths[read] >= calls.depths[i] || calls.last[calls.kinds[read]])
        return misuse("call " + std::to_string(i) + " reads call " + std::to_string(read) + ", which does not run before it");
    }
  }
  return {};
}

// The numbers [0, slots.size()) in the order of their slots, below `end`; those of one slot ascend.
std::vector<int64_t> sorted_by(const std::vector<size_t>& slots, size_t end) {
  constexpr size_t kSparse = 16;  // slots to each number: from there on counting them takes longer than sorting
  std::vector<int64_t> order(slots.size());
  if (end / kSparse > slots.size()) {
    for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
    const auto before = [&](int64_t one, int64_t other) { return slots[static_cast<size_t>(one)] < slots[static_cast<size_t>(other)]; };
    std::stable_sort(order.begin(), order.end(), before);
    return order;
  }
  std::vector<int64_t> next(end + 1, 0);
  for (const size_t each : slots) ++next[each + 1];
  for (size_t i = 1; i < next.size(); ++i) next[i] += next[i - 1];
  for (size_t i = 0; i < slots.size(); ++i) order[static_cast<size_t>(next[slots[i]]++)] = static_cast<int64_t>(i);
  return order;
}

class Search {
 public:
  explicit Search(const ral_calls& calls) : calls_(calls), count_(static_cast<size_t>(calls.call_count)) {}

  // By depth, then by kind; those of kinds that nothing reads come last.
  Order by_depth() const {
    const int32_t behind = *std::max_element(calls_.depths, calls_.depths + count_) + 1;
    const int32_t first = *std::min_element(calls_.depths, calls_.depths + count_);
    const auto kinds = static_cast<size_t>(calls_.kind_count);
    std::vector<size_t> slot(count_);
    for (size_t i = 0; i < count_; ++i) {
      const int32_t kind = calls_.kinds[i], depth = calls_.last[kind] ? behind : calls_.depths[i];
      slot[i] = static_cast<size_t>(depth - first) * kinds + static_cast<size_t>(kind);
    }
    Order order;
    order.calls = sorted_by(slot, static_cast<size_t>(behind - first + 1) * kinds);
    for (size_t i = 0; i < count_; ++i) {
      const auto here = static_cast<size_t>(order.calls[i]);
      const bool ends = i + 1 == count_ || slot[here] != slot[static_cast<size_t>(order.calls[i + 1])];
      if (ends) end_batch(order, calls_.kinds[here], static_cast<int64_t>(i) + 1);
    }
    return order;
  }

  // What no order can be cheaper than: of each kind as many launches as the longest chain of such calls has, one for the last ones.
  double least_cost() const {
    if (calls_.kind_count > kBoundedKinds) return 0;
    const auto kinds = static_cast<size_t>(calls_.kind_count);
    std::vector<int32_t> chains(count_ * kinds, 0), longest(kinds, 0);
    for (size_t i = 0; i < count_; ++i) {
      int32_t* chain = &chains[i * kinds];
      for (int64_t j = calls_.first_read[i]; j < calls_.first_read[i + 1]; ++j) {
        const int32_t* read = &chains[static_cast<size_t>(calls_.reads[j]) * kinds];
        for (size_t kind = 0; kind < kinds; ++kind) chain[kind] = std::max(chain[kind], read[kind]);
      }
      const auto own = static_cast<size_t>(calls_.kinds[i]);
      longest[own] = std::max(longest[own], ++chain[own]);
    }
    double cost = 0;
    for (size_t kind = 0; kind < kinds; ++kind) cost += calls_.costs[kind] * longest[kind];
    return cost;
  }

  // most: the kind with the most calls that are ready comes first; else the one whose calls lie deepest in the past, by their mean depth.
  Order from_agenda(bool most) {
    if (first_reader_.empty()) find_readers();
    State state(static_cast<size_t>(calls_.kind_count), count_);
    for (size_t i = 0; i < count_; ++i) {
      const auto kind = static_cast<size_t>(calls_.kinds[i]);
      state.depths[kind] += calls_.depths[i];
      ++state.left[kind];
      state.waits[i] = calls_.first_read[i + 1] - calls_.first_read[i];
      if (state.waits[i] == 0) state.add(static_cast<int64_t>(i), kind);
    }
    Order order;
    order.calls.reserve(count_);
    for (const bool last : {false, true}) {
      for (int32_t kind = choose(state, last, most); kind >= 0; kind = choose(state, last, most)) run(kind, state, order);
    }
    return order;
  }

 private:
  struct State {
    State(size_t kinds, size_t count)
        : first(kinds, -1), last(kinds, -1), ready(kinds, 0), depths(kinds, 0), left(kinds, 0), next(count), waits(count) {}

    // A call of a kind that is ready, behind the others of the kind.
    void add(int64_t call, size_t kind) {
      (ready[kind]++ == 0 ? first[kind] : next[static_cast<size_t>(last[kind])]) = call;
      last[kind] = call;
    }

    std::vector<int64_t> first, last, ready;  // of each kind: the calls that are ready, and how many
    std::vector<int64_t> depths, left;        // of each kind: the sum of the depths of calls that have not run, and how many these are
    std::vector<int64_t> next;                // of each call that is ready: the next of its kind
    std::vector<int64_t> waits;               // of each call: how many that it reads have not run
  };

  void end_batch(Order& order, int32_t kind, int64_t end) const {
    order.ends.push_back(end);
    order.cost += calls_.costs[kind];
  }

  void find_readers() {
    first_reader_.assign(count_ + 1, 0);
    const int64_t begin = calls_.first_read[0], end = calls_.first_read[count_];
    for (int64_t j = begin; j < end; ++j) ++first_reader_[static_cast<size_t>(calls_.reads[j]) + 1];
    for (size_t i = 0; i < count_; ++i) first_reader_[i + 1] += first_reader_[i];
    readers_.resize(static_cast<size_t>(end - begin));
    std::vector<int64_t> next(first_reader_.begin(), first_reader_.end() - 1);
    for (size_t i = 0; i < count_; ++i) {
      for (int64_t j = calls_.first_read[i]; j < calls_.first_read[i + 1]; ++j)
        readers_[static_cast<size_t>(next[static_cast<size_t>(calls_.reads[j])]++)] = static_cast<int64_t>(i);
    }
  }

  // The kind to run next, of those that are `last` or of the others; -1 = none is ready.
  int32_t choose(const State& state, bool last, bool most) const {
    int32_t best = -1;
    double best_size = 0, best_depth = 0;
    for (int32_t kind = 0; kind < calls_.kind_count; ++kind) {
      const auto k = static_cast<size_t>(kind);
      if (state.ready[k] == 0 || (calls_.last[kind] != 0) != last) continue;
      const double size = most ? static_cast<double>(state.ready[k]) : 0;
      const double depth = static_cast<double>(state.depths[k]) / static_cast<double>(state.left[k]);
      if (best >= 0 && (size < best_size || (size == best_size && depth >= best_depth))) continue;
      best = kind, best_size = size, best_depth = depth;
    }
    return best;
  }

  void run(int32_t kind, State& state, Order& order) const {
    const auto k = static_cast<size_t>(kind);
    const int64_t count = state.ready[k];
    state.ready[k] = 0;
    for (int64_t i = 0, call = state.first[k]; i < count; ++i) {
      const int64_t after = state.next[static_cast<size_t>(call)];
      state.depths[k] -= calls_.depths[call];
      order.calls.push_back(call);
      for (int64_t j = first_reader_[static_cast<size_t>(call)]; j < first_reader_[static_cast<size_t>(call) + 1]; ++j) {
        const auto reader = static_cast<size_t>(readers_[static_cast<size_t>(j)]);
        if (--state.waits[reader] == 0) state.add(static_cast<int64_t>(reader), static_cast<size_t>(calls_.kinds[reader]));
      }
      call = after;
    }
    state.left[k] -= count;
    end_batch(order, kind, static_cast<int64_t>(order.calls.size()));
  }

  const ral_calls& calls_;
  size_t count_;
  std::vector<int64_t> first_reader_, readers_;
};

Order cheapest(Search& search) {
  Order best = search.by_depth();
  const double enough = kClose * search.least_cost();
  for (const bool most : {false, true}) {
    if (best.cost <= enough) break;
    Order other = search.from_agenda(most);
    if (other.cost < best.cost) best = std::move(other);
  }
  return best;
}

}  // namespace

Status order_calls(const ral_calls& calls, int32_t policy, int64_t* order, int64_t* ends, int64_t* batch_count) {
  *batch_count = 0;
  if (calls.call_count == 0) return {};
  if (Status status = check_calls(calls); !status.ok()) return status;
  Search search(calls);
  const Order found = policy == RAL_ORDER_DEPTH    ? search.by_depth()
                      : policy == RAL_ORDER_AGENDA ? search.from_agenda(false)
                      : policy == RAL_ORDER_MOST   ? search.from_agenda(true)
                                                   : cheapest(search);
  std::copy(found.calls.begin(), found.calls.end(), order);
  std::copy(found.ends.begin(), found.ends.end(), ends);
  *batch_count = static_cast<int64_t>(found.ends.size());
  return {};
}

}  // namespace ral
