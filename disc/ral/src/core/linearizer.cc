// Dynamic batching before any tensor work: nodes of a structure by height, one batch for each height and kind, so that a batch is a range
// and children lie before their parents (CORTEX, sections 3.1, 4.2 and appendix B; rows count from the leaves up, not down).
#include <algorithm>
#include <string>
#include <vector>

#include "core/schedule.h"

namespace ral {

namespace {

Status refuse(const std::string& what) { return error(RAL_ERROR_STRUCTURE, what); }

class Linearizer {
 public:
  explicit Linearizer(const ral_structure& structure)
      : structure_(structure), count_(static_cast<size_t>(structure.node_count)), height_(count_, 0) {}

  Status check_kinds() const {
    for (size_t i = 0; i < count_; ++i) {
      const int64_t kind = structure_.kinds[i];
      if (kind < 0 || kind >= structure_.kind_count)
        return refuse(node(i) + " is of kind " + std::to_string(kind) + "; there are " + std::to_string(structure_.kind_count));
    }
    return {};
  }

  // Which fields hold a child follows from the kind.
  Status check_children() const {
    for (int32_t field = 0; field < structure_.field_count; ++field) {
      const int64_t* children = structure_.children[field];
      for (size_t i = 0; i < count_; ++i) {
        const bool wanted = has(structure_.kinds[i], field);
        const int64_t child = children[i];
        if (wanted ? child >= 0 && child < structure_.node_count : child == -1) continue;
        const std::string where = node(i) + ", " + structure_.field_names[field] + ": ";
        if (!wanted) return refuse(where + "a node of this kind has no child there, but it is " + std::to_string(child));
        if (child == -1) return refuse(where + "a node of this kind needs a child there");
        return refuse(where + std::to_string(child) + " is no node; there are " + std::to_string(count_));
      }
    }
    return {};
  }

  // The height of each node: 0 without children, else one more than the highest child.
  Status find_heights() {
    if (forward() || backward()) return {};
    return search();
  }

  const std::vector<int32_t>& heights() const { return height_; }
  bool has(int64_t kind, int32_t field) const { return structure_.present[kind * structure_.field_count + field] != 0; }

 private:
  static std::string node(size_t i) { return "node " + std::to_string(i); }

  int32_t above_children(size_t i) const {
    int32_t height = -1;
    for (int32_t field = 0; field < structure_.field_count; ++field) {
      const int64_t child = structure_.children[field][i];
      if (child >= 0) height = std::max(height, height_[static_cast<size_t>(child)]);
    }
    return height + 1;
  }

  template <typename Before>
  bool ordered(Before before) const {
    for (int32_t field = 0; field < structure_.field_count; ++field) {
      const int64_t* children = structure_.children[field];
      bool good = true;
      for (size_t i = 0; i < count_; ++i) good &= children[i] < 0 || before(children[i], static_cast<int64_t>(i));
      if (!good) return false;
    }
    return true;
  }

  // Children come first, as a walk that leaves a node behind its children writes them.
  bool forward() {
    if (!ordered([](int64_t child, int64_t parent) { return child < parent; })) return false;
    for (size_t i = 0; i < count_; ++i) height_[i] = above_children(i);
    return true;
  }

  // Parents come first.
  bool backward() {
    if (!ordered([](int64_t child, int64_t parent) { return child > parent; })) return false;
    for (size_t i = count_; i-- > 0;) height_[i] = above_children(i);
    return true;
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
          height_[static_cast<size_t>(at)] = above_children(static_cast<size_t>(at));
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
    return refuse("a cycle: nodes " + text + std::to_string(end));
  }

  const ral_structure& structure_;
  size_t count_;
  std::vector<int32_t> height_;
};

// Where the rows of a batch begin, for each result of its block.
class Rows {
 public:
  Rows(size_t batches, size_t results) : results_(results), first_(batches * results) {}
  int64_t* of(size_t batch) { return &first_[batch * results_]; }

 private:
  size_t results_;
  std::vector<int64_t> first_;
};

}  // namespace

Status linearize(const ral_structure& structure, const ral_block* blocks, int32_t block_count, int64_t* used, int32_t table_count,
                 ral_batch* batches, int64_t* batch_count, int64_t* indices, int64_t* rows) {
  *batch_count = 0;
  Linearizer found(structure);
  if (Status status = found.check_kinds(); !status.ok()) return status;
  if (Status status = found.check_children(); !status.ok()) return status;
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
  // Batches by height, then by kind.
  const std::vector<int32_t>& height = found.heights();
  const int32_t highest = count == 0 ? -1 : *std::max_element(height.begin(), height.end());
  std::vector<int64_t> slot(static_cast<size_t>(highest + 1) * kinds, 0);
  for (size_t i = 0; i < count; ++i) ++slot[static_cast<size_t>(height[i]) * kinds + static_cast<size_t>(structure.kinds[i])];
  size_t made = 0;
  int64_t offset = 0;
  Rows first(count == 0 ? 0 : static_cast<size_t>(std::count_if(slot.begin(), slot.end(), [](int64_t n) { return n > 0; })), results);
  for (size_t place = 0; place < slot.size(); ++place) {
    const int64_t nodes = slot[place];
    if (nodes == 0) continue;
    const ral_node_kind& kind = structure.kinds_of[place % kinds];
    batches[made] = {kind.block, nodes, offset};
    offset += nodes * (kind.row_count + kind.value_count);
    for (size_t j = 0; j < results; ++j) {
      int64_t& next = used[blocks[kind.block].results[j]];
      first.of(made)[j] = next;
      next += nodes;
    }
    slot[place] = static_cast<int64_t>(made++);
  }
  *batch_count = static_cast<int64_t>(made);
  // Rows in the order of the nodes within a batch; then what each node reads.
  std::vector<int64_t> filled(made, 0);
  std::vector<int64_t> place(count);
  for (size_t i = 0; i < count; ++i) {
    const auto batch = static_cast<size_t>(slot[static_cast<size_t>(height[i]) * kinds + static_cast<size_t>(structure.kinds[i])]);
    place[i] = filled[batch]++;
    const int64_t* start = first.of(batch);
    for (size_t j = 0; j < results; ++j) rows[i * results + j] = start[j] + place[i];
  }
  for (size_t i = 0; i < count; ++i) {
    const ral_node_kind& kind = structure.kinds_of[structure.kinds[i]];
    const ral_batch& batch = batches[slot[static_cast<size_t>(height[i]) * kinds + static_cast<size_t>(structure.kinds[i])]];
    int64_t* to = indices + batch.offset + place[i];
    for (int32_t j = 0; j < kind.row_count; ++j, to += batch.count) {
      const auto child = static_cast<size_t>(structure.children[kind.rows[j].field][i]);
      *to = rows[child * results + static_cast<size_t>(kind.rows[j].result)];
    }
    for (int32_t j = 0; j < kind.value_count; ++j, to += batch.count) *to = structure.columns[kind.columns[j]][i];
  }
  return {};
}

}  // namespace ral
