// The results of instances as arrays.
#include <algorithm>

#include "tasks/machine.h"

namespace ral::tasks {

// Raises where the value has another form than the slot, or could not be computed.
void Machine::check_result(int32_t number, const Value& value) {
  const ResultSlot& slot = code_.results[static_cast<size_t>(number)];
  const auto wrong = [&](const char* wanted) {
    raise("TypeError", std::string("the model returns ") + name_of(value.tag) + " where it returned " + wanted + " when it was saved");
  };
  switch (slot.kind) {
    case SlotKind::kTensor: {
      if (value.tag != Tag::kRow) wrong("a tensor");
      const Row& row = launches_.row(value.i);
      if (const std::string* why = launches_.failure(row)) raise("", *why);
      if (row.row_class != slot.row_class) raise("TypeError", "the model returns a tensor of another shape or dtype than when it was saved");
      return;
    }
    case SlotKind::kInteger:
      if (value.tag != Tag::kInt) wrong("an int");
      return;
    case SlotKind::kTruth:
      if (value.tag != Tag::kBool) wrong("a bool");
      return;
    case SlotKind::kReal:
      if (value.tag != Tag::kFloat) wrong("a float");
      return;
    case SlotKind::kNothing:
      if (value.tag != Tag::kNone) wrong("None");
      return;
    case SlotKind::kChoice:
      if (value.tag == Tag::kNone) return;
      if (value.tag != Tag::kText) wrong("a text");
      if (value.i == kOtherText || value.i >= static_cast<int64_t>(code_.texts.size())) raise("TypeError", "the model returns a text that it did not have when it was saved");
      return;
    default: break;
  }
  if (!slot.keys.empty()) {
    const bool dict_of = value.tag == Tag::kDict && dict(value).keys.size() == slot.keys.size();
    for (size_t i = 0; i < slot.keys.size(); ++i) {
      const bool held = dict_of && dict(value).keys[i].tag == Tag::kText && characters(dict(value).keys[i]) == slot.keys[i];
      if (!held) wrong("a dict of other keys");
      check_result(slot.parts[i], dict(value).values[i]);
    }
    return;
  }
  const bool good = value.tag == Tag::kList || value.tag == Tag::kTuple || value.tag == Tag::kPart ||
                    (value.tag == Tag::kObject && code_.objects[static_cast<size_t>(value.i)].like != Tag::kObject);
  if (!good) wrong(slot.kind == SlotKind::kItems ? "a list" : "a tuple");
  const int64_t count = length(value);
  if (slot.kind == SlotKind::kParts && count != static_cast<int64_t>(slot.parts.size()))
    raise("TypeError", "the model returns " + std::to_string(count) + " values where it returned " + std::to_string(slot.parts.size()) + " when it was saved");
  for (int64_t i = 0; i < count; ++i) check_result(slot.parts[slot.kind == SlotKind::kItems ? 0 : static_cast<size_t>(i)], item_at(value, i));
}

void Machine::put(std::vector<Column>& columns, int32_t number, const Value& value) {
  const ResultSlot& slot = code_.results[static_cast<size_t>(number)];
  Column& column = columns[static_cast<size_t>(number)];
  if (slot.kind == SlotKind::kTensor) {
    column.numbers.push_back(launches_.row(value.i).place);
  } else if (slot.kind == SlotKind::kReal) {
    column.reals.push_back(value.f);
  } else if (slot.kind == SlotKind::kInteger || slot.kind == SlotKind::kTruth) {
    column.numbers.push_back(value.i);
  } else if (slot.kind == SlotKind::kChoice) {
    column.numbers.push_back(value.tag == Tag::kNone ? -1 : value.i);
  } else if (!slot.keys.empty()) {
    for (size_t i = 0; i < slot.keys.size(); ++i) put(columns, slot.parts[i], dict(value).values[i]);
  } else if (slot.kind == SlotKind::kItems || slot.kind == SlotKind::kParts) {
    const int64_t count = length(value);
    if (slot.kind == SlotKind::kItems) column.offsets.push_back(column.offsets.back() + count);
    for (int64_t i = 0; i < count; ++i) put(columns, slot.parts[slot.kind == SlotKind::kItems ? 0 : static_cast<size_t>(i)], item_at(value, i));
  }
}

std::vector<Machine::Column> Machine::results() {
  std::vector<Column> columns(code_.results.size());
  for (size_t i = 0; i < columns.size(); ++i) {
    if (code_.results[i].kind == SlotKind::kItems) columns[i].offsets.push_back(0);
  }
  std::vector<uint8_t> bad(instances_.size(), 0);
  for (const Failed& each : failed) bad[static_cast<size_t>(each.instance)] = 1;
  for (size_t i = 0; i < instances_.size(); ++i) {
    if (bad[i]) continue;
    try {
      check_result(code_.result, instances_[i].result);
      put(columns, code_.result, instances_[i].result);
    } catch (const Failure& failure) {
      failed.push_back({static_cast<int64_t>(i), failure, -1, 0});
    }
  }
  return columns;
}

}  // namespace ral::tasks
