#include "python/schedule.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/object_walk.h"
#include "python/python_tensor.h"
#include "ral.h"

namespace ral::python {

namespace {

using Numbers = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;
using Classes = std::vector<int32_t>;

void check(ral_status status) {
  if (status != RAL_OK) raise(status, ral_last_error());
}

int32_t size_of(const auto& list) { return static_cast<int32_t>(list.size()); }

// The programs of a schedule, and which tables each of them reads and writes.
class Schedule {
 public:
  // Of each block: the `_ral.Context` of its program, and tables, rows, number of other vectors, and results as in ral_block.
  explicit Schedule(const std::vector<std::tuple<nb::object, Classes, Classes, int32_t, Classes>>& blocks) {
    kept_.reserve(3 * blocks.size());
    for (const auto& [context, tables, rows, values, results] : blocks) {
      contexts_.push_back(context);
      const nb::capsule handle = nb::cast<nb::capsule>(context.attr("handle")());
      const Classes &first = keep(tables), &second = keep(rows), &third = keep(results);
      blocks_.push_back({static_cast<ral_context*>(handle.data()), first.data(), second.data(), third.data(), size_of(first), size_of(second),
                         values, size_of(third)});
    }
  }
  Schedule(const Schedule&) = delete;

  // Runs batches [n, 3] of (block, count, offset into `indices`); returns how many rows of each table are used then. Tables are written.
  std::vector<int64_t> run(const nb::tuple& tables, std::vector<int64_t> used, const Numbers& batches, const Numbers& indices) const {
    if (batches.ndim() != 2 || batches.shape(1) != 3 || indices.ndim() != 1 || used.size() != tables.size())
      throw nb::value_error("batches are [n, 3], indices [m], and `used` has a number for each table");
    ask_python();
    Borrowed lent;
    lent.add_all(tables, [](int32_t) { return ral_value_info{}; }, "table", true);
    static_assert(sizeof(ral_batch) == 3 * sizeof(int64_t));
    check(without_gil([&] {
      return ral_run_batches(blocks_.data(), size_of(blocks_), lent.tensors(), used.data(), size_of(used),
                             reinterpret_cast<const ral_batch*>(batches.data()), static_cast<int64_t>(batches.shape(0)), indices.data(),
                             static_cast<int64_t>(indices.size()));
    }));
    return used;
  }

  const std::vector<ral_block>& blocks() const { return blocks_; }

 private:
  const Classes& keep(const Classes& list) { return *kept_.emplace_back(std::make_unique<Classes>(list)); }

  std::vector<nb::object> contexts_;
  std::vector<std::unique_ptr<Classes>> kept_;
  std::vector<ral_block> blocks_;
};

// What is known of structures: the kinds of their nodes, what is read of each, and the block that computes it.
class Structures {
 public:
  using Attributes = std::vector<std::pair<int32_t, std::string>>;
  using Rows = std::vector<std::pair<int32_t, int32_t>>;
  using Kind = std::tuple<int64_t, Attributes, Attributes, Rows, Classes>;

  // fields, columns: how many. kinds: (block, attributes of fields, attributes of columns, rows (field, result) and columns that the block
  // reads). questions: (attribute, whether it is asked for None, next question, next question), as Question. check: of TypeCheck, or None.
  Structures(std::vector<std::string> fields, size_t columns, const std::vector<Kind>& kinds,
             const std::vector<std::tuple<std::string, bool, int32_t, int32_t>>& questions, int32_t results, nb::object check)
      : field_names_(std::move(fields)), columns_(columns), results_(results), check_(std::move(check)) {
    const auto name = [](const std::string& text) { return nb::steal(PyUnicode_InternFromString(text.c_str())); };
    for (const auto& [attribute, is_none, yes, no] : questions) questions_.push_back({name(attribute), is_none, yes, no});
    for (const auto& [block, own_fields, own_columns, rows, read] : kinds) {
      KindAttributes attributes;
      std::vector<uint8_t> present(field_names_.size(), 0);
      for (const auto& [field, text] : own_fields) {
        attributes.fields.emplace_back(field, name(text));
        present.at(static_cast<size_t>(field)) = 1;
      }
      for (const auto& [column, text] : own_columns) attributes.columns.emplace_back(column, name(text));
      attributes_.push_back(std::move(attributes));
      present_.insert(present_.end(), present.begin(), present.end());
      auto& own_rows = rows_.emplace_back(std::make_unique<std::vector<ral_node_row>>());
      for (const auto& [field, result] : rows) own_rows->push_back({field, result});
      auto& own_read = read_.emplace_back(std::make_unique<Classes>(read));
      if (std::any_of(own_read->begin(), own_read->end(), [&](int32_t column) { return column < 0 || column >= static_cast<int32_t>(columns_); }))
        throw nb::value_error("a column that there is not");
      kinds_.push_back({block, own_rows->data(), own_read->data(), size_of(*own_rows), size_of(*own_read)});
    }
    for (const std::string& text : field_names_) field_texts_.push_back(text.c_str());
  }
  Structures(const Structures&) = delete;

  // (batches [n, 3], indices [m], rows [nodes, results], used) of flat arrays: kinds, and an array for each field and each column.
  nb::tuple linearize(const Schedule& schedule, const Numbers& kinds, const std::vector<Numbers>& children,
                      const std::vector<Numbers>& columns, std::vector<int64_t> used) const {
    if (children.size() != field_names_.size() || columns.size() != columns_) throw nb::value_error("an array for each field and column");
    const size_t count = kinds.size();
    std::vector<const int64_t*> own_children, own_columns;
    for (const auto& [arrays, pointers] : {std::pair(&children, &own_children), std::pair(&columns, &own_columns)}) {
      for (const Numbers& each : *arrays) {
        if (each.size() != count) throw nb::value_error("every array has an element for each node");
        pointers->push_back(each.data());
      }
    }
    return schedule_of(schedule, kinds.data(), count, own_children, own_columns, std::move(used), nullptr);
  }

  // The same of Python objects: rows [roots, results].
  nb::tuple walk(const Schedule& schedule, const nb::list& roots, std::vector<int64_t> used) {
    const FlatStructure flat = walk_objects(roots, questions_, attributes_, field_names_.size(), columns_, check_);
    std::vector<const int64_t*> children, columns;
    for (const auto& each : flat.children) children.push_back(each.data());
    for (const auto& each : flat.columns) columns.push_back(each.data());
    return schedule_of(schedule, flat.kinds.data(), flat.kinds.size(), children, columns, std::move(used), &flat.roots);
  }

 private:
  nb::tuple schedule_of(const Schedule& schedule, const int64_t* kinds, size_t count, const std::vector<const int64_t*>& children,
                        const std::vector<const int64_t*>& columns, std::vector<int64_t> used, const std::vector<int64_t>* roots) const {
    const ral_structure structure{static_cast<int64_t>(count), kinds,           children.data(),     columns.data(),       kinds_.data(),
                                  present_.data(),             field_texts_.data(), size_of(kinds_), size_of(field_names_), results_};
    size_t most = 0;
    for (const ral_node_kind& kind : kinds_) most = std::max(most, static_cast<size_t>(kind.row_count + kind.value_count));
    const auto results = static_cast<size_t>(results_);
    std::vector<int64_t> batches(3 * count), indices(most * count), rows(results * count);
    int64_t made = 0;
    check(without_gil([&] {
      return ral_linearize(&structure, schedule.blocks().data(), size_of(schedule.blocks()), used.data(), size_of(used),
                           reinterpret_cast<ral_batch*>(batches.data()), &made, indices.data(), rows.data());
    }));
    const size_t batch_count = static_cast<size_t>(made), index_count = indices.size();
    batches.resize(3 * batch_count);
    if (roots) {
      std::vector<int64_t> chosen;
      for (const int64_t root : *roots) chosen.insert(chosen.end(), &rows[static_cast<size_t>(root) * results], &rows[static_cast<size_t>(root) * results] + results);
      rows.swap(chosen);
    }
    const size_t row_count = roots ? roots->size() : count;
    return nb::make_tuple(owned(std::move(batches), {batch_count, 3}), owned(std::move(indices), {index_count}),
                          owned(std::move(rows), {row_count, results}), used);
  }

  std::vector<std::string> field_names_;
  std::vector<const char*> field_texts_;
  size_t columns_;
  int32_t results_;
  TypeCheck check_;
  std::vector<Question> questions_;
  std::vector<KindAttributes> attributes_;
  std::vector<uint8_t> present_;
  std::vector<std::unique_ptr<std::vector<ral_node_row>>> rows_;
  std::vector<std::unique_ptr<Classes>> read_;
  std::vector<ral_node_kind> kinds_;
};

}  // namespace

nb::object owned(std::vector<int64_t>&& numbers, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<int64_t>(std::move(numbers));
  const nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<int64_t>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, int64_t>(kept->data(), shape, owner));
}

void bind_schedules(nb::module_& module) {
  using Blocks = std::vector<std::tuple<nb::object, Classes, Classes, int32_t, Classes>>;
  using Questions = std::vector<std::tuple<std::string, bool, int32_t, int32_t>>;
  nb::class_<Schedule>(module, "Schedule")
      .def(nb::init<const Blocks&>(), nb::arg("blocks"))
      .def("run", &Schedule::run, nb::arg("tables"), nb::arg("used"), nb::arg("batches"), nb::arg("indices"));
  nb::class_<Structures>(module, "Structures")
      .def(nb::init<std::vector<std::string>, size_t, const std::vector<Structures::Kind>&, const Questions&, int32_t, nb::object>(),
           nb::arg("fields"), nb::arg("columns"), nb::arg("kinds"), nb::arg("questions"), nb::arg("results"), nb::arg("check").none())
      .def("linearize", &Structures::linearize, nb::arg("schedule"), nb::arg("kinds"), nb::arg("children"), nb::arg("columns"),
           nb::arg("used"))
      .def("walk", &Structures::walk, nb::arg("schedule"), nb::arg("roots"), nb::arg("used"));
}

}  // namespace ral::python
