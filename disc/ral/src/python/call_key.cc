#include "python/call_key.h"

namespace ral::python {

namespace {

namespace nb = nanobind;

enum Role { kChanges, kConstant, kModule, kStructure };  // as in disc/frontend/batched/keys.py

PyObject* hex_name = nullptr;

// What an object of this type is in the name of a call; null with Python's error set.
PyObject* role_of(PyObject* type, PyObject* roles, PyObject* find) {
  PyObject* role = PyDict_GetItemWithError(roles, type);
  if (role) return Py_INCREF(role), role;
  if (PyErr_Occurred()) return nullptr;
  role = PyObject_CallOneArg(find, type);
  if (role && PyDict_SetItem(roles, type, role) < 0) Py_CLEAR(role);
  return role;
}

// A constant by type and value: 1, 1.0 and True are others, and so are 0.0 and -0.0.
PyObject* constant_part(PyObject* value) {
  PyObject* told = PyFloat_CheckExact(value) ? PyObject_CallMethodNoArgs(value, hex_name) : (Py_INCREF(value), value);
  PyObject* part = told ? PyTuple_Pack(2, Py_TYPE(value), told) : nullptr;
  Py_XDECREF(told);
  return part;
}

// call_key(function, arguments, roles, find): the function, constants by value and all else by identity; None where no argument is a
// structure, or where one may change. roles: of types, filled in by `find`.
PyObject* call_key(PyObject*, PyObject* const* args, Py_ssize_t count) {
  if (count != 4 || !PyTuple_CheckExact(args[1]) || !PyDict_CheckExact(args[2])) {
    PyErr_SetString(PyExc_TypeError, "call_key takes a function, a tuple, a dict and a function");
    return nullptr;
  }
  const Py_ssize_t size = PyTuple_GET_SIZE(args[1]);
  PyObject* key = PyTuple_New(size + 1);
  if (!key) return nullptr;
  Py_INCREF(args[0]);
  PyTuple_SET_ITEM(key, 0, args[0]);
  bool structure = false;
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* value = PyTuple_GET_ITEM(args[1], i);
    PyObject* role = role_of(reinterpret_cast<PyObject*>(Py_TYPE(value)), args[2], args[3]);
    const long kind = role ? PyLong_AsLong(role) : -1;
    Py_XDECREF(role);
    if (kind == kChanges) {
      Py_DECREF(key);
      Py_RETURN_NONE;
    }
    PyObject* part = kind < 0 ? nullptr : kind == kConstant ? constant_part(value) : PyLong_FromVoidPtr(value);
    if (!part) {
      Py_DECREF(key);
      return nullptr;
    }
    PyTuple_SET_ITEM(key, i + 1, part);
    structure |= kind == kStructure;
  }
  if (structure) return key;
  Py_DECREF(key);
  Py_RETURN_NONE;
}

PyMethodDef method = {"call_key", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call_key)), METH_FASTCALL, nullptr};

}  // namespace

void bind_call_keys(nb::module_& module) {
  hex_name = PyUnicode_InternFromString("hex");
  PyObject* made = PyCFunction_New(&method, nullptr);
  if (!hex_name || !made) nb::raise_python_error();
  module.attr("call_key") = nb::steal(made);
}

}  // namespace ral::python
