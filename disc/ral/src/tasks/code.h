// The code of a skeleton: instructions over registers, with what they refer to. Made by disc/frontend/batched/skeleton.py, checked by `verify`.
//
// Letters of an operand: d register that is written, r register that is read, c constant, n name of an attribute, t place in the code, i number;
// * and D: a count, and so many registers that are read or written.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tasks/value.h"

namespace ral::tasks {

#define RAL_TASK_OPS(OP)                                                                                                             \
  OP(kConst, "const", "dc")                                                                                                          \
  OP(kMove, "move", "dr")                                                                                                            \
  OP(kField, "field", "drn")                                                                                                         \
  OP(kHas, "has", "drn")                                                                                                             \
  OP(kItem, "item", "drr")                                                                                                           \
  OP(kSlice, "slice", "drrrr")                                                                                                       \
  OP(kBinary, "binary", "dirr")                                                                                                      \
  OP(kCompare, "compare", "dirr")                                                                                                    \
  OP(kNot, "not", "dr")                                                                                                              \
  OP(kNegative, "negative", "dr")                                                                                                    \
  OP(kList, "list", "d*")                                                                                                            \
  OP(kTuple, "tuple", "d*")                                                                                                          \
  OP(kDict, "dict", "d*")                                                                                                            \
  OP(kUnpack, "unpack", "rD")                                                                                                        \
  OP(kJump, "jump", "t")                                                                                                             \
  OP(kJumpIf, "jump_if", "rt")                                                                                                       \
  OP(kJumpIfNot, "jump_if_not", "rt")                                                                                                \
  OP(kIter, "iter", "dr")                                                                                                            \
  OP(kNext, "next", "drt")                                                                                                           \
  OP(kCall, "call", "dr*")                                                                                                           \
  OP(kCallMethod, "call_method", "drn*")                                                                                             \
  OP(kBuiltin, "builtin", "di*")                                                                                                     \
  OP(kBuiltinOf, "builtin_of", "dir")                                                                                                \
  OP(kMethod, "method", "dri*")                                                                                                      \
  OP(kSetItem, "set_item", "rrr")                                                                                                    \
  OP(kIsInstance, "is_instance", "drii")                                                                                             \
  OP(kBlock, "call_block", "i*D")                                                                                                    \
  OP(kRead, "read", "dir")                                                                                                           \
  OP(kReturn, "return", "r")                                                                                                         \
  OP(kRaise, "raise", "r")

enum class Op : int32_t {
#define RAL_TASK_OP(name, text, operands) name,
  RAL_TASK_OPS(RAL_TASK_OP)
#undef RAL_TASK_OP
};

struct OpInfo {
  const char* text;
  const char* operands;
};
inline constexpr OpInfo kOps[] = {
#define RAL_TASK_OP(name, text, operands) {text, operands},
    RAL_TASK_OPS(RAL_TASK_OP)
#undef RAL_TASK_OP
};
inline constexpr int32_t kOpCount = static_cast<int32_t>(sizeof(kOps) / sizeof(*kOps));

// Numbers in instructions; disc/artifact/skeletons.py has the same lists.
enum Binary : int32_t { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower, kBinaries };
enum Compare : int32_t { kEqual, kUnequal, kLess, kLessEqual, kGreater, kGreaterEqual, kIs, kIsNot, kIn, kNotIn, kCompares };
enum Builtin : int32_t {
  kLen, kRangeOf, kEnumerateOf, kZipOf, kStrictZipOf, kReversedOf, kListOf, kTupleOf, kIntOf, kFloatOf, kBoolOf, kAbs, kMin, kMax, kSum,
  kAny, kAll, kSortedBy, kMinBy, kMaxBy, kError, kTensorOf, kBuiltins
};
enum Method : int32_t { kAppend, kExtend, kPop, kInsert, kClear, kReverse, kCopy, kGet, kKeys, kValues, kEntries, kSetDefault, kMethods };
enum Read : int32_t { kReadBool, kReadFloat, kReadInt, kReadItem, kReadList, kReads };

struct Function {
  std::string name, file;
  int32_t parameters, registers;
  bool memo;  // results may be used again for the same arguments
  std::vector<int32_t> code;
  std::vector<std::pair<int32_t, int32_t>> lines;  // (place in the code, line), ascending
};

// How the parts of an instance lie in the arrays: position p of a slot is
//   kInteger, kTruth, kReal: element p of its array; kNode: the node of this number, -1 = None; kOptional: an integer, -1 = None;
//   kItems: a list, positions [offsets[p], offsets[p + 1]) of slot `parts[0]`; kParts: a tuple, position p of each of `parts`;
//   kTensor: row p of its array, of class `row_class`; kNothing: None; kChoice: one of `choices`, -1 = None, kOtherChoice = another text.
enum class SlotKind : int32_t { kInteger, kTruth, kReal, kNode, kOptional, kItems, kParts, kTensor, kNothing, kChoice };
inline constexpr int64_t kOtherChoice = -2;

struct Slot {
  SlotKind kind;
  int32_t array;      // -1 where there is none
  int32_t domain;     // of which its positions are: 0 instances, 1 nodes, 2 + n: elements of the n-th list
  int32_t inner;      // the domain of a list's elements
  int32_t row_class;
  std::vector<int32_t> parts;
  std::vector<Value> choices;  // texts, among them all of the code's, or constant objects

  bool has_texts() const { return !choices.empty() && choices[0].tag == Tag::kText; }
};

// What is known of the name of an attribute, or of a key of dicts. slot: of nodes, and the bits of the classes that hold it; presence: whether
// a node has it, -1 where all of these classes do; getters, methods: (function, bits of the classes that have it so).
struct Name {
  std::string text;
  int32_t slot, slot_classes, presence;
  std::vector<std::pair<int32_t, int32_t>> getters, methods;
};

// Whether class `kind` is one of some.
inline bool among(int64_t kind, int32_t classes) { return kind >= 0 && kind < 31 && (classes >> kind & 1) != 0; }

// The function of a class; -1 where it has none.
inline int32_t function_of(const std::vector<std::pair<int32_t, int32_t>>& functions, int64_t kind) {
  for (const auto& [function, classes] : functions) {
    if (among(kind, classes)) return function;
  }
  return -1;
}

// A class of nodes: what its objects are besides their attributes.
enum class Like : int32_t { kObject, kTuple, kMapping };
enum class Equality : int32_t { kIdentity, kAmongNodes, kUnknown };  // equal is: itself; perhaps another node; perhaps anything
struct NodeClass {
  Like like = Like::kObject;
  Equality equality = Equality::kUnknown;
  std::vector<int32_t> parts;  // slots of a tuple's fields
};

struct Object {
  Tag like;  // kList or kTuple for constant containers, else kObject
  std::string text;
  Items items;
  std::unordered_map<int32_t, Value> attributes;
  int32_t function = -1;  // what a call of it runs
  Items bound;            // its arguments before those of the call
  bool sequence = false;  // it has a length and items
  bool mapping = false;   // a dict: `items` are its values
  std::unordered_map<std::string, size_t> texts;  // of a dict: the places of texts, integers and objects that are its keys
  std::unordered_map<int64_t, size_t> integers, objects;
};

struct RowClass {
  int32_t dtype;
  std::vector<int64_t> dims;
  int64_t bytes;
};

using Tokens = std::vector<int64_t>;

// A block for one form of a region's arguments. outputs: a program of `Output`s for each output.
struct Kind {
  int32_t region;
  Tokens tokens;
  int32_t block;                // of the schedule; -1: its results are constant rows
  std::vector<int32_t> constants;
  std::vector<int32_t> rows, results;  // classes
  int32_t values;
  double cost;
  std::vector<int32_t> outputs;
};
enum class Output : int32_t { kMade, kGiven, kConstant, kTuple, kList, kArgument, kDict };

// How a region takes a number among its inputs: as a constant of its blocks, as an index, or a float as a row without dims.
enum Use : uint8_t { kUseConstant, kUseIndex, kUseRow };

struct Region {
  std::string name;
  std::string line;
  std::vector<uint8_t> uses;  // of each input: a `Use`
  std::vector<int32_t> kinds;
};

// What is written in the tokens of a region's arguments.
enum Token : int64_t { kTokenRow, kTokenIndex, kTokenFloat, kTokenNone, kTokenBool, kTokenInt, kTokenText, kTokenObject, kTokenList, kTokenTuple };

// How results lie in arrays: kRow: [positions, ...]; kInteger, kTruth, kReal: [positions]; kItems: offsets, and the elements; kParts: each; with
// `keys` those of a dict, whose keys are these texts; kChoice: the number of a text of the code, -1 = None.
struct ResultSlot {
  SlotKind kind;
  int32_t row_class;
  std::vector<int32_t> parts;
  std::vector<std::string> keys;
};

struct Code {
  std::vector<Function> functions;
  std::vector<Value> constants;
  std::vector<std::string> texts;
  std::unordered_map<std::string, int64_t> text_numbers;
  std::vector<Name> names;
  std::unordered_map<std::string, int32_t> name_numbers;
  std::vector<NodeClass> node_classes;
  std::vector<Object> objects;
  std::vector<RowClass> classes;
  std::vector<std::pair<int32_t, std::string>> rows;  // constant rows: class, bytes
  std::vector<Region> regions;
  std::vector<Kind> kinds;
  std::vector<Slot> slots;
  std::vector<ResultSlot> results;
  int32_t root = 0;        // slot of the instances
  int32_t result = 0;      // slot of results
  int32_t kind_slot = -1;  // slot of nodes that has the number of their class; -1: all are of class 0
  int32_t arrays = 0;
  int32_t domains = 2;
  int32_t number_class = -1;  // of rows that are one f64

  // What is wrong with code from an untrusted file; empty if it can be run.
  std::string verify() const;
};

}  // namespace ral::tasks
