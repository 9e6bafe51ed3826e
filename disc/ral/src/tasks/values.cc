// What Python's operators and containers do, on values of a skeleton. Integers have 64 bits: what does not fit is an error.
#include <algorithm>
#include <cmath>

#include "tasks/machine.h"

namespace ral::tasks {

const char* name_of(Tag tag) {
  static constexpr const char* kNames[] = {"nothing", "None", "a bool", "an int", "a float", "a str", "a tensor", "a list", "a tuple", "a range", "an iterator", "a node", "a list", "a constant", "a dict"};
  return kNames[static_cast<size_t>(tag)];
}

void Machine::raise(const char* kind, std::string words) { throw Failure{kind, std::move(words)}; }

std::string Machine::text(const Value& value) const {
  if (value.tag == Tag::kText) return value.i == kOtherText ? "a text" : characters(value);
  if (value.tag == Tag::kObject) return code_.objects[static_cast<size_t>(value.i)].text;
  if (value.is_integer()) return std::to_string(value.i);
  return name_of(value.tag);
}

// Raises for a text of which nothing is known but that the code has none like it.
const std::string& Machine::characters(const Value& value) const {
  if (value.i == kOtherText) raise("NodeKindError", "what it does with a text depends on that, and the model was not made for this text");
  const auto own = static_cast<size_t>(value.i);
  return own < code_.texts.size() ? code_.texts[own] : texts_[own - code_.texts.size()];
}

// A text of its own number, that of the code's where it has the same: tensor code and dicts know texts by these.
Value Machine::make_text(std::string made) {
  const auto known = code_.text_numbers.find(made);
  if (known != code_.text_numbers.end()) return Value::of(Tag::kText, known->second);
  texts_.push_back(std::move(made));
  return Value::of(Tag::kText, static_cast<int64_t>(code_.texts.size() + texts_.size()) - 1);
}

bool Machine::equal_texts(const Value& left, const Value& right) const {
  const auto of_code = [&](const Value& each) { return each.i >= 0 && each.i < static_cast<int64_t>(code_.texts.size()); };
  if ((left.i == kOtherText && of_code(right)) || (right.i == kOtherText && of_code(left))) return false;
  return characters(left) == characters(right);
}

bool Machine::truth(const Value& value) const {
  switch (value.tag) {
    case Tag::kNone: return false;
    case Tag::kBool:
    case Tag::kInt: return value.i != 0;
    case Tag::kFloat: return value.f != 0;
    case Tag::kText: return value.i == kOtherText || !characters(value).empty();
    case Tag::kNode:
      if (what(value).like == Like::kTuple) return !what(value).parts.empty();
      if (what(value).like == Like::kMapping && std::none_of(code_.names.begin(), code_.names.end(), [&](const Name& each) { return holds(each, value); }))
        raise("TypeError", "whether a dict is empty, of which no known key is there");
      return true;
    case Tag::kIter: return true;
    case Tag::kObject:
      if (!code_.objects[static_cast<size_t>(value.i)].sequence && !mapping(value)) return true;
      break;
    case Tag::kRow:
    case Tag::kUnset: raise("TypeError", std::string("whether ") + name_of(value.tag) + " is true");
    default: break;
  }
  return length(value) != 0;
}

int64_t Machine::length(const Value& value) const {
  switch (value.tag) {
    case Tag::kList:
    case Tag::kTuple: return static_cast<int64_t>(lists_[static_cast<size_t>(value.i)].size());
    case Tag::kRange: return ranges_[static_cast<size_t>(value.i)].count();
    case Tag::kDict: return static_cast<int64_t>(dict(value).keys.size());
    case Tag::kText: {
      const std::string& utf8 = characters(value);
      return std::count_if(utf8.begin(), utf8.end(), [](char each) { return (each & 0xC0) != 0x80; });
    }
    case Tag::kPart: {
      const Slot& slot = code_.slots[static_cast<size_t>(value.aux)];
      if (slot.kind == SlotKind::kParts) return static_cast<int64_t>(slot.parts.size());
      const auto* offsets = static_cast<const int64_t*>(arrays_[static_cast<size_t>(slot.array)].data);
      return offsets[value.i + 1] - offsets[value.i];
    }
    case Tag::kNode:
      if (what(value).like == Like::kTuple) return static_cast<int64_t>(what(value).parts.size());
      break;
    case Tag::kRow: {
      const RowClass& row_class = code_.classes[static_cast<size_t>(launches_.row(value.i).row_class)];
      if (row_class.dims.empty()) raise("TypeError", "len() of a tensor without dims");
      return row_class.dims[0];
    }
    case Tag::kObject: {
      const Object& object = code_.objects[static_cast<size_t>(value.i)];
      if (object.sequence || object.mapping) return static_cast<int64_t>(object.items.size());
      break;
    }
    default: break;
  }
  raise("TypeError", std::string(name_of(value.tag)) + " has no length");
}

Value Machine::slot_value(int32_t number, int64_t position) {
  const Slot& slot = code_.slots[static_cast<size_t>(number)];
  const void* data = slot.array >= 0 ? arrays_[static_cast<size_t>(slot.array)].data : nullptr;
  switch (slot.kind) {
    case SlotKind::kInteger: return Value::integer(static_cast<const int64_t*>(data)[position]);
    case SlotKind::kTruth: return Value::boolean(static_cast<const uint8_t*>(data)[position] != 0);
    case SlotKind::kReal: return Value::real(static_cast<const double*>(data)[position]);
    case SlotKind::kNode:
    case SlotKind::kOptional: {
      const int64_t found = static_cast<const int64_t*>(data)[position];
      if (found < 0 && (slot.kind == SlotKind::kNode || found == -1)) return Value::none();
      return Value::of(slot.kind == SlotKind::kNode ? Tag::kNode : Tag::kInt, found);
    }
    case SlotKind::kItems:
    case SlotKind::kParts: return Value::of(Tag::kPart, position, number);
    case SlotKind::kTensor: return Value::of(Tag::kRow, launches_.add_given(slot.row_class, slot_rows_[static_cast<size_t>(number)] + position));
    case SlotKind::kChoice: {
      const int64_t found = static_cast<const int64_t*>(data)[position];
      if (found >= 0) return slot.choices[static_cast<size_t>(found)];
      if (found == kOtherChoice) return Value::of(Tag::kText, kOtherText);
      break;
    }
    case SlotKind::kNothing: break;
  }
  return Value::none();
}

// Part `place` of a container, which has as many.
Value Machine::item_at(const Value& value, int64_t place) {
  switch (value.tag) {
    case Tag::kList:
    case Tag::kTuple: return lists_[static_cast<size_t>(value.i)][static_cast<size_t>(place)];
    case Tag::kRange: {
      const Range& range = ranges_[static_cast<size_t>(value.i)];
      return Value::integer(range.start + place * range.step);
    }
    case Tag::kPart: {
      const Slot& slot = code_.slots[static_cast<size_t>(value.aux)];
      if (slot.kind == SlotKind::kParts) return slot_value(slot.parts[static_cast<size_t>(place)], value.i);
      return slot_value(slot.parts[0], static_cast<const int64_t*>(arrays_[static_cast<size_t>(slot.array)].data)[value.i] + place);
    }
    case Tag::kNode:
      if (what(value).like == Like::kTuple) return slot_value(what(value).parts[static_cast<size_t>(place)], value.i);
      break;
    case Tag::kObject:
      if (mapping(value)) break;
      return code_.objects[static_cast<size_t>(value.i)].items[static_cast<size_t>(place)];
    default: break;
  }
  raise("TypeError", std::string(name_of(value.tag)) + " has no items");
}

// The dict that a value is; null for others.
const Object* Machine::mapping(const Value& value) const {
  const Object* object = value.tag == Tag::kObject ? &code_.objects[static_cast<size_t>(value.i)] : nullptr;
  return object && object->mapping ? object : nullptr;
}

// The value of a key; null where there is none. All keys that are texts are texts of the code.
const Value* Machine::looked_up(const Object& mapping, const Value& key) const {
  const auto found = [&](const auto& places, const auto& wanted) {
    const auto at = places.find(wanted);
    return at == places.end() ? nullptr : &mapping.items[at->second];
  };
  switch (key.tag) {
    case Tag::kText: return key.i == kOtherText ? nullptr : found(mapping.texts, characters(key));
    case Tag::kBool:
    case Tag::kInt: return found(mapping.integers, key.i);
    case Tag::kNone: return nullptr;
    case Tag::kObject:
      if (code_.objects[static_cast<size_t>(key.i)].like == Tag::kObject) return found(mapping.objects, key.i);
      break;
    default: break;
  }
  raise("TypeError", std::string("a dict is asked for ") + name_of(key.tag));
}

Value Machine::item(const Value& value, const Value& index) {
  if (const Object* dict = mapping(value)) {
    if (const Value* found = looked_up(*dict, index)) return *found;
    raise("KeyError", index.tag == Tag::kText && index.i == kOtherText ? "a text that is none of the dict's keys" : text(index));
  }
  if (value.tag == Tag::kDict) {
    if (const Value* found = entry(value, index)) return *found;
    raise("KeyError", text(index));
  }
  if (is_like(value, Like::kMapping)) {
    Value found;
    if (find_key(value, index, found)) return found;
    raise("KeyError", text(index));
  }
  if (!index.is_integer()) raise("TypeError", "an index that is " + std::string(name_of(index.tag)));
  if (value.tag == Tag::kRow || value.tag == Tag::kText || value.tag == Tag::kIter)
    raise("TypeError", std::string(name_of(value.tag)) + " has no items");
  const int64_t count = length(value), place = index.i < 0 ? index.i + count : index.i;
  if (place < 0 || place >= count) raise("IndexError", "index " + std::to_string(index.i) + " of " + std::to_string(count) + " items is out of range");
  return item_at(value, place);
}

Value Machine::slice(const Value& value, const Value& low, const Value& high, const Value& by) {
  const auto number = [&](const Value& bound, int64_t otherwise) {
    if (bound.tag == Tag::kNone) return otherwise;
    if (!bound.is_integer()) raise("TypeError", "a slice with " + std::string(name_of(bound.tag)));
    return bound.i;
  };
  const int64_t count = length(value), step = number(by, 1);
  if (step == 0) raise("ValueError", "slice step cannot be zero");
  const auto bounded = [&](int64_t at) {
    if (at < 0) at = std::max<int64_t>(at + count, step < 0 ? -1 : 0);
    return std::min(at, step < 0 ? count - 1 : count);
  };
  const Range range{low.tag == Tag::kNone ? (step < 0 ? count - 1 : 0) : bounded(number(low, 0)),
                    high.tag == Tag::kNone ? (step < 0 ? -1 : count) : bounded(number(high, 0)), step};
  const bool tuple = value.tag == Tag::kTuple || value.tag == Tag::kNode || (value.tag == Tag::kPart && code_.slots[static_cast<size_t>(value.aux)].kind == SlotKind::kParts) ||
                     (value.tag == Tag::kObject && code_.objects[static_cast<size_t>(value.i)].like == Tag::kTuple);
  const Value made = list(tuple ? Tag::kTuple : Tag::kList, static_cast<size_t>(range.count()));
  Items& items = lists_.back();
  for (size_t i = 0; i < items.size(); ++i) items[i] = item_at(value, range.start + static_cast<int64_t>(i) * step);
  return made;
}

int64_t Machine::class_of(const Value& node) const {
  if (code_.kind_slot < 0) return 0;
  const auto array = static_cast<size_t>(code_.slots[static_cast<size_t>(code_.kind_slot)].array);
  return static_cast<const int64_t*>(arrays_[array].data)[node.i];
}

const NodeClass& Machine::what(const Value& node) const {
  static const NodeClass kNothingMore;
  const int64_t kind = class_of(node);
  return kind >= 0 && kind < static_cast<int64_t>(code_.node_classes.size()) ? code_.node_classes[static_cast<size_t>(kind)] : kNothingMore;
}

// Whether a node holds an attribute, or a key.
bool Machine::holds(const Name& name, const Value& node) const {
  if (name.slot < 0 || !among(class_of(node), name.slot_classes)) return false;
  return name.presence < 0 || static_cast<const uint8_t*>(arrays_[static_cast<size_t>(code_.slots[static_cast<size_t>(name.presence)].array)].data)[node.i] != 0;
}

// What tells a key of a dict from others, as Python's `==` does. Raises for keys of which values do not tell.
std::string Machine::key_of(const Value& key, int32_t depth) {
  const auto bits = [](char kind, const void* data) { return std::string(1, kind).append(static_cast<const char*>(data), sizeof(int64_t)); };
  switch (key.tag) {
    case Tag::kNone: return "n";
    case Tag::kText: return "t" + std::to_string(characters(key).size()) + ":" + characters(key);
    case Tag::kBool:
    case Tag::kInt: return bits('i', &key.i);
    case Tag::kFloat:
      if (key.f == std::floor(key.f) && std::abs(key.f) < 9e15) {
        const auto whole = static_cast<int64_t>(key.f);
        return bits('i', &whole);
      }
      if (std::isfinite(key.f) && std::abs(key.f) < 9e15) return bits('f', &key.f);
      break;
    case Tag::kObject:
      if (code_.objects[static_cast<size_t>(key.i)].like == Tag::kObject && !mapping(key)) return bits('o', &key.i);
      break;
    case Tag::kNode:
      if (what(key).equality == Equality::kIdentity) return bits('d', &key.i);
      break;
    case Tag::kTuple: {
      if (depth > 64) break;
      std::string whole = "(";
      for (const Value& each : list_items(key)) whole += key_of(each, depth + 1);
      return whole + ")";
    }
    default: break;
  }
  raise("TypeError", std::string("a key of a dict that is ") + name_of(key.tag));
}

Value* Machine::entry(const Value& value, const Value& key) {
  Dict& own = dicts_[static_cast<size_t>(value.i)];
  const auto at = own.places.find(key_of(key));
  return at == own.places.end() ? nullptr : &own.values[at->second];
}

void Machine::put_entry(const Value& value, const Value& key, const Value& item) {
  Dict& own = dicts_[static_cast<size_t>(value.i)];
  const auto [at, fresh] = own.places.try_emplace(key_of(key), own.keys.size());
  if (!fresh) {
    own.values[at->second] = item;
    return;
  }
  own.keys.push_back(key);
  own.values.push_back(item);
}

// The value of a dict's key, where that is there. Raises for a key of which it is not known whether dicts have it.
bool Machine::find_key(const Value& node, const Value& key, Value& found) {
  const auto at = key.tag == Tag::kText ? code_.name_numbers.find(characters(key)) : code_.name_numbers.end();
  const Name* name = at == code_.name_numbers.end() ? nullptr : &code_.names[static_cast<size_t>(at->second)];
  if (!name || name->slot < 0 || !among(class_of(node), name->slot_classes))
    raise("NodeKindError", "a dict is asked for " + (key.tag == Tag::kText ? "'" + text(key) + "'" : text(key)) + ", which is no key that the model was made for");
  if (!holds(*name, node)) return false;
  found = slot_value(name->slot, node.i);
  return true;
}

bool Machine::has(const Value& value, int32_t number) const {
  const Name& name = code_.names[static_cast<size_t>(number)];
  if (value.tag == Tag::kObject) {
    const auto& attributes = code_.objects[static_cast<size_t>(value.i)].attributes;
    const auto found = attributes.find(number);
    if (found != attributes.end() && found->second.tag == Tag::kUnset) raise("TypeError", "whether " + text(value) + " has the attribute '" + name.text + "'");
    return found != attributes.end();
  }
  if (value.tag == Tag::kNone) return false;
  if (value.tag != Tag::kNode) raise("TypeError", "whether " + std::string(name_of(value.tag)) + " has the attribute '" + name.text + "'");
  if (what(value).like == Like::kMapping) raise("TypeError", "whether a dict has an attribute");
  const int64_t kind = class_of(value);
  if (function_of(name.getters, kind) >= 0) raise("TypeError", "whether a property finds something");
  return function_of(name.methods, kind) >= 0 || holds(name, value);
}

// getter: the property's function, where it has to run.
Value Machine::field(const Value& value, int32_t number, int32_t& getter) {
  const Name& name = code_.names[static_cast<size_t>(number)];
  if (value.tag == Tag::kNode) {
    const bool attributes = what(value).like != Like::kMapping;
    if (attributes && holds(name, value)) return slot_value(name.slot, value.i);
    if (getter = attributes ? function_of(name.getters, class_of(value)) : -1; getter >= 0) return {};
  } else if (value.tag == Tag::kObject) {
    const auto& attributes = code_.objects[static_cast<size_t>(value.i)].attributes;
    const auto found = attributes.find(number);
    if (found != attributes.end() && found->second.tag != Tag::kUnset) return found->second;
  }
  raise("AttributeError", (value.tag == Tag::kNone ? "None" : text(value)) + " has no attribute '" + name.text + "'");
}

// A number as a float that is the same number.
double Machine::exact(const Value& value) {
  constexpr int64_t kExact = int64_t{1} << 53;
  if (value.tag != Tag::kFloat && (value.i > kExact || value.i < -kExact)) raise("OverflowError", "an integer of more than 53 bits beside a float");
  return value.as_real();
}

Value Machine::binary(int32_t op, const Value& left, const Value& right) {
  if (!left.is_number() || !right.is_number()) {
    if (op == kAdd && left.tag == right.tag && left.tag == Tag::kText) return make_text(characters(left) + characters(right));
    const auto sequence = [&](const Value& each) { return each.tag == Tag::kList || each.tag == Tag::kTuple || each.tag == Tag::kPart || each.tag == Tag::kObject; };
    if (op == kAdd && sequence(left) && sequence(right)) {
      Items items = items_of(left);
      const Items more = items_of(right);
      items.insert(items.end(), more.begin(), more.end());
      return list(left.tag == Tag::kTuple ? Tag::kTuple : Tag::kList, items);
    }
    const Value& whole = left.is_integer() ? right : left;
    const Value& times = left.is_integer() ? left : right;
    if (op == kMultiply && sequence(whole) && times.is_integer()) {
      const Items one = items_of(whole);
      if (times.i > 0 && one.size() > (1U << 26) / static_cast<uint64_t>(times.i)) raise("MemoryError", "a list of too many items");
      Items items;
      for (int64_t i = 0; i < times.i; ++i) items.insert(items.end(), one.begin(), one.end());
      return list(whole.tag == Tag::kTuple ? Tag::kTuple : Tag::kList, items);
    }
    raise("TypeError", std::string("an operator between ") + name_of(left.tag) + " and " + name_of(right.tag));
  }
  if (left.is_integer() && right.is_integer() && op != kDivide && !(op == kPower && right.i < 0)) {
    int64_t made = 0;
    bool over = false;
    switch (op) {
      case kAdd: over = __builtin_add_overflow(left.i, right.i, &made); break;
      case kSubtract: over = __builtin_sub_overflow(left.i, right.i, &made); break;
      case kMultiply: over = __builtin_mul_overflow(left.i, right.i, &made); break;
      case kFloorDivide:
      case kModulo: {
        if (right.i == 0) raise("ZeroDivisionError", "integer division or modulo by zero");
        over = left.i == INT64_MIN && right.i == -1;
        if (over) break;
        int64_t whole = left.i / right.i, rest = left.i % right.i;
        if (rest != 0 && (rest < 0) != (right.i < 0)) {
          --whole;
          rest += right.i;
        }
        made = op == kFloorDivide ? whole : rest;
        break;
      }
      default:
        made = 1;
        for (int64_t i = 0; i < right.i && !over; ++i) {
          over = __builtin_mul_overflow(made, left.i, &made);
          if (made == 0 || (made == 1 && left.i == 1)) break;
          if (left.i == -1) {
            made = right.i % 2 ? -1 : 1;
            break;
          }
        }
    }
    if (over) raise("OverflowError", "an integer of more than 64 bits");
    return Value::integer(made);
  }
  const double a = exact(left), b = exact(right);
  switch (op) {
    case kAdd: return Value::real(a + b);
    case kSubtract: return Value::real(a - b);
    case kMultiply: return Value::real(a * b);
    case kPower:
      if (a == 0 && b < 0) raise("ZeroDivisionError", "0.0 cannot be raised to a negative power");
      if (a < 0 && b != std::floor(b)) raise("ValueError", "a fractional power of a negative number");
      if (const double made = std::pow(a, b); !std::isinf(made) || std::isinf(a) || std::isinf(b)) return Value::real(made);
      raise("OverflowError", "a power that is too large");
    default: break;
  }
  if (b == 0) raise("ZeroDivisionError", "float division by zero");
  if (op == kDivide) return Value::real(a / b);
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  if (rest == 0) rest = std::copysign(0.0, b);
  if (op == kModulo) return Value::real(rest);
  const double whole = (a - rest) / b;
  return Value::real(whole == 0 ? std::copysign(0.0, a / b) : std::floor(whole + 0.5));
}

bool Machine::equal(const Value& left, const Value& right, int32_t depth) {
  if (depth > 64) raise("RecursionError", "containers nest too deep to compare");
  if (left.is_number() && right.is_number()) {
    if (left.is_integer() && right.is_integer()) return left.i == right.i;
    return exact(left) == exact(right);
  }
  if (left.tag == Tag::kText && right.tag == Tag::kText) return equal_texts(left, right);
  const auto opaque = [](const Value& value) { return value.tag == Tag::kRow || value.tag == Tag::kIter; };
  if (opaque(left) && opaque(right)) raise("TypeError", std::string("== between ") + name_of(left.tag) + " and " + name_of(right.tag));
  if (is_sequence(left) && is_sequence(right)) {
    const int64_t count = length(left);
    if (count != length(right)) return false;
    for (int64_t i = 0; i < count; ++i) {
      if (!equal(item_at(left, i), item_at(right, i), depth + 1)) return false;
    }
    return true;
  }
  const auto decides = [&](const Value& value, const Value& other) {
    if (value.tag != Tag::kNode) return false;
    const Equality equality = what(value).equality;
    return equality == Equality::kUnknown || (equality == Equality::kAmongNodes && other.tag == Tag::kNode);
  };
  if (left.tag == Tag::kDict && !left.same(right) && (right.tag == Tag::kDict || mapping(right) || is_like(right, Like::kMapping))) raise("TypeError", "== between dicts");
  if (right.tag == Tag::kDict && (mapping(left) || is_like(left, Like::kMapping))) raise("TypeError", "== between dicts");
  if (decides(left, right) || decides(right, left)) raise("TypeError", "== of a node whose class compares more than identity");
  if (mapping(left) && mapping(right) && !left.same(right)) raise("TypeError", "== between dicts");
  return left.same(right);
}

// Whether it is compared item by item.
bool Machine::is_sequence(const Value& value) const {
  return value.tag == Tag::kList || value.tag == Tag::kTuple || value.tag == Tag::kPart || is_like(value, Like::kTuple) ||
         (value.tag == Tag::kObject && code_.objects[static_cast<size_t>(value.i)].like != Tag::kObject);
}

bool Machine::contains(const Value& items, const Value& value) {
  if (items.tag == Tag::kDict) return entry(items, value) != nullptr;
  if (Value found; is_like(items, Like::kMapping)) return find_key(items, value, found);
  if (items.tag == Tag::kText && value.tag == Tag::kText) return characters(items).find(characters(value)) != std::string::npos;
  if (const Object* dict = mapping(items)) return looked_up(*dict, value) != nullptr;
  const int64_t count = length(items);
  for (int64_t i = 0; i < count; ++i) {
    const Value each = item_at(items, i);
    if ((each.tag != Tag::kText && each.same(value)) || equal(each, value)) return true;
  }
  return false;
}

// Whether both are one object of Python; raises where that depends on more than values tell.
bool Machine::identical(const Value& left, const Value& right) const {
  if (left.tag != right.tag) return false;
  if (left.tag == Tag::kText) {
    if (equal_texts(left, right)) raise("TypeError", "`is` between equal texts");
    return false;
  }
  const bool same = left.same(right);
  const bool kept = left.tag == Tag::kInt && left.i >= -5 && left.i <= 256;  // one object each in CPython
  const bool by_value = left.tag == Tag::kInt || left.tag == Tag::kFloat;
  const bool by_place = left.tag == Tag::kPart || left.tag == Tag::kRow || left.tag == Tag::kTuple;
  if ((by_value && same && !kept) || (by_place && !same)) raise("TypeError", std::string("`is` between ") + name_of(left.tag) + " and " + name_of(right.tag));
  return same;
}

bool Machine::compare(int32_t op, const Value& left, const Value& right, int32_t depth) {
  if (depth > 64) raise("RecursionError", "containers nest too deep to compare");
  switch (op) {
    case kEqual: return equal(left, right);
    case kUnequal: return !equal(left, right);
    case kIs: return identical(left, right);
    case kIsNot: return !identical(left, right);
    case kIn: return contains(right, left);
    case kNotIn: return !contains(right, left);
    default: break;
  }
  if (left.tag == Tag::kText && right.tag == Tag::kText) {
    const int order = characters(left).compare(characters(right));
    return op == kLess ? order < 0 : op == kLessEqual ? order <= 0 : op == kGreater ? order > 0 : order >= 0;
  }
  if (is_sequence(left) && is_sequence(right) && is_instance(left, 1 << static_cast<int32_t>(Tag::kTuple), ~0) == is_instance(right, 1 << static_cast<int32_t>(Tag::kTuple), ~0)) {
    const int64_t count = length(left), others = length(right);
    for (int64_t i = 0; i < std::min(count, others); ++i) {
      const Value a = item_at(left, i), b = item_at(right, i);
      if (!equal(a, b)) return compare(op, a, b, depth + 1);
    }
    return compare(op, Value::integer(count), Value::integer(others));
  }
  if (!left.is_number() || !right.is_number()) raise("TypeError", std::string("an order between ") + name_of(left.tag) + " and " + name_of(right.tag));
  const auto decide = [op](auto a, auto b) { return op == kLess ? a < b : op == kLessEqual ? a <= b : op == kGreater ? a > b : a >= b; };
  return left.is_integer() && right.is_integer() ? decide(left.i, right.i) : decide(exact(left), exact(right));
}

// --- iterators --------------------------------------------------------------------------------------------------------------------

Value Machine::iterator(const Value& value) {
  if (value.tag == Tag::kIter) return value;
  if (value.tag == Tag::kRow || value.tag == Tag::kText || mapping(value) || (value.tag == Tag::kNode && !is_like(value, Like::kTuple))) raise("TypeError", std::string("a loop over ") + name_of(value.tag));
  if (value.tag == Tag::kDict) {
    const Value keys = list(Tag::kList, dict(value).keys);
    return iterate(Walk::kItems, 0, std::initializer_list<Value>{keys, value, Value::integer(length(value))});
  }
  (void)length(value);
  return iterate(Walk::kItems, 0, std::initializer_list<Value>{value});
}

bool Machine::next(Value& from, Value& made) {
  if (from.tag != Tag::kIter) raise("TypeError", std::string("the next of ") + name_of(from.tag));
  Iterator& iterator = iterators_[static_cast<size_t>(from.i)];
  switch (iterator.walk) {
    case Walk::kItems:
      if (iterator.parts.size() > 1 && length(iterator.parts[1]) != iterator.parts[2].i) raise("RuntimeError", "dictionary changed size during iteration");
      if (iterator.next >= length(iterator.parts[0])) return false;  // a list may grow meanwhile
      made = item_at(iterator.parts[0], iterator.next++);
      return true;
    case Walk::kReversed:
      if (iterator.next < 0 || iterator.next >= length(iterator.parts[0])) return false;
      made = item_at(iterator.parts[0], iterator.next--);
      return true;
    case Walk::kEnumerate: {
      Value item;
      if (!next(iterator.parts[0], item)) return false;
      made = list(Tag::kTuple, std::initializer_list<Value>{Value::integer(iterator.next++), item});
      return true;
    }
    default: break;
  }
  constexpr size_t kFew = 8;
  const size_t count = iterator.parts.size();
  Value few[kFew];
  Items many(count > kFew ? count : 0);
  Value* items = count > kFew ? many.data() : few;
  for (size_t i = 0; i < count; ++i) {
    if (next(iterator.parts[i], items[i])) continue;
    if (iterator.walk == Walk::kStrictZip) {
      Value more;
      bool longer = i > 0;
      for (size_t j = i + 1; j < count; ++j) longer = longer || next(iterator.parts[j], more);
      if (longer) raise("ValueError", "zip() argument " + std::to_string(i + 1) + " has another length than the others");
    }
    return false;
  }
  if (count == 0) return false;
  made = list(Tag::kTuple, items, items + count);
  return true;
}

Items Machine::items_of(const Value& value) {
  if (value.tag == Tag::kList || value.tag == Tag::kTuple) return list_items(value);
  Value from = iterator(value), made;
  Items items;
  while (next(from, made)) items.push_back(made);
  return items;
}

bool Machine::is_instance(const Value& value, int32_t tags, int32_t classes) {
  if (value.tag == Tag::kNode) return among(class_of(value), classes);
  Tag tag = value.tag;
  if (tag == Tag::kPart) tag = code_.slots[static_cast<size_t>(value.aux)].kind == SlotKind::kParts ? Tag::kTuple : Tag::kList;
  if (tag == Tag::kObject) tag = code_.objects[static_cast<size_t>(value.i)].like;
  if (tag == Tag::kObject) raise("TypeError", "isinstance() of " + text(value));
  return (tags >> static_cast<int32_t>(tag) & 1) != 0;
}

}  // namespace ral::tasks
