// Runs the instances of a batch: each on frames of its own on the heap, until it needs a value; then what the values need is computed for all
// that wait (ACROBAT, section 4.2).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
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

// Memory for what lives as long as a call, taken from the front of one block. Nothing of it is given back before `reset`, which keeps one
// block, of the largest call.
class Arena : public std::pmr::memory_resource {
 public:
  void reset();

 private:
  struct Block {
    std::unique_ptr<std::byte[]> data;
    size_t size;
  };

  void* do_allocate(size_t bytes, size_t alignment) override;
  void do_deallocate(void*, size_t, size_t) override {}
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override { return this == &other; }

  std::vector<Block> blocks_;
  std::byte* next_ = nullptr;
  std::byte* end_ = nullptr;
};

// What a call needs, kept for the next one. tables: one for each class of rows.
struct Workspace {
  explicit Workspace(const Code& code) : tables(code.classes.begin(), code.classes.end()), launches(code, tables) {}
  Workspace(const Workspace&) = delete;

  // For a call of these blocks.
  void begin(const std::vector<ral_block>& blocks);

  std::vector<Table> tables;
  Launches launches;
  Arena arena;
};

class Machine {
 public:
  // arrays: one for each of `code.arrays`, checked by `check_arrays`. space: with constant rows, behind which tensors of instances are put; of no
  // other machine. stop: asked from time to time whether to end.
  Machine(const Code& code, Workspace& space, const std::vector<Array>& arrays, std::vector<int64_t> domains, bool shared, bool (*stop)())
      : code_(code), tables_(space.tables), launches_(space.launches), arrays_(arrays), domains_(std::move(domains)), shared_(shared), stop_(stop),
        arena_(space.arena) {}

  // Runs all instances. Failures of single ones are in `failed`.
  ral_status run();

  std::vector<Failed> failed;
  Launches& launches() { return launches_; }
  const Launches& launches() const { return launches_; }

  // What a value of an instance's result is.
  const Value& result(size_t instance) const { return instances_[instance].result; }
  const Items& list_items(const Value& value) const { return lists_[static_cast<size_t>(value.i)]; }
  const Row& row(int64_t number) const { return launches_.row(number); }
  const std::string* failure(const Row& row) const { return launches_.failure(row); }
  int64_t slot_row(size_t slot) const { return slot_rows_[slot]; }
  const Dict& dict(const Value& value) const { return dicts_[static_cast<size_t>(value.i)]; }
  const std::string& words(const Value& text) const { return characters(text); }

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
  void call_method(Instance& instance, const Value& owner, int32_t name, const int32_t* arguments, int32_t count, int32_t target);
  void enter(Instance& instance, int32_t function, const Items& bound, const Value* arguments, int32_t count, int32_t target);
  bool leave(Instance& instance, Value result);
  void call_block(Items& registers, size_t base, const int32_t* operands);
  void describe(const Value& value, Use use, int32_t depth = 0);
  void describe_float(const Value& value);
  void token(int64_t what, int64_t number) {
    tokens_.push_back(what);
    tokens_.push_back(number);
  }
  Value output(const Kind& kind, const int32_t*& at, int64_t first, const int32_t* inputs, const Value* registers);

  // --- values.cc
  [[noreturn]] static void raise(const char* kind, std::string words);
  bool truth(const Value& value) const;
  int64_t length(const Value& value) const;
  Value item_at(const Value& value, int64_t place);
  Value item(const Value& value, const Value& index);
  Value slice(const Value& value, const Value& low, const Value& high, const Value& step);
  Value field(const Value& value, int32_t name, int32_t& getter);
  bool has(const Value& value, int32_t name) const;
  int64_t class_of(const Value& node) const;
  const NodeClass& what(const Value& node) const;
  bool is_like(const Value& value, Like like) const { return value.tag == Tag::kNode && what(value).like == like; }
  bool holds(const Name& name, const Value& node) const;
  std::string key_of(const Value& key, int32_t depth = 0);
  Value* entry(const Value& dict, const Value& key);
  void put_entry(const Value& dict, const Value& key, const Value& value);
  Value make_dict() {
    dicts_.push_back({Items(&arena_), Items(&arena_), {}});
    return Value::of(Tag::kDict, static_cast<int64_t>(dicts_.size()) - 1);
  }
  bool find_key(const Value& node, const Value& key, Value& found);
  Value slot_value(int32_t slot, int64_t position);
  Value binary(int32_t op, const Value& left, const Value& right);
  static double exact(const Value& value);
  bool identical(const Value& left, const Value& right) const;
  bool compare(int32_t op, const Value& left, const Value& right, int32_t depth = 0);
  bool is_sequence(const Value& value) const;
  bool equal(const Value& left, const Value& right, int32_t depth = 0);
  bool contains(const Value& items, const Value& value);
  const Object* mapping(const Value& value) const;
  const Value* looked_up(const Object& mapping, const Value& key) const;
  Value iterator(const Value& value);
  bool next(Value& iterator, Value& item);
  Items items_of(const Value& value);
  void refuse_unordered(const Value& key, int32_t depth = 0);
  Value sorted_by(const Items& items, const Items& keys, bool reverse);
  Value builtin(int32_t which, const Items& arguments);
  Value tensor_of(const Value& data, int64_t of_floats, int64_t dtype);
  Items numbers_of(const Value& data, std::vector<int64_t>& dims);
  Value method(int32_t which, const Value& value, const Items& arguments);
  void set_item(const Value& value, const Value& index, const Value& item);
  bool is_instance(const Value& value, int32_t tags, int32_t classes);
  // A list with these items; `make`: of Items in the arena.
  template <typename... Make>
  Value list(Tag tag, Make&&... make) {
    lists_.emplace_back(std::forward<Make>(make)...);
    return Value::of(tag, static_cast<int64_t>(lists_.size()) - 1);
  }
  template <typename Parts>
  Value iterate(Walk walk, int64_t next, const Parts& parts) {
    iterators_.push_back({walk, next, Items(std::begin(parts), std::end(parts), &arena_)});
    return Value::of(Tag::kIter, static_cast<int64_t>(iterators_.size()) - 1);
  }
  std::string text(const Value& value) const;
  Value make_text(std::string made);
  const std::string& characters(const Value& value) const;
  bool equal_texts(const Value& left, const Value& right) const;

  // --- results.cc
  void check_result(int32_t slot, const Value& value);
  void put(std::vector<Column>& columns, int32_t slot, const Value& value);

  const Code& code_;
  std::vector<Table>& tables_;
  Launches& launches_;
  const std::vector<Array>& arrays_;
  std::vector<int64_t> domains_;  // how many positions each has
  bool shared_;                   // whether a node may be reached twice
  bool (*stop_)();
  uint32_t steps_ = 0;            // jumps and calls since it was asked
  std::chrono::steady_clock::time_point asked_ = std::chrono::steady_clock::now();
  std::vector<int64_t> slot_rows_;  // of each slot of tensors the row of its first
  std::vector<Instance> instances_;
  int64_t current_ = 0;
  Arena& arena_;
  std::pmr::deque<Items> lists_{&arena_};
  std::deque<Dict> dicts_;
  std::deque<std::string> texts_;  // made while it runs, behind those of the code
  std::vector<Range> ranges_;
  std::pmr::deque<Iterator> iterators_{&arena_};
  Items arguments_;  // of the function that is called
  std::unordered_map<std::string, int64_t> memo_numbers_;
  std::vector<Memory> memo_;
  std::vector<int32_t> last_kind_ = std::vector<int32_t>(code_.regions.size(), -1);
  // of the call of a block that is recorded
  Tokens tokens_;
  std::vector<int64_t> rows_, values_;
};

// What is wrong with the arrays of instances, with its status; and how many positions each domain has.
ral_status check_arrays(const Code& code, const std::vector<Array>& arrays, const std::vector<std::string>& names,
                        std::vector<int64_t>& domains, bool& shared, std::string& words);

}  // namespace ral::tasks
