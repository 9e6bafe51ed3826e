// Whether arrays are a structure: sizes agree, offsets ascend, nodes are nodes.
#include <algorithm>

#include "tasks/machine.h"

namespace ral::tasks {

namespace {

class Check {
 public:
  Check(const Code& code, const std::vector<Array>& arrays, const std::vector<std::string>& names, std::vector<int64_t>& domains, std::string& words)
      : code_(code), arrays_(arrays), names_(names), domains_(domains), words_(words) {}

  // The slots of a domain say how many positions it has; a list's offsets say how many its elements are.
  ral_status sizes() {
    domains_.assign(static_cast<size_t>(code_.domains), -1);
    for (size_t round = 0; round <= code_.slots.size(); ++round) {  // a slot may come before the list that it is the elements of
      bool changed = false;
      for (const Slot& slot : code_.slots) {
        if (slot.array < 0) continue;
        const Array& array = arrays_[static_cast<size_t>(slot.array)];
        int64_t count = array.length;
        if (slot.kind == SlotKind::kItems) {
          if (count == 0) return fail(RAL_ERROR_SHAPE, slot, "has no offsets: there is one more than there are lists");
          --count;
          const int64_t elements = static_cast<const int64_t*>(array.data)[count];
          if (elements < 0) return fail(RAL_ERROR_STRUCTURE, slot, "has offsets that do not ascend from 0");
          if (const ral_status status = agree(slot, slot.inner, elements, changed); status != RAL_OK) return status;
        }
        if (const ral_status status = agree(slot, slot.domain, count, changed); status != RAL_OK) return status;
      }
      if (!changed) break;
    }
    for (int64_t& each : domains_) each = std::max<int64_t>(each, 0);
    return RAL_OK;
  }

  ral_status numbers(bool& shared) {
    std::vector<uint8_t> reached(static_cast<size_t>(domains_[1]), 0);
    shared = false;
    for (const Slot& slot : code_.slots) {
      if (slot.array < 0) continue;
      const Array& array = arrays_[static_cast<size_t>(slot.array)];
      const auto* numbers = static_cast<const int64_t*>(array.data);
      if (slot.kind == SlotKind::kItems) {
        bool good = numbers[0] == 0;
        for (int64_t i = 1; i < array.length; ++i) good = good && numbers[i - 1] <= numbers[i];
        if (!good) return fail(RAL_ERROR_STRUCTURE, slot, "has offsets that do not ascend from 0");
      } else if (slot.kind == SlotKind::kChoice) {
        const auto count = static_cast<int64_t>(slot.choices.size());
        const int64_t lowest = slot.has_texts() ? kOtherChoice : -1;
        const auto* wrong = std::find_if(numbers, numbers + array.length, [&](int64_t each) { return each < lowest || each >= count; });
        if (wrong != numbers + array.length)
          return fail(RAL_ERROR_STRUCTURE, slot, "[" + std::to_string(wrong - numbers) + "]: " + std::to_string(*wrong) + " is no choice; there are " + std::to_string(count));
      } else if (slot.kind == SlotKind::kNode) {
        for (int64_t i = 0; i < array.length; ++i) {
          if (numbers[i] == -1) continue;
          if (numbers[i] < 0 || numbers[i] >= domains_[1])
            return fail(RAL_ERROR_NODE_INDEX, slot, "[" + std::to_string(i) + "]: " + std::to_string(numbers[i]) + " is no node; there are " + std::to_string(domains_[1]));
          uint8_t& seen = reached[static_cast<size_t>(numbers[i])];
          shared = shared || seen;
          seen = 1;
        }
      }
    }
    return RAL_OK;
  }

 private:
  ral_status agree(const Slot& slot, int32_t domain, int64_t count, bool& changed) {
    int64_t& known = domains_[static_cast<size_t>(domain)];
    if (known == count) return RAL_OK;
    if (known >= 0) return fail(RAL_ERROR_SHAPE, slot, "has " + std::to_string(count) + " elements where others have " + std::to_string(known));
    known = count;
    changed = true;
    return RAL_OK;
  }

  ral_status fail(ral_status status, const Slot& slot, const std::string& what) {
    words_ = "input '" + names_[static_cast<size_t>(slot.array)] + "' " + what;
    return status;
  }

  const Code& code_;
  const std::vector<Array>& arrays_;
  const std::vector<std::string>& names_;
  std::vector<int64_t>& domains_;
  std::string& words_;
};

// The nodes that position `position` of a slot leads to.
void add_nodes(const Code& code, const std::vector<Array>& arrays, const Slot& slot, int64_t position, std::vector<int64_t>& found) {
  if (slot.kind == SlotKind::kNode) {
    const int64_t node = static_cast<const int64_t*>(arrays[static_cast<size_t>(slot.array)].data)[position];
    if (node >= 0) found.push_back(node);
  } else if (slot.kind == SlotKind::kItems) {
    const auto* offsets = static_cast<const int64_t*>(arrays[static_cast<size_t>(slot.array)].data);
    const Slot& part = code.slots[static_cast<size_t>(slot.parts[0])];
    for (int64_t i = offsets[position]; i < offsets[position + 1]; ++i) add_nodes(code, arrays, part, i, found);
  } else if (slot.kind == SlotKind::kParts) {
    for (const int32_t part : slot.parts) add_nodes(code, arrays, code.slots[static_cast<size_t>(part)], position, found);
  }
}

}  // namespace

std::string find_cycle(const Code& code, const std::vector<Array>& arrays, int64_t nodes) {
  enum : uint8_t { kNew, kOpen, kDone };
  constexpr size_t kShown = 8;
  std::vector<uint8_t> state(static_cast<size_t>(nodes), kNew);
  struct Open {
    int64_t node;
    std::vector<int64_t> children;
  };
  std::vector<Open> path;
  const auto open = [&](int64_t node) {
    state[static_cast<size_t>(node)] = kOpen;
    path.push_back({node, {}});
    for (const Name& name : code.names) {
      if (name.slot >= 0) add_nodes(code, arrays, code.slots[static_cast<size_t>(name.slot)], node, path.back().children);
    }
  };
  for (int64_t start = 0; start < nodes; ++start) {
    if (state[static_cast<size_t>(start)] == kNew) open(start);
    while (!path.empty()) {
      Open& last = path.back();
      if (last.children.empty()) {
        state[static_cast<size_t>(last.node)] = kDone;
        path.pop_back();
        continue;
      }
      const int64_t child = last.children.back();
      last.children.pop_back();
      if (state[static_cast<size_t>(child)] == kNew) {
        open(child);
      } else if (state[static_cast<size_t>(child)] == kOpen) {
        auto at = std::find_if(path.begin(), path.end(), [&](const Open& each) { return each.node == child; });
        std::string text;
        for (size_t shown = 0; at != path.end() && shown < kShown; ++at, ++shown) text += std::to_string(at->node) + " -> ";
        return text + (at != path.end() ? "... -> " : "") + std::to_string(child);
      }
    }
  }
  return {};
}

ral_status check_arrays(const Code& code, const std::vector<Array>& arrays, const std::vector<std::string>& names, std::vector<int64_t>& domains,
                        bool& shared, std::string& words) {
  Check check(code, arrays, names, domains, words);
  if (const ral_status status = check.sizes(); status != RAL_OK) return status;
  return check.numbers(shared);
}

}  // namespace ral::tasks
