#include "core/schedule.h"

#include <algorithm>
#include <string>
#include <vector>

#include "core/bytes.h"
#include "core/context.h"
#include "core/layout.h"

namespace ral {

namespace {

// The tensors of one call, kept from batch to batch: slices of the tables, and vectors of indices.
class Call {
 public:
  Call(const ral_block* blocks, int32_t block_count, const ral_tensor* tables, const int64_t* used, int32_t table_count)
      : tables_(tables), used_(used) {
    int32_t most = 0, rank = 1;
    for (int32_t i = 0; i < block_count; ++i) {
      const ral_block& block = blocks[i];
      most = std::max(most, block.table_count + block.row_count + block.value_count + block.result_count);
    }
    for (int32_t i = 0; i < table_count; ++i) rank = std::max(rank, tables[i].rank);
    tensors_.resize(static_cast<size_t>(most));
    dims_.resize(static_cast<size_t>(most) * static_cast<size_t>(rank));
  }

  void begin() {
    count_ = 0;
    next_dims_ = dims_.data();
  }

  // Rows [first, first + count) of a table.
  void add_rows(int32_t table, int64_t first, int64_t count) {
    const ral_tensor& whole = tables_[table];
    int64_t row = dtype_size(whole.dtype);
    for (int32_t d = 1; d < whole.rank; ++d) row *= whole.dims[d];
    add({static_cast<char*>(whole.data) + first * row, nullptr, nullptr, whole.rank, whole.dtype, RAL_CPU, 0}, whole.dims, count);
  }

  void add_used(int32_t table) { add_rows(table, 0, used_[table]); }

  void add_numbers(const int64_t* numbers, int64_t count) {
    add({const_cast<int64_t*>(numbers), nullptr, nullptr, 1, RAL_I64, RAL_CPU, 0}, nullptr, count);
  }

  const ral_tensor* tensors() const { return tensors_.data(); }
  int32_t count() const { return static_cast<int32_t>(count_); }

 private:
  void add(ral_tensor tensor, const int64_t* rest, int64_t first) {
    next_dims_[0] = first;
    for (int32_t d = 1; d < tensor.rank; ++d) next_dims_[d] = rest[d];
    tensor.dims = next_dims_;
    next_dims_ += tensor.rank;
    tensors_[count_++] = tensor;
  }

  const ral_tensor* tables_;
  const int64_t* used_;
  std::vector<ral_tensor> tensors_;
  std::vector<int64_t> dims_;
  int64_t* next_dims_ = nullptr;
  size_t count_ = 0;
};

// The largest of the numbers, as unsigned ones: a negative number is larger than any row.
uint64_t largest(const int64_t* numbers, int64_t count) {
  uint64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found = std::max(found, static_cast<uint64_t>(numbers[i]));
  return found;
}

Status misuse(const std::string& what) { return error(RAL_ERROR_INTERNAL, "ral_run_batches: " + what); }

Status check_block(const ral_block& block, int32_t table_count) {
  const auto known = [&](const int32_t* classes, int32_t count) {
    return std::all_of(classes, classes + count, [&](int32_t each) { return each >= 0 && each < table_count; });
  };
  if (!block.program || block.value_count < 0 || !known(block.tables, block.table_count) || !known(block.rows, block.row_count) ||
      !known(block.results, block.result_count)) {
    return misuse("a block of tables that there are not");
  }
  return {};
}

Status check_batch(const ral_block& block, const ral_batch& batch, const int64_t* indices, int64_t index_count, const ral_tensor* tables,
                   const int64_t* used) {
  const int64_t vectors = block.row_count + block.value_count;
  if (batch.count < 1 || batch.offset < 0 || batch.offset > index_count || batch.count > INT64_MAX / 64 ||
      (vectors > 0 && batch.count > (index_count - batch.offset) / vectors)) {
    return misuse("a batch of " + std::to_string(batch.count) + " rows at index " + std::to_string(batch.offset) + " of " +
                  std::to_string(index_count));
  }
  const int64_t* numbers = indices + batch.offset;
  for (int32_t i = 0; i < block.row_count; ++i, numbers += batch.count) {
    const int64_t rows = used[block.rows[i]];
    if (largest(numbers, batch.count) >= static_cast<uint64_t>(rows))
      return misuse("a row that is not there: table " + std::to_string(block.rows[i]) + " has " + std::to_string(rows));
  }
  for (int32_t i = 0; i < block.result_count; ++i) {
    const int32_t table = block.results[i];
    const auto earlier = std::count(block.results, block.results + i, table);
    if (batch.count > (tables[table].dims[0] - used[table]) / (earlier + 1))
      return misuse("table " + std::to_string(table) + " of " + std::to_string(tables[table].dims[0]) + " rows is full");
  }
  return {};
}

}  // namespace

Status run_batches(const ral_block* blocks, int32_t block_count, const ral_tensor* tables, int64_t* used, int32_t table_count,
                   const ral_batch* batches, int64_t batch_count, const int64_t* indices, int64_t index_count) {
  for (int32_t i = 0; i < table_count; ++i) {
    if (tables[i].rank < 1 || used[i] < 0 || used[i] > tables[i].dims[0] || tables[i].device != RAL_CPU)
      return misuse("table " + std::to_string(i) + " has no rows, or lies on another device");
    if (!is_row_major(tables[i], dtype_size(tables[i].dtype))) return misuse("table " + std::to_string(i) + " is not contiguous");
  }
  for (int32_t i = 0; i < block_count; ++i) {
    if (Status status = check_block(blocks[i], table_count); !status.ok()) return status;
  }
  Call inputs(blocks, block_count, tables, used, table_count), outputs(blocks, block_count, tables, used, table_count);
  for (int64_t i = 0; i < batch_count; ++i) {
    const ral_batch& batch = batches[i];
    if (batch.block < 0 || batch.block >= block_count) return misuse("there is no block " + std::to_string(batch.block));
    const ral_block& block = blocks[batch.block];
    if (Status status = check_batch(block, batch, indices, index_count, tables, used); !status.ok()) return status;
    inputs.begin();
    for (int32_t j = 0; j < block.table_count; ++j) inputs.add_used(block.tables[j]);
    for (int32_t j = 0; j < block.row_count + block.value_count; ++j)
      inputs.add_numbers(indices + batch.offset + j * batch.count, batch.count);
    outputs.begin();
    for (int32_t j = 0; j < block.result_count; ++j) {
      outputs.add_rows(block.results[j], used[block.results[j]], batch.count);
      used[block.results[j]] += batch.count;
    }
    Status status = block.program->call(inputs.tensors(), inputs.count(), outputs.tensors(), nullptr, outputs.count(), nullptr);
    if (!status.ok()) return status;
  }
  return {};
}

}  // namespace ral
