#include "python/instance_results.h"

#include <nanobind/ndarray.h>

#include <algorithm>
#include <cstring>

namespace ral::python {

using tasks::Tag;
using tasks::Value;

ResultObjects::ResultObjects(const tasks::Machine& machine, const tasks::Code& code, const std::vector<tasks::Table>& tables, const FlatInstances& flat,
                             const nb::list& objects, nb::object fetch)
    : machine_(machine), code_(code), tables_(tables), flat_(flat), objects_(objects), fetch_(std::move(fetch)), places_(code.classes.size()),
      fetched_(code.classes.size()), constants_(code.classes.size(), 0), fetched_place_(machine.launches().row_count(), -1),
      handed_(machine.launches().row_count(), false) {
  for (const auto& [row_class, bytes] : code.rows) ++constants_[static_cast<size_t>(row_class)];
}

bool ResultObjects::take(const Value& value, int depth) {
  constexpr int kNested = 64;
  switch (value.tag) {
    case Tag::kNone:
    case Tag::kBool:
    case Tag::kInt:
    case Tag::kFloat:
    case Tag::kNode:
    case Tag::kObject: return true;
    case Tag::kText: return value.i != tasks::kOtherText;
    case Tag::kRow: return take_row(value.i);
    case Tag::kList:
    case Tag::kTuple: {
      const tasks::Items& items = machine_.list_items(value);
      return depth < kNested && std::all_of(items.begin(), items.end(), [&](const Value& each) { return take(each, depth + 1); });
    }
    case Tag::kDict: {
      const tasks::Dict& dict = machine_.dict(value);
      const auto each = [&](const Value& part) { return take(part, depth + 1); };
      return depth < kNested && std::all_of(dict.keys.begin(), dict.keys.end(), each) && std::all_of(dict.values.begin(), dict.values.end(), each);
    }
    default: return false;  // ranges, iterators, and lists that instances hold
  }
}

bool ResultObjects::take_row(int64_t number) {
  const tasks::Row& row = machine_.row(number);
  if (machine_.failure(row)) return false;
  const auto row_class = static_cast<size_t>(row.row_class);
  if (row.launch == tasks::kGiven && row.place >= constants_[row_class]) return true;
  int64_t& place = fetched_place_[static_cast<size_t>(number)];
  if (place >= 0) return true;
  place = static_cast<int64_t>(places_[row_class].size());
  places_[row_class].push_back(row.place);
  return true;
}

void ResultObjects::fetch() {
  for (size_t i = 0; i < places_.size(); ++i) {
    const size_t count = places_[i].size(), bytes = static_cast<size_t>(code_.classes[i].bytes);
    if (count == 0) continue;
    auto* data = new uint8_t[std::max<size_t>(count * bytes, 1)];
    const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<uint8_t*>(pointer); });
    for (size_t j = 0; j < count; ++j) std::memcpy(data + j * bytes, tables_[i].row(places_[i][j]), bytes);
    fetched_[i] = nb::cast<nb::list>(fetch_(i, nb::ndarray<nb::numpy, uint8_t>(data, {count, bytes}, owner)));
  }
}

// The tensor of an instance itself.
nb::object ResultObjects::given(const tasks::Row& row) const {
  for (size_t i = 0; i < code_.slots.size(); ++i) {
    const tasks::Slot& slot = code_.slots[i];
    const int64_t place = row.place - machine_.slot_row(i);
    if (slot.kind == tasks::SlotKind::kTensor && slot.row_class == row.row_class && place >= 0 && place < static_cast<int64_t>(nb::len(flat_.columns[i].tensors)))
      return flat_.columns[i].tensors[static_cast<size_t>(place)];
  }
  throw nb::value_error("a row of no tensor");
}

nb::object ResultObjects::tensor(int64_t number) {
  const auto place = static_cast<size_t>(number);
  if (fetched_place_[place] < 0) return given(machine_.row(number));
  const nb::object tensor = fetched_[static_cast<size_t>(machine_.row(number).row_class)][static_cast<size_t>(fetched_place_[place])];
  if (handed_[place]) return tensor.attr("clone")();  // each result has its own
  handed_[place] = true;
  return tensor;
}

nb::object ResultObjects::make(const Value& value) {
  switch (value.tag) {
    case Tag::kBool: return nb::bool_(value.i != 0);
    case Tag::kInt: return nb::int_(value.i);
    case Tag::kFloat: return nb::float_(value.f);
    case Tag::kText: return nb::str(machine_.words(value).data(), machine_.words(value).size());
    case Tag::kNode: return flat_.nodes[static_cast<size_t>(value.i)];
    case Tag::kObject: return objects_[static_cast<size_t>(value.i)];
    case Tag::kRow: return tensor(value.i);
    case Tag::kDict: {
      if (const auto found = dicts_.find(value.i); found != dicts_.end()) return found->second;
      const tasks::Dict& dict = machine_.dict(value);
      nb::dict made;
      for (size_t i = 0; i < dict.keys.size(); ++i) made[make(dict.keys[i])] = make(dict.values[i]);
      return dicts_[value.i] = made;
    }
    case Tag::kList:
    case Tag::kTuple: break;
    default: return nb::none();
  }
  if (const auto found = lists_.find(value.i); found != lists_.end()) return found->second;
  const tasks::Items& items = machine_.list_items(value);
  nb::list list;
  for (const Value& each : items) list.append(make(each));
  return lists_[value.i] = value.tag == Tag::kTuple ? nb::object(nb::tuple(list)) : nb::object(list);
}

}  // namespace ral::python
