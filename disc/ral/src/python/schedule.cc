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

using Numbers = Schedule::Numbers;
using Classes = Schedule::Classes;

void check(ral_status status) {
  if (status != RAL_OK) raise(status, ral_last_error());
}

int32_t size_of(const auto& list) { return static_cast<int32_t>(list.size()); }

// Room for numbers that are written later.
using Room = std::unique_ptr<int64_t[]>;

Room room(size_t count) { return Room(new int64_t[count]); }

// The numbers as a NumPy array that owns them.
nb::object owned_room(Room&& numbers, std::initializer_list<size_t> shape) {
  int64_t* kept = numbers.release();
  const nb::capsule owner(kept, [](void* pointer) noexcept { delete[] static_cast<int64_t*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, int64_t>(kept, shape, owner));
}

// What is known of structures: the kinds of their nodes, what is read of each, and the block that computes it.
class Structures {
 public:
  using Attributes = std::vector<std::pair<int32_t, std::string>>;
  using Rows = std::vector<std::pair<int32_t, int32_t>>;
  using Kind = std::tuple<int64_t, Attributes, Attributes, Rows, Classes>;

  // fields, columns: their names. kinds: (block, attributes of fields, attributes of columns, rows (field, result) and columns that the block
  // reads). questions: (attribute, whether it is asked for None, next question, next question), as Question. check: of TypeCheck, or None.
  // array_questions: as ral_node_question.
  Structures(std::vector<std::string> fields, std::vector<std::string> columns, const std::vector<Kind>& kinds,
             const std::vector<std::tuple<std::string, bool, int32_t, int32_t>>& questions, int32_t results, nb::object check,
             const std::vector<std::tuple<int32_t, bool, int32_t, int32_t>>& array_questions)
      : field_names_(std::move(fields)), column_names_(std::move(columns)), columns_(column_names_.size()), results_(results),
        check_(std::move(check)) {
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
    for (const auto& [array, is_none, yes, no] : array_questions) {
      if (array < 0 || static_cast<size_t>(array) >= field_names_.size() + columns_) throw nb::value_error("a question about no array");
      array_questions_.push_back({array, is_none, yes, no});
    }
    for (const std::string& text : field_names_) field_texts_.push_back(text.c_str());
    for (const std::string& text : column_names_) column_texts_.push_back(text.c_str());
  }
  Structures(const Structures&) = delete;

  // (batches [n, 3], indices [m], rows [nodes, results], used) of flat arrays: kinds, and an array for each field and each column.
  nb::tuple linearize(const Schedule& schedule, const Numbers& kinds, const std::vector<Numbers>& children,
                      const std::vector<Numbers>& columns, std::vector<int64_t> used) const {
    const auto [own_children, own_columns] = pointers(children, columns, kinds.size());
    return schedule_of(schedule, kinds.data(), kinds.size(), own_children, own_columns, std::move(used), nullptr);
  }

  // The same where the arrays say of which kind each node is; roots: numbers of nodes; rows [roots, results].
  nb::tuple arrange(const Schedule& schedule, const std::vector<Numbers>& children, const std::vector<Numbers>& columns, size_t count,
                    const Numbers& roots, std::vector<int64_t> used) const {
    const auto [own_children, own_columns] = pointers(children, columns, count);
    const ral_structure structure = structure_of(nullptr, count, own_children, own_columns);
    const Room kinds = room(count);
    check(without_gil([&] {
      return ral_find_kinds(&structure, array_questions_.data(), size_of(array_questions_), column_texts_.data(), kinds.get());
    }));
    const std::vector<int64_t> chosen(roots.data(), roots.data() + roots.size());
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] >= 0 && chosen[i] < static_cast<int64_t>(count)) continue;
      const std::string where = "root " + std::to_string(i) + ": " + std::to_string(chosen[i]);
      raise(RAL_ERROR_NODE_INDEX, where + " is no node; there are " + std::to_string(count));
    }
    return schedule_of(schedule, kinds.get(), count, own_children, own_columns, std::move(used), &chosen);
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
  using Pointers = std::vector<const int64_t*>;

  std::pair<Pointers, Pointers> pointers(const std::vector<Numbers>& children, const std::vector<Numbers>& columns, size_t count) const {
    if (children.size() != field_names_.size() || columns.size() != columns_) throw nb::value_error("an array for each field and column");
    std::pair<Pointers, Pointers> found;
    for (const auto& [arrays, own] : {std::pair(&children, &found.first), std::pair(&columns, &found.second)}) {
      for (const Numbers& each : *arrays) {
        if (each.size() != count) throw nb::value_error("every array has an element for each node");
        own->push_back(each.data());
      }
    }
    return found;
  }

  ral_structure structure_of(const int64_t* kinds, size_t count, const Pointers& children, const Pointers& columns) const {
    return {static_cast<int64_t>(count), kinds,           children.data(),       columns.data(), kinds_.data(), present_.data(),
            field_texts_.data(),         size_of(kinds_), size_of(field_names_), results_};
  }

  nb::tuple schedule_of(const Schedule& schedule, const int64_t* kinds, size_t count, const std::vector<const int64_t*>& children,
                        const std::vector<const int64_t*>& columns, std::vector<int64_t> used, const std::vector<int64_t>* roots) const {
    const ral_structure structure = structure_of(kinds, count, children, columns);
    size_t most = 0;
    for (const ral_node_kind& kind : kinds_) most = std::max(most, static_cast<size_t>(kind.row_count + kind.value_count));
    const auto results = static_cast<size_t>(results_);
    Room batches = room(3 * count), indices = room(most * count), rows = room(results * count);
    int64_t made = 0;
    check(without_gil([&] {
      return ral_linearize(&structure, schedule.blocks().data(), size_of(schedule.blocks()), used.data(), size_of(used),
                           reinterpret_cast<ral_batch*>(batches.get()), &made, indices.get(), rows.get());
    }));
    const auto batch_count = static_cast<size_t>(made);
    const int64_t* last = batches.get() + 3 * (batch_count - (batch_count > 0));  // block, count, offset
    const ral_block* block = batch_count > 0 ? &schedule.blocks()[static_cast<size_t>(last[0])] : nullptr;
    const size_t index_count = block ? static_cast<size_t>(last[2] + last[1] * (block->row_count + block->value_count)) : 0;
    if (roots) {
      Room chosen = room(roots->size() * results);
      for (size_t i = 0; i < roots->size(); ++i)
        std::copy_n(&rows[static_cast<size_t>((*roots)[i]) * results], results, &chosen[i * results]);
      rows.swap(chosen);
    }
    const size_t row_count = roots ? roots->size() : count;
    return nb::make_tuple(owned_room(std::move(batches), {batch_count, 3}), owned_room(std::move(indices), {index_count}),
                          owned_room(std::move(rows), {row_count, results}), used);
  }

  std::vector<std::string> field_names_;
  std::vector<const char*> field_texts_;
  std::vector<std::string> column_names_;
  std::vector<const char*> column_texts_;
  size_t columns_;
  int32_t results_;
  TypeCheck check_;
  std::vector<Question> questions_;
  std::vector<ral_node_question> array_questions_;
  std::vector<KindAttributes> attributes_;
  std::vector<uint8_t> present_;
  std::vector<std::unique_ptr<std::vector<ral_node_row>>> rows_;
  std::vector<std::unique_ptr<Classes>> read_;
  std::vector<ral_node_kind> kinds_;
};

}  // namespace

Schedule::Schedule(const std::vector<std::tuple<nb::object, Classes, Classes, int32_t, Classes>>& blocks) {
  kept_.reserve(3 * blocks.size());
  for (const auto& [context, tables, rows, values, results] : blocks) {
    contexts_.push_back(context);
    const nb::capsule handle = nb::cast<nb::capsule>(context.attr("handle")());
    const Classes &first = keep(tables), &second = keep(rows), &third = keep(results);
    blocks_.push_back({static_cast<ral_context*>(handle.data()), first.data(), second.data(), third.data(), size_of(first), size_of(second),
                       values, size_of(third)});
  }
}

std::vector<int64_t> Schedule::run(const nb::tuple& tables, std::vector<int64_t> used, const Numbers& batches, const Numbers& indices) const {
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

nb::object owned(std::vector<int64_t>&& numbers, std::initializer_list<size_t> shape) {
  auto* kept = new std::vector<int64_t>(std::move(numbers));
  const nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<int64_t>*>(pointer); });
  return nb::cast(nb::ndarray<nb::numpy, int64_t>(kept->data(), shape, owner));
}

void bind_schedules(nb::module_& module) {
  using Blocks = std::vector<std::tuple<nb::object, Classes, Classes, int32_t, Classes>>;
  using Questions = std::vector<std::tuple<std::string, bool, int32_t, int32_t>>;
  using ArrayQuestions = std::vector<std::tuple<int32_t, bool, int32_t, int32_t>>;
  nb::class_<Schedule>(module, "Schedule")
      .def(nb::init<const Blocks&>(), nb::arg("blocks"))
      .def("run", &Schedule::run, nb::arg("tables"), nb::arg("used"), nb::arg("batches"), nb::arg("indices"));
  nb::class_<Structures>(module, "Structures")
      .def(nb::init<std::vector<std::string>, std::vector<std::string>, const std::vector<Structures::Kind>&, const Questions&, int32_t,
                    nb::object, const ArrayQuestions&>(),
           nb::arg("fields"), nb::arg("columns"), nb::arg("kinds"), nb::arg("questions"), nb::arg("results"), nb::arg("check").none(),
           nb::arg("array_questions"))
      .def("linearize", &Structures::linearize, nb::arg("schedule"), nb::arg("kinds"), nb::arg("children"), nb::arg("columns"),
           nb::arg("used"))
      .def("arrange", &Structures::arrange, nb::arg("schedule"), nb::arg("children"), nb::arg("columns"), nb::arg("count"), nb::arg("roots"),
           nb::arg("used"))
      .def("walk", &Structures::walk, nb::arg("schedule"), nb::arg("roots"), nb::arg("used"));
}

}  // namespace ral::python
