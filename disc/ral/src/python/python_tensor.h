// Between Python objects and ral_tensor: the part of the binding that knows torch-like tensors, NumPy arrays and DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <cxxabi.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/trace_tree.h"
#include "dlpack/dlpack.h"
#include "ral.h"

namespace ral::python {

namespace nb = nanobind;

// Runs `body`, in which this thread may wait for the GIL. Before version 3.14 Python ends a daemon thread that asks for the GIL while the
// process exits, by unwinding its stack; nanobind's functions and destructors of C++ do not survive that, and without the GIL nothing of
// Python may be touched. So the thread stays here, as from 3.14 on, until the process is gone. `body` holds no C++ object of its own.
template <typename Body>
auto waiting_for_gil(Body body) {
  try {
    return body();
  } catch (abi::__forced_unwind&) {
    for (;;) pause();
  }
}

// Runs `body`, which throws nothing, without the GIL.
template <typename Body>
ral_status without_gil(Body body) {
  PyThreadState* state = PyEval_SaveThread();
  const ral_status status = body();
  waiting_for_gil([&] { PyEval_RestoreThread(state); });
  return status;
}

// Raises the exception of disc.errors that corresponds to `status`.
[[noreturn]] void raise(ral_status status, const std::string& message);

// From now on, calls of this thread let Python handle its signals, and ask what `set_stop` was given.
void ask_python();

// Asks them: whether this call, which runs without the GIL, is to end.
bool python_says_stop();

// function: without arguments, says whether the calls of this thread are to end; None = they are not.
void set_stop(nb::handle function);

// function: called by the calls of this thread before each launch on a CPU, with the kernel's name and number, and behind it, with None and the
// number; None = nobody. Returns the one before.
nb::object set_observer(nb::handle function);

// The stream of a GPU that calls of this thread run on from now on; None = that of the tensors' framework, or the default one.
void set_stream(const std::optional<int64_t>& stream);

// How to make results of the kind that came in.
struct Kind {
  const DLPackExchangeAPI* exchange = nullptr;  // a framework with the C exchange interface (torch)
  nb::object from_dlpack;                       // another framework: its function, or None to hand out a plain DLPack object
};

// What an object is for: says what is expected and names it in errors.
struct Place {
  ral_value_info info;
  const char* kind;  // "argument"
  size_t index;
  bool writable;
  bool gpus;  // whether there is code for where it may lie

  std::string text() const;  // "input 'x' (argument 0): "
};

// A tensor on a GPU that a program keeps from call to call: an output of a call, or of ral_keep_tensor. program: its context, which lives as
// long.
class Stored {
 public:
  // Takes ownership of `made`.
  Stored(const nb::object& program, ral_context* handle, ral_tensor& made)
      : tensor(made), handle(handle), program_(program), own_(std::exchange(made, {})) {}
  Stored(const Stored&) = delete;
  Stored& operator=(const Stored&) = delete;
  ~Stored() { ral_release(&own_); }

  const ral_tensor tensor;
  ral_context* const handle;

 private:
  nb::object program_;
  ral_tensor own_;
};

// What the exchange interface of its type says of a tensor, without its sizes' memory being kept; nothing where there is no interface, or
// it refuses.
std::optional<DLTensor> dl_tensor(nb::handle object);

// The number of the GPU where a tensor lies; -1 for anything else.
int32_t gpu_of(nb::handle object);

// What keeps one tensor's memory alive.
struct Keeper {
  int64_t integer = 0;  // a Python scalar's value
  double real = 0;
  Py_buffer view{};  // view.obj == null: none
  std::vector<int64_t> strides;
  nb::object owner;
};

// Python objects lent to one call as tensors. Holds whatever keeps their memory alive.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;
  ~Borrowed();

  // Adds every object of the tuple, once per Borrowed. `info(index)` says what is expected; the others as in Place.
  template <typename Info>
  void add_all(const nb::tuple& objects, Info info, const char* kind, bool writable, bool gpus = false) {
    tensors_.reserve(objects.size());
    for (const nb::handle each : objects) add(each, info(count()), kind, writable, gpus);
  }
  // As `add_all`, object by object.
  void reserve(size_t count) { tensors_.reserve(count); }
  void add(nb::handle object, const ral_value_info& expected, const char* kind, bool writable, bool gpus) {
    add(object, {expected, kind, tensors_.size(), writable || expected.written, gpus});
  }
  // A number: an i64, or a float of 4 or 8 bytes.
  void add_number(const Number& number, size_t bytes);

  const ral_tensor* tensors() const { return tensors_.data(); }
  int32_t count() const { return static_cast<int32_t>(tensors_.size()); }
  // The kind of the first tensor that was added, on a GPU if there is one; of `otherwise` when there was none.
  Kind kind(nb::handle otherwise) const;
  // Whether the tensors are the memory of the objects themselves, which is PyTorch's and may be written, wherever a result replaces one.
  bool may_replace(const nb::tuple& objects, const std::vector<int32_t>& replaces) const;
  // The place among the tensors of the first one that lies on a GPU; -1 = none.
  int32_t on_gpu() const { return on_gpu_; }

 private:
  void add(nb::handle object, const Place& place);
  ral_tensor read(nb::handle object, const Place& place);
  // Tensors of a framework with the exchange interface need none. The tensors point into them, so they may not move.
  Keeper& keeper() {
    if (keepers_.empty()) keepers_.reserve(tensors_.capacity());
    return keepers_.emplace_back();
  }

  std::vector<ral_tensor> tensors_;
  std::vector<Keeper> keepers_;
  std::vector<nb::object> resolved_;  // copies of tensors with PyTorch's negative bit
  PyObject* first_ = nullptr;  // that `kind` is of; borrowed: the caller's tuple holds it
  int32_t on_gpu_ = -1;
};

// The stream that a call on tensors of this kind on this GPU runs on.
void* stream_of(const Kind& kind, int32_t gpu);

struct Lending {
  const DLPackExchangeAPI* from = nullptr;
  int32_t count = 0;
};

// As long as it lives, the first `count` results of this thread's calls lie in memory of the framework's allocator, where it has one: in that
// of its current stream, so not where the caller gave another. The others lie in disc's own: what a call keeps outlives the order of the
// framework's stream.
class FrameworkMemory {
 public:
  FrameworkMemory(const Kind& kind, size_t count);
  FrameworkMemory(const FrameworkMemory&) = delete;
  FrameworkMemory& operator=(const FrameworkMemory&) = delete;
  ~FrameworkMemory();

 private:
  Lending before_;  // of the call that this one is made in: an observer may call
};

// A tensor over memory that is lent until the caller ends; for a kind with an exchange interface.
nb::object lend(const Kind& kind, const ral_tensor& tensor);

// The outputs of a call, in groups. Those that nobody has taken ownership of are released.
class Outputs {
 public:
  explicit Outputs(size_t count) : tensors_(count) {}
  Outputs(const Outputs&) = delete;
  Outputs& operator=(const Outputs&) = delete;
  ~Outputs() {
    for (ral_tensor& each : tensors_) ral_release(&each);
  }
  ral_tensor* data() { return tensors_.data(); }
  int32_t count() const { return static_cast<int32_t>(tensors_.size()); }
  const ral_tensor& back(size_t from_end) const { return tensors_[tensors_.size() - from_end]; }
  std::span<ral_tensor> all() { return tensors_; }
  // The next group.
  std::span<ral_tensor> next(size_t count) { return std::span(tensors_).subspan(std::exchange(seen_, seen_ + count), count); }

 private:
  std::vector<ral_tensor> tensors_;
  size_t seen_ = 0;
};

// Hands outputs of ral_call to Python without a copy: a tuple, or the one output when `single`. Takes ownership of each that it hands over,
// which is empty then.
nb::object results(const Kind& kind, std::span<ral_tensor> outputs, bool single);

// The same, where an output that is empty already lies where the argument lay whose number `replaces` has in its place: that comes itself.
// Raises WrittenError where they cannot be handed over.
nb::object results_or_inputs(const Kind& kind, std::span<ral_tensor> outputs, bool single, const nb::tuple& arguments,
                             const std::vector<int32_t>& replaces);

// Writes the elements of an output to a row-major tensor. RAL_ERROR_SHAPE: it has other sizes.
ral_status copy_elements(const ral_tensor& from, const ral_tensor& to);

}  // namespace ral::python
