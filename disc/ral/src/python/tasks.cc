#include "python/tasks.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/instance_results.h"
#include "python/instance_walk.h"
#include "python/python_tensor.h"
#include "python/schedule.h"
#include "tasks/machine.h"

namespace ral::python {

namespace {

using tasks::Code;
using tasks::Machine;
using tasks::SlotKind;
using tasks::Tag;

using Constant = std::pair<int32_t, int64_t>;  // tag, number; of a float its bits
using Given = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Ints = std::vector<int32_t>;

// As the manifest has them: the fields of the structs of tasks/code.h, in order.
using Functions = std::vector<std::tuple<std::string, std::string, int32_t, int32_t, bool, Ints, std::vector<std::pair<int32_t, int32_t>>>>;
using Own = std::vector<std::pair<int32_t, int32_t>>;
using Names = std::vector<std::tuple<std::string, int32_t, int32_t, int32_t, Own, Own>>;
using NodeClasses = std::vector<std::tuple<int32_t, int32_t, Ints>>;
using Objects = std::vector<std::tuple<int32_t, std::string, std::vector<Constant>, std::vector<std::pair<int32_t, Constant>>, int32_t, std::vector<Constant>, bool,
                                       std::optional<std::vector<Constant>>>>;
using Classes = std::vector<std::tuple<int32_t, std::vector<int64_t>, int64_t>>;
using Rows = std::vector<std::pair<int32_t, nb::bytes>>;
using Regions = std::vector<std::tuple<std::string, std::string, Ints, Ints>>;
using Kinds = std::vector<std::tuple<int32_t, std::vector<int64_t>, int32_t, Ints, Ints, Ints, int32_t, double, Ints>>;
using Slots = std::vector<std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t, Ints, std::vector<Constant>>>;
using Results = std::vector<std::tuple<int32_t, int32_t, Ints, std::vector<std::string>>>;

tasks::Value value_of(const Constant& constant) {
  const auto& [tag, number] = constant;
  if (tag < 0 || tag > static_cast<int32_t>(Tag::kObject)) throw nb::value_error("a skeleton with a constant of no type");
  return tasks::Value::of(static_cast<Tag>(tag), number);
}

tasks::Items values_of(const std::vector<Constant>& constants) {
  tasks::Items items;
  for (const Constant& each : constants) items.push_back(value_of(each));
  return items;
}

// Of a dict: the places of its keys.
void fill_keys(tasks::Object& object, const std::vector<Constant>& keys, const std::vector<std::string>& texts) {
  object.mapping = true;
  if (keys.size() != object.items.size()) throw nb::value_error("a skeleton with a dict of other keys");
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto& [tag, number] = keys[i];
    const bool text = tag == static_cast<int32_t>(Tag::kText) && number >= 0 && static_cast<size_t>(number) < texts.size();
    if (!text && tag != static_cast<int32_t>(Tag::kInt) && tag != static_cast<int32_t>(Tag::kObject)) throw nb::value_error("a skeleton with a dict of odd keys");
    if (text) object.texts.emplace(texts[static_cast<size_t>(number)], i);
    else (tag == static_cast<int32_t>(Tag::kInt) ? object.integers : object.objects).emplace(number, i);
  }
}

void fill_code(Code& code, const Functions& functions, const Names& names, const Objects& objects, const Classes& classes, const Rows& rows) {
  for (const auto& [name, file, parameters, registers, memo, words, lines] : functions)
    code.functions.push_back({name, file, parameters, registers, memo, words, lines});
  for (const auto& [text, slot, holders, presence, getters, methods] : names) {
    code.name_numbers.emplace(text, static_cast<int32_t>(code.names.size()));
    code.names.push_back({text, slot, holders, presence, getters, methods});
  }
  for (const auto& [like, text, items, attributes, function, bound, sequence, keys] : objects) {
    tasks::Object& object = code.objects.emplace_back();
    object.like = like < 0 || like > static_cast<int32_t>(Tag::kObject) ? Tag::kUnset : static_cast<Tag>(like);
    object.text = text;
    object.items = values_of(items);
    for (const auto& [name, held] : attributes) object.attributes.emplace(name, value_of(held));
    object.function = function;
    object.bound = values_of(bound);
    object.sequence = sequence;
    if (keys) fill_keys(object, *keys, code.texts);
  }
  for (const auto& [dtype, dims, bytes] : classes) {
    int64_t size = bytes < 0 ? -1 : 1;
    for (const int64_t dim : dims) {
      if (dim < 0 || (dim > 0 && size > (int64_t{1} << 40) / dim)) throw nb::value_error("a skeleton with rows of no size");
      size *= dim;
    }
    if (size < 0 || bytes > 8 * size) throw nb::value_error("a skeleton with rows of no size");
    if (code.number_class < 0 && dtype == RAL_F64 && dims.empty() && bytes == sizeof(double)) code.number_class = static_cast<int32_t>(code.classes.size());
    code.classes.push_back({dtype, dims, bytes});
  }
  for (const auto& [row_class, bytes] : rows) code.rows.emplace_back(row_class, std::string(bytes.c_str(), bytes.size()));
}

// A model's skeleton, and the memory that its calls use.
class Skeleton {
 public:
  Skeleton(const Functions& functions, const std::vector<Constant>& constants, std::vector<std::string> texts, const Names& names,
           const Objects& objects, const Classes& classes, const Rows& rows, const Regions& regions, const Kinds& kinds, const Slots& slots,
           const Results& results, const NodeClasses& nodes, std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t> head) {
    code_.texts = std::move(texts);
    for (size_t i = 0; i < code_.texts.size(); ++i) code_.text_numbers.emplace(code_.texts[i], static_cast<int64_t>(i));
    fill_code(code_, functions, names, objects, classes, rows);
    for (const Constant& each : constants) code_.constants.push_back(value_of(each));
    for (const auto& [name, line, uses, own] : regions) code_.regions.push_back({name, line, {uses.begin(), uses.end()}, own});
    for (const auto& [region, tokens, block, places, read, made, values, cost, outputs] : kinds)
      code_.kinds.push_back({region, tokens, block, places, read, made, values, cost, outputs});
    for (const auto& [kind, array, domain, inner, row_class, parts, choices] : slots) {
      code_.slots.push_back({static_cast<SlotKind>(kind), array, domain, inner, row_class, parts, {}});
      for (const Constant& each : choices) code_.slots.back().choices.push_back(value_of(each));
    }
    for (const auto& [kind, row_class, parts, keys] : results) code_.results.push_back({static_cast<SlotKind>(kind), row_class, parts, keys});
    for (const auto& [like, equality, parts] : nodes)
      code_.node_classes.push_back({static_cast<tasks::Like>(like), static_cast<tasks::Equality>(equality), parts});
    std::tie(code_.root, code_.result, code_.kind_slot, code_.arrays, code_.domains) = head;
    if (code_.domains > 1 << 16) throw nb::value_error("a skeleton of too many lists");
    if (const std::string wrong = code_.verify(); !wrong.empty()) throw nb::value_error(("a skeleton with " + wrong).c_str());
  }
  Skeleton(const Skeleton&) = delete;

  // (failures, columns, launches) of instances that lie in arrays; failures: (instance, error, words, function, line); columns: of each slot of
  // results (numbers, reals, offsets), where numbers of tensors are their bytes [count, bytes].
  nb::tuple run(const Schedule& schedule, const std::vector<Given>& given, const std::vector<std::string>& names, int64_t most_nodes) {
    if (given.size() != static_cast<size_t>(code_.arrays) || names.size() != given.size()) throw nb::value_error("an array for each input");
    check_blocks(schedule.blocks());
    std::vector<tasks::Array> arrays;
    for (const Given& each : given) arrays.push_back({each.data(), static_cast<int64_t>(each.ndim() == 0 ? 0 : each.shape(0))});
    check_sizes(given);
    std::vector<int64_t> domains;
    bool shared = false;
    std::string words;
    if (const ral_status status = tasks::check_arrays(code_, arrays, names, domains, shared, words); status != RAL_OK) raise(status, words);
    if (domains[1] > most_nodes) return nb::make_tuple(domains[1]);
    std::unique_ptr<tasks::Workspace> space = take_space();
    std::optional<Machine> machine;
    std::vector<Machine::Column> columns;
    run_machine(machine, schedule, *space, arrays, domains, shared, [&] { columns = machine->results(); });
    nb::tuple made = nb::make_tuple(failures(*machine), columns_of(columns, space->tables), sizes_of(*machine));
    machine.reset();
    give_back(std::move(space));
    return made;
  }

  // Why instances are none that `reader` takes; empty where it takes them. stack: as of `run_objects`.
  std::string refuses(InstanceReader& reader, const nb::list& instances, int64_t most_nodes, const nb::callable& stack) const {
    FlatInstances flat;
    if (std::string why = reader.read(code_, instances, most_nodes, flat); !why.empty()) return why;
    Placed placed;
    return place(flat, nb::len(instances), stack, placed);
  }

  // Runs instances that are Python objects. Why they are none that `reader` takes, as a text; else (results, why instances have none by
  // their numbers, launches). stack: called with the number of a slot and its tensors, gives them as one, or None where they are others than
  // instances had. objects, fetch: as of ResultObjects.
  nb::object run_objects(const Schedule& schedule, InstanceReader& reader, const nb::list& instances, int64_t most_nodes, const nb::callable& stack,
                         const nb::callable& fetch, const nb::list& objects) {
    check_blocks(schedule.blocks());
    FlatInstances flat;
    if (const std::string why = reader.read(code_, instances, most_nodes, flat); !why.empty()) return nb::str(why.c_str());
    Placed placed;
    if (const std::string why = place(flat, nb::len(instances), stack, placed); !why.empty()) return nb::str(why.c_str());
    std::unique_ptr<tasks::Workspace> space = take_space();
    std::optional<Machine> machine;
    run_machine(machine, schedule, *space, placed.arrays, placed.domains, flat.shared, [] {});
    nb::object made = objects_of(*machine, space->tables, flat, objects, fetch, nb::len(instances));
    machine.reset();
    give_back(std::move(space));
    return made;
  }

  int64_t table_bytes() {
    const std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const auto& space : free_) {
      for (const tasks::Table& each : space->tables) bytes += each.bytes();
    }
    return bytes;
  }

 private:
  // Instances as the machine takes them. held: tensors that arrays point to.
  struct Placed {
    std::vector<tasks::Array> arrays;
    std::vector<int64_t> domains;
    std::vector<Given> held;
  };

  // Fills `to`; why that cannot be, else empty.
  std::string place(FlatInstances& flat, size_t count, const nb::callable& stack, Placed& to) const {
    to.arrays.resize(static_cast<size_t>(code_.arrays));
    to.domains.assign(static_cast<size_t>(code_.domains), 0);
    to.domains[0] = static_cast<int64_t>(count);
    to.domains[1] = static_cast<int64_t>(flat.nodes.size());
    for (size_t i = 0; i < code_.slots.size(); ++i) {
      const tasks::Slot& slot = code_.slots[i];
      if (slot.array < 0) continue;
      FlatInstances::Column& column = flat.columns[i];
      tasks::Array& array = to.arrays[static_cast<size_t>(slot.array)];
      if (slot.kind == SlotKind::kItems) to.domains[static_cast<size_t>(slot.inner)] = column.integers.back();
      if (slot.kind == SlotKind::kTruth) {
        array = {column.truths.data(), static_cast<int64_t>(column.truths.size())};
      } else if (slot.kind == SlotKind::kReal) {
        array = {column.reals.data(), static_cast<int64_t>(column.reals.size())};
      } else if (slot.kind != SlotKind::kTensor) {
        array = {column.integers.data(), static_cast<int64_t>(column.integers.size())};
      } else if (const auto tensors = static_cast<int64_t>(nb::len(column.tensors)); tensors > 0) {
        const nb::object whole = stack(i, column.tensors);
        if (whole.is_none()) return "an instance has a tensor of another shape or dtype than instances had";
        to.held.push_back(nb::cast<Given>(whole));
        const auto bytes = static_cast<size_t>(code_.classes[static_cast<size_t>(slot.row_class)].bytes);
        if (to.held.back().nbytes() != static_cast<size_t>(tensors) * bytes) throw nb::value_error("tensors of another size");
        array = {to.held.back().data(), tensors};
      }
    }
    return {};
  }

  // then: what to do besides, without the GIL, when all instances have run.
  template <typename Then>
  void run_machine(std::optional<Machine>& machine, const Schedule& schedule, tasks::Workspace& space, const std::vector<tasks::Array>& arrays,
                   const std::vector<int64_t>& domains, bool shared, Then then) const {
    ask_python();
    const ral_status status = without_gil([&] {
      try {
        space.begin(schedule.blocks());
        if (!fill_constants(space.tables)) return RAL_ERROR_MEMORY;
        machine.emplace(code_, space, arrays, domains, shared, python_says_stop);
        const ral_status ran = machine->run();
        if (ran == RAL_OK) then();
        return ran;
      } catch (const std::bad_alloc&) {
        return RAL_ERROR_MEMORY;
      } catch (const tasks::Cancelled&) {
        return RAL_ERROR_CANCELLED;
      }
    });
    if (status == RAL_ERROR_CANCELLED) raise(status, "the call was cancelled");
    if (status != RAL_OK) raise(status, status == RAL_ERROR_MEMORY ? "there is no memory for what the instances compute" : ral_last_error());
  }

  nb::tuple objects_of(Machine& machine, const std::vector<tasks::Table>& tables, const FlatInstances& flat, const nb::list& objects,
                       const nb::callable& fetch, size_t count) const {
    ResultObjects made(machine, code_, tables, flat, objects, fetch);
    std::vector<uint8_t> bad(count, 0);
    for (const tasks::Failed& each : machine.failed) bad[static_cast<size_t>(each.instance)] = 1;
    for (size_t i = 0; i < count; ++i) bad[i] = bad[i] || !made.take(machine.result(i));
    made.fetch();
    nb::list results;
    std::vector<std::string> why(count);
    nb::dict failed;
    for (const tasks::Failed& each : machine.failed) why[static_cast<size_t>(each.instance)] = words_of(each);
    for (size_t i = 0; i < count; ++i) {
      results.append(bad[i] ? nb::none() : made.make(machine.result(i)));
      if (bad[i]) failed[nb::int_(i)] = (why[i].empty() ? std::string("its result") : why[i]).c_str();
    }
    return nb::make_tuple(results, failed, sizes_of(machine));
  }

  void give_back(std::unique_ptr<tasks::Workspace>&& space) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(space));
  }

  void check_blocks(const std::vector<ral_block>& blocks) const {
    for (const tasks::Kind& each : code_.kinds) {
      if (each.block < 0) continue;
      const ral_block* block = static_cast<size_t>(each.block) < blocks.size() ? &blocks[static_cast<size_t>(each.block)] : nullptr;
      const auto equal = [](const Ints& one, const int32_t* other, int32_t count) {
        return one.size() == static_cast<size_t>(count) && std::equal(one.begin(), one.end(), other);
      };
      if (!block || block->value_count != each.values || !equal(each.rows, block->rows, block->row_count) || !equal(each.results, block->results, block->result_count))
        throw nb::value_error("a skeleton of other blocks");
    }
  }

  // The elements of each array have the size that its slot reads.
  void check_sizes(const std::vector<Given>& given) const {
    for (const tasks::Slot& slot : code_.slots) {
      if (slot.array < 0) continue;
      const Given& array = given[static_cast<size_t>(slot.array)];
      size_t row = array.itemsize();
      for (size_t d = 1; d < array.ndim(); ++d) row *= array.shape(d);
      const size_t wanted = slot.kind == SlotKind::kTensor  ? static_cast<size_t>(code_.classes[static_cast<size_t>(slot.row_class)].bytes)
                            : slot.kind == SlotKind::kTruth ? 1
                                                            : sizeof(int64_t);
      if (array.ndim() == 0 || row != wanted) throw nb::value_error("an array with elements of another size");
    }
  }

  std::unique_ptr<tasks::Workspace> take_space() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<tasks::Workspace>(code_);
    std::unique_ptr<tasks::Workspace> space = std::move(free_.back());
    free_.pop_back();
    return space;
  }

  bool fill_constants(std::vector<tasks::Table>& tables) const {
    for (tasks::Table& each : tables) {
      if (!each.reserve(1)) return false;
    }
    for (const auto& [row_class, bytes] : code_.rows) {
      tasks::Table& table = tables[static_cast<size_t>(row_class)];
      if (!table.reserve(table.used + 1)) return false;
      std::memcpy(table.row(table.used++), bytes.data(), bytes.size());
    }
    return true;
  }

  nb::list failures(const Machine& machine) const {
    nb::list made;
    for (const tasks::Failed& each : machine.failed) made.append(nb::make_tuple(each.instance, each.failure.kind, each.failure.words, where(each)));
    return made;
  }

  std::string where(const tasks::Failed& failed) const {
    return failed.function < 0 ? "" : code_.functions[static_cast<size_t>(failed.function)].file + ":" + std::to_string(failed.line);
  }

  std::string words_of(const tasks::Failed& failed) const {
    const std::string at = where(failed);
    return at + (at.empty() ? "" : ": ") + failed.failure.words;
  }

  static nb::list sizes_of(Machine& machine) {
    nb::list made;
    for (const auto& [kind, count] : machine.launches().sizes) made.append(nb::make_tuple(kind, count));
    return made;
  }

  nb::list columns_of(std::vector<Machine::Column>& columns, const std::vector<tasks::Table>& tables) const {
    nb::list made;
    for (size_t i = 0; i < columns.size(); ++i) {
      Machine::Column& each = columns[i];
      const tasks::ResultSlot& slot = code_.results[i];
      nb::object numbers;
      const size_t count = each.numbers.size();
      if (slot.kind == SlotKind::kTensor) {
        const auto bytes = static_cast<size_t>(code_.classes[static_cast<size_t>(slot.row_class)].bytes);
        auto* data = new uint8_t[std::max<size_t>(count * bytes, 1)];
        const nb::capsule owner(data, [](void* pointer) noexcept { delete[] static_cast<uint8_t*>(pointer); });
        for (size_t j = 0; j < count; ++j) std::memcpy(data + j * bytes, tables[static_cast<size_t>(slot.row_class)].row(each.numbers[j]), bytes);
        numbers = nb::cast(nb::ndarray<nb::numpy, uint8_t>(data, {count, bytes}, owner));
      } else {
        numbers = owned(std::move(each.numbers), {count});
      }
      const size_t reals = each.reals.size(), offsets = each.offsets.size();
      auto* kept = new std::vector<double>(std::move(each.reals));
      const nb::capsule owner(kept, [](void* pointer) noexcept { delete static_cast<std::vector<double>*>(pointer); });
      made.append(nb::make_tuple(numbers, nb::cast(nb::ndarray<nb::numpy, double>(kept->data(), {reals}, owner)), owned(std::move(each.offsets), {offsets})));
    }
    return made;
  }

  Code code_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<tasks::Workspace>> free_;  // that no call uses
};

}  // namespace

void bind_tasks(nb::module_& module) {
  using Head = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
  nb::list ops;
  for (const tasks::OpInfo& each : tasks::kOps) ops.append(nb::make_tuple(each.text, each.operands));
  module.attr("SKELETON_OPS") = nb::tuple(ops);
  nb::class_<Skeleton>(module, "Skeleton")
      .def(nb::init<const Functions&, const std::vector<Constant>&, std::vector<std::string>, const Names&, const Objects&, const Classes&,
                    const Rows&, const Regions&, const Kinds&, const Slots&, const Results&, const NodeClasses&, Head>())
      .def("run", &Skeleton::run, nb::arg("schedule"), nb::arg("arrays"), nb::arg("names"), nb::arg("most_nodes"))
      .def("run_objects", &Skeleton::run_objects, nb::arg("schedule"), nb::arg("reader"), nb::arg("instances"), nb::arg("most_nodes"),
           nb::arg("stack"), nb::arg("fetch"), nb::arg("objects"))
      .def("refuses", &Skeleton::refuses, nb::arg("reader"), nb::arg("instances"), nb::arg("most_nodes"), nb::arg("stack"))
      .def("table_bytes", &Skeleton::table_bytes);
  nb::class_<InstanceReader>(module, "InstanceReader")
      .def(nb::init<const InstanceReader::Classes&, nb::object, nb::object, const std::vector<nb::list>&>(),
           nb::arg("classes"), nb::arg("tensor"), nb::arg("check").none(), nb::arg("choices"));
}

}  // namespace ral::python
