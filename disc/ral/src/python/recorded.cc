#include "python/recorded.h"

#include <structmember.h>

#include <algorithm>
#include <cstddef>

namespace ral::python {

PyTypeObject* kind_type = nullptr;
PyTypeObject* row_type = nullptr;
PyTypeObject* launch_type = nullptr;

namespace {

template <typename Object>
Object* as(PyObject* self) {
  return reinterpret_cast<Object*>(self);
}

PyObject* kind_new(PyTypeObject* type, PyObject*, PyObject*) {
  PyObject* self = type->tp_alloc(type, 0);
  if (self) as<KindObject>(self)->slot = -1;
  return self;
}

int kind_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  auto* kind = as<KindObject>(self);
  Py_VISIT(kind->results);
  Py_VISIT(kind->outputs);
  Py_VISIT(kind->views);
  Py_VISIT(kind->targets);
  return 0;
}

int kind_clear(PyObject* self) {
  auto* kind = as<KindObject>(self);
  Py_CLEAR(kind->results);
  Py_CLEAR(kind->outputs);
  Py_CLEAR(kind->views);
  Py_CLEAR(kind->targets);
  return 0;
}

int row_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  auto* row = as<RowObject>(self);
  Py_VISIT(row->kind);
  Py_VISIT(row->launch);
  Py_VISIT(row->value);
  return 0;
}

int row_clear(PyObject* self) {
  auto* row = as<RowObject>(self);
  Py_CLEAR(row->kind);
  Py_CLEAR(row->launch);
  Py_CLEAR(row->value);
  return 0;
}

int launch_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  auto* launch = as<LaunchObject>(self);
  Py_VISIT(launch->recorder);
  Py_VISIT(launch->kind);
  Py_VISIT(launch->rows);
  Py_VISIT(launch->results);
  Py_VISIT(launch->error);
  return 0;
}

int launch_clear(PyObject* self) {
  auto* launch = as<LaunchObject>(self);
  Py_CLEAR(launch->recorder);
  Py_CLEAR(launch->kind);
  Py_CLEAR(launch->rows);
  Py_CLEAR(launch->results);
  Py_CLEAR(launch->error);
  return 0;
}

template <inquiry Clear>
void dealloc(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  Clear(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* launch_values(PyObject* self, void*) {
  const auto* launch = as<LaunchObject>(self);
  PyObject* values = PyTuple_New(Py_SIZE(self));
  for (Py_ssize_t i = 0; values && i < Py_SIZE(self); ++i) {
    PyObject* value = PyLong_FromLongLong(launch->values[i]);
    if (!value) Py_CLEAR(values);
    else PyTuple_SET_ITEM(values, i, value);
  }
  return values;
}

PyMemberDef kind_members[] = {
    {"results", T_OBJECT, offsetof(KindObject, results), 0, nullptr},
    {"outputs", T_OBJECT, offsetof(KindObject, outputs), 0, nullptr},
    {"views", T_OBJECT, offsetof(KindObject, views), 0, nullptr},
    {"targets", T_OBJECT, offsetof(KindObject, targets), 0, nullptr},
    {"cost", T_DOUBLE, offsetof(KindObject, cost), 0, nullptr},
    {"calls", T_LONGLONG, offsetof(KindObject, calls), 0, nullptr},
    {"number", T_INT, offsetof(KindObject, number), 0, nullptr},
    {"slot", T_INT, offsetof(KindObject, slot), 0, nullptr},
    {"consumed", T_BOOL, offsetof(KindObject, consumed), 0, nullptr},
    {"plain", T_BOOL, offsetof(KindObject, plain), 0, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};

PyMemberDef row_members[] = {
    {"kind", T_OBJECT, offsetof(RowObject, kind), 0, nullptr},       {"launch", T_OBJECT, offsetof(RowObject, launch), 0, nullptr},
    {"value", T_OBJECT, offsetof(RowObject, value), 0, nullptr},     {"place", T_PYSSIZET, offsetof(RowObject, place), 0, nullptr},
    {"version", T_LONGLONG, offsetof(RowObject, version), 0, nullptr}, {"depth", T_INT, offsetof(RowObject, depth), 0, nullptr},
    {"shared", T_BOOL, offsetof(RowObject, shared), 0, nullptr},     {nullptr, 0, 0, 0, nullptr},
};

PyMemberDef launch_members[] = {
    {"recorder", T_OBJECT, offsetof(LaunchObject, recorder), READONLY, nullptr}, {"kind", T_OBJECT, offsetof(LaunchObject, kind), READONLY, nullptr},
    {"rows", T_OBJECT, offsetof(LaunchObject, rows), READONLY, nullptr},         {"results", T_OBJECT, offsetof(LaunchObject, results), READONLY, nullptr},
    {"error", T_OBJECT, offsetof(LaunchObject, error), 0, nullptr},              {"depth", T_INT, offsetof(LaunchObject, depth), READONLY, nullptr},
    {"done", T_BOOL, offsetof(LaunchObject, done), 0, nullptr},                  {nullptr, 0, 0, 0, nullptr},
};

PyGetSetDef launch_getters[] = {{"values", launch_values, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};

PyType_Slot kind_slots[] = {{Py_tp_new, reinterpret_cast<void*>(kind_new)},
                            {Py_tp_traverse, reinterpret_cast<void*>(kind_traverse)},
                            {Py_tp_clear, reinterpret_cast<void*>(kind_clear)},
                            {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<kind_clear>)},
                            {Py_tp_members, kind_members},
                            {0, nullptr}};

PyType_Slot row_slots[] = {{Py_tp_new, reinterpret_cast<void*>(PyType_GenericNew)},
                           {Py_tp_traverse, reinterpret_cast<void*>(row_traverse)},
                           {Py_tp_clear, reinterpret_cast<void*>(row_clear)},
                           {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<row_clear>)},
                           {Py_tp_members, row_members},
                           {0, nullptr}};

PyType_Slot launch_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(launch_traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(launch_clear)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(dealloc<launch_clear>)},
                              {Py_tp_members, launch_members},
                              {Py_tp_getset, launch_getters},
                              {0, nullptr}};

constexpr unsigned kBase = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE;
constexpr unsigned kFinal = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION;
PyType_Spec kind_spec = {"disc.ral._ral.Kind", sizeof(KindObject), 0, kBase, kind_slots};
PyType_Spec row_spec = {"disc.ral._ral.Row", sizeof(RowObject), 0, kBase, row_slots};
PyType_Spec launch_spec = {"disc.ral._ral.Launch", offsetof(LaunchObject, values), sizeof(int64_t), kFinal, launch_slots};

PyObject* held(PyObject* object) {
  Py_INCREF(object);
  return object;
}

// The rows that a launch reads, as a tuple.
PyObject* reads(LaunchObject* launch, RowObject* const* rows, size_t count) {
  PyObject* tuple = PyTuple_New(static_cast<Py_ssize_t>(count));
  for (size_t i = 0; tuple && i < count; ++i) {
    launch->depth = std::max(launch->depth, rows[i]->depth + 1);
    if (const LaunchObject* before = launch_of(rows[i])) as<KindObject>(before->kind)->consumed = 1;
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), held(reinterpret_cast<PyObject*>(rows[i])));
  }
  return tuple;
}

PyObject* made_rows(LaunchObject* launch, const KindObject* kind, PyTypeObject* made) {
  const Py_ssize_t count = PyTuple_GET_SIZE(kind->results);
  PyObject* tuple = PyTuple_New(count);
  for (Py_ssize_t i = 0; tuple && i < count; ++i) {
    auto* row = as<RowObject>(made->tp_alloc(made, 0));
    if (!row) {
      Py_CLEAR(tuple);
      break;
    }
    row->kind = held(PyTuple_GET_ITEM(kind->results, i));
    row->launch = held(reinterpret_cast<PyObject*>(launch));
    row->depth = launch->depth;
    row->place = -1;
    PyTuple_SET_ITEM(tuple, i, reinterpret_cast<PyObject*>(row));
  }
  return tuple;
}

}  // namespace

LaunchObject* new_launch(PyObject* recorder, KindObject* kind, PyTypeObject* made, RowObject* const* rows, size_t row_count,
                         const int64_t* values, size_t value_count) {
  auto* launch = as<LaunchObject>(launch_type->tp_alloc(launch_type, static_cast<Py_ssize_t>(value_count)));
  if (!launch) return nullptr;
  launch->recorder = held(recorder);
  launch->kind = held(reinterpret_cast<PyObject*>(kind));
  launch->depth = 1;
  std::copy(values, values + value_count, launch->values);
  launch->rows = reads(launch, rows, row_count);
  if (launch->rows) launch->results = made_rows(launch, kind, made);
  if (!launch->results) Py_CLEAR(launch);
  return launch;
}

void settle(LaunchObject* launch) {
  launch->done = 1;
  PyObject* const rows = launch->rows;
  PyObject* const results = launch->results;
  launch->rows = PyTuple_New(0);
  launch->results = PyTuple_New(0);
  Py_XDECREF(rows);
  Py_XDECREF(results);
}

void bind_recorded(nb::module_& module) {
  const auto add = [&](PyTypeObject*& type, PyType_Spec& spec, const char* name) {
    PyObject* made = PyType_FromSpec(&spec);
    if (!made) nb::raise_python_error();
    type = reinterpret_cast<PyTypeObject*>(made);
    module.attr(name) = nb::borrow(made);
  };
  add(kind_type, kind_spec, "Kind");
  add(row_type, row_spec, "Row");
  add(launch_type, launch_spec, "Launch");
}

}  // namespace ral::python
