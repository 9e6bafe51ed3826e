#include "python/recorder.h"

#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "python/python_tensor.h"
#include "python/recorded.h"
#include "python/schedule.h"
#include "python/site.h"
#include "ral.h"

namespace ral::python {

namespace {

// The calls of one batch of instances. Python's recorder derives from it, and has a method `constant(launch)` for those that read nothing.
struct TapeObject {
  PyObject_HEAD
  PyTypeObject* made;  // the class of rows
  PyObject* missed;    // (region, arguments) -> outputs: records a call that is not known
  PyObject* kept;      // (list or dict, arguments): called for those that a region returns
  std::vector<LaunchObject*>* pending;
};

PyTypeObject* tape_type = nullptr;
unsigned long long marks = 0;  // searches so far
PyObject* version_name = nullptr;
PyObject* constant_name = nullptr;

TapeObject* as_tape(PyObject* self) { return reinterpret_cast<TapeObject*>(self); }
PyObject* object(void* any) { return static_cast<PyObject*>(any); }

// Whether the row was made by this tape, and nobody has changed its tensor; -1 with Python's error set.
int is_own(const TapeObject* tape, const RowObject* row) {
  const LaunchObject* launch = launch_of(row);
  if (!launch || launch->recorder != reinterpret_cast<const PyObject*>(tape)) return 0;
  if (!is_given(row->value)) return 1;
  PyObject* version = PyObject_GetAttr(row->value, version_name);
  if (!version) return -1;
  const long long now = PyLong_AsLongLong(version);
  Py_DECREF(version);
  if (now == -1 && PyErr_Occurred()) return -1;
  return now == row->version;
}

// Marks rows that share memory where PyTorch computes the region. False with Python's error set.
bool mark_shared(PyObject* views, const char* which, PyObject* rows) {
  PyObject* places = PyObject_GetAttrString(views, which);
  bool good = places && PyTuple_CheckExact(places);
  for (Py_ssize_t i = 0; good && i < PyTuple_GET_SIZE(places); ++i) {
    const Py_ssize_t place = PyLong_AsSsize_t(PyTuple_GET_ITEM(places, i));
    good = place >= 0 && place < PyTuple_GET_SIZE(rows);
    if (good) row_at(rows, place)->shared = 1;
  }
  Py_XDECREF(places);
  if (!good && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "views of rows that there are not");
  return good;
}

// A launch that waits, or that `constant` has placed; null with Python's error set.
LaunchObject* record(TapeObject* tape, KindObject* kind, RowObject* const* rows, size_t row_count, const int64_t* values, size_t value_count) {
  if (!kind->results || !PyTuple_CheckExact(kind->results)) {
    PyErr_SetString(PyExc_TypeError, "a kind without results");
    return nullptr;
  }
  LaunchObject* launch = new_launch(reinterpret_cast<PyObject*>(tape), kind, tape->made, rows, row_count, values, value_count);
  if (!launch) return nullptr;
  bool good = true;
  if (row_count + value_count == 0) {
    PyObject* done = PyObject_CallMethodOneArg(reinterpret_cast<PyObject*>(tape), constant_name, object(launch));
    good = done != nullptr;
    Py_XDECREF(done);
  } else {
    tape->pending->push_back(launch);
    Py_INCREF(object(launch));
  }
  if (good && is_given(kind->views)) good = mark_shared(kind->views, "given", launch->rows) && mark_shared(kind->views, "made", launch->results);
  if (!good) Py_CLEAR(launch);
  return launch;
}

// What the region returns; lists and dicts in it are told to `kept`.
PyObject* outputs_of(TapeObject* tape, KindObject* kind, LaunchObject* launch, PyObject* arguments) {
  if (kind->plain) {
    Py_INCREF(launch->results);
    return launch->results;
  }
  PyObject* parts[] = {launch->results, launch->rows, arguments};
  PyObject* made = PyObject_Vectorcall(kind->outputs, parts, 3, nullptr);
  if (!made || !PyTuple_CheckExact(made) || !is_given(tape->kept)) return made;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(made); ++i) {
    PyObject* each = PyTuple_GET_ITEM(made, i);
    if (!PyList_Check(each) && !PyDict_Check(each)) continue;
    PyObject* told = PyObject_CallFunctionObjArgs(tape->kept, each, arguments, nullptr);
    if (!told) {
      Py_DECREF(made);
      return nullptr;
    }
    Py_DECREF(told);
  }
  return made;
}

// region(site, arguments): what the region returns, with rows for what it computes.
PyObject* tape_region(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  if (count != 2 || !is_site(args[0]) || !PyTuple_CheckExact(args[1])) {
    PyErr_SetString(PyExc_TypeError, "region takes a Site and a tuple");
    return nullptr;
  }
  TapeObject* tape = as_tape(self);
  if (!tape->made || !is_given(tape->missed)) {
    PyErr_SetString(PyExc_RuntimeError, "a Tape that nothing records on");
    return nullptr;
  }
  Given given;
  KindObject* kind = find_kind(args[0], tape->made, args[1], given);
  for (size_t i = 0; kind && i < given.row_count; ++i) {
    const int own = is_own(tape, given.rows[i]);
    if (own < 0) return nullptr;
    if (own == 0) kind = nullptr;
  }
  if (!kind) return PyObject_CallFunctionObjArgs(tape->missed, args[0], args[1], nullptr);
  Py_INCREF(object(kind));
  LaunchObject* launch = record(tape, kind, given.rows, given.row_count, given.values, given.value_count);
  PyObject* made = launch ? outputs_of(tape, kind, launch, args[1]) : nullptr;
  if (launch && launch->done) settle(launch);
  Py_XDECREF(object(launch));
  Py_DECREF(object(kind));
  return made;
}

// note(kind, rows, values): the launch of a call that was described by Python.
PyObject* tape_note(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  TapeObject* tape = as_tape(self);
  if (count != 3 || !tape->made || !PyObject_TypeCheck(args[0], kind_type) || !PyList_CheckExact(args[1]) || !PyList_CheckExact(args[2])) {
    PyErr_SetString(PyExc_TypeError, "note takes a Kind and two lists");
    return nullptr;
  }
  std::vector<RowObject*> rows;
  std::vector<int64_t> values;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[1]); ++i) {
    PyObject* row = PyList_GET_ITEM(args[1], i);
    if (!PyObject_TypeCheck(row, row_type)) {
      PyErr_SetString(PyExc_TypeError, "note takes rows");
      return nullptr;
    }
    rows.push_back(reinterpret_cast<RowObject*>(row));
  }
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(args[2]); ++i) {
    values.push_back(PyLong_AsLongLong(PyList_GET_ITEM(args[2], i)));
    if (values.back() == -1 && PyErr_Occurred()) return nullptr;
  }
  return object(record(tape, reinterpret_cast<KindObject*>(args[0]), rows.data(), rows.size(), values.data(), values.size()));
}

PyObject* tape_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  as_tape(self)->pending = new (std::nothrow) std::vector<LaunchObject*>;
  if (as_tape(self)->pending) return self;
  Py_DECREF(self);
  return PyErr_NoMemory();
}

// Tape(rows)
int tape_init(PyObject* self, PyObject* args, PyObject*) {
  PyObject* rows = nullptr;
  if (!PyArg_ParseTuple(args, "O", &rows)) return -1;
  if (!PyType_Check(rows) || !PyType_IsSubtype(reinterpret_cast<PyTypeObject*>(rows), row_type)) {
    PyErr_SetString(PyExc_TypeError, "a class of rows");
    return -1;
  }
  Py_INCREF(rows);
  Py_XSETREF(as_tape(self)->made, reinterpret_cast<PyTypeObject*>(rows));
  return 0;
}

int tape_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  TapeObject* tape = as_tape(self);
  Py_VISIT(tape->made);
  Py_VISIT(tape->missed);
  Py_VISIT(tape->kept);
  if (tape->pending) {
    for (LaunchObject* each : *tape->pending) Py_VISIT(object(each));
  }
  return 0;
}

int tape_clear(PyObject* self) {
  TapeObject* tape = as_tape(self);
  Py_CLEAR(tape->made);
  Py_CLEAR(tape->missed);
  Py_CLEAR(tape->kept);
  std::vector<LaunchObject*> old;
  if (tape->pending) old.swap(*tape->pending);
  for (LaunchObject* each : old) Py_DECREF(object(each));
  return 0;
}

void tape_dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  tape_clear(self);
  delete as_tape(self)->pending;
  type->tp_free(self);
  Py_DECREF(type);
}

PyMethodDef tape_methods[] = {
    {"region", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(tape_region)), METH_FASTCALL, nullptr},
    {"note", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(tape_note)), METH_FASTCALL, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyMemberDef tape_members[] = {{"missed", T_OBJECT, offsetof(TapeObject, missed), 0, nullptr},
                              {"kept", T_OBJECT, offsetof(TapeObject, kept), 0, nullptr},
                              {nullptr, 0, 0, 0, nullptr}};

PyType_Slot tape_slots[] = {{Py_tp_new, reinterpret_cast<void*>(tape_new)},
                            {Py_tp_init, reinterpret_cast<void*>(tape_init)},
                            {Py_tp_traverse, reinterpret_cast<void*>(tape_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(tape_clear)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(tape_dealloc)},
                            {Py_tp_methods, tape_methods},
                            {Py_tp_members, tape_members},
                            {0, nullptr}};
PyType_Spec tape_spec = {"disc.ral._ral.Tape", sizeof(TapeObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE, tape_slots};

// --- choosing what runs -------------------------------------------------------------------------------------------------------

using Launches = std::vector<LaunchObject*>;

// Marks the launches that rows need and that have not run.
void mark_needed(PyObject* tape, const nb::sequence& rows) {
  Launches waiting;
  const auto add = [&](const RowObject* row) {
    LaunchObject* launch = launch_of(row);
    if (!launch || launch->done || launch->recorder != tape || launch->mark == marks) return;
    launch->mark = marks;
    waiting.push_back(launch);
  };
  for (const nb::handle row : rows) {
    if (!PyObject_TypeCheck(row.ptr(), row_type)) throw nb::type_error("choose takes rows");
    add(reinterpret_cast<RowObject*>(row.ptr()));
  }
  while (!waiting.empty()) {
    LaunchObject* launch = waiting.back();
    waiting.pop_back();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(launch->rows); ++i) add(row_at(launch->rows, i));
  }
}

// Takes what is to run out of what waits, in the order of the calls; with a reference to each.
Launches take(PyObject* tape, const nb::object& needed) {
  Launches& pending = *as_tape(tape)->pending;
  ++marks;
  Launches chosen;
  if (needed.is_none()) {
    chosen.swap(pending);
  } else {
    mark_needed(tape, nb::cast<nb::sequence>(needed));
    const auto rest = std::stable_partition(pending.begin(), pending.end(), [](const LaunchObject* each) { return each->mark != marks; });
    chosen.assign(rest, pending.end());
    pending.erase(rest, pending.end());
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    chosen[i]->mark = marks;
    chosen[i]->index = static_cast<int64_t>(i);
  }
  return chosen;
}

// The launches as ral_calls.
struct Calls {
  explicit Calls(const Launches& launches) {
    for (const LaunchObject* each : launches) add_kind(reinterpret_cast<KindObject*>(each->kind));
    std::sort(used.begin(), used.end(), [](const KindObject* one, const KindObject* other) { return one->number < other->number; });
    for (const KindObject* each : used) {
      costs.push_back(each->cost);
      last.push_back(each->consumed ? 0 : 1);
    }
    first_read.push_back(0);
    size_t number = 0;
    for (const LaunchObject* each : launches) {
      if (number >= used.size() || object(used[number]) != each->kind)
        number = static_cast<size_t>(std::find(used.begin(), used.end(), reinterpret_cast<KindObject*>(each->kind)) - used.begin());
      kinds.push_back(static_cast<int32_t>(number));
      depths.push_back(each->depth);
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(each->rows); ++i) {
        const LaunchObject* read = launch_of(row_at(each->rows, i));
        if (read && !read->done && read->mark == marks) reads.push_back(read->index);
      }
      first_read.push_back(static_cast<int64_t>(reads.size()));
    }
  }

  void add_kind(KindObject* kind) {
    if ((!used.empty() && used.back() == kind) || std::find(used.begin(), used.end(), kind) != used.end()) return;
    used.push_back(kind);
  }

  std::vector<KindObject*> used;
  std::vector<int32_t> kinds, depths;
  std::vector<int64_t> first_read, reads;
  std::vector<double> costs;
  std::vector<uint8_t> last;
};

void check(ral_status status) {
  if (status != RAL_OK) raise(status, ral_last_error());
}

// The launches that rows need, or all that wait, as lists of those that run together, in order.
nb::list choose(nb::handle tape, const nb::object& needed, int32_t policy) {
  if (!PyObject_TypeCheck(tape.ptr(), tape_type)) throw nb::type_error("choose takes a Tape");
  const Launches chosen = take(tape.ptr(), needed);
  std::vector<nb::object> owned;  // with the references that the tape had
  for (LaunchObject* each : chosen) owned.push_back(nb::steal(object(each)));
  nb::list groups;
  const Calls calls(chosen);
  std::vector<int64_t> order(chosen.size()), ends(chosen.size());
  int64_t count = 0;
  const ral_calls given{static_cast<int64_t>(chosen.size()), calls.kinds.data(), calls.depths.data(), calls.first_read.data(),
                        calls.reads.data(), calls.costs.data(), calls.last.data(), static_cast<int32_t>(calls.used.size())};
  check(ral_order_calls(&given, policy, order.data(), ends.data(), &count));
  int64_t at = 0;
  for (int64_t i = 0; i < count; ++i) {
    PyObject* group = PyList_New(static_cast<Py_ssize_t>(ends[static_cast<size_t>(i)] - at));
    if (!group) nb::raise_python_error();
    for (Py_ssize_t j = 0; at < ends[static_cast<size_t>(i)]; ++at, ++j)
      PyList_SET_ITEM(group, j, owned[static_cast<size_t>(order[static_cast<size_t>(at)])].inc_ref().ptr());
    reinterpret_cast<KindObject*>(reinterpret_cast<LaunchObject*>(PyList_GET_ITEM(group, 0))->kind)->calls += PyList_GET_SIZE(group);
    groups.append(nb::steal(group));
  }
  return groups;
}

// --- running --------------------------------------------------------------------------------------------------------------------

template <typename Body>
void each_group(const nb::list& groups, Body body) {
  for (const nb::handle group : groups) {
    if (!PyList_CheckExact(group.ptr()) || PyList_GET_SIZE(group.ptr()) == 0) throw nb::type_error("groups are lists of launches");
    Launches launches;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(group.ptr()); ++i) {
      PyObject* each = PyList_GET_ITEM(group.ptr(), i);
      if (Py_TYPE(each) != launch_type) throw nb::type_error("groups are lists of launches");
      launches.push_back(reinterpret_cast<LaunchObject*>(each));
      if (launches.back()->kind != launches.front()->kind) throw nb::value_error("the launches of a group are of one kind");
    }
    body(reinterpret_cast<KindObject*>(launches.front()->kind), launches);
  }
}

bool all_compiled(const nb::list& groups) {
  bool all = true;
  each_group(groups, [&](const KindObject* kind, const Launches&) { all &= kind->slot >= 0; });
  return all;
}

// The rows that lie in no table and will not before the groups run: given tensors, and what PyTorch computed. None where what a launch reads
// could not be computed.
nb::object unplaced(const nb::list& groups) {
  nb::list found;
  bool failed = false;
  each_group(groups, [&](const KindObject*, const Launches& launches) {
    for (const LaunchObject* launch : launches) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(launch->rows); ++i) {
        RowObject* row = row_at(launch->rows, i);
        const LaunchObject* made_by = launch_of(row);
        failed |= made_by && is_given(made_by->error);
        if (row->place < 0 && (!made_by || made_by->done || is_given(row->value))) found.append(nb::handle(object(row)));
      }
    }
  });
  return failed ? nb::none() : nb::object(found);
}

// Batches, indices and rows in use as for Schedule.run; gives every result its row.
nb::tuple arrange(const nb::list& groups, std::vector<int64_t> used) {
  std::vector<int64_t> batches, indices;
  each_group(groups, [&](KindObject* kind, const Launches& launches) {
    if (!kind->targets || !PyTuple_CheckExact(kind->targets)) throw nb::value_error("a kind without tables");
    const auto count = static_cast<int64_t>(launches.size());
    const Py_ssize_t rows = PyTuple_GET_SIZE(launches[0]->rows), values = Py_SIZE(launches[0]), results = PyTuple_GET_SIZE(kind->targets);
    for (const LaunchObject* each : launches) {
      if (PyTuple_GET_SIZE(each->rows) != rows || Py_SIZE(each) != values || PyTuple_GET_SIZE(each->results) != results)
        throw nb::value_error("launches of one kind read and make equally much");
    }
    batches.insert(batches.end(), {kind->slot, count, static_cast<int64_t>(indices.size())});
    for (Py_ssize_t i = 0; i < results; ++i) {
      int64_t& next = used.at(PyLong_AsSize_t(PyTuple_GET_ITEM(kind->targets, i)));
      for (const LaunchObject* each : launches) row_at(each->results, i)->place = next++;
    }
    for (Py_ssize_t i = 0; i < rows; ++i) {
      for (const LaunchObject* each : launches) indices.push_back(row_at(each->rows, i)->place);
    }
    for (Py_ssize_t i = 0; i < values; ++i) {
      for (const LaunchObject* each : launches) indices.push_back(each->values[i]);
    }
  });
  const size_t batch_count = batches.size() / 3, index_count = indices.size();
  return nb::make_tuple(owned(std::move(batches), {batch_count, 3}), owned(std::move(indices), {index_count}), used);
}

// The results have no rows: running the groups failed.
void displace(const nb::list& groups) {
  each_group(groups, [](const KindObject*, const Launches& launches) {
    for (const LaunchObject* each : launches) {
      for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(each->results); ++i) row_at(each->results, i)->place = -1;
    }
  });
}

// The groups have run.
void finish(const nb::list& groups) {
  each_group(groups, [](const KindObject*, const Launches& launches) {
    for (LaunchObject* each : launches) settle(each);
  });
}

}  // namespace

void bind_recorder(nb::module_& module) {
  bind_recorded(module);
  bind_sites(module);
  version_name = PyUnicode_InternFromString("_version");
  constant_name = PyUnicode_InternFromString("constant");
  PyObject* made = PyType_FromSpec(&tape_spec);
  if (!made || !version_name || !constant_name) nb::raise_python_error();
  tape_type = reinterpret_cast<PyTypeObject*>(made);
  module.attr("Tape") = nb::borrow(made);
  module.def("choose", &choose, nb::arg("tape"), nb::arg("needed").none(), nb::arg("policy"));
  module.def("all_compiled", &all_compiled, nb::arg("groups"));
  module.def("unplaced", &unplaced, nb::arg("groups"));
  module.def("arrange", &arrange, nb::arg("groups"), nb::arg("used"));
  module.def("displace", &displace, nb::arg("groups"));
  module.def("finish", &finish, nb::arg("groups"));
}

}  // namespace ral::python
