#include "tasks/machine.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace ral::tasks {

namespace {

constexpr size_t kDeepest = 1 << 20;      // calls inside of each other, which only a structure without an end reaches
constexpr size_t kSuspicious = 1 << 10;  // at this depth and each time it doubles structures are searched for a cycle
constexpr size_t kMostRegisters = 1 << 26;
constexpr int32_t kNested = 64;

float half_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  const float sign = bits & 0x8000 ? -1.0F : 1.0F;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * (exponent ? std::ldexp(static_cast<float>(1024 + fraction), exponent - 25) : std::ldexp(static_cast<float>(fraction), -24));
}

float bfloat_to_float(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof value);
  return value;
}

template <typename T>
T load(const char* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

Value element(const char* data, int32_t dtype) {
  switch (dtype) {
    case RAL_I1: return Value::boolean(*data != 0);
    case RAL_I8: return Value::integer(load<int8_t>(data));
    case RAL_UI8: return Value::integer(load<uint8_t>(data));
    case RAL_I16: return Value::integer(load<int16_t>(data));
    case RAL_I32: return Value::integer(load<int32_t>(data));
    case RAL_I64: return Value::integer(load<int64_t>(data));
    case RAL_F16: return Value::real(half_to_float(load<uint16_t>(data)));
    case RAL_BF16: return Value::real(bfloat_to_float(load<uint16_t>(data)));
    case RAL_F32: return Value::real(load<float>(data));
    case RAL_F64: return Value::real(load<double>(data));
    default: return {};
  }
}

}  // namespace

void* Arena::do_allocate(size_t bytes, size_t alignment) {
  constexpr size_t kFirst = size_t{1} << 14;
  const auto start = (reinterpret_cast<uintptr_t>(next_) + alignment - 1) & ~(alignment - 1);
  if (start + bytes > reinterpret_cast<uintptr_t>(end_)) {
    const size_t size = std::max({bytes + alignment, kFirst, blocks_.empty() ? 0 : 2 * blocks_.back().size});
    blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[size]), size});
    next_ = blocks_.back().data.get();
    end_ = next_ + size;
    return do_allocate(bytes, alignment);
  }
  next_ = reinterpret_cast<std::byte*>(start + bytes);
  return reinterpret_cast<void*>(start);
}

void Arena::reset() {
  if (blocks_.size() > 1) {
    size_t whole = 0;
    for (const Block& each : blocks_) whole += each.size;
    blocks_.clear();
    blocks_.push_back({std::unique_ptr<std::byte[]>(new std::byte[whole]), whole});
  }
  next_ = blocks_.empty() ? nullptr : blocks_.back().data.get();
  end_ = blocks_.empty() ? nullptr : next_ + blocks_.back().size;
}

void Workspace::begin(const std::vector<ral_block>& blocks) {
  for (Table& each : tables) each.used = 0;
  launches.begin(blocks);
  arena.reset();
}

// Tensors of instances become rows.
ral_status Machine::place_tensors() {
  slot_rows_.assign(code_.slots.size(), 0);
  for (size_t i = 0; i < code_.slots.size(); ++i) {
    const Slot& slot = code_.slots[i];
    if (slot.kind != SlotKind::kTensor) continue;
    Table& table = tables_[static_cast<size_t>(slot.row_class)];
    const Array& array = arrays_[static_cast<size_t>(slot.array)];
    if (!table.reserve(table.used + array.length)) return RAL_ERROR_MEMORY;
    slot_rows_[i] = table.used;
    if (array.length > 0) std::memcpy(table.row(table.used), array.data, static_cast<size_t>(array.length * table.row_class().bytes));
    table.used += array.length;
  }
  return RAL_OK;
}

// Loops may have no end. Throws Cancelled.
void Machine::ask_stop() {
  constexpr uint32_t kSteps = 1 << 14;
  constexpr auto kOften = std::chrono::milliseconds(20);
  if (++steps_ < kSteps) return;
  steps_ = 0;
  const auto now = std::chrono::steady_clock::now();
  if (now - asked_ < kOften) return;
  asked_ = now;
  if (stop_()) throw Cancelled();
}

ral_status Machine::run() {
  if (const ral_status status = place_tensors(); status != RAL_OK) return status;
  const auto count = static_cast<size_t>(domains_[0]);
  instances_.resize(count);
  std::vector<int64_t> waiting;
  for (size_t i = 0; i < count; ++i) {
    begin(static_cast<int64_t>(i));
    if (!instances_[i].done) waiting.push_back(static_cast<int64_t>(i));
  }
  while (!waiting.empty()) {
    if (const ral_status status = answer(waiting); status != RAL_OK) return status;
    size_t kept = 0;
    for (const int64_t each : waiting) {
      if (!instances_[static_cast<size_t>(each)].done) advance(each);
      if (!instances_[static_cast<size_t>(each)].done) waiting[kept++] = each;
    }
    waiting.resize(kept);
  }
  return launches_.flush(nullptr);
}

void Machine::begin(int64_t number) {
  current_ = number;
  Instance& instance = instances_[static_cast<size_t>(number)];
  try {
    const Value argument = slot_value(code_.root, number);
    enter(instance, 0, {}, &argument, 1, -1);
  } catch (const Failure& failure) {
    fail(number, failure);
    return;
  }
  advance(number);
}

void Machine::advance(int64_t number) {
  current_ = number;
  Instance& instance = instances_[static_cast<size_t>(number)];
  try {
    step(instance);
  } catch (const Failure& failure) {
    fail(number, failure);
  }
}

void Machine::fail(int64_t number, Failure failure) {
  Instance& instance = instances_[static_cast<size_t>(number)];
  int32_t function = -1, line = 0;
  if (!instance.frames.empty()) {
    const Frame& frame = instance.frames.back();
    function = frame.function;
    for (const auto& [place, found] : code_.functions[static_cast<size_t>(function)].lines) {
      if (place > frame.at) break;
      line = found;
    }
  }
  for (const Frame& frame : instance.frames) {  // calls that it leaves unfinished are nobody's
    if (frame.memo >= 0) memo_[static_cast<size_t>(frame.memo)].instance = -2;
  }
  instance.frames.clear();
  instance.registers = {};
  instance.done = true;
  instance.waits = false;
  failed.push_back({number, std::move(failure), function, line});
}

// Computes the values that instances wait for.
ral_status Machine::answer(const std::vector<int64_t>& waiting) {
  std::vector<int64_t> needed;
  for (const int64_t each : waiting) needed.push_back(instances_[static_cast<size_t>(each)].asked.i);
  if (const ral_status status = launches_.flush(&needed); status != RAL_OK) return status;
  for (const int64_t each : waiting) {
    Instance& instance = instances_[static_cast<size_t>(each)];
    const Row row = launches_.row(instance.asked.i);
    instance.waits = false;
    current_ = each;
    try {
      if (const std::string* why = launches_.failure(row)) raise("", *why);
      const RowClass& row_class = code_.classes[static_cast<size_t>(row.row_class)];
      const char* data = tables_[static_cast<size_t>(row.row_class)].row(row.place);
      instance.registers[static_cast<size_t>(instance.target)] =
          instance.how == kReadList ? read_list(data, row_class, 0) : read(row, instance.how);
    } catch (const Failure& failure) {
      fail(each, failure);
    }
  }
  return RAL_OK;
}

Value Machine::read(const Row& row, int32_t how) const {
  const RowClass& row_class = code_.classes[static_cast<size_t>(row.row_class)];
  const bool one = std::all_of(row_class.dims.begin(), row_class.dims.end(), [](int64_t dim) { return dim == 1; });
  if (!one) raise("RuntimeError", "a tensor with more than one element has no single value");
  const Value value = element(tables_[static_cast<size_t>(row.row_class)].row(row.place), row_class.dtype);
  switch (how) {
    case kReadBool: return Value::boolean(value.tag == Tag::kFloat ? value.f != 0 : value.i != 0);
    case kReadFloat: return Value::real(value.as_real());
    case kReadInt:
      if (value.tag != Tag::kFloat) return Value::integer(value.i);
      if (std::isnan(value.f)) raise("ValueError", "cannot convert float NaN to integer");
      if (!(std::abs(value.f) < 9.2e18)) raise("OverflowError", "cannot convert a float this large to an integer");
      return Value::integer(static_cast<int64_t>(value.f));
    default: return value;
  }
}

Value Machine::read_list(const char* data, const RowClass& row_class, size_t dim) {
  if (dim == row_class.dims.size()) return element(data, row_class.dtype);
  int64_t bytes = row_class.bytes;
  for (size_t d = 0; d <= dim; ++d) bytes /= std::max<int64_t>(row_class.dims[d], 1);
  Items items;
  for (int64_t i = 0; i < row_class.dims[dim]; ++i) items.push_back(read_list(data + i * bytes, row_class, dim + 1));
  return list(Tag::kList, items);
}

// --- calls ------------------------------------------------------------------------------------------------------------------------

void Machine::call(Instance& instance, Value callee, const int32_t* arguments, int32_t count, int32_t target) {
  if (callee.tag != Tag::kObject || code_.objects[static_cast<size_t>(callee.i)].function < 0)
    raise("TypeError", "a call of " + text(callee) + ", which the model was not saved with");
  const Object& object = code_.objects[static_cast<size_t>(callee.i)];
  Value given[16];
  Items more;
  Value* values = given;
  if (count > 16) {
    more.resize(static_cast<size_t>(count));
    values = more.data();
  }
  const Value* registers = instance.registers.data() + instance.frames.back().base;
  for (int32_t i = 0; i < count; ++i) values[i] = registers[arguments[i]];
  enter(instance, object.function, object.bound, values, count, target);
}

// Of a method of a node's class, or of what an object has by that name.
void Machine::call_method(Instance& instance, const Value& owner, int32_t number, const int32_t* arguments, int32_t count, int32_t target) {
  const Name& name = code_.names[static_cast<size_t>(number)];
  if (owner.tag != Tag::kNode) {
    int32_t getter = -1;
    call(instance, field(owner, number, getter), arguments, count, target);
    return;
  }
  const int32_t function = function_of(name.methods, class_of(owner));
  if (function < 0) raise("AttributeError", "a node has no method '" + name.text + "' that the model was made for");
  Items values{owner};
  const Value* registers = instance.registers.data() + instance.frames.back().base;
  for (int32_t i = 0; i < count; ++i) values.push_back(registers[arguments[i]]);
  enter(instance, function, {}, values.data(), count + 1, target);
}

// A frame more; or, where the result is known already, the result in register `target` (-1: of the instance).
void Machine::enter(Instance& instance, int32_t number, const Items& bound, const Value* arguments, int32_t count, int32_t target) {
  const Function& function = code_.functions[static_cast<size_t>(number)];
  // a function that a module's method is begins with the module: the first frame's is the target of the batch
  const Items& before = target == -1 && instance.frames.empty() ? code_.objects[0].bound : bound;
  if (static_cast<int32_t>(before.size()) + count != function.parameters)
    raise("TypeError", function.name + " takes " + std::to_string(function.parameters) + " arguments, not " + std::to_string(before.size() + static_cast<size_t>(count)));
  int64_t memo = -1;
  if (shared_ && function.memo) {
    std::string key(reinterpret_cast<const char*>(&number), sizeof number);
    bool good = true;
    const auto add = [&](const Value& value) {
      good = good && value.tag != Tag::kList && value.tag != Tag::kIter && value.tag != Tag::kTuple && value.tag != Tag::kRange && value.tag != Tag::kDict;
      key.append(reinterpret_cast<const char*>(&value.tag), 1);
      key.append(reinterpret_cast<const char*>(&value.aux), sizeof value.aux);
      key.append(reinterpret_cast<const char*>(&value.i), sizeof value.i);
    };
    for (const Value& each : before) add(each);
    for (int32_t i = 0; i < count; ++i) add(arguments[i]);
    if (good) {
      const auto [at, fresh] = memo_numbers_.try_emplace(std::move(key), static_cast<int64_t>(memo_.size()));
      if (fresh) {
        memo = at->second;
        memo_.push_back({{}, current_});
      } else {
        Memory& known = memo_[static_cast<size_t>(at->second)];
        if (known.instance == -1) {
          if (target < 0)
            instance.result = known.value, instance.done = true;
          else
            instance.registers[static_cast<size_t>(instance.frames.back().base + target)] = known.value;
          return;
        }
        if (known.instance == current_) raise("CycleError", function.name + " is called for a node while it computes the same node: the structure contains itself");
        if (known.instance == -2) {  // left unfinished by an instance that failed
          known = {{}, current_};
          memo = at->second;
        }
      }
    }
  }
  const size_t base = instance.frames.empty() ? 0 : static_cast<size_t>(instance.frames.back().base) + static_cast<size_t>(code_.functions[static_cast<size_t>(instance.frames.back().function)].registers);
  const size_t depth = instance.frames.size();
  if (depth >= kSuspicious && (depth & (depth - 1)) == 0) {
    if (const std::string cycle = find_cycle(code_, arrays_, domains_[1]); !cycle.empty())
      raise("CycleError", function.name + " calls itself " + std::to_string(depth) + " times, and there is a cycle: nodes " + cycle);
  }
  if (depth >= kDeepest || base > kMostRegisters)
    raise("StructureError", function.name + " calls itself " + std::to_string(instance.frames.size()) + " times: does the structure end?");
  instance.registers.resize(std::max(instance.registers.size(), base + static_cast<size_t>(function.registers)));
  Value* to = instance.registers.data() + base;
  to = std::copy(before.begin(), before.end(), to);
  to = std::copy(arguments, arguments + count, to);
  std::fill(to, instance.registers.data() + base + function.registers, Value{});
  instance.frames.push_back({number, 0, static_cast<int32_t>(base), target, memo});
}

// Ends a call; false where it was the instance's first.
bool Machine::leave(Instance& instance, Value result) {
  const Frame frame = instance.frames.back();
  instance.frames.pop_back();
  if (frame.memo >= 0) {
    const auto fixed = [&](auto&& self, const Value& value) -> bool {
      if (value.tag == Tag::kTuple) {
        const Items& items = lists_[static_cast<size_t>(value.i)];
        return std::all_of(items.begin(), items.end(), [&](const Value& each) { return self(self, each); });
      }
      return value.tag != Tag::kList && value.tag != Tag::kIter && value.tag != Tag::kDict;
    };
    memo_[static_cast<size_t>(frame.memo)] = {result, fixed(fixed, result) ? -1 : -2};
  }
  if (instance.frames.empty()) {
    instance.result = result;
    instance.done = true;
    instance.registers = {};
    return false;
  }
  instance.registers[static_cast<size_t>(instance.frames.back().base + frame.target)] = result;
  return true;
}

// --- blocks -----------------------------------------------------------------------------------------------------------------------

// A float of an instance as a row, as its tensors are.
void Machine::describe_float(const Value& value) {
  Table& table = tables_[static_cast<size_t>(code_.number_class)];
  if (!table.reserve(table.used + 1)) raise("MemoryError", "no memory for a number");
  std::memcpy(table.row(table.used), &value.i, sizeof value.i);
  token(kTokenRow, code_.number_class);
  rows_.push_back(launches_.add_given(code_.number_class, table.used++));
}

void Machine::describe(const Value& value, Use use, int32_t depth) {
  if (depth > kNested) raise("RecursionError", "containers nest deeper than tensor code is followed");
  switch (value.tag) {
    case Tag::kRow:
      token(kTokenRow, launches_.row(value.i).row_class);
      rows_.push_back(value.i);
      return;
    case Tag::kInt:
      if (use == kUseIndex) {
        tokens_.push_back(kTokenIndex);
        values_.push_back(value.i);
        return;
      }
      token(kTokenInt, value.i);
      return;
    case Tag::kNone: tokens_.push_back(kTokenNone); return;
    case Tag::kBool: token(kTokenBool, value.i); return;
    case Tag::kFloat:
      if (use == kUseRow && code_.number_class >= 0) return describe_float(value);
      token(kTokenFloat, value.i);
      return;
    case Tag::kText:
      if (value.i == kOtherText) raise("NodeKindError", "tensor code reads a text that the model was not made for");
      token(kTokenText, value.i);
      return;
    case Tag::kList:
    case Tag::kTuple:
    case Tag::kPart: break;
    case Tag::kObject:
      if (code_.objects[static_cast<size_t>(value.i)].like != Tag::kObject) break;
      token(kTokenObject, value.i);
      return;
    default: raise("TypeError", "tensor code that reads " + text(value));
  }
  const bool tuple = value.tag == Tag::kTuple || (value.tag == Tag::kPart && code_.slots[static_cast<size_t>(value.aux)].kind == SlotKind::kParts) ||
                     (value.tag == Tag::kObject && code_.objects[static_cast<size_t>(value.i)].like == Tag::kTuple);
  const int64_t count = length(value);
  token(tuple ? kTokenTuple : kTokenList, count);
  for (int64_t i = 0; i < count; ++i) describe(item_at(value, i), kUseConstant, depth + 1);
}

Value Machine::output(const Kind& kind, const int32_t*& at, int64_t first, const int32_t* inputs, const Value* registers) {
  switch (static_cast<Output>(*at++)) {
    case Output::kMade: return Value::of(Tag::kRow, first + *at++);
    case Output::kGiven: return Value::of(Tag::kRow, rows_[static_cast<size_t>(*at++)]);
    case Output::kConstant: return code_.constants[static_cast<size_t>(*at++)];
    case Output::kArgument: {
      Value value = registers[inputs[*at++]];
      for (int32_t steps = *at++; steps > 0; --steps) value = item(value, Value::integer(*at++));
      return value;
    }
    case Output::kDict: {
      const Value made = make_dict();
      for (int32_t count = *at++; count > 0; --count) {
        const Value key = code_.constants[static_cast<size_t>(*at++)];
        put_entry(made, key, output(kind, at, first, inputs, registers));
      }
      return made;
    }
    default: break;
  }
  const bool tuple = static_cast<Output>(at[-1]) == Output::kTuple;
  Items items;
  for (int32_t count = *at++; count > 0; --count) items.push_back(output(kind, at, first, inputs, registers));
  return list(tuple ? Tag::kTuple : Tag::kList, items);
}

// operands: region, count, inputs, count, targets.
void Machine::call_block(Items& registers, size_t base, const int32_t* operands) {
  const Region& region = code_.regions[static_cast<size_t>(operands[0])];
  const int32_t inputs = operands[1];
  tokens_.clear();
  rows_.clear();
  values_.clear();
  for (int32_t i = 0; i < inputs; ++i)
    describe(registers[base + static_cast<size_t>(operands[2 + i])], static_cast<Use>(region.uses[static_cast<size_t>(i)]));
  int32_t& last = last_kind_[static_cast<size_t>(operands[0])];
  if (last < 0 || code_.kinds[static_cast<size_t>(last)].tokens != tokens_) {
    const auto found = std::find_if(region.kinds.begin(), region.kinds.end(),
                                    [&](int32_t each) { return code_.kinds[static_cast<size_t>(each)].tokens == tokens_; });
    if (found == region.kinds.end())
      raise("NodeKindError", region.name + " is computed for other shapes, constants or numbers of parts than the model was saved for");
    last = *found;
  }
  const Kind& kind = code_.kinds[static_cast<size_t>(last)];
  const int64_t first = launches_.record(last, rows_, values_);
  const int32_t* at = kind.outputs.data();
  const int32_t* targets = operands + 2 + inputs;
  for (int32_t i = 0; i < targets[0]; ++i) {
    const Value made = output(kind, at, first, operands + 2, registers.data() + base);
    registers[base + static_cast<size_t>(targets[1 + i])] = made;
  }
}

// --- the loop ---------------------------------------------------------------------------------------------------------------------

// Runs the instance until it waits or is done.
void Machine::step(Instance& instance) {
  while (!instance.done) {
    Frame* frame = &instance.frames.back();
    const Function& function = code_.functions[static_cast<size_t>(frame->function)];
    const auto base = static_cast<size_t>(frame->base);
    Value* r = instance.registers.data() + base;
    const auto gather = [&](const int32_t* counted, Items& items) {
      items.resize(static_cast<size_t>(counted[0]));
      for (int32_t i = 0; i < counted[0]; ++i) items[static_cast<size_t>(i)] = r[counted[1 + i]];
    };
    const auto made = [&](Tag tag, const int32_t* counted) {
      const Value value = list(tag);
      gather(counted, lists_.back());
      return value;
    };
    const auto arguments = [&](const int32_t* counted) -> const Items& {
      gather(counted, arguments_);
      return arguments_;
    };
    const int32_t* code = function.code.data();
    int32_t pc = frame->at;
    for (bool here = true; here;) {
      frame->at = pc;  // for the line of an error
      const int32_t* o = code + pc + 1;
      const auto get = [&](int32_t number) -> const Value& {
        if (r[number].tag == Tag::kUnset) raise("UnboundLocalError", "a name is read before it is bound");
        return r[number];
      };
      switch (static_cast<Op>(code[pc])) {
        case Op::kConst: r[o[0]] = code_.constants[static_cast<size_t>(o[1])]; pc += 3; break;
        case Op::kMove: r[o[0]] = get(o[1]); pc += 3; break;
        case Op::kField: {
          int32_t getter = -1;
          const Value value = field(get(o[1]), o[2], getter);
          pc += 4;
          if (getter < 0) {
            r[o[0]] = value;
            break;
          }
          const Value owner = r[o[1]];
          frame->at = pc;
          enter(instance, getter, {}, &owner, 1, o[0]);
          here = false;
          break;
        }
        case Op::kItem: r[o[0]] = item(get(o[1]), get(o[2])); pc += 4; break;
        case Op::kSlice: r[o[0]] = slice(get(o[1]), get(o[2]), get(o[3]), get(o[4])); pc += 6; break;
        case Op::kBinary: r[o[0]] = binary(o[1], get(o[2]), get(o[3])); pc += 5; break;
        case Op::kCompare: r[o[0]] = Value::boolean(compare(o[1], get(o[2]), get(o[3]))); pc += 5; break;
        case Op::kNot: r[o[0]] = Value::boolean(!truth(get(o[1]))); pc += 3; break;
        case Op::kNegative: r[o[0]] = get(o[1]).tag == Tag::kFloat ? Value::real(-r[o[1]].f) : binary(kSubtract, Value::integer(0), r[o[1]]); pc += 3; break;
        case Op::kList: r[o[0]] = made(Tag::kList, o + 1); pc += 3 + o[1]; break;
        case Op::kTuple: r[o[0]] = made(Tag::kTuple, o + 1); pc += 3 + o[1]; break;
        case Op::kDict: {  // keys and values by turns
          const Value made_dict = make_dict();
          for (int32_t i = 0; i + 1 < o[1]; i += 2) put_entry(made_dict, get(o[2 + i]), get(o[3 + i]));
          r[o[0]] = made_dict;
          pc += 3 + o[1];
          break;
        }
        case Op::kUnpack: {
          const Value whole = get(o[0]);
          const Items& items = whole.tag == Tag::kList || whole.tag == Tag::kTuple ? list_items(whole) : arguments_ = items_of(whole);
          if (items.size() != static_cast<size_t>(o[1]))
            raise("ValueError", "there are " + std::to_string(items.size()) + " values to unpack, not " + std::to_string(o[1]));
          for (int32_t i = 0; i < o[1]; ++i) r[o[2 + i]] = items[static_cast<size_t>(i)];
          pc += 3 + o[1];
          break;
        }
        case Op::kJump:
          ask_stop();
          pc = o[0];
          break;
        case Op::kJumpIf: pc = truth(get(o[0])) ? o[1] : pc + 3; break;
        case Op::kJumpIfNot: pc = truth(get(o[0])) ? pc + 3 : o[1]; break;
        case Op::kIter: r[o[0]] = iterator(get(o[1])); pc += 3; break;
        case Op::kNext: {
          Value made;
          if (next(r[o[1]], made)) {
            r[o[0]] = made;
            pc += 4;
          } else {
            pc = o[2];
          }
          break;
        }
        case Op::kCall:
          ask_stop();
          frame->at = pc + 4 + o[2];
          call(instance, get(o[1]), o + 3, o[2], o[0]);
          here = false;
          break;
        case Op::kCallMethod: {
          ask_stop();
          frame->at = pc + 5 + o[3];
          const Value owner = get(o[1]);
          call_method(instance, owner, o[2], o + 4, o[3], o[0]);
          here = false;
          break;
        }
        case Op::kHas: r[o[0]] = Value::boolean(has(get(o[1]), o[2])); pc += 4; break;
        case Op::kBuiltin: r[o[0]] = builtin(o[1], arguments(o + 2)); pc += 4 + o[2]; break;
        case Op::kBuiltinOf:
          arguments_ = items_of(get(o[2]));
          r[o[0]] = builtin(o[1], arguments_);
          pc += 4;
          break;
        case Op::kMethod: r[o[0]] = method(o[2], get(o[1]), arguments(o + 3)); pc += 5 + o[3]; break;
        case Op::kSetItem: set_item(get(o[0]), get(o[1]), get(o[2])); pc += 4; break;
        case Op::kIsInstance: r[o[0]] = Value::boolean(is_instance(get(o[1]), o[2], o[3])); pc += 5; break;
        case Op::kBlock:
          call_block(instance.registers, base, o);
          pc += 4 + o[1] + o[2 + o[1]];
          break;
        case Op::kRead: {
          const Value value = get(o[2]);
          frame->at = pc += 4;
          if (value.tag != Tag::kRow) {
            Items one{value};
            r[o[0]] = o[1] == kReadBool ? Value::boolean(truth(value)) : o[1] == kReadFloat ? builtin(kFloatOf, one) : o[1] == kReadInt ? builtin(kIntOf, one) : value;
            break;
          }
          instance.asked = value;
          instance.how = o[1];
          instance.target = frame->base + o[0];
          instance.waits = true;
          return;
        }
        case Op::kReturn:
          if (!leave(instance, get(o[0]))) return;
          here = false;
          break;
        case Op::kRaise: raise("", text(get(o[0])));
      }
    }
  }
}

}  // namespace ral::tasks
