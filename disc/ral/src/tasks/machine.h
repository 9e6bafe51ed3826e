// Runs the instances of a batch: each on frames of its own on the heap, until it needs a value; then what the values need is computed for all
// that wait (ACROBAT, section 4.2).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <unordered_map>
#include <vector>

#include "tasks/code.h"
#include "tasks/launches.h"

namespace ral::tasks {

struct Array {
  const void* data;
  int64_t length;
};

// What became of an instance that failed. function: -1 where it is no function's fault.
struct Failed {
  int64_t instance;
  Failure failure;
  int32_t function, line;
};

// The nodes of a cycle as text, "0 -> 2 -> 0"; empty where the structure has none.
std::string find_cycle(const Code& code, const std::vector<Array>& arrays, int64_t nodes);

struct Cancelled {};

class Machine {
 public:
  // arrays: one for each of `code.arrays`, checked by `check_arrays`. tables: with constant rows, behind which tensors of instances are put. stop: asked
  // from time to time whether to end.
  Machine(const Code& code, const std::vector<ral_block>& blocks, std::vector<Table>& tables, const std::vector<Array>& arrays,
          std::vector<int64_t> domains, bool shared, bool (*stop)())
      : code_(code), tables_(tables), launches_(code, blocks, tables), arrays_(arrays), domains_(std::move(domains)), shared_(shared), stop_(stop) {}

  // Runs all instances. Failures of single ones are in `failed`.
  ral_status run();

  std::vector<Failed> failed;
  Launches& launches() { return launches_; }

  // What a value of an instance's result is.
  const Value& result(size_t instance) const { return instances_[instance].result; }
  const Items& list_items(const Value& value) const { return lists_[static_cast<size_t>(value.i)]; }
  const Row& row(int64_t number) const { return launches_.row(number); }
  const std::string* failure(const Row& row) const { return launches_.failure(row); }
  int64_t slot_row(size_t slot) const { return slot_rows_[slot]; }
  std::string words(const Value& value) const { return text(value); }

  // Of the results: numbers and rows of each slot, in the order of positions; of instances that failed nothing.
  struct Column {
    std::vector<int64_t> numbers;  // of a row: its place in its table
    std::vector<double> reals;
    std::vector<int64_t> offsets;
  };
  // Notes in `failed` instances whose results could not be computed, or have another form than `code.results` says.
  std::vector<Column> results();

 private:
  struct Frame {
    int32_t function, at, base, target;
    int64_t memo;  // number of what is remembered; -1: nothing
  };
  struct Instance {
    Items registers;
    std::vector<Frame> frames;
    Value result, asked;
    int32_t how = 0, target = 0;  // of the value that it waits for
    bool waits = false, done = false;
  };
  struct Memory {
    Value value;
    int64_t instance;  // that computes it; -1: it is known
  };

  // --- machine.cc
  ral_status place_tensors();
  void begin(int64_t number);
  void advance(int64_t number);
  void step(Instance& instance);
  void ask_stop();
  void fail(int64_t number, Failure failure);
  ral_status answer(const std::vector<int64_t>& waiting);
  Value read(const Row& row, int32_t how) const;
  Value read_list(const char* data, const RowClass& row_class, size_t dim) ;
  void call(Instance& instance, Value callee, const int32_t* arguments, int32_t count, int32_t target);
  void enter(Instance& instance, int32_t function, const Items& bound, const Value* arguments, int32_t count, int32_t target);
  bool leave(Instance& instance, Value result);
  void call_block(Items& registers, size_t base, const int32_t* operands);
  void describe(const Value& value, Use use, int32_t depth = 0);
  void describe_float(const Value& value);
  Value output(const Kind& kind, const int32_t*& at, int64_t first, const int32_t* inputs, const Value* registers);

  // --- values.cc
  [[noreturn]] static void raise(const char* kind, std::string words);
  bool truth(const Value& value) const;
  int64_t length(const Value& value) const;
  Value item_at(const Value& value, int64_t place);
  Value item(const Value& value, const Value& index);
  Value slice(const Value& value, const Value& low, const Value& high, const Value& step);
  Value field(const Value& value, int32_t name, int32_t& getter);
  Value slot_value(int32_t slot, int64_t position);
  Value binary(int32_t op, const Value& left, const Value& right);
  static double exact(const Value& value);
  bool identical(const Value& left, const Value& right) const;
  bool compare(int32_t op, const Value& left, const Value& right);
  bool equal(const Value& left, const Value& right, int32_t depth = 0);
  bool contains(const Value& items, const Value& value);
  Value iterator(const Value& value);
  bool next(Value& iterator, Value& item);
  Items items_of(const Value& value);
  Value builtin(int32_t which, const Items& arguments);
  Value method(int32_t which, const Value& value, const Items& arguments);
  void set_item(const Value& value, const Value& index, const Value& item);
  bool is_instance(const Value& value, int32_t tags, int32_t classes);
  Value list(Items items, Tag tag = Tag::kList) {
    lists_.push_back(std::move(items));
    return Value::of(tag, static_cast<int64_t>(lists_.size()) - 1);
  }
  std::string text(const Value& value) const;

  // --- results.cc
  void check_result(int32_t slot, const Value& value);
  void put(std::vector<Column>& columns, int32_t slot, const Value& value);

  const Code& code_;
  std::vector<Table>& tables_;
  Launches launches_;
  const std::vector<Array>& arrays_;
  std::vector<int64_t> domains_;  // how many positions each has
  bool shared_;                   // whether a node may be reached twice
  bool (*stop_)();
  uint32_t steps_ = 0;            // jumps and calls since it was asked
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  std::vector<int64_t> slot_rows_;  // of each slot of tensors the row of its first
  std::vector<Instance> instances_;
  int64_t current_ = 0;
  std::deque<Items> lists_;
  std::deque<std::string> texts_;  // made while it runs, behind those of the code
  std::vector<Range> ranges_;
  std::deque<Iterator> iterators_;
  std::unordered_map<std::string, int64_t> memo_numbers_;
  std::vector<Memory> memo_;
  std::vector<int32_t> last_kind_ = std::vector<int32_t>(code_.regions.size(), -1);
  // of the call of a block that is recorded
  Tokens tokens_;
  std::vector<int64_t> rows_, values_;
  std::vector<int64_t> given_rows_;
};

// What is wrong with the arrays of instances, with its status; and how many positions each domain has.
ral_status check_arrays(const Code& code, const std::vector<Array>& arrays, const std::vector<std::string>& names,
                        std::vector<int64_t>& domains, bool& shared, std::string& words);

}  // namespace ral::tasks
