// Calls of blocks that wait, and the tables with what was computed (ACROBAT, section 4).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ral.h"
#include "tasks/code.h"

namespace ral::tasks {

// Rows of one class, aligned as programs like it; grows by doubling.
class Table {
 public:
  explicit Table(const RowClass& row_class) : class_(&row_class) {}
  Table(Table&&) = default;

  // Room for `count` rows in all. False where there is no memory.
  bool reserve(int64_t count);
  char* row(int64_t place) const { return data_.get() + place * class_->bytes; }
  const RowClass& row_class() const { return *class_; }
  int64_t bytes() const { return capacity_ * class_->bytes; }
  ral_tensor tensor(std::vector<int64_t>& dims) const;

  int64_t used = 0;

 private:
  struct Free {
    void operator()(char* data) const;
  };
  const RowClass* class_;
  std::unique_ptr<char[], Free> data_;
  int64_t capacity_ = 0;
};

inline constexpr int32_t kGiven = -1, kMade = -2;  // by an instance or the code; of numbers, by the skeleton

struct Row {
  int32_t row_class;
  int32_t launch;  // kGiven, kMade: no launch computes it
  int64_t place;   // -1: not known yet
};

class Launches {
 public:
  // tables: one for each class, where constant rows come first.
  Launches(const Code& code, std::vector<Table>& tables) : code_(code), tables_(tables), number_(code.kinds.size(), -1) {}

  // Forgets all calls; the memory that they took is used again. blocks: of the calls to come.
  void begin(const std::vector<ral_block>& blocks);

  int64_t add_given(int32_t row_class, int64_t place) { return add({row_class, kGiven, place}); }
  int64_t add_made(int32_t row_class, int64_t place) { return add({row_class, kMade, place}); }
  // The first of the rows that the launch will compute.
  int64_t record(int32_t kind, const std::vector<int64_t>& rows, const std::vector<int64_t>& values);

  const Row& row(int64_t number) const { return rows_[static_cast<size_t>(number)]; }
  size_t row_count() const { return rows_.size(); }
  bool is_done(const Row& row) const { return row.launch < 0 || launches_[static_cast<size_t>(row.launch)].done; }
  // Why the row could not be computed; null where it was.
  const std::string* failure(const Row& row) const;

  // Runs what `needed` rows need, or all that wait. What fails is noted; other failures than of a block's own are returned.
  ral_status flush(const std::vector<int64_t>* needed);

  int64_t launch_count = 0;
  std::vector<std::pair<int32_t, int64_t>> sizes;  // (kind, calls) of each launch

 private:
  int64_t add(const Row& row) {
    rows_.push_back(row);
    return static_cast<int64_t>(rows_.size()) - 1;
  }
  struct Launch {
    int32_t kind, depth;
    int32_t failure;  // -1: none
    bool done;
    uint32_t first_read, first_value, first_result;
    uint32_t index;
    uint64_t mark;
  };

  void take(const std::vector<int64_t>* needed);
  ral_status order();
  ral_status run();
  void arrange(size_t begin, size_t end);
  ral_status run_range(const ral_batch* batches, size_t count, const std::vector<int64_t>& before);
  ral_status run_alone(const ral_batch& batch, int64_t number, Launch& launch, const std::vector<int64_t>& used);
  ral_status isolate(const std::vector<int64_t>& before);
  void fail_dependents(Launch& launch) const;

  const Code& code_;
  const std::vector<ral_block>* blocks_ = nullptr;
  std::vector<Table>& tables_;
  std::vector<Row> rows_;
  std::vector<Launch> launches_;
  std::vector<int64_t> reads_, values_;
  std::vector<uint32_t> pending_, chosen_;
  std::vector<std::string> failures_;
  uint64_t marks_ = 0;
  // of the flush that runs
  std::vector<int32_t> number_;  // of each kind among those in use
  std::vector<uint8_t> consumed_;
  std::vector<int32_t> used_, kinds_, depths_;  // kinds in use; of each call
  std::vector<int64_t> first_read_, read_;
  std::vector<double> costs_;
  std::vector<uint8_t> last_;
  std::vector<int64_t> order_, ends_, indices_;
  std::vector<ral_batch> batches_;
  std::vector<std::vector<int64_t>> dims_;  // of each table
  std::vector<ral_tensor> tensors_;
};

}  // namespace ral::tasks
