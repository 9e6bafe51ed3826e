// Code from a file is data: nothing in it may lead the machine outside of what there is.
#include <algorithm>
#include <string>

#include "tasks/code.h"

namespace ral::tasks {

namespace {

template <typename T>
bool in(int64_t number, const std::vector<T>& list) {
  return number >= 0 && number < static_cast<int64_t>(list.size());
}

class Verifier {
 public:
  explicit Verifier(const Code& code) : code_(code) {}

  std::string run() {
    if (code_.functions.empty() || code_.objects.empty() || code_.objects[0].function != 0) return "it has no first function";
    if (!std::all_of(code_.constants.begin(), code_.constants.end(), [&](const Value& each) { return value(each); })) return "a constant of nothing";
    for (const Object& each : code_.objects) {
      const auto own = &each - code_.objects.data();
      const auto good = [&](const Value& part) {  // a container of containers that come before it: so they end
        const bool container = value(part) && part.tag == Tag::kObject && code_.objects[static_cast<size_t>(part.i)].like != Tag::kObject;
        return value(part) && (!container || each.like == Tag::kObject || part.i < own);
      };
      if (each.like != Tag::kObject && each.like != Tag::kList && each.like != Tag::kTuple) return "an object of no kind";
      if (!std::all_of(each.items.begin(), each.items.end(), good) || !std::all_of(each.bound.begin(), each.bound.end(), good)) return "an object of nothing";
      for (const auto& [name, held] : each.attributes) {
        if (!in(name, code_.names) || !(held.tag == Tag::kUnset || value(held))) return "an attribute of nothing";
      }
      if (each.function >= 0 && !in(each.function, code_.functions)) return "an object of no function";
    }
    for (const Name& each : code_.names) {
      const auto getter = [&](const auto& own) { return in(own.first, code_.functions) && code_.functions[static_cast<size_t>(own.first)].parameters == 1; };
      const auto method = [&](const auto& own) { return in(own.first, code_.functions); };
      if ((each.slot >= 0 && !of_nodes(each.slot)) ||
          (each.presence >= 0 && (!of_nodes(each.presence) || code_.slots[static_cast<size_t>(each.presence)].kind != SlotKind::kTruth)) ||
          !std::all_of(each.getters.begin(), each.getters.end(), getter) || !std::all_of(each.methods.begin(), each.methods.end(), method))
        return "the attribute '" + each.text + "' of nothing";
    }
    for (const NodeClass& each : code_.node_classes) {
      if (each.like < Like::kObject || each.like > Like::kMapping || each.equality < Equality::kIdentity || each.equality > Equality::kUnknown || !std::all_of(each.parts.begin(), each.parts.end(), [&](int32_t part) { return of_nodes(part); }))
        return "a class of nodes of no kind";
    }
    for (const auto& [row_class, bytes] : code_.rows) {
      if (!in(row_class, code_.classes) || static_cast<int64_t>(bytes.size()) != code_.classes[static_cast<size_t>(row_class)].bytes) return "a constant row of no class";
    }
    if (std::string wrong = slots(); !wrong.empty()) return wrong;
    for (const Kind& each : code_.kinds) {
      if (std::string wrong = kind(each); !wrong.empty()) return wrong;
    }
    for (const Region& each : code_.regions) {
      for (const int32_t kind : each.kinds) {
        if (!in(kind, code_.kinds)) return "a region of no block";
      }
    }
    for (const Function& each : code_.functions) {
      if (std::string wrong = function(each); !wrong.empty()) return "function " + each.name + ": " + wrong;
    }
    return {};
  }

 private:
  bool of_nodes(int32_t slot) const { return in(slot, code_.slots) && code_.slots[static_cast<size_t>(slot)].domain == 1; }

  bool value(const Value& each) const {
    switch (each.tag) {
      case Tag::kNone:
      case Tag::kBool:
      case Tag::kInt:
      case Tag::kFloat: return true;
      case Tag::kText: return in(each.i, code_.texts);
      case Tag::kObject: return in(each.i, code_.objects);
      default: return false;
    }
  }

  // Another text than the choices must be none that the code has, and not empty.
  bool choices(const Slot& slot) const {
    if (slot.kind != SlotKind::kChoice) return slot.choices.empty();
    const Tag tag = slot.has_texts() ? Tag::kText : Tag::kObject;
    std::vector<uint8_t> held(code_.texts.size(), 0);
    for (const Value& each : slot.choices) {
      if (each.tag != tag || !value(each)) return false;
      if (tag == Tag::kText) held[static_cast<size_t>(each.i)] = 1;
    }
    return tag == Tag::kObject || (std::find(code_.texts.begin(), code_.texts.end(), "") != code_.texts.end() &&
                                   std::all_of(held.begin(), held.end(), [](uint8_t each) { return each != 0; }));
  }

  std::string slots() const {
    if (!in(code_.root, code_.slots) || code_.slots[static_cast<size_t>(code_.root)].domain != 0 || code_.domains < 2) return "no slot of instances";
    if (code_.kind_slot >= 0 && (!in(code_.kind_slot, code_.slots) || code_.slots[static_cast<size_t>(code_.kind_slot)].kind != SlotKind::kInteger ||
                                 code_.slots[static_cast<size_t>(code_.kind_slot)].domain != 1))
      return "no slot of classes";
    for (size_t i = 0; i < code_.slots.size(); ++i) {
      const Slot& slot = code_.slots[i];
      const bool list = slot.kind == SlotKind::kItems, tuple = slot.kind == SlotKind::kParts, bare = tuple || slot.kind == SlotKind::kNothing;
      if (slot.kind < SlotKind::kInteger || slot.kind > SlotKind::kChoice || (bare ? slot.array != -1 : slot.array < 0 || slot.array >= code_.arrays) ||
          slot.domain < 0 || slot.domain >= code_.domains || (list && (slot.inner < 2 || slot.inner >= code_.domains || slot.parts.size() != 1)) ||
          (!list && !tuple && !slot.parts.empty()) || (slot.kind == SlotKind::kTensor && !in(slot.row_class, code_.classes)))
        return "slot " + std::to_string(i);
      if (!choices(slot)) return "the choices of slot " + std::to_string(i);
      for (const int32_t part : slot.parts) {  // behind it: so they end
        if (part <= static_cast<int32_t>(i) || !in(part, code_.slots) || code_.slots[static_cast<size_t>(part)].domain != (list ? slot.inner : slot.domain))
          return "the parts of slot " + std::to_string(i);
      }
    }
    if (!in(code_.result, code_.results)) return "no slot of results";
    for (size_t i = 0; i < code_.results.size(); ++i) {
      const ResultSlot& slot = code_.results[i];
      if (slot.kind < SlotKind::kInteger || slot.kind > SlotKind::kChoice || slot.kind == SlotKind::kNode || slot.kind == SlotKind::kOptional ||
          (slot.kind == SlotKind::kTensor && !in(slot.row_class, code_.classes)) || (slot.kind == SlotKind::kItems && slot.parts.size() != 1))
        return "result " + std::to_string(i);
      if (!slot.keys.empty() && (slot.kind != SlotKind::kParts || slot.keys.size() != slot.parts.size())) return "the keys of result " + std::to_string(i);
      for (const int32_t part : slot.parts) {
        if (part <= static_cast<int32_t>(i) || !in(part, code_.results)) return "the parts of result " + std::to_string(i);
      }
    }
    return {};
  }

  std::string kind(const Kind& each) const {
    if (!in(each.region, code_.regions) || each.values < 0 || !(each.cost >= 0)) return "a block of no region";
    for (const auto* list : {&each.rows, &each.results}) {
      for (const int32_t row_class : *list) {
        if (!in(row_class, code_.classes)) return "a block of no rows";
      }
    }
    int64_t rows = 0, values = 0;
    for (size_t at = 0; at < each.tokens.size();) {
      const int64_t token = each.tokens[at];
      if (token < kTokenRow || token > kTokenTuple) return "a block of unknown arguments";
      if (token == kTokenRow) {
        if (at + 1 >= each.tokens.size() || rows >= static_cast<int64_t>(each.rows.size()) || each.tokens[at + 1] != each.rows[static_cast<size_t>(rows)]) return "a block of other rows";
        ++rows;
      }
      values += token == kTokenIndex;
      at += token == kTokenIndex || token == kTokenNone ? 1 : 2;
    }
    if (rows != static_cast<int64_t>(each.rows.size()) || values != each.values) return "a block of other arguments";
    if (each.block < 0) {
      if (rows != 0 || values != 0 || each.constants.size() != each.results.size()) return "a constant block with arguments";
      for (size_t i = 0; i < each.constants.size(); ++i) {  // places in the tables, where constant rows come first
        int64_t held = 0;
        for (const auto& [row_class, bytes] : code_.rows) held += row_class == each.results[i];
        if (each.constants[i] < 0 || each.constants[i] >= held) return "a constant block of no rows";
      }
    }
    return {};
  }

  // What a block's outputs are made of; `at` behind it. False where it is nothing.
  bool output(const Kind& kind, size_t& at, int32_t inputs) const {
    const auto number = [&](int64_t limit) { return at < kind.outputs.size() && kind.outputs[at] >= 0 && kind.outputs[at++] < limit; };
    if (at >= kind.outputs.size()) return false;
    switch (static_cast<Output>(kind.outputs[at++])) {
      case Output::kMade: return number(static_cast<int64_t>(kind.results.size()));
      case Output::kGiven: return number(static_cast<int64_t>(kind.rows.size()));
      case Output::kConstant: return number(static_cast<int64_t>(code_.constants.size()));
      case Output::kArgument: {
        if (!number(inputs) || !number(64)) return false;
        for (int32_t steps = kind.outputs[at - 1]; steps > 0; --steps) {
          if (!number(INT32_MAX)) return false;
        }
        return true;
      }
      case Output::kTuple:
      case Output::kList:
      case Output::kDict: {
        const bool keyed = static_cast<Output>(kind.outputs[at - 1]) == Output::kDict;
        if (!number(static_cast<int64_t>(kind.outputs.size()))) return false;
        for (int32_t count = kind.outputs[at - 1]; count > 0; --count) {
          if ((keyed && !number(static_cast<int64_t>(code_.constants.size()))) || !output(kind, at, inputs)) return false;
        }
        return true;
      }
    }
    return false;
  }

  std::string region_call(const int32_t* o, int32_t inputs, int32_t outputs) const {
    const Region& region = code_.regions[static_cast<size_t>(o[0])];
    if (static_cast<int64_t>(region.uses.size()) != inputs) return "a block with other inputs";
    for (const int32_t each : region.kinds) {
      size_t at = 0;
      for (int32_t i = 0; i < outputs; ++i) {
        if (!output(code_.kinds[static_cast<size_t>(each)], at, inputs)) return "a block with other outputs";
      }
    }
    return {};
  }

  std::string function(const Function& each) const {
    if (each.parameters < 0 || each.registers < std::max(each.parameters, 1) || each.registers > 1 << 16 || each.code.empty()) return "its registers";
    const auto size = static_cast<int64_t>(each.code.size());
    std::vector<uint8_t> starts(each.code.size(), 0);
    std::vector<int32_t> targets;
    Op last = Op::kMove;
    for (int64_t at = 0; at < size;) {
      starts[static_cast<size_t>(at)] = 1;
      const int32_t op = each.code[static_cast<size_t>(at)];
      if (op < 0 || op >= kOpCount) return "no instruction at " + std::to_string(at);
      last = static_cast<Op>(op);
      const int64_t begin = ++at;
      std::vector<int32_t> counts;
      std::vector<int32_t> plain;
      for (const char* operand = kOps[op].operands; *operand; ++operand) {
        if (at >= size) return "an instruction that is cut off";
        const int32_t given = each.code[static_cast<size_t>(at++)];
        const bool registers = *operand == 'd' || *operand == 'r';
        if (registers && (given < 0 || given >= each.registers)) return "a register that there is not";
        if (*operand == 'c' && !in(given, code_.constants)) return "a constant that there is not";
        if (*operand == 'n' && !in(given, code_.names)) return "a name that there is not";
        if (*operand == 't') targets.push_back(given);
        if (*operand == 'i') plain.push_back(given);
        if (*operand != '*' && *operand != 'D') continue;
        if (given < 0 || given > size - at) return "an instruction that is cut off";
        counts.push_back(given);
        for (int32_t i = 0; i < given; ++i) {
          const int32_t one = each.code[static_cast<size_t>(at++)];
          if (one < 0 || one >= each.registers) return "a register that there is not";
        }
      }
      const auto limited = [&](int32_t limit) { return plain[0] >= 0 && plain[0] < limit; };
      const bool good = last == Op::kBinary ? limited(kBinaries) : last == Op::kCompare ? limited(kCompares) : last == Op::kBuiltin || last == Op::kBuiltinOf ? limited(kBuiltins)
                      : last == Op::kMethod ? limited(kMethods) : last == Op::kRead ? limited(kReads)
                      : last == Op::kBlock ? in(plain[0], code_.regions) : true;
      if (!good) return "an unknown number in an instruction";
      if (last == Op::kBlock) {
        if (std::string wrong = region_call(each.code.data() + begin, counts[0], counts[1]); !wrong.empty()) return wrong;
      }
    }
    if (last != Op::kReturn && last != Op::kRaise && last != Op::kJump) return "its end is missing";
    for (const int32_t target : targets) {
      if (target < 0 || target >= size || !starts[static_cast<size_t>(target)]) return "a jump to nowhere";
    }
    return {};
  }

  const Code& code_;
};

}  // namespace

std::string Code::verify() const { return Verifier(*this).run(); }

}  // namespace ral::tasks
