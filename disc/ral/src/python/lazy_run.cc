#include "python/lazy_run.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>

#include "python/python_tensor.h"

namespace ral::python {

namespace {

PyObject* version_name = nullptr;

// What a weak reference refers to, borrowed: whoever asks keeps it. Null if it is gone.
PyObject* referent(PyObject* reference) {
#if PY_VERSION_HEX >= 0x030D0000
  PyObject* found = nullptr;
  if (PyWeakref_GetRef(reference, &found) < 0) PyErr_Clear();
  Py_XDECREF(found);  // another reference is left, or it would be gone
  return found;
#else
  PyObject* found = PyWeakref_GetObject(reference);
  return found == Py_None ? nullptr : found;
#endif
}

// Whether somebody looks at the object from aside, or has given it attributes.
bool is_marked(PyObject* handle) {
  if (PyObject** references = nullptr; Py_TYPE(handle)->tp_weaklistoffset) {
    references = reinterpret_cast<PyObject**>(reinterpret_cast<char*>(handle) + Py_TYPE(handle)->tp_weaklistoffset);
    if (*references) return true;
  }
  PyObject* attributes = PyObject_GenericGetDict(handle, nullptr);
  const bool marked = !attributes || PyDict_GET_SIZE(attributes) > 0;
  if (!attributes) PyErr_Clear();
  Py_XDECREF(attributes);
  return marked;
}

PyObject* number_object(const Number& number) {
  return number.kind == Number::kInteger ? PyLong_FromLongLong(number.integer) : PyFloat_FromDouble(number.real);
}

// The numbers of each call: a list of tuples.
nb::list scalars_of(const Run& run) {
  nb::list found;
  size_t begin = 0;
  for (const size_t end : run.ends) {
    nb::object call = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(end - begin)));
    for (size_t i = begin; i < end; ++i) PyTuple_SET_ITEM(call.ptr(), static_cast<Py_ssize_t>(i - begin), number_object(run.scalars[i]));
    found.append(call);
    begin = end;
  }
  return found;
}

nb::list objects(const std::vector<PyObject*>& held) {
  nb::list found;
  for (PyObject* each : held) found.append(nb::handle(each));
  return found;
}

nb::dict gradients_of(const Run& run) {
  nb::dict found;
  for (const auto& [leaf, gradient] : run.gradients) found[nb::int_(leaf)] = gradient;
  return found;
}

nb::object number_of(const Run& run, nb::handle tensor) {
  const auto found = run.numbers.find(tensor.ptr());
  return found == run.numbers.end() ? nb::none() : nb::object(nb::int_(found->second));
}

// Elements and their order too; strides of dims of one element may differ.
bool same_place(const DLTensor& one, const DLTensor& other) {
  const auto begins = [](const DLTensor& tensor) { return static_cast<const char*>(tensor.data) + tensor.byte_offset; };
  if (begins(one) != begins(other) || one.ndim != other.ndim || one.dtype.code != other.dtype.code || one.dtype.bits != other.dtype.bits) {
    return false;
  }
  for (int32_t i = 0; i < one.ndim; ++i) {
    if (one.shape[i] != other.shape[i] || (one.shape[i] > 1 && one.strides[i] != other.strides[i])) return false;
  }
  return true;
}

int run_traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  return nb::inst_ready(self) ? nb::inst_ptr<Run>(self)->traverse(visit, arg) : 0;
}

int run_clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Run>(self)->clear();
  return 0;
}

PyType_Slot run_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(run_traverse)}, {Py_tp_clear, reinterpret_cast<void*>(run_clear)}, {0, nullptr}};

}  // namespace

void Outliving::add(PyObject* handle, PyObject* value) {
  values_[handle] = value;
  handles_[value] = handle;
}

void Outliving::remove(PyObject* handle) {
  const auto found = values_.find(handle);
  if (found == values_.end()) return;
  if (const auto own = handles_.find(found->second); own != handles_.end() && own->second == handle) handles_.erase(own);
  values_.erase(found);
}

PyObject* Outliving::of(PyObject* tensor) const {
  const auto found = handles_.find(tensor);
  return found == handles_.end() ? nullptr : found->second;
}

Outliving& outliving_handles() {
  static auto* const found = new Outliving;  // handles are freed until the interpreter ends
  return *found;
}

std::pair<uintptr_t, uintptr_t> extent_of(const DLTensor& tensor) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
  int64_t last = 0;
  for (int32_t i = 0; i < tensor.ndim; ++i) {
    if (tensor.shape[i] == 0) return {begin, begin};
    last += (tensor.shape[i] - 1) * tensor.strides[i];
  }
  return {begin, begin + static_cast<uintptr_t>((last + 1) * tensor.dtype.bits * tensor.dtype.lanes / 8)};
}

int64_t integer_attribute(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  const int64_t number = value ? PyLong_AsLongLong(value) : -1;
  Py_XDECREF(value);
  return number;
}

PyObject* HandlePool::take() {
  if (free_.empty()) return nullptr;
  PyObject* handle = free_.back();
  free_.pop_back();
  return handle;
}

bool HandlePool::give(PyObject* handle, const HandleFields& fields) {
  if (free_.size() >= kMost || is_marked(handle)) return false;
  for (const Py_ssize_t offset : {fields.follower, fields.run, fields.facts, fields.value}) {
    PyObject* old = HandleFields::at(handle, offset);
    HandleFields::at(handle, offset) = Py_NewRef(Py_None);
    Py_XDECREF(old);
  }
  free_.push_back(handle);
  return true;
}

void HandlePool::clear() {
  std::vector<PyObject*> old;
  old.swap(free_);
  for (PyObject* each : old) Py_DECREF(each);
}

int HandlePool::traverse(visitproc visit, void* arg) const {
  for (PyObject* each : free_) Py_VISIT(each);
  return 0;
}

void Run::add(const Call& call, nb::handle next, int32_t number) {
  step = nb::borrow(next);
  here = number;
  scalars.insert(scalars.end(), call.numbers.begin(), call.numbers.end());
  ends.push_back(scalars.size());
}

bool Run::is_new(PyObject* tensor, size_t mark) const {
  const auto found = numbers.find(tensor);
  return found != numbers.end() && static_cast<size_t>(found->second) >= mark;
}

void Run::forget(size_t mark) {
  for (size_t i = mark; i < inputs.size(); ++i) numbers.erase(inputs[i]);
  const auto after = static_cast<int32_t>(mark);
  for (auto& [begin, memory] : memories_) std::erase_if(memory.inputs, [&](int32_t each) { return each >= after; });
  std::erase_if(memories_, [](const auto& each) { return each.second.inputs.empty(); });
  std::erase_if(gradients, [&](const auto& each) { return each.first >= after || each.second >= after; });
  std::vector<PyObject*> old(inputs.begin() + after, inputs.end());
  old.insert(old.end(), given.begin() + after, given.end());
  inputs.resize(mark);
  given.resize(mark);
  versions.resize(mark);
  twins.resize(mark);
  for (PyObject* each : old) Py_DECREF(each);
}

Run::Memories::const_iterator Run::reached(const Memories& memories, Range storage) {
  auto found = memories.upper_bound(storage.begin);
  if (found != memories.begin() && std::prev(found)->second.end > storage.begin) --found;
  return found;
}

std::vector<int32_t> Run::put(Range storage) {
  if (storage.begin == storage.end) return {};
  auto each = reached(memories_, storage);
  if (each == memories_.end() || each->first >= storage.end) {
    memories_.emplace_hint(each, storage.begin, Memory{storage.end, {static_cast<int32_t>(inputs.size())}});
    return {};
  }
  Memory joined{storage.end, {}};
  auto begin = storage.begin;
  for (; each != memories_.end() && each->first < storage.end; each = memories_.erase(each)) {
    begin = std::min(begin, each->first);
    joined.end = std::max(joined.end, each->second.end);
    joined.inputs.insert(joined.inputs.end(), each->second.inputs.begin(), each->second.inputs.end());
  }
  std::sort(joined.inputs.begin(), joined.inputs.end());
  const std::vector<int32_t> before = joined.inputs;
  joined.inputs.push_back(static_cast<int32_t>(inputs.size()));
  memories_.emplace(begin, std::move(joined));
  return before;
}

int32_t Run::first_in(Range storage) const {
  if (storage.begin == storage.end) return -1;
  const auto found = reached(memories_, storage);
  return found != memories_.end() && found->first < storage.end ? found->second.inputs.front() : -1;
}

int32_t Run::twin_of(const DLTensor& tensor, const std::vector<int32_t>& in_memory) const {
  const auto [begin, end] = extent_of(tensor);
  const auto own = static_cast<int32_t>(inputs.size());
  if (begin == end || in_memory.empty()) return own;
  bool overlaps = false;
  for (const int32_t each : in_memory) {
    const std::optional<DLTensor> other = dl_tensor(inputs[static_cast<size_t>(each)]);
    if (!other) return -1;
    if (same_place(tensor, *other)) return twins[static_cast<size_t>(each)];
    const auto [first, last] = extent_of(*other);
    overlaps = overlaps || (begin < last && first < end);
  }
  return overlaps ? -1 : own;
}

nb::object Run::proxy(size_t number) const {
  const Proxy& each = proxies.at(number);
  if (!each.object) return nb::none();
  PyObject* found = each.weak ? referent(each.object) : each.object;
  return found ? nb::borrow(found) : nb::none();
}

bool Run::is_live(size_t number) const {
  const Proxy& each = proxies[number];
  if (!each.object) return false;
  return each.weak ? referent(each.object) != nullptr : Py_REFCNT(each.object) > 1;
}

std::vector<int64_t> Run::live() const {
  std::vector<int64_t> found;
  for (size_t i = 0; i < proxies.size(); ++i) {
    if (is_live(i)) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

int64_t Run::value_of(PyObject* tensor) const {
  for (size_t i = 0; i < proxies.size(); ++i) {
    if (!is_live(i)) continue;
    PyObject* const handle = proxies[i].weak ? referent(proxies[i].object) : proxies[i].object;
    if (HandleFields::at(handle, value_field_) == tensor) return static_cast<int64_t>(i);
  }
  return -1;
}

std::vector<int64_t> Run::written() const {
  std::vector<int64_t> found;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int64_t version = integer_attribute(inputs[i], version_name);
    if (version == -1 && PyErr_Occurred()) nb::raise_python_error();
    if (version != versions[i]) found.push_back(static_cast<int64_t>(i));
  }
  return found;
}

void Run::give(const std::vector<size_t>& places, const nb::list& tensors) const {
  for (size_t i = 0; i < places.size(); ++i) give(places[i], tensors[i]);
}

void Run::give(size_t number, nb::handle tensor) const {
  const nb::object handle = proxy(number);
  if (handle.is_none()) return;
  PyObject* old = HandleFields::at(handle.ptr(), value_field_);
  HandleFields::at(handle.ptr(), value_field_) = Py_NewRef(tensor.ptr());
  Py_XDECREF(old);
}

void Run::loosen() {
  std::vector<PyObject*> old;  // a finalizer's calls may be recorded
  for (Proxy& each : proxies) {
    if (!each.object || each.weak) continue;
    old.push_back(each.object);
    PyObject* reference = Py_REFCNT(each.object) > 1 ? PyWeakref_NewRef(each.object, nullptr) : nullptr;
    if (!reference) PyErr_Clear();
    each = {reference, true};
  }
  for (PyObject* each : old) Py_DECREF(each);
}

void Run::clear() {
  std::vector<PyObject*> old;
  old.swap(inputs);
  old.insert(old.end(), given.begin(), given.end());
  given.clear();
  for (size_t i = 0; i < proxies.size(); ++i) {
    if (is_live(i)) {
      PyObject* const handle = proxies[i].weak ? referent(proxies[i].object) : proxies[i].object;
      outliving_handles().add(handle, HandleFields::at(handle, value_field_));
    }
    if (proxies[i].object) old.push_back(proxies[i].object);
  }
  proxies.clear();
  numbers.clear();
  memories_.clear();
  gradients.clear();
  versions.clear();
  twins.clear();
  bounds.clear();
  for (PyObject* each : old) Py_DECREF(each);
}

int Run::traverse(visitproc visit, void* arg) const {
  for (PyObject* each : inputs) Py_VISIT(each);
  for (PyObject* each : given) Py_VISIT(each);
  for (const Proxy& each : proxies) Py_VISIT(each.object);
  Py_VISIT(step.ptr());
  return 0;
}

void bind_runs(nb::module_& module) {
  version_name = PyUnicode_InternFromString("_version");
  if (!version_name) nb::raise_python_error();
  nb::class_<Run>(module, "LazyRun", nb::type_slots(run_slots))
      .def_prop_ro("here", [](const Run& run) { return run.step; })
      .def_rw("pending", &Run::pending)
      .def_rw("deferring", &Run::deferring)
      .def_prop_ro("inputs", [](const Run& run) { return objects(run.inputs); })
      .def_prop_ro("given", [](const Run& run) { return objects(run.given); })
      .def_prop_ro("scalars", &scalars_of)
      .def_prop_ro("gradients", &gradients_of)
      .def_prop_ro("proxy_count", [](const Run& run) { return run.proxies.size(); })
      .def_prop_ro("twins", [](const Run& run) { return run.twins; })
      .def("number_of", &number_of, nb::arg("tensor"))
      .def("first_in", [](const Run& run, uintptr_t begin, size_t bytes) {
        const int32_t found = run.first_in({begin, begin + bytes});
        return found < 0 ? nb::none() : nb::object(nb::int_(found));
      }, nb::arg("begin"), nb::arg("bytes"))
      .def("proxy", &Run::proxy, nb::arg("number"))
      .def("live", &Run::live)
      .def("value_of", [](const Run& run, nb::handle tensor) {
        const int64_t found = run.value_of(tensor.ptr());
        return found < 0 ? nb::none() : nb::object(nb::int_(found));
      }, nb::arg("tensor"))
      .def("give", nb::overload_cast<const std::vector<size_t>&, const nb::list&>(&Run::give, nb::const_), nb::arg("numbers"), nb::arg("tensors"))
      .def("written", &Run::written)
      .def("clear", &Run::clear);
}

}  // namespace ral::python
