// A trace of PyTorch calls while it is recorded: the tensors that it takes, and what stands for those that it gives.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/trace_tree.h"
#include "dlpack/dlpack.h"

namespace ral::python {

namespace nb = nanobind;

// Where a LazyTensor has its fields: slots of a class of Python.
struct HandleFields {
  Py_ssize_t follower, run, number, facts, value;

  static PyObject*& at(PyObject* handle, Py_ssize_t offset) {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(handle) + offset);
  }
};

// Handles that nobody holds any more, to be used again: making a tensor is half of what recording a call costs.
class HandlePool {
 public:
  static constexpr size_t kMost = 8192;

  HandlePool() { free_.reserve(kMost); }  // nothing may fail where a handle is given back
  HandlePool(const HandlePool&) = delete;
  HandlePool& operator=(const HandlePool&) = delete;
  ~HandlePool() { clear(); }

  // One that was given back, or null. The caller owns it.
  PyObject* take();
  // Takes over a reference that is the only one. False, and the reference stays the caller's, for one that has attributes of its own, or
  // that somebody looks at from aside.
  bool give(PyObject* handle, const HandleFields& fields);
  void clear();
  int traverse(visitproc visit, void* arg) const;

 private:
  std::vector<PyObject*> free_;
};

// The value that a call gives: a handle. Held while it is only promised (its references tell whether somebody else holds it); a weak
// reference to one that has a value.
struct Proxy {
  PyObject* object;
  bool weak;
};

// The values of a compiled trace's symbols, as far as a run has come. fits: nothing speaks against the trace so far.
struct Bound {
  size_t inputs = 0, calls = 0;  // that have been looked at
  std::vector<std::pair<bool, Number>> values;  // whether it is known
  bool fits = true;
};

// Addresses from the first to behind the last one.
struct Range {
  uintptr_t begin, end;
};

class Run {
 public:
  Run(int32_t at, nb::object step, Py_ssize_t value_field) : step(std::move(step)), here(at), value_field_(value_field) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run() { clear(); }

  // The next call of it.
  void add(const Call& call, nb::handle next, int32_t number);
  // Whether a tensor is an input from number `mark` on.
  bool is_new(PyObject* tensor, size_t mark) const;
  // Takes the inputs from number `mark` on out of it.
  void forget(size_t mark);
  // What `twins` says of a tensor that becomes the next input, by those in the same memory.
  int32_t twin_of(const DLTensor& tensor, const std::vector<int32_t>& in_memory) const;
  // The next input lies in a storage of these addresses; those before it in the same memory.
  std::vector<int32_t> put(Range storage);
  // The first input in the same memory as a storage of these addresses, -1 if there is none.
  int32_t first_in(Range storage) const;
  // What Python has for value `number`; None if nobody holds it.
  nb::object proxy(size_t number) const;
  bool is_live(size_t number) const;  // somebody holds that value
  std::vector<int64_t> live() const;
  // The value that somebody holds and that is this tensor, -1 if there is none.
  int64_t value_of(PyObject* tensor) const;
  // Inputs that were written since they came.
  std::vector<int64_t> written() const;
    // What stands for these values, where somebody holds it, has these tensors from now on.
  void give(const std::vector<size_t>& numbers, const nb::list& tensors) const;
  void give(size_t number, nb::handle tensor) const;
  // Lets go of promised handles; weak references stay of those that somebody else holds.
  void loosen();
  void clear();
  int traverse(visitproc visit, void* arg) const;

  nb::object step;  // of Python, that `here` is the number of
  std::unordered_map<uint64_t, Bound> bounds;  // of compiled traces, by the numbers of their bindings
  int32_t here;
  bool deferring = true;  // after a first call that had to be run, none waits
  int64_t pending = 0;
  std::vector<PyObject*> inputs, given;  // held; `given`: as the program has them, lazy ones of earlier traces too
  std::vector<int64_t> versions;         // of inputs, when they came
  std::unordered_map<PyObject*, int32_t> numbers;
  std::vector<int32_t> twins;  // of inputs: the first that is exactly there; itself where it overlaps none before it; -1 where in part
  std::vector<std::pair<int32_t, int32_t>> gradients;  // input -> the input that is its gradient so far
  std::vector<Number> scalars;                         // of all calls
  std::vector<size_t> ends;                            // for each call, how many there are with its own
  std::vector<Proxy> proxies;

 private:
  // Storages that overlap, as those of tensors that one array was handed over as twice, and the inputs that lie in them, in order.
  struct Memory {
    uintptr_t end;
    std::vector<int32_t> inputs;
  };
  using Memories = std::map<uintptr_t, Memory>;  // by where they begin

  // The first memory that does not end before these addresses.
  static Memories::const_iterator reached(const Memories& memories, Range storage);

  Py_ssize_t value_field_;
  Memories memories_;
};

// Handles that were held when their run ended, of all runs; whoever frees one takes it out.
class Outliving {
 public:
  void add(PyObject* handle, PyObject* value);
  void remove(PyObject* handle);
  // The one that stands for a tensor, borrowed; null if none does.
  PyObject* of(PyObject* tensor) const;
  const std::unordered_map<PyObject*, PyObject*>& values() const { return values_; }

 private:
  std::unordered_map<PyObject*, PyObject*> values_, handles_;  // handle -> tensor, tensor -> handle
};

Outliving& outliving_handles();

// The addresses of the elements of a tensor, from the first to behind the last one; the same for one without elements.
std::pair<uintptr_t, uintptr_t> extent_of(const DLTensor& tensor);

// nullptr = an error of Python is set. An attribute that is an integer; -1 with Python's error set.
int64_t integer_attribute(PyObject* object, PyObject* name);

void bind_runs(nb::module_& module);
void bind_bindings(nb::module_& module);

}  // namespace ral::python
