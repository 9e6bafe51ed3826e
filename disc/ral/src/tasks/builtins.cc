// Python's functions, and the methods of its lists, on values of a skeleton.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tasks/machine.h"

namespace ral::tasks {

// The order of what is beside a NaN depends on how it is sorted.
void Machine::refuse_unordered(const Value& key, int32_t depth) {
  if (depth > 64) raise("RecursionError", "containers nest too deep to sort");
  if (key.tag == Tag::kFloat && std::isnan(key.f)) raise("ValueError", "NaN is sorted");
  if (!is_sequence(key)) return;
  for (int64_t i = 0, count = length(key); i < count; ++i) refuse_unordered(item_at(key, i), depth + 1);
}

Value Machine::sorted_by(const Items& items, const Items& keys, bool reverse) {
  if (items.size() != keys.size()) raise("ValueError", "a key for each item that is sorted");
  if (keys.size() > 1) {
    for (const Value& each : keys) refuse_unordered(each);
  }
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return reverse ? compare(kLess, keys[b], keys[a]) : compare(kLess, keys[a], keys[b]); });
  const Value made = list(Tag::kList, items.size());
  for (size_t i = 0; i < order.size(); ++i) lists_.back()[i] = items[order[i]];
  return made;
}

// The numbers of lists of lists of some, and how long these are.
Items Machine::numbers_of(const Value& data, std::vector<int64_t>& dims) {
  constexpr size_t kNested = 64;
  Items level{data};
  while (!level.empty() && !level[0].is_number()) {
    Items parts;
    for (const Value& each : level) {
      if (dims.size() == kNested || (each.tag != Tag::kRange && !is_sequence(each))) raise("TypeError", std::string("a tensor of ") + name_of(each.tag));
      if (length(each) != length(level[0])) raise("ValueError", "a tensor of lists of different lengths");
      for (int64_t i = 0, count = length(each); i < count; ++i) parts.push_back(item_at(each, i));
    }
    dims.push_back(length(level[0]));
    level = std::move(parts);
  }
  if (!std::all_of(level.begin(), level.end(), [](const Value& each) { return each.is_number(); })) raise("TypeError", "a tensor of more than numbers");
  return level;
}

// What PyTorch makes of numbers, as a row beside those that instances have.
Value Machine::tensor_of(const Value& data, int64_t of_floats, int64_t dtype) {
  std::vector<int64_t> dims;
  const Items numbers = numbers_of(data, dims);
  const auto has = [&](Tag tag) { return std::any_of(numbers.begin(), numbers.end(), [&](const Value& each) { return each.tag == tag; }); };
  const bool floats = has(Tag::kFloat) || numbers.empty(), integers = has(Tag::kInt);
  if (dtype < 0) dtype = floats ? of_floats : int64_t{integers ? RAL_I64 : RAL_I1};
  if (dtype == RAL_I64 ? has(Tag::kFloat) : dtype == RAL_I1 ? floats || integers : dtype != RAL_F32 && dtype != RAL_F64)
    raise("TypeError", "a tensor of another dtype than its numbers have");
  const auto kind = std::find_if(code_.classes.begin(), code_.classes.end(), [&](const RowClass& each) { return each.dtype == dtype && each.dims == dims; });
  if (kind == code_.classes.end()) raise("NodeKindError", "a tensor of another shape than the model was made for");
  const auto place = static_cast<int32_t>(kind - code_.classes.begin());
  Table& table = tables_[static_cast<size_t>(place)];
  if (!table.reserve(table.used + 1)) raise("MemoryError", "no memory for a tensor");
  char* to = table.row(table.used);
  for (size_t i = 0; i < numbers.size(); ++i) {
    const Value& each = numbers[i];
    if (dtype == RAL_I1) {
      to[i] = each.i != 0;
    } else if (dtype == RAL_I64) {
      std::memcpy(to + i * sizeof(int64_t), &each.i, sizeof(int64_t));
    } else if (const double real = each.as_real(); dtype == RAL_F64) {
      std::memcpy(to + i * sizeof(double), &real, sizeof(double));
    } else {
      const auto single = static_cast<float>(real);
      std::memcpy(to + i * sizeof(float), &single, sizeof(float));
    }
  }
  return Value::of(Tag::kRow, launches_.add_made(place, table.used++));
}

Value Machine::builtin(int32_t which, const Items& given) {
  const auto sized = [&](size_t least, size_t most) {
    if (given.size() < least || given.size() > most) raise("TypeError", "a call with " + std::to_string(given.size()) + " arguments");
  };
  switch (which) {
    case kLen: sized(1, 1); return Value::integer(length(given[0]));
    case kRangeOf: {
      sized(1, 3);
      for (const Value& each : given) {
        if (!each.is_integer()) raise("TypeError", std::string("a range of ") + name_of(each.tag));
      }
      const Range range{given.size() > 1 ? given[0].i : 0, given.size() > 1 ? given[1].i : given[0].i, given.size() > 2 ? given[2].i : 1};
      if (range.step == 0) raise("ValueError", "range() arg 3 must not be zero");
      constexpr int64_t kFar = int64_t{1} << 61;
      for (const int64_t each : {range.start, range.stop, range.step}) {
        if (each > kFar || each < -kFar) raise("OverflowError", "a range of too large numbers");
      }
      ranges_.push_back(range);
      return Value::of(Tag::kRange, static_cast<int64_t>(ranges_.size()) - 1);
    }
    case kEnumerateOf: {
      sized(1, 2);
      if (given.size() > 1 && !given[1].is_integer()) raise("TypeError", "enumerate() from what is no integer");
      return iterate(Walk::kEnumerate, given.size() > 1 ? given[1].i : 0, std::initializer_list<Value>{iterator(given[0])});
    }
    case kZipOf:
    case kStrictZipOf: {
      Items parts;
      for (const Value& each : given) parts.push_back(iterator(each));
      return iterate(which == kZipOf ? Walk::kZip : Walk::kStrictZip, 0, parts);
    }
    case kReversedOf:
      sized(1, 1);
      if (given[0].tag == Tag::kIter || given[0].tag == Tag::kRow) raise("TypeError", std::string(name_of(given[0].tag)) + " is not reversible");
      return iterate(Walk::kReversed, length(given[0]) - 1, std::initializer_list<Value>{given[0]});
    case kListOf:
    case kTupleOf:
      sized(0, 1);
      return list(which == kListOf ? Tag::kList : Tag::kTuple, given.empty() ? Items{} : items_of(given[0]));
    case kIntOf:
      sized(1, 1);
      if (given[0].tag != Tag::kFloat) {
        if (!given[0].is_integer()) raise("TypeError", std::string("int() of ") + name_of(given[0].tag));
        return Value::integer(given[0].i);
      }
      if (!(std::abs(given[0].f) < 9.2e18)) raise("OverflowError", "int() of a number of more than 64 bits");
      return Value::integer(static_cast<int64_t>(given[0].f));
    case kFloatOf:
      sized(1, 1);
      if (!given[0].is_number()) raise("TypeError", std::string("float() of ") + name_of(given[0].tag));
      return Value::real(given[0].as_real());
    case kBoolOf: sized(1, 1); return Value::boolean(truth(given[0]));
    case kAbs:
      sized(1, 1);
      if (given[0].tag == Tag::kFloat) return Value::real(std::abs(given[0].f));
      if (!given[0].is_integer()) raise("TypeError", std::string("abs() of ") + name_of(given[0].tag));
      return given[0].i < 0 ? binary(kSubtract, Value::integer(0), given[0]) : Value::integer(given[0].i);
    case kMin:
    case kMax: {
      const Items items = given.size() == 1 ? items_of(given[0]) : given;
      if (items.empty()) raise("ValueError", "min() or max() of nothing");
      Value best = items[0];
      for (size_t i = 1; i < items.size(); ++i) {
        if (compare(which == kMin ? kLess : kGreater, items[i], best)) best = items[i];
      }
      return best;
    }
    case kSum: {
      sized(1, 2);
      Value total = given.size() > 1 ? given[1] : Value::integer(0);
      for (const Value& each : items_of(given[0])) total = binary(kAdd, total, each);
      return total;
    }
    case kAny:
    case kAll: {
      sized(1, 1);
      const Items items = items_of(given[0]);
      const auto holds = [&](const Value& each) { return truth(each); };
      return Value::boolean(which == kAny ? std::any_of(items.begin(), items.end(), holds) : std::all_of(items.begin(), items.end(), holds));
    }
    case kSortedBy:
      sized(3, 3);
      return sorted_by(items_of(given[0]), items_of(given[1]), truth(given[2]));
    case kMinBy:
    case kMaxBy: {
      sized(2, 2);
      const Items items = items_of(given[0]), keys = items_of(given[1]);
      if (items.empty() || items.size() != keys.size()) raise("ValueError", "min() or max() of nothing");
      size_t best = 0;
      for (size_t i = 1; i < keys.size(); ++i) {
        if (compare(which == kMinBy ? kLess : kGreater, keys[i], keys[best])) best = i;
      }
      return items[best];
    }
    case kError: {  // (name, words...): what `raise` raises
      std::string words;
      for (size_t i = 0; i < given.size(); ++i) words += (i == 0 ? "" : i == 1 ? ": " : ", ") + text(given[i]);
      return make_text(std::move(words));
    }
    case kTensorOf:  // (data, dtype of floats, dtype; -1: that of the data)
      sized(3, 3);
      if (!given[1].is_integer() || !given[2].is_integer()) raise("TypeError", "a tensor of no dtype");
      return tensor_of(given[0], given[1].i, given[2].i);
    default: raise("TypeError", "a function that there is not");
  }
}

Value Machine::method(int32_t which, const Value& value, const Items& given) {
  const Object* known = mapping(value);
  if (which == kGet && known && (given.size() == 1 || given.size() == 2)) {
    const Value* found = looked_up(*known, given[0]);
    return found ? *found : given.size() > 1 ? given[1] : Value::none();
  }
  if (value.tag == Tag::kDict && (which >= kKeys || which == kGet || which == kCopy)) {
    const size_t count = given.size();
    const bool asks = which == kGet || which == kSetDefault;
    if (asks ? count < 1 || count > 2 : count != 0) raise("TypeError", "a call with " + std::to_string(count) + " arguments");
    if (asks) {
      if (const Value* found = entry(value, given[0])) return *found;
      const Value otherwise = count > 1 ? given[1] : Value::none();
      if (which == kSetDefault) put_entry(value, given[0], otherwise);
      return otherwise;
    }
    if (which == kCopy) {
      dicts_.push_back(dict(value));
      return Value::of(Tag::kDict, static_cast<int64_t>(dicts_.size()) - 1);
    }
    const Value items = list(Tag::kList, which == kValues ? dict(value).values : dict(value).keys);
    if (which == kEntries) {
      const auto place = static_cast<size_t>(items.i);
      for (size_t i = 0; i < lists_[place].size(); ++i) {
        const Value pair = list(Tag::kTuple, std::initializer_list<Value>{dict(value).keys[i], dict(value).values[i]});
        lists_[place][i] = pair;
      }
    }
    return iterate(Walk::kItems, 0, std::initializer_list<Value>{items, value, Value::integer(length(value))});
  }
  if (Value found; which == kGet && is_like(value, Like::kMapping) && (given.size() == 1 || given.size() == 2))
    return find_key(value, given[0], found) ? found : given.size() > 1 ? given[1] : Value::none();
  if (value.tag != Tag::kList) {
    if (which == kCopy && value.tag == Tag::kPart) return list(Tag::kList, items_of(value));
    raise("AttributeError", std::string(name_of(value.tag)) + " is changed");
  }
  const auto sized = [&](size_t least, size_t most) {
    if (given.size() < least || given.size() > most) raise("TypeError", "a call with " + std::to_string(given.size()) + " arguments");
  };
  switch (which) {
    case kAppend: sized(1, 1); lists_[static_cast<size_t>(value.i)].push_back(given[0]); return Value::none();
    case kExtend: {
      sized(1, 1);
      const Items more = items_of(given[0]);
      Items& items = lists_[static_cast<size_t>(value.i)];
      items.insert(items.end(), more.begin(), more.end());
      return Value::none();
    }
    case kCopy: sized(0, 0); return list(Tag::kList, list_items(value));
    default: break;
  }
  Items& items = lists_[static_cast<size_t>(value.i)];
  const auto count = static_cast<int64_t>(items.size());
  switch (which) {
    case kPop: {
      sized(0, 1);
      if (!given.empty() && !given[0].is_integer()) raise("TypeError", "pop() of what is no integer");
      int64_t at = given.empty() ? -1 : given[0].i;
      at = at < 0 ? at + count : at;
      if (at < 0 || at >= count) raise("IndexError", count == 0 ? "pop from an empty list" : "pop index out of range");
      const Value taken = items[static_cast<size_t>(at)];
      items.erase(items.begin() + at);
      return taken;
    }
    case kInsert: {
      sized(2, 2);
      if (!given[0].is_integer()) raise("TypeError", "insert() at what is no integer");
      const int64_t at = std::clamp<int64_t>(given[0].i < 0 ? given[0].i + count : given[0].i, 0, count);
      items.insert(items.begin() + at, given[1]);
      return Value::none();
    }
    case kClear: sized(0, 0); items.clear(); return Value::none();
    case kReverse: sized(0, 0); std::reverse(items.begin(), items.end()); return Value::none();
    default: raise("TypeError", "a method that there is not");
  }
}

void Machine::set_item(const Value& value, const Value& index, const Value& item) {
  if (value.tag == Tag::kDict) return put_entry(value, index, item);
  if (value.tag != Tag::kList) raise("TypeError", std::string(name_of(value.tag)) + " is changed");
  if (!index.is_integer()) raise("TypeError", "an index that is " + std::string(name_of(index.tag)));
  Items& items = lists_[static_cast<size_t>(value.i)];
  const auto count = static_cast<int64_t>(items.size());
  const int64_t place = index.i < 0 ? index.i + count : index.i;
  if (place < 0 || place >= count) raise("IndexError", "index " + std::to_string(index.i) + " of " + std::to_string(count) + " items is out of range");
  items[static_cast<size_t>(place)] = item;
}

}  // namespace ral::tasks
