// What of a tensor that a trace takes belongs to the trace: its dtype and rank, and what it shares memory with; no sizes.
#include <cstring>

#include "python/follower.h"
#include "python/python_tensor.h"

namespace ral::python {

namespace {

struct Names {
  PyObject *requires_grad, *is_leaf, *version, *address, *bytes, *backward_hooks, *accumulate_hooks, *grad;

  static const Names& get() {
    static const Names names{PyUnicode_InternFromString("requires_grad"),
                             PyUnicode_InternFromString("is_leaf"),
                             PyUnicode_InternFromString("_version"),
                             PyUnicode_InternFromString("data_ptr"),
                             PyUnicode_InternFromString("nbytes"),
                             PyUnicode_InternFromString("_backward_hooks"),
                             PyUnicode_InternFromString("_post_accumulate_grad_hooks"),
                             PyUnicode_InternFromString("grad")};
    return names;
  }
};

nb::object attribute(PyObject* object, PyObject* name) {
  PyObject* found = PyObject_GetAttr(object, name);
  if (!found) nb::raise_python_error();
  return nb::steal(found);
}

bool says(PyObject* object, PyObject* name) { return attribute(object, name).ptr() == Py_True; }

nb::object asked(const nb::object& method, PyObject* object) {
  PyObject* found = PyObject_CallOneArg(method.ptr(), object);
  if (!found) nb::raise_python_error();
  return nb::steal(found);
}

// As PyTorch says it: the strides of dims of one element mean nothing.
bool is_row_major(const DLTensor& tensor) {
  int64_t expected = 1;
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] == 0) return true;
  }
  for (int32_t i = tensor.ndim; i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.shape[i];
  }
  return true;
}

}  // namespace

std::unordered_set<uintptr_t>& plain_leaves() {
  static auto* const found = new std::unordered_set<uintptr_t>;  // tensors are freed until the interpreter ends
  return *found;
}

bool Follower::is_transformed() const {
  const nb::object found = nb::steal(PyObject_CallNoArgs(framework_.transforms.ptr()));
  if (!found.is_valid()) nb::raise_python_error();
  return found.ptr() == Py_True;
}

Range Follower::storage_of(PyObject* tensor) const {
  const nb::object storage = asked(framework_.storage, tensor);
  const auto number = [&](PyObject* method) {
    const nb::object found = nb::steal(PyObject_CallMethodNoArgs(storage.ptr(), method));
    const size_t value = found.is_valid() ? PyLong_AsSize_t(found.ptr()) : static_cast<size_t>(-1);
    if (value == static_cast<size_t>(-1) && PyErr_Occurred()) nb::raise_python_error();
    return value;
  };
  const uintptr_t begin = number(Names::get().address);
  return {begin, begin + number(Names::get().bytes)};
}

bool Follower::concerns(PyObject* value) const {
  auto* const handle = reinterpret_cast<PyTypeObject*>(framework_.handle.ptr());
  if (Py_IS_TYPE(value, handle)) {
    if (is_mine(value)) return true;
    PyObject* tensor = HandleFields::at(value, framework_.fields.value);
    return tensor && tensor != Py_None && concerns(tensor);
  }
  if (PyTuple_Check(value) || PyList_Check(value)) {
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
      if (concerns(PySequence_Fast_GET_ITEM(value, i))) return true;
    }
    return false;
  }
  if (PyDict_Check(value)) {
    PyObject *name = nullptr, *each = nullptr;
    for (Py_ssize_t at = 0; PyDict_Next(value, &at, &name, &each);) {
      if (concerns(each)) return true;
    }
    return false;
  }
  if (!PyObject_TypeCheck(value, handle->tp_base)) return false;
  return !dl_tensor(value) || run_->first_in(storage_of(value)) >= 0;
}

Follower::Described Follower::new_input(PyObject* tensor, PyObject* given) {
  const Names& names = Names::get();
  const std::optional<DLTensor> memory = dl_tensor(tensor);
  // What a transform of functions (vmap) computes with comes here in each of its calls, being new: it is PyTorch's.
  if (!transformed_) transformed_ = is_transformed();
  if (*transformed_) return Described::kNo;
  if (!memory || memory->device.device_type != kDLCPU) return Described::kNo;
  const int64_t version = integer_attribute(tensor, names.version);
  if (version == -1) return PyErr_Clear(), Described::kNo;  // inference tensors have none: nothing tells whether they are written
  const bool tracked = says(tensor, names.requires_grad), leaf = !tracked || says(tensor, names.is_leaf);
  if (tracked && leaf) {
    for (PyObject* hooks : {names.backward_hooks, names.accumulate_hooks}) {
      if (PyObject_IsTrue(attribute(tensor, hooks).ptr()) != 0) return Described::kNo;
    }
    const bool plain = plain_leaves().contains(reinterpret_cast<uintptr_t>(tensor));
    if (!plain && asked(framework_.hooked, tensor).ptr() == Py_True) return Described::kNo;
  }
  const bool conjugated = memory->dtype.code == kDLComplex && asked(framework_.is_conj, tensor).ptr() == Py_True;
  const bool negated = asked(framework_.is_neg, tensor).ptr() == Py_True;
  const Range storage = storage_of(tensor);

  const auto number = static_cast<int32_t>(run_->inputs.size());
  const std::vector<int32_t> lying = run_->put(storage);
  const int32_t twin = run_->twin_of(*memory, lying);
  run_->twins.push_back(twin);
  run_->inputs.push_back(Py_NewRef(tensor));
  run_->given.push_back(Py_NewRef(given));
  run_->versions.push_back(version);
  run_->numbers.emplace(tensor, number);
  std::vector<int64_t> kind{memory->dtype.code, memory->dtype.bits, memory->dtype.lanes, memory->ndim, tracked, leaf, conjugated, negated,
                            lying.empty() ? number : lying.front(), twin};
  if (!is_row_major(*memory)) kind.insert(kind.end(), memory->strides, memory->strides + memory->ndim);
  const size_t place = call_.words.size();
  call_.words.push_back(0);
  if (tracked && leaf) {
    const nb::object gradient = attribute(tensor, names.grad);
    if (!gradient.is_none()) {
      if (!is_tensor(gradient.ptr())) return Described::kNo;
      PyObject* const owner = outliving_handles().of(gradient.ptr());
      const bool stands = owner && HandleFields::at(owner, framework_.fields.follower) == nb::find(this).ptr();
      const Described found = input(gradient.ptr(), stands ? owner : gradient.ptr(), false);
      if (found != Described::kYes) return found;
      run_->gradients.emplace_back(number, run_->numbers.at(gradient.ptr()));
      kind.push_back(-2);  // no stride of a tensor
    }
  }
  const std::string key(reinterpret_cast<const char*>(kind.data()), kind.size() * sizeof(int64_t));
  const auto known = kinds_.find(key);
  if (known == kinds_.end() && kinds_.size() >= static_cast<size_t>(most_known_)) return Described::kNo;
  const uint64_t word = known != kinds_.end() ? known->second : kinds_.emplace(key, kinds_.size()).first->second;
  call_.words[place] = word << 3 | kNewInputTag;
  return Described::kYes;
}

}  // namespace ral::python
