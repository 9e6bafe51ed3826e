// The Python classes of schedules: ral_run_batches and ral_linearize, and the walk over Python objects that are a structure.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <tuple>
#include <vector>

#include "ral.h"

namespace ral::python {

// The numbers as a NumPy array that owns them.
nanobind::object owned(std::vector<int64_t>&& numbers, std::initializer_list<size_t> shape);

// The programs of a schedule, and which tables each of them reads and writes.
class Schedule {
 public:
  using Numbers = nanobind::ndarray<const int64_t, nanobind::c_contig, nanobind::device::cpu>;
  using Classes = std::vector<int32_t>;

  // Of each block: the `_ral.Context` of its program, and tables, rows, number of other vectors, and results as in ral_block.
  explicit Schedule(const std::vector<std::tuple<nanobind::object, Classes, Classes, int32_t, Classes>>& blocks);
  Schedule(const Schedule&) = delete;

  // Runs batches [n, 3] of (block, count, offset into `indices`); returns how many rows of each table are used then. Tables are written.
  std::vector<int64_t> run(const nanobind::tuple& tables, std::vector<int64_t> used, const Numbers& batches, const Numbers& indices) const;

  const std::vector<ral_block>& blocks() const { return blocks_; }

 private:
  const Classes& keep(const Classes& list) { return *kept_.emplace_back(std::make_unique<Classes>(list)); }

  std::vector<nanobind::object> contexts_;
  std::vector<std::unique_ptr<Classes>> kept_;
  std::vector<ral_block> blocks_;
};

void bind_schedules(nanobind::module_& module);

}  // namespace ral::python
