#include "python/follower.h"

#include <structmember.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <thread>

#include "python/lazy_program.h"

namespace ral::python {

thread_local Follower* following = nullptr;

namespace {

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Until its end no garbage is collected: finalizers may run anything, also calls that are recorded.
class WithoutCollector {
 public:
  WithoutCollector() : was_on_(PyGC_Disable()) {}
  WithoutCollector(const WithoutCollector&) = delete;
  WithoutCollector& operator=(const WithoutCollector&) = delete;
  ~WithoutCollector() {
    if (was_on_) PyGC_Enable();
  }

 private:
  int was_on_;
};

nb::object owned(PyObject* made) {
  if (!made) nb::raise_python_error();
  return nb::steal(made);
}

// While it lives, functions of PyTorch are not handed over.
class NotHandedOver {
 public:
  explicit NotHandedOver(const nb::object& type) : manager_(owned(PyObject_CallNoArgs(type.ptr()))) {
    owned(PyObject_CallMethodNoArgs(manager_.ptr(), names()[0]));
  }
  NotHandedOver(const NotHandedOver&) = delete;
  NotHandedOver& operator=(const NotHandedOver&) = delete;
  ~NotHandedOver() {
    PyObject* nothing[] = {manager_.ptr(), Py_None, Py_None, Py_None};
    PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
    PyErr_Fetch(&kind, &value, &trace);
    Py_XDECREF(PyObject_VectorcallMethod(names()[1], nothing, 4, nullptr));
    PyErr_Restore(kind, value, trace);
  }

 private:
  static PyObject* const* names() {
    static PyObject* const found[] = {PyUnicode_InternFromString("__enter__"), PyUnicode_InternFromString("__exit__")};
    return found;
  }

  nb::object manager_;
};

nb::object called(const nb::object& function) { return owned(PyObject_CallNoArgs(function.ptr())); }

// As long as it lives, it is this thread's turn.
class Turn {
 public:
  explicit Turn(Turns& turns) : turns_(turns) { turns.take(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() { turns_.give_back(); }

 private:
  Turns& turns_;
};

// As long as it lives, the follower is busy with a call of this thread.
class Entered {
 public:
  explicit Entered(Follower& follower) : follower_(follower) { follower.enter(); }
  Entered(const Entered&) = delete;
  Entered& operator=(const Entered&) = delete;
  ~Entered() { follower_.leave(); }

 private:
  Follower& follower_;
};

// Lets go of a run's tensors at its end.
class Cleared {
 public:
  explicit Cleared(Run& run) : run_(run) {}
  Cleared(const Cleared&) = delete;
  Cleared& operator=(const Cleared&) = delete;
  ~Cleared() { run_.clear(); }

 private:
  Run& run_;
};

// Within a handler: what Python calls without the binding has to end with Python's error.
void set_error() {
  try {
    throw;
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
}

bool is_true(const nb::object& value) { return value.ptr() == Py_True; }

Py_ssize_t slot_of(nb::handle type, const char* name) {
  const nb::object member = type.attr(name);
  if (Py_TYPE(member.ptr()) != &PyMemberDescr_Type) throw nb::type_error("a handle's field is no slot");
  return reinterpret_cast<PyMemberDescrObject*>(member.ptr())->d_member->offset;
}

std::vector<nb::object> all_of(nb::handle sequence) {
  std::vector<nb::object> found;
  for (nb::handle each : sequence) found.push_back(nb::borrow(each));
  return found;
}

}  // namespace

bool holds_handle(PyObject* value, PyTypeObject* handle) {
  if (Py_IS_TYPE(value, handle)) return true;
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      if (holds_handle(PySequence_Fast_GET_ITEM(value, i), handle)) return true;
    }
  } else if (PySlice_Check(value)) {
    const auto* range = reinterpret_cast<PySliceObject*>(value);
    return holds_handle(range->start, handle) || holds_handle(range->stop, handle) || holds_handle(range->step, handle);
  } else if (PyDict_Check(value)) {
    PyObject *name = nullptr, *each = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &name, &each);) {
      if (holds_handle(each, handle)) return true;
    }
  }
  return false;
}

PyObject* Arguments::tuple() const {
  PyObject* made = PyTuple_New(count);
  for (Py_ssize_t i = 0; made && i < count; ++i) PyTuple_SET_ITEM(made, i, Py_NewRef(values[i]));
  return made;
}

PyObject* Arguments::keywords() const {
  PyObject* made = dict ? PyDict_Copy(dict) : PyDict_New();
  for (Py_ssize_t i = 0; made && names && i < PyTuple_GET_SIZE(names); ++i) {
    if (PyDict_SetItem(made, PyTuple_GET_ITEM(names, i), values[count + i]) < 0) Py_CLEAR(made);
  }
  return made;
}

void Turns::take() {
  while (is_others()) {
    {
      const nb::gil_scoped_release released;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (PyErr_CheckSignals() < 0) nb::raise_python_error();
  }
  owner_ = PyThread_get_thread_ident();
  ++depth_;
}

Follower::Follower(const nb::dict& framework, nb::object slow, nb::object end)
    : slow_(std::move(slow)), end_(std::move(end)), turns_(nb::cast<Turns&>(nb::handle(framework["turns"]))) {
  const auto object = [&](const char* name) { return nb::borrow(framework[name]); };
  framework_.handle = object("handle");
  const nb::handle type = framework_.handle;
  framework_.fields = {slot_of(type, "_follower"), slot_of(type, "_run"), slot_of(type, "_number"), slot_of(type, "_facts"),
                       slot_of(type, "_value")};
  framework_.make = object("make");
  framework_.without = object("without");
  framework_.grad_enabled = object("grad_enabled");
  framework_.autocast = object("autocast");
  framework_.autocast_dtype = object("autocast_dtype");
  framework_.transforms = object("transforms");
  framework_.unflatten = object("unflatten");
  framework_.storage = object("storage");
  framework_.is_neg = object("is_neg");
  framework_.is_conj = object("is_conj");
  framework_.hooked = object("hooked");
  framework_.default_dtype = object("default_dtype");
  framework_.profiler = object("profiler");
  framework_.modes = object("modes");
  framework_.turns = object("turns");
  framework_.size = object("size");
  framework_.tensors = all_of(framework["tensors"]);
  framework_.constants = all_of(framework["constants"]);
  most_known_ = nb::cast<int64_t>(framework["most_known"]);
  roles = nb::dict();
}

// --- a call -------------------------------------------------------------------------------------------------------------------------

PyObject* Follower::call(PyObject* function, const Arguments& arguments, bool inside) {
  PyObject* result = nullptr;
  const bool own = !is_busy();  // else it is a finalizer's, within another call
  if (own && (fast(function, arguments, inside, result) || (inside && read(function, arguments, result)))) return result;
  PyObject* values = arguments.tuple();
  PyObject* keywords = arguments.keywords();
  if (values && keywords) result = PyObject_CallFunctionObjArgs(slow_.ptr(), function, values, keywords, inside ? Py_True : Py_False, nullptr);
  Py_XDECREF(values);
  Py_XDECREF(keywords);
  return result;
}

bool Follower::fast(PyObject* function, const Arguments& arguments, bool inside, PyObject*& result) try {
  if (!active || turns_.is_others()) return false;
  const WithoutCollector collected_later;
  const auto plain = [&] {  // PyTorch's own, at once
    const nb::object values = owned(arguments.tuple()), keywords = owned(arguments.keywords());
    result = PyObject_Call(function, values.ptr(), keywords.ptr());
    return true;
  };
  if (stopped) {
    if (inside) return false;
    auto* const handle = reinterpret_cast<PyTypeObject*>(framework_.handle.ptr());
    for (Py_ssize_t i = 0; i < arguments.count; ++i) {
      if (holds_handle(arguments.values[i], handle)) return false;
    }
    if (arguments.dict && holds_handle(arguments.dict, handle)) return false;
    return plain();
  }
  PyObject* found = PyDict_GetItemWithError(roles.ptr(), function);
  if (!found) return PyErr_Clear(), false;
  const int64_t role = PyLong_AsLongLong(found);
  if (role % 8 == kFact) {
    if (inside || arguments.count == 0 || !is_tensor(arguments.values[0])) return false;
    return plain();
  }
  if (nodes_[static_cast<size_t>(run_->here)].ends) return false;
  if (role % 8 == kRead || role % 8 == kPerhapsRead || !run_->deferring || run_->pending >= kMostPending) return false;
  if (role % 8 == kBackward) {
    const bool mine = arguments.count > 0 && Py_TYPE(arguments.values[0]) == reinterpret_cast<PyTypeObject*>(framework_.handle.ptr()) &&
                      is_mine(arguments.values[0]);
    if (!mine) return false;
  }
  const int64_t began = now();
  std::optional<Turn> turn(turns_);  // Python's part of it may change threads
  const Described described = describe(role / 8, arguments, inside);
  const bool taken = tensors_ || (role % 8 == kMaking && makes_as_ever());
  if (described == Described::kYes && !taken && !inside) return turn.reset(), plain();
  const bool drawn = role % 8 == kDrawn && arguments.count > 0 && run_->is_new(arguments.values[0], mark_);
  const int32_t step = described == Described::kYes && taken && !drawn ? tree_.follow(run_->here, call_) : TraceTree::kNone;
  if (step == TraceTree::kNone || !ahead[static_cast<size_t>(step)]) {
    run_->forget(mark_);
    return false;
  }
  result = promise(step);
  if (!result) return true;
  ++recorded_;
  recording_ns_ += now() - began;
  return true;
} catch (...) {
  set_error();
  run_->forget(mark_);
  result = nullptr;
  return true;
}

bool Follower::read(PyObject* function, const Arguments& arguments, PyObject*& result) try {
  if (!active || stopped || arguments.count != 1 || arguments.dict || arguments.names) return false;
  if (turns_.is_others()) return false;
  PyObject* const handle = arguments.values[0];
  PyObject* role = PyDict_GetItemWithError(roles.ptr(), function);
  if (!role) return PyErr_Clear(), false;
  if (PyLong_AsLongLong(role) % 8 != kRead || !Py_IS_TYPE(handle, reinterpret_cast<PyTypeObject*>(framework_.handle.ptr()))) return false;
  if (is_transformed()) return false;
  const NotHandedOver off(framework_.without);
  std::optional<Turn> turn(turns_);
  if (!run_->ends.empty() && concerns(handle)) {
    end();
    if (stopped) return false;
  }
  const nb::object value = nb::borrow(HandleFields::at(handle, framework_.fields.value));
  if (!value.is_valid() || value.is_none()) return false;
  turn.reset();
  result = PyObject_CallOneArg(function, value.ptr());
  if (result == value.ptr()) {  // the caller's own object
    Py_DECREF(result);
    result = Py_NewRef(handle);
  }
  return true;
} catch (...) {
  set_error();
  result = nullptr;
  return true;
}

void Follower::end() {
  if (end_by_program()) return;
  owned(PyObject_CallOneArg(end_.ptr(), Py_None));
}

bool Follower::settle() {
  if (stopped || run_->ends.empty()) return false;
  const NotHandedOver off(framework_.without);
  return end_by_program();
}

bool Follower::end_by_program() {
  if (depth_ != 0) return false;
  const Turn turn(turns_);
  const nb::object ended = run_object_;
  Run& run = *run_;
  if (run.ends.empty()) return true;  // another thread has ended it meanwhile
  if (run.pending == 0 || is_profiled() || !called(framework_.default_dtype).is(root_state_)) return false;
  const nb::list programs = nodes_[static_cast<size_t>(run.here)].programs;
  const int64_t began = now();
  std::optional<WithoutCollector> collected_later(std::in_place);  // a finalizer's calls belong to the next run
  const LazyProgram* program = nullptr;
  const Bound* bound = nullptr;
  for (size_t i = 0; i < programs.size() && !bound; ++i) {
    program = nb::inst_ptr<LazyProgram>(programs[i]);
    bound = program->fits(run);
  }
  if (!bound) return false;
  const int64_t chosen = now();
  const Entered entered(*this);
  begin(root_, root_number_, root_state_);
  collected_later.reset();
  const Cleared cleared(run);
  if (!program->compute(run, *bound)) {
    owned(PyObject_CallOneArg(end_.ptr(), ended.ptr()));
    return true;
  }
  ++hits_;
  replaying_ns_ += chosen - began;
  computing_ns_ += now() - chosen;
  return true;
}

bool Follower::makes_as_ever() const {
  return PyLong_AsLong(called(framework_.modes).ptr()) == 0 && called(framework_.default_dtype).is(root_state_) && !is_transformed();
}

bool Follower::is_profiled() const {
  static PyObject* const name = PyUnicode_InternFromString("_is_profiler_enabled");
  return PyDict_GetItemWithError(framework_.profiler.ptr(), name) != Py_False;
}

std::array<int64_t, 5> Follower::take_counts() {
  return {std::exchange(recorded_, 0), std::exchange(recording_ns_, 0), std::exchange(hits_, 0), std::exchange(replaying_ns_, 0),
          std::exchange(computing_ns_, 0)};
}

PyObject* Follower::promise(int32_t number) {
  const Node& node = nodes_[static_cast<size_t>(number)];
  std::vector<nb::object> leaves, handles;  // an interrupt in between leaves the run as it is
  leaves.reserve(node.results.size());
  for (const Result& each : node.results) {
    if (each.code == -2) {
      leaves.push_back(handles.emplace_back(new_handle(each.made, Py_None, run_->proxies.size() + handles.size())));
    } else if (each.code == -1) {
      leaves.push_back(nb::none());
    } else if (each.code % 2 == 0) {
      leaves.push_back(run_->proxy(static_cast<size_t>(each.code / 2)));
    } else {
      leaves.push_back(nb::borrow(run_->given.at(static_cast<size_t>(each.code / 2))));
    }
  }
  nb::object result;
  if (node.form == Form::kSingle) {
    result = leaves.at(0);
  } else {
    const auto size = static_cast<Py_ssize_t>(leaves.size());
    result = owned(node.form == Form::kTuple ? PyTuple_New(size) : PyList_New(size));
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* leaf = leaves[static_cast<size_t>(i)].inc_ref().ptr();
      if (node.form == Form::kTuple) PyTuple_SET_ITEM(result.ptr(), i, leaf);
      else PyList_SET_ITEM(result.ptr(), i, leaf);
    }
    if (node.form == Form::kOther) result = framework_.unflatten(result, node.spec);
  }
  run_->add(call_, node.step, number);
  for (nb::object& each : handles) run_->proxies.push_back({each.release().ptr(), false});
  ++run_->pending;
  return result.release().ptr();
}

nb::object Follower::new_handle(PyObject* facts, PyObject* value, size_t place) {
  PyObject* number = PyLong_FromSize_t(place);
  if (!number) nb::raise_python_error();
  PyObject* handle = pool_.take();
  if (!handle) {
    const NotHandedOver off(framework_.without);
    handle = PyObject_CallNoArgs(framework_.make.ptr());
    if (!handle) Py_DECREF(number), nb::raise_python_error();
  }
  const HandleFields& fields = framework_.fields;
  const std::pair<Py_ssize_t, PyObject*> given[] = {{fields.follower, nb::find(this).ptr()}, {fields.run, run_object_.ptr()},
                                                    {fields.facts, facts}, {fields.value, value}};
  for (const auto& [offset, object] : given) {
    PyObject* old = HandleFields::at(handle, offset);
    HandleFields::at(handle, offset) = Py_XNewRef(object);
    Py_XDECREF(old);
  }
  PyObject* old = HandleFields::at(handle, fields.number);
  HandleFields::at(handle, fields.number) = number;
  Py_XDECREF(old);
  return nb::steal(handle);
}

// --- what a call is -----------------------------------------------------------------------------------------------------------------

namespace {

// The lowest three bits of a word say what it is. Scalars stand in the numbers of a call; what is kStructure has its elements behind it.
enum Tag : uint64_t { kValue, kInput, kNewInput = Follower::kNewInputTag, kConstant, kStructure, kInteger, kReal, kName };
enum Structure : uint64_t { kTuple, kList, kSize, kSlice, kDict, kKeywords };

uint64_t word(Tag tag, int64_t payload) { return static_cast<uint64_t>(payload) << 3 | tag; }

uint64_t structure(Structure kind, Py_ssize_t size) { return word(kStructure, size << 3 | static_cast<int64_t>(kind)); }

}  // namespace

uint64_t Follower::state() {
  uint64_t found = is_true(called(framework_.grad_enabled));
  if (!is_true(called(framework_.autocast))) return found;
  const nb::object dtype = called(framework_.autocast_dtype);
  if (dtype.is_none()) return found;
  const auto known = std::find_if(dtypes_.begin(), dtypes_.end(), [&](const nb::object& each) { return each.is(dtype); });
  found |= static_cast<uint64_t>(known - dtypes_.begin() + 1) << 1;
  if (known == dtypes_.end()) dtypes_.push_back(dtype);
  return found;
}

Follower::Described Follower::describe(int64_t function, const Arguments& arguments, bool inside) {
  call_.clear();
  mark_ = run_->inputs.size();
  tensors_ = 0;
  transformed_.reset();
  call_.words.push_back(static_cast<uint64_t>(function));
  call_.words.push_back(state());
  Described all = Described::kYes;
  for (Py_ssize_t i = 0; i < arguments.count && all == Described::kYes; ++i) all = argument(arguments.values[i], inside);
  const Py_ssize_t named = arguments.dict ? PyDict_GET_SIZE(arguments.dict) : arguments.names ? PyTuple_GET_SIZE(arguments.names) : 0;
  if (all != Described::kYes || named == 0) return all;
  call_.words.push_back(structure(kKeywords, named));
  PyObject *name = nullptr, *value = nullptr;
  Py_ssize_t at = 0;
  for (Py_ssize_t i = 0; i < named && all == Described::kYes; ++i) {
    if (arguments.dict) {
      if (!PyDict_Next(arguments.dict, &at, &name, &value)) break;
    } else {
      name = PyTuple_GET_ITEM(arguments.names, i);
      value = arguments.values[arguments.count + i];
    }
    all = numbered(name, kName);
    if (all == Described::kYes) all = argument(value, inside);
  }
  return all;
}

// A float that is an argument of its own may come to differ; its zeros may not, which have a sign.
Follower::Described Follower::argument(PyObject* value, bool inside) {
  if (!PyFloat_CheckExact(value)) return part(value, inside);
  const double number = PyFloat_AS_DOUBLE(value);
  call_.words.push_back(word(kReal, number != 0 ? 0 : std::signbit(number) ? 1 : 2));
  call_.numbers.push_back(Number::of(number));
  return Described::kYes;
}

Follower::Described Follower::part(PyObject* value, bool inside) {
  PyTypeObject* type = Py_TYPE(value);
  if (type == reinterpret_cast<PyTypeObject*>(framework_.handle.ptr())) return handle(value, inside);
  if (is_tensor(value)) return input(value, value, inside);
  if (type == &PyLong_Type) {
    int overflow = 0;
    const int64_t number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow) return Described::kNo;
    call_.words.push_back(word(kInteger, 0));
    call_.numbers.push_back(Number::of(number));
    return Described::kYes;
  }
  if (PyTuple_Check(value) || type == &PyList_Type) return sequence(value, inside);
  if (type == &PyDict_Type) return mapping(value, inside);
  if (type == &PySlice_Type) {
    const auto* range = reinterpret_cast<PySliceObject*>(value);
    call_.words.push_back(structure(kSlice, 3));
    for (PyObject* each : {range->start, range->stop, range->step}) {
      if (const Described found = part(each, inside); found != Described::kYes) return found;
    }
    return Described::kYes;
  }
  return constant(value);
}

Follower::Described Follower::sequence(PyObject* value, bool inside) {
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
  const bool plain = PyTuple_CheckExact(value) || PyList_CheckExact(value);
  if (!plain && !Py_IS_TYPE(value, reinterpret_cast<PyTypeObject*>(framework_.size.ptr()))) return Described::kNo;
  call_.words.push_back(structure(!plain ? kSize : PyList_CheckExact(value) ? kList : kTuple, size));
  for (Py_ssize_t i = 0; i < size; ++i) {
    if (const Described found = part(PySequence_Fast_GET_ITEM(value, i), inside); found != Described::kYes) return found;
  }
  return Described::kYes;
}

Follower::Described Follower::mapping(PyObject* value, bool inside) {
  call_.words.push_back(structure(kDict, PyDict_GET_SIZE(value)));
  PyObject *name = nullptr, *each = nullptr;
  for (Py_ssize_t at = 0; PyDict_Next(value, &at, &name, &each);) {
    if (!PyUnicode_CheckExact(name)) return Described::kNo;
    if (numbered(name, kName) != Described::kYes) return Described::kNo;
    if (const Described found = part(each, inside); found != Described::kYes) return found;
  }
  return Described::kYes;
}

// By type and value; what is made of floats bit by bit, as zeros have a sign.
Follower::Described Follower::constant(PyObject* value) {
  PyTypeObject* type = Py_TYPE(value);
  if (type == &PyFloat_Type || type == &PyComplex_Type) {
    const Py_complex parts = PyComplex_AsCComplex(value);
    uint64_t bits[2];
    std::memcpy(bits, &parts, sizeof bits);
    call_.words.insert(call_.words.end(), {word(kConstant, type == &PyFloat_Type ? 0 : -1), bits[0], bits[1]});
    return Described::kYes;
  }
  const bool known = value == Py_None || type == &PyUnicode_Type ||
                     std::any_of(framework_.constants.begin(), framework_.constants.end(),
                                 [&](const nb::object& each) { return each.ptr() == reinterpret_cast<PyObject*>(type); });
  return known ? numbered(value, kConstant) : Described::kNo;
}

// From 1 on; the number of another type's constant is another. There are only so many: a program may have a new one in every step.
Follower::Described Follower::numbered(PyObject* value, uint64_t tag) {
  nb::object& known = constants_[Py_TYPE(value)];
  if (!known.is_valid()) known = nb::dict();
  PyObject* number = PyDict_GetItemWithError(known.ptr(), value);
  if (!number && PyErr_Occurred()) nb::raise_python_error();
  if (!number && constant_count_ >= most_known_) return Described::kNo;
  const int64_t found = number ? PyLong_AsLongLong(number) : ++constant_count_;
  if (!number && PyDict_SetItem(known.ptr(), value, nb::int_(found).ptr()) < 0) nb::raise_python_error();
  call_.words.push_back(word(static_cast<Tag>(tag), found));
  return Described::kYes;
}

Follower::Described Follower::handle(PyObject* value, bool inside) {
  if (is_mine(value)) {
    ++tensors_;
    call_.words.push_back(word(kValue, PyLong_AsLongLong(HandleFields::at(value, framework_.fields.number))));
    return Described::kYes;
  }
  PyObject* tensor = HandleFields::at(value, framework_.fields.value);
  if (!tensor || tensor == Py_None) return Described::kUnread;
  return input(tensor, value, inside);
}

Follower::Described Follower::input(PyObject* tensor, PyObject* given, bool inside) {
  ++tensors_;
  const auto known = run_->numbers.find(tensor);
  if (known != run_->numbers.end()) {
    call_.words.push_back(word(kInput, known->second));
    return Described::kYes;
  }
  if (!inside) return new_input(tensor, given);
  const NotHandedOver off(framework_.without);
  return new_input(tensor, given);
}

bool Follower::is_tensor(PyObject* value) const {
  return std::any_of(framework_.tensors.begin(), framework_.tensors.end(),
                     [&](const nb::object& each) { return Py_IS_TYPE(value, reinterpret_cast<PyTypeObject*>(each.ptr())); });
}

// --- for Python's part --------------------------------------------------------------------------------------------------------------

std::optional<DescribedCall> Follower::describe(nb::handle function, const nb::tuple& arguments, const nb::dict& keywords) {
  PyObject* role = PyDict_GetItemWithError(roles.ptr(), function.ptr());
  if (!role) throw nb::key_error("a function without a role");
  const Arguments given{&PyTuple_GET_ITEM(arguments.ptr(), 0), PyTuple_GET_SIZE(arguments.ptr()), keywords.ptr(), nullptr};
  if (describe(PyLong_AsLongLong(role) / 8, given, false) == Described::kYes) return DescribedCall{call_, mark_, tensors_};
  run_->forget(mark_);
  return std::nullopt;
}

nb::object Follower::next(const DescribedCall& call) {
  const int32_t step = tree_.follow(run_->here, call.call);
  return step == TraceTree::kNone ? nb::none() : nodes_[static_cast<size_t>(step)].step;
}

int32_t Follower::add_step(int32_t number, nb::handle step) {
  nodes_.push_back({nb::borrow(step), {}, nb::list(), Form::kSingle, nb::none(), nb::list(), false});
  ahead.push_back(0);
  return number;
}

int32_t Follower::add(const DescribedCall& call, nb::handle step, bool reals_vary) {
  return add_step(tree_.add(run_->here, call.call, reals_vary), step);
}

void Follower::set_results(int32_t step, const std::vector<int64_t>& codes, const nb::list& made, nb::object form) {
  Node& node = nodes_.at(static_cast<size_t>(step));
  if (made.size() != codes.size()) throw nb::value_error("as many results as codes");
  node.results.clear();
  node.made = made;
  for (size_t i = 0; i < codes.size(); ++i) node.results.push_back({codes[i], nb::handle(made[i]).ptr()});
  const PyObject* kind = form.ptr();
  node.form = form.is_none() ? Form::kSingle : kind == reinterpret_cast<PyObject*>(&PyTuple_Type) ? Form::kTuple
              : kind == reinterpret_cast<PyObject*>(&PyList_Type) ? Form::kList : Form::kOther;
  node.spec = std::move(form);
}

nb::list Follower::go_to(const DescribedCall& call, nb::handle step, int32_t number, const nb::list& facts, const nb::list& values) {
  nb::list made;
  std::vector<nb::object> references;  // an interrupt in between leaves the run as it is
  for (size_t i = 0; i < facts.size(); ++i) {
    made.append(new_handle(nb::handle(facts[i]).ptr(), nb::handle(values[i]).ptr(), run_->proxies.size() + i));
    references.push_back(owned(PyWeakref_NewRef(nb::handle(made[i]).ptr(), nullptr)));
  }
  run_->add(call.call, step, number);
  for (nb::object& each : references) run_->proxies.push_back({each.release().ptr(), true});
  return made;
}

nb::object Follower::begin(nb::handle step, int32_t number, nb::handle state) {
  root_ = nb::borrow(step);
  root_state_ = nb::borrow(state);
  root_number_ = number;
  run_object_ = nb::cast(new Run(number, nb::borrow(step), framework_.fields.value), nb::rv_policy::take_ownership);
  run_ = nb::inst_ptr<Run>(run_object_);
  return run_object_;
}

void Follower::finish(nb::handle run) {
  nb::cast<Run&>(run).clear();
}

bool Follower::keep(PyObject* handle) {
  Py_SET_REFCNT(handle, 1);  // the pool's
  if (!pool_.give(handle, framework_.fields)) {
    Py_SET_REFCNT(handle, 0);
    return false;
  }
  PyObject_GC_UnTrack(handle);  // a collector that is freeing what held it has it on its list
  PyObject_GC_Track(handle);
  return true;
}

nb::list Follower::outliving() const {
  nb::list found;
  PyObject* const self = nb::find(this).ptr();
  for (const auto& [each, value] : outliving_handles().values()) {
    if (HandleFields::at(each, framework_.fields.follower) == self) found.append(nb::handle(each));
  }
  return found;
}

nb::list Follower::numbers(int32_t step) const {
  nb::list found;
  for (const Number& each : tree_.numbers(step)) {
    if (each.any) found.append(nb::none());
    else if (each.kind == Number::kReal) found.append(nb::float_(each.real));
    else found.append(nb::int_(each.integer));
  }
  return found;
}

void Follower::forget_traces() {
  tree_ = TraceTree();
  std::vector<Node> old;
  old.swap(nodes_);
  ahead.clear();
}

int Follower::traverse(visitproc visit, void* arg) const {
  for (const Node& each : nodes_) {
    Py_VISIT(each.step.ptr());
    Py_VISIT(each.made.ptr());
    Py_VISIT(each.spec.ptr());
    Py_VISIT(each.programs.ptr());
  }
  Py_VISIT(slow_.ptr());
  Py_VISIT(end_.ptr());
  Py_VISIT(run_object_.ptr());
  Py_VISIT(root_.ptr());
  Py_VISIT(recorder.ptr());
  return pool_.traverse(visit, arg);
}

void Follower::drop() {
  active = false;
  forget_traces();
  pool_.clear();
  const nb::object slow = std::move(slow_), end = std::move(end_), owner = std::move(recorder), root = std::move(root_);
}

}  // namespace ral::python
