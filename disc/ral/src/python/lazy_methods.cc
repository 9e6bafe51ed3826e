// The ways by which PyTorch code comes to a Follower: methods and attributes of handles, the mode of functions, and functions of PyTorch that
// are written in Python and hand over what they are called with.
#include "python/follower.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>
#include <structmember.h>

#include <utility>

namespace ral::python {

namespace {

// A method of handles (get: the function), or an attribute (get, set, erase: the functions of its descriptor; None where it has none).
struct MemberObject {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *get, *set, *erase;
};

PyTypeObject* method_type = nullptr;
PyTypeObject* attribute_type = nullptr;
PyObject* handle_type = nullptr;  // of the first follower, as of all
HandleFields handle_fields{};

// Makes a handle an object of another class, without its fields. False, with Python's error set, where that cannot be.
bool turn_into(PyObject* handle, PyTypeObject* next) {
  const nb::object attributes = nb::steal(PyObject_GenericGetDict(handle, nullptr));  // by their places in one class they would be others'
  if (!attributes.is_valid()) return false;
  for (const Py_ssize_t offset : {handle_fields.follower, handle_fields.run, handle_fields.number, handle_fields.facts, handle_fields.value}) {
    Py_CLEAR(HandleFields::at(handle, offset));
  }
  PyTypeObject* const now = Py_TYPE(handle);
  Py_INCREF(next);
  Py_SET_TYPE(handle, next);
  Py_DECREF(now);
  return true;
}

// A handle that nobody holds any more, whenever that comes to be: its follower keeps it. What the garbage collector has cleared has no fields.
// Python frees an object by the first class above it whose function is not its own, which would be this one: it is freed as one of the class above.
void drop_handle(PyObject* handle) {
  outliving_handles().remove(handle);
  const nb::object owner = nb::borrow(HandleFields::at(handle, handle_fields.follower));  // the handle may be what keeps it alive
  PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &value, &trace);
  const bool usable = PyObject_GC_IsTracked(handle) && owner.is_valid() && !owner.is_none() && nb::inst_ready(owner);
  if (!usable || !nb::inst_ptr<Follower>(owner)->keep(handle)) {
    PyObject_GC_UnTrack(handle);
    PyObject_ClearWeakRefs(handle);
    if (turn_into(handle, Py_TYPE(handle)->tp_base)) Py_TYPE(handle)->tp_dealloc(handle);
    else PyErr_WriteUnraisable(nullptr);  // there is no memory: it is never freed
  }
  PyErr_Restore(kind, value, trace);
}

Follower* follower_of(PyObject* handle) {
  if (!handle_type || !Py_IS_TYPE(handle, reinterpret_cast<PyTypeObject*>(handle_type))) {
    PyErr_SetString(PyExc_TypeError, "a method of a lazy tensor is called with something else");
    return nullptr;
  }
  PyObject* found = HandleFields::at(handle, handle_fields.follower);
  if (!found || found == Py_None) {
    PyErr_SetString(PyExc_RuntimeError, "disc.lazy: a tensor that no call has given");
    return nullptr;
  }
  return nb::inst_ptr<Follower>(found);
}

PyObject* modes_count = nullptr;  // () -> how many modes are on
PyObject* mode_at = nullptr;      // (place) -> the mode
PyObject* enabled = nullptr;      // () -> whether functions of PyTorch are handed over to modes

enum class First { kNone, kFollower, kOther };

int64_t count_modes() {
  const nb::object count = nb::steal(PyObject_CallNoArgs(modes_count));
  if (!count.is_valid()) return PyErr_Clear(), 0;
  return PyLong_AsLongLong(count.ptr());
}

// The mode that would be asked first.
First first_mode(const Follower& follower) {
  const int64_t modes = count_modes();
  const nb::object place = modes > 0 ? nb::steal(PyLong_FromLongLong(modes - 1)) : nb::object();
  const nb::object mode = place.is_valid() ? nb::steal(PyObject_CallOneArg(mode_at, place.ptr())) : nb::object();
  if (!mode.is_valid()) return PyErr_Clear(), First::kNone;
  return mode.is(follower.recorder) ? First::kFollower : First::kOther;
}

// Whether a mode of somebody's own is asked before the follower.
bool comes_behind(const Follower& follower) {
  if (count_modes() <= follower.modes || first_mode(follower) != First::kOther) return false;
  const nb::object on = nb::steal(PyObject_CallNoArgs(enabled));
  if (!on.is_valid()) PyErr_Clear();
  return on.ptr() == Py_True;
}

// A call by a handle, whose follower lives as long as the handle that the caller holds.
PyObject* by_handle(PyObject* function, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  Follower* follower = count > 0 ? follower_of(values[0]) : nullptr;
  if (!follower) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "a method without its tensor");
    return nullptr;
  }
  if (comes_behind(*follower)) return PyObject_Vectorcall(function, values, static_cast<size_t>(count), names);
  return follower->call(function, {values, count, nullptr, names}, true);
}

PyObject* call_method(PyObject* self, PyObject* const* values, size_t flags, PyObject* names) {
  return by_handle(reinterpret_cast<MemberObject*>(self)->get, values, PyVectorcall_NARGS(flags), names);
}

PyObject* bind_method(PyObject* self, PyObject* object, PyObject*) {
  return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

PyObject* read_attribute(PyObject* self, PyObject* object, PyObject*) {
  if (!object || object == Py_None) return Py_NewRef(self);
  return by_handle(reinterpret_cast<MemberObject*>(self)->get, &object, 1, nullptr);
}

int write_attribute(PyObject* self, PyObject* object, PyObject* value) {
  const auto* member = reinterpret_cast<MemberObject*>(self);
  PyObject* function = value ? member->set : member->erase;
  if (!function || function == Py_None) {
    PyErr_SetString(PyExc_AttributeError, value ? "the attribute of a tensor cannot be set" : "the attribute of a tensor cannot be deleted");
    return -1;
  }
  PyObject* values[] = {object, value};
  PyObject* result = by_handle(function, values, value ? 2 : 1, nullptr);
  Py_XDECREF(result);
  return result ? 0 : -1;
}

PyObject* new_member(PyTypeObject* type, PyObject* arguments, PyObject*) {
  PyObject *get = nullptr, *set = Py_None, *erase = Py_None;
  if (!PyArg_ParseTuple(arguments, "O|OO", &get, &set, &erase)) return nullptr;
  PyObject* self = type->tp_alloc(type, 0);
  if (!self) return nullptr;
  auto* member = reinterpret_cast<MemberObject*>(self);
  member->vectorcall = call_method;
  member->get = Py_NewRef(get);
  member->set = Py_NewRef(set);
  member->erase = Py_NewRef(erase);
  return self;
}

int traverse_member(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(reinterpret_cast<MemberObject*>(self)->get);
  Py_VISIT(reinterpret_cast<MemberObject*>(self)->set);
  Py_VISIT(reinterpret_cast<MemberObject*>(self)->erase);
  return 0;
}

int clear_member(PyObject* self) {
  Py_CLEAR(reinterpret_cast<MemberObject*>(self)->get);
  Py_CLEAR(reinterpret_cast<MemberObject*>(self)->set);
  Py_CLEAR(reinterpret_cast<MemberObject*>(self)->erase);
  return 0;
}

void free_member(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  clear_member(self);
  type->tp_free(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(MemberObject, vectorcall), READONLY, nullptr},
                         {"__wrapped__", T_OBJECT, offsetof(MemberObject, get), READONLY, nullptr},
                         {nullptr, 0, 0, 0, nullptr}};

PyType_Slot method_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_member)},
                              {Py_tp_traverse, reinterpret_cast<void*>(traverse_member)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear_member)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(free_member)},
                              {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                              {Py_tp_descr_get, reinterpret_cast<void*>(bind_method)},
                              {Py_tp_members, members},
                              {0, nullptr}};
PyType_Spec method_spec = {"disc.ral._ral.LazyMethod", sizeof(MemberObject), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR | Py_TPFLAGS_HAVE_VECTORCALL, method_slots};

PyType_Slot attribute_slots[] = {{Py_tp_new, reinterpret_cast<void*>(new_member)},
                                 {Py_tp_traverse, reinterpret_cast<void*>(traverse_member)},
                                 {Py_tp_clear, reinterpret_cast<void*>(clear_member)},
                                 {Py_tp_dealloc, reinterpret_cast<void*>(free_member)},
                                 {Py_tp_descr_get, reinterpret_cast<void*>(read_attribute)},
                                 {Py_tp_descr_set, reinterpret_cast<void*>(write_attribute)},
                                 {0, nullptr}};
PyType_Spec attribute_spec = {"disc.ral._ral.LazyAttribute", sizeof(MemberObject), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                              attribute_slots};

// --- the mode -----------------------------------------------------------------------------------------------------------------------

// (mode, function, types, arguments, keywords = None): a method of a mode of functions, which is off meanwhile. self: a Follower.
PyObject* torch_function(PyObject* self, PyObject* const* values, Py_ssize_t count) {
  ++values;  // PyTorch insists on a method of the mode
  --count;
  if (count < 3 || !PyTuple_CheckExact(values[2]) || (count > 3 && values[3] != Py_None && !PyDict_CheckExact(values[3]))) {
    PyErr_SetString(PyExc_TypeError, "__torch_function__ takes a function, types, a tuple and a dict");
    return nullptr;
  }
  PyObject* keywords = count > 3 && values[3] != Py_None ? values[3] : nullptr;
  PyObject* arguments = values[2];
  return nb::inst_ptr<Follower>(self)->call(values[0], {&PyTuple_GET_ITEM(arguments, 0), PyTuple_GET_SIZE(arguments), keywords, nullptr}, false);
}

PyMethodDef mode_method = {"__torch_function__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(torch_function)), METH_FASTCALL, nullptr};

// --- functions of PyTorch in Python -------------------------------------------------------------------------------------------------

PyObject* original = nullptr;       // torch.overrides.handle_torch_function
// (function, relevant arguments, arguments...): what a compiled trace goes through needs no Python.
PyObject* handle_function(PyObject*, PyObject* const* values, Py_ssize_t count, PyObject* names) {
  if (following && !following->stopped && !following->is_busy() && count >= 2 && first_mode(*following) == First::kFollower) {
    PyObject* result = nullptr;
    if (following->fast(values[0], {values + 2, count - 2, nullptr, names}, true, result)) return result;
  }
  return PyObject_Vectorcall(original, values, static_cast<size_t>(count), names);
}

PyMethodDef handle_method = {"handle_torch_function", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(handle_function)),
                             METH_FASTCALL | METH_KEYWORDS, nullptr};

nb::object replacement(nb::handle function, nb::handle count, nb::handle at, nb::handle on) {
  original = function.inc_ref().ptr();
  modes_count = count.inc_ref().ptr();
  mode_at = at.inc_ref().ptr();
  enabled = on.inc_ref().ptr();
  PyObject* made = PyCFunction_New(&handle_method, nullptr);
  if (!made) nb::raise_python_error();
  return nb::steal(made);
}

// --- the binding --------------------------------------------------------------------------------------------------------------------

int follower_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Follower>(self)->traverse(visit, arg) : 0;
}

int follower_clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Follower>(self)->drop();
  return 0;
}

PyType_Slot follower_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(follower_traverse)}, {Py_tp_clear, reinterpret_cast<void*>(follower_clear)}, {0, nullptr}};

nb::object mode_function(nb::handle self) {
  PyObject* made = PyCFunction_New(&mode_method, self.ptr());
  if (!made) nb::raise_python_error();
  return nb::steal(made);
}

// Handles are of one class, in all threads.
void set_handles(nb::handle type, const HandleFields& fields) {
  if (handle_type) return;
  handle_type = nb::borrow(type).release().ptr();
  handle_fields = fields;
  auto* const handles = reinterpret_cast<PyTypeObject*>(handle_type);
  handles->tp_dealloc = drop_handle;
  // A class with `__getitem__` is one of sequences to Python, which PyTorch's own is not: constructors that take lists of numbers
  // (`torch.Tensor([a, b])`) would look for numbers in a number. Subscripts are those of a mapping.
  handles->tp_as_sequence->sq_item = nullptr;
}

void check_handle(nb::handle handle) {
  if (!handle_type || !Py_IS_TYPE(handle.ptr(), reinterpret_cast<PyTypeObject*>(handle_type))) throw nb::type_error("no lazy tensor");
}

// How many hold the value of a handle besides it.
Py_ssize_t value_holders(nb::handle handle) {
  check_handle(handle);
  PyObject* const value = HandleFields::at(handle.ptr(), handle_fields.value);
  return value ? Py_REFCNT(value) - 1 : 0;
}

// A handle is one no longer, but an object of a class that it is derived from, or one of that class's size. Python's own assignment of classes
// refuses those of other fields; these are none any more.
void retire_handle(nb::handle handle, nb::handle type) {
  check_handle(handle);
  auto *const now = reinterpret_cast<PyTypeObject*>(handle_type), *const next = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (!PyType_Check(type.ptr()) || next->tp_basicsize != now->tp_base->tp_basicsize || next->tp_dictoffset != now->tp_dictoffset ||
      next->tp_weaklistoffset != now->tp_weaklistoffset) {
    throw nb::type_error("a class of other objects");
  }
  outliving_handles().remove(handle.ptr());
  if (!turn_into(handle.ptr(), next)) nb::raise_python_error();
}

// Functions of a class that PyTorch has in C++, where Python's own assignment refuses.
void replace_method(nb::handle type, const char* name, nb::handle function) {
  auto* const changed = reinterpret_cast<PyTypeObject*>(type.ptr());
  if (!PyType_Check(type.ptr()) || PyDict_SetItemString(changed->tp_dict, name, function.ptr()) < 0) throw nb::type_error("no class that has methods");
  PyType_Modified(changed);
}

// What a call gives that a compiled trace goes through, else NotImplemented. PyTorch's modes are off.
nb::object follow(Follower& follower, nb::handle function, const nb::tuple& arguments, const nb::dict& keywords) {
  PyObject* result = nullptr;
  const Arguments given{&PyTuple_GET_ITEM(arguments.ptr(), 0), PyTuple_GET_SIZE(arguments.ptr()), keywords.ptr(), nullptr};
  if (!follower.fast(function.ptr(), given, false, result)) return nb::borrow(Py_NotImplemented);
  if (!result) nb::raise_python_error();
  return nb::steal(result);
}

bool has_handle(const nb::tuple& arguments, const nb::dict& keywords) {
  auto* const handle = reinterpret_cast<PyTypeObject*>(handle_type);
  return handle && (holds_handle(arguments.ptr(), handle) || holds_handle(keywords.ptr(), handle));
}

void set_following(nb::handle follower) { following = follower.is_none() ? nullptr : nb::cast<Follower*>(follower); }

}  // namespace

void bind_followers(nb::module_& module) {
  method_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&method_spec));
  attribute_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&attribute_spec));
  if (!method_type || !attribute_type) nb::raise_python_error();
  module.attr("LazyMethod") = nb::borrow(reinterpret_cast<PyObject*>(method_type));
  module.attr("LazyAttribute") = nb::borrow(reinterpret_cast<PyObject*>(attribute_type));
  module.def("replace_handler", &replacement, nb::arg("function"), nb::arg("count"), nb::arg("mode_at"), nb::arg("enabled"));
  module.def("has_handle", &has_handle, nb::arg("arguments"), nb::arg("keywords"));
  module.def("value_holders", &value_holders, nb::arg("handle"));
  module.def("retire_handle", &retire_handle, nb::arg("handle"), nb::arg("type"));
  module.def("replace_method", &replace_method, nb::arg("type"), nb::arg("name"), nb::arg("function"));
  module.def("note_leaf", [](uintptr_t address) { plain_leaves().insert(address); }, nb::arg("address"));
  module.def("forget_leaf", [](uintptr_t address) { plain_leaves().erase(address); }, nb::arg("address"));
  module.def("set_following", &set_following, nb::arg("follower").none());
  bind_runs(module);
  bind_bindings(module);
  nb::class_<Turns>(module, "LazyTurns")
      .def(nb::init<>())
      .def("__enter__", &Turns::take)
      .def("__exit__", [](Turns& self, const nb::args&) { self.give_back(); });
  nb::class_<DescribedCall>(module, "LazyCall").def_ro("mark", &DescribedCall::mark).def_ro("tensors", &DescribedCall::tensors);
  nb::class_<Follower>(module, "Follower", nb::type_slots(follower_slots))
      .def("__init__", [](Follower* self, const nb::dict& framework, const nb::object& slow, const nb::object& end) {
        new (self) Follower(framework, slow, end);
        set_handles(framework["handle"], self->fields());
      }, nb::arg("framework"), nb::arg("slow"), nb::arg("end"))
      .def_prop_ro("mode_function", [](nb::handle self) { return mode_function(self); })
      .def("begin", &Follower::begin, nb::arg("step"), nb::arg("number"), nb::arg("state"))
      .def_prop_ro("run", &Follower::run)
      .def_prop_ro("busy", &Follower::is_busy)
      .def("set_programs", &Follower::set_programs, nb::arg("step"), nb::arg("programs"))
      .def("describe", nb::overload_cast<nb::handle, const nb::tuple&, const nb::dict&>(&Follower::describe), nb::arg("function"), nb::arg("arguments"), nb::arg("keywords"))
      .def("forget", &Follower::forget, nb::arg("call"))
      .def("next", &Follower::next, nb::arg("call"))
      .def("add", &Follower::add, nb::arg("call"), nb::arg("step"), nb::arg("reals_vary"))
      .def("follow", &follow, nb::arg("function"), nb::arg("arguments"), nb::arg("keywords"))
      .def("add_root", &Follower::add_root)
      .def("set_results", &Follower::set_results, nb::arg("step"), nb::arg("codes"), nb::arg("made"), nb::arg("form").none())
      .def("set_ends", &Follower::set_ends, nb::arg("step"))
      .def("set_ahead", [](Follower& self, int32_t step) { self.ahead.at(static_cast<size_t>(step)) = 1; }, nb::arg("step"))
      .def("go_to", &Follower::go_to, nb::arg("call"), nb::arg("step"), nb::arg("number"), nb::arg("facts"), nb::arg("values"))
      .def("finish", &Follower::finish, nb::arg("run"))
      .def("loosen", &Follower::loosen)
      .def("concerns", [](const Follower& self, nb::handle value) { return self.concerns(value.ptr()); }, nb::arg("value"))
      .def("outliving", &Follower::outliving)
      .def("take_counts", &Follower::take_counts)
      .def("numbers", &Follower::numbers, nb::arg("step"))
      .def("settle", &Follower::settle)
      .def("makes_as_ever", &Follower::makes_as_ever)
      .def("enter", &Follower::enter)
      .def("leave", &Follower::leave)
      .def("forget_traces", &Follower::forget_traces)
      .def_rw("recorder", &Follower::recorder)
      .def_rw("active", &Follower::active)
      .def_rw("stopped", &Follower::stopped)
      .def_rw("modes", &Follower::modes)
      .def_prop_ro("roles", [](const Follower& self) { return self.roles; });
}

}  // namespace ral::python
