// Dynamic batching before any tensor work: nodes of a structure by height, one batch for each height and kind, so that a batch is a range
// and children lie before their parents (CORTEX, sections 3.1, 4.2 and appendix B; rows count from the leaves up, not down).
#include <algorithm>
#include <string>
#include <vector>

#include "core/schedule.h"

namespace ral {

namespace {

class Linearizer {
 public:
  explicit Linearizer(const ral_structure& structure)
      : structure_(structure), count_(static_cast<size_t>(structure.node_count)), height_(count_ + 1, -1) {}

  // Each node is of a kind, and has those children that its kind has. Without branches that depend on nodes: of random trees half of them
  // would be guessed wrong.
  Status check() {
    const auto kinds = static_cast<uint64_t>(structure_.kind_count);
    uint64_t bad = 0;
    for (size_t i = 0; i < count_; ++i) bad |= static_cast<uint64_t>(structure_.kinds[i]) >= kinds;
    if (bad) return wrong_kind();
    for (int32_t field = 0; field < structure_.field_count; ++field) {
      const int64_t* children = structure_.children[field];
      const uint64_t most[] = {1, static_cast<uint64_t>(count_)};
      uint64_t later = 0, earlier = 0;
      for (size_t i = 0; i < count_; ++i) {
        const int64_t child = children[i];
        const size_t wanted = has(structure_.kinds[i], field);
        bad |= static_cast<uint64_t>(child) + 1 - wanted >= most[wanted];  // 0 <= child < count, or child == -1
        later |= child >= static_cast<int64_t>(i);
        earlier |= (child <= static_cast<int64_t>(i)) & (child >= 0);
      }
      forward_ &= !later;
      backward_ &= !earlier;
    }
    return bad ? wrong_child() : Status{};
  }

  // The height of each node: 0 without children, else one more than the highest child.
  Status find_heights() {
    if (forward_) {
      for (size_t i = 0; i < count_; ++i) height_[i + 1] = above_children(i);
      return {};
    }
    if (backward_) {
      for (size_t i = count_; i-- > 0;) height_[i + 1] = above_children(i);
      return {};
    }
    return search();
  }

  const int32_t* heights() const { return height_.data() + 1; }
  bool has(int64_t kind, int32_t field) const { return structure_.present[kind * structure_.field_count + field] != 0; }

 private:
  static std::string node(size_t i) { return "node " + std::to_string(i); }

  Status wrong_kind() const {
    size_t i = 0;
    while (structure_.kinds[i] >= 0 && structure_.kinds[i] < structure_.kind_count) ++i;
    const std::string what = node(i) + " is of kind " + std::to_string(structure_.kinds[i]);
    return error(RAL_ERROR_NODE_KIND, what + "; there are " + std::to_string(structure_.kind_count));
  }

  // Which fields hold a child follows from the kind.
  Status wrong_child() const {
    for (int32_t field = 0; field < structure_.field_count; ++field) {
      for (size_t i = 0; i < count_; ++i) {
        const int64_t child = structure_.children[field][i];
        const bool wanted = has(structure_.kinds[i], field);
        if (wanted ? child >= 0 && child < structure_.node_count : child == -1) continue;
        const std::string where = node(i) + ", " + structure_.field_names[field] + ": ";
        if (!wanted)
          return error(RAL_ERROR_NODE_KIND, where + "a node of this kind has no child there, but it is " + std::to_string(child));
        if (child == -1) return error(RAL_ERROR_MISSING, where + "a node of this kind needs a child there");
        return error(RAL_ERROR_NODE_INDEX, where + std::to_string(child) + " is no node; there are " + std::to_string(count_));
      }
    }
    return error(RAL_ERROR_INTERNAL, "ral_linearize: a structure that changes");
  }

  int32_t above_children(size_t i) const {
    int32_t height = -1;
    for (int32_t field = 0; field < structure_.field_count; ++field)
      height = std::max(height, height_[static_cast<size_t>(structure_.children[field][i] + 1)]);
    return height + 1;
  }

  // Any order: with a stack of its own, since structures are as deep as their makers like. A node that is met while it is on the path
  // from the root is its own descendant.
  Status search() {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> state(count_, kNew);
    std::vector<std::pair<int64_t, int32_t>> path;  // (node, next field)
    for (size_t root = 0; root < count_; ++root) {
      if (state[root] != kNew) continue;
      path.assign(1, {static_cast<int64_t>(root), 0});
      state[root] = kOpen;
      while (!path.empty()) {
        auto& [at, field] = path.back();
        if (field == structure_.field_count) {
          height_[static_cast<size_t>(at) + 1] = above_children(static_cast<size_t>(at));
          state[static_cast<size_t>(at)] = kDone;
          path.pop_back();
          continue;
        }
        const int64_t child = structure_.children[field++][at];
        if (child < 0 || state[static_cast<size_t>(child)] == kDone) continue;
        if (state[static_cast<size_t>(child)] == kOpen) return cycle(path, child);
        state[static_cast<size_t>(child)] = kOpen;
        path.push_back({child, 0});
      }
    }
    return {};
  }

  static Status cycle(const std::vector<std::pair<int64_t, int32_t>>& path, int64_t end) {
    constexpr size_t kShown = 8;
    std::string text;
    size_t shown = 0;
    auto at = std::find_if(path.begin(), path.end(), [&](const auto& each) { return each.first == end; });
    for (; at != path.end() && shown < kShown; ++at, ++shown) text += std::to_string(at->first) + " -> ";
    if (at != path.end()) text += "... -> ";
    return error(RAL_ERROR_CYCLE, "a cycle: nodes " + text + std::to_string(end));
  }

  const ral_structure& structure_;
  size_t count_;
  std::vector<int32_t> height_;              // of node i at i + 1; -1 of no node at 0
  bool forward_ = true, backward_ = true;  // children come before their parents, as a walk that leaves a node behind its children writes
};                                         // them; parents come first

}  // namespace

Status linearize(const ral_structure& structure, const ral_block* blocks, int32_t block_count, int64_t* used, int32_t table_count,
                 ral_batch* batches, int64_t* batch_count, int64_t* indices, int64_t* rows) {
  *batch_count = 0;
  Linearizer found(structure);
  if (Status status = found.check(); !status.ok()) return status;
  if (Status status = found.find_heights(); !status.ok()) return status;
  const auto count = static_cast<size_t>(structure.node_count);
  const auto kinds = static_cast<size_t>(structure.kind_count), results = static_cast<size_t>(structure.result_count);
  for (size_t kind = 0; kind < kinds; ++kind) {
    const ral_node_kind& each = structure.kinds_of[kind];
    if (each.block < 0 || each.block >= block_count || blocks[each.block].result_count != structure.result_count)
      return error(RAL_ERROR_INTERNAL, "ral_linearize: a kind without a block, or one whose results are others'");
    for (int32_t j = 0; j < structure.result_count; ++j) {
      if (blocks[each.block].results[j] < 0 || blocks[each.block].results[j] >= table_count)
        return error(RAL_ERROR_INTERNAL, "ral_linearize: a result without a table");
    }
    for (int32_t j = 0; j < each.row_count; ++j) {
      const ral_node_row& row = each.rows[j];
      if (row.field < 0 || row.field >= structure.field_count || row.result < 0 || row.result >= structure.result_count ||
          !found.has(static_cast<int64_t>(kind), row.field))
        return error(RAL_ERROR_INTERNAL, "ral_linearize: a kind reads a child that it does not have");
    }
  }
  // Batches by height, then by kind: the batch of each node, and its place there.
  const int32_t* height = found.heights();
  const int32_t highest = count == 0 ? -1 : *std::max_element(height, height + count);
  std::vector<int64_t> nodes_of(static_cast<size_t>(highest + 1) * kinds, 0);
  std::vector<size_t> slot(count);
  for (size_t i = 0; i < count; ++i) ++nodes_of[slot[i] = static_cast<size_t>(height[i]) * kinds + static_cast<size_t>(structure.kinds[i])];
  std::vector<int64_t> next(nodes_of.size());
  for (size_t place = 1; place < next.size(); ++place) next[place] = next[place - 1] + nodes_of[place - 1];
  std::vector<int64_t> sorted(count);
  for (size_t i = 0; i < count; ++i) sorted[static_cast<size_t>(next[slot[i]]++)] = static_cast<int64_t>(i);
  // Batch by batch, so that the rows of children are known: where its results lie, and what its nodes read.
  size_t made = 0;
  int64_t offset = 0;
  const int64_t* own = sorted.data();
  for (size_t place = 0; place < nodes_of.size(); ++place) {
    const int64_t nodes = nodes_of[place];
    if (nodes == 0) continue;
    const ral_node_kind& kind = structure.kinds_of[place % kinds];
    batches[made++] = {kind.block, nodes, offset};
    for (size_t j = 0; j < results; ++j) {
      int64_t& free = used[blocks[kind.block].results[j]];
      for (int64_t k = 0; k < nodes; ++k) rows[static_cast<size_t>(own[k]) * results + j] = free + k;
      free += nodes;
    }
    int64_t* to = indices + offset;
    for (int32_t j = 0; j < kind.row_count; ++j, to += nodes) {
      const int64_t* children = structure.children[kind.rows[j].field];
      const int64_t* results_of = rows + kind.rows[j].result;
      for (int64_t k = 0; k < nodes; ++k) to[k] = results_of[children[own[k]] * structure.result_count];
    }
    for (int32_t j = 0; j < kind.value_count; ++j, to += nodes) {
      const int64_t* column = structure.columns[kind.columns[j]];
      for (int64_t k = 0; k < nodes; ++k) to[k] = column[own[k]];
    }
    offset += nodes * (kind.row_count + kind.value_count);
    own += nodes;
  }
  *batch_count = static_cast<int64_t>(made);
  return {};
}

}  // namespace ral
