// Follows the cached traces of `disc.lazy` (disc/frontend/lazy/trace_tree.py): a call that a compiled trace goes through is only compared, and
// gives objects without values. All else is Python's.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/trace_tree.h"
#include "python/lazy_run.h"

namespace ral::python {

namespace nb = nanobind;

// The arguments of a call as Python gives them: positional ones, and a dict, or names of the ones behind those, or neither.
struct Arguments {
  PyObject* const* values;
  Py_ssize_t count;
  PyObject* dict;
  PyObject* names;

  PyObject* tuple() const;  // a new reference, as of all that are made
  PyObject* keywords() const;
};

// What a function of PyTorch is to the recorder: disc/frontend/lazy/calls.py.
enum Role : int64_t { kRecorded, kFact, kRead, kBackward, kDrawn, kPerhapsRead, kMaking };

// The framework's part in it. Nothing here knows PyTorch: types and functions are handed over.
struct Framework {
  HandleFields fields;
  nb::object handle;           // the class of handles
  nb::object make;             // a new handle, without arguments
  nb::object without;          // a class of context managers: functions are not handed over in them
  nb::object grad_enabled;     // () -> bool
  nb::object autocast;         // () -> whether any is on
  nb::object autocast_dtype;   // () -> None, or the dtype of this device's
  nb::object transforms;       // () -> whether a transform of functions (vmap) is on
  nb::object unflatten;        // (leaves, form)
  nb::object storage;          // (tensor) -> its memory
  nb::object is_neg, is_conj;
  nb::object hooked;            // (leaf) -> whether what adds up its gradients has hooks
  nb::object default_dtype;     // () -> the dtype of new tensors
  nb::object profiler;          // the names of a module, `_is_profiler_enabled` among them
  nb::object modes;             // () -> how many modes other than the recorder would be handed a call, one with a default device among them
  nb::object turns;            // the recorder's lock, a Turns
  nb::object size;                             // the class of shapes, tuples
  std::vector<nb::object> tensors, constants;  // classes
};

// Whether an argument is a handle of this class, or has one in it.
bool holds_handle(PyObject* value, PyTypeObject* handle);

// The addresses of leaves that what adds up their gradients is known to have no hooks of.
std::unordered_set<uintptr_t>& plain_leaves();

// A call behind where a run is. mark: how many inputs the run had before it; tensors: among the arguments.
struct DescribedCall {
  Call call;
  size_t mark;
  int64_t tensors;
};

// A lock that its thread may take again. Who asks holds the GIL, so that one that no other thread has costs nothing.
class Turns {
 public:
  // Whether another thread has it.
  bool is_others() const { return owner_ != 0 && owner_ != PyThread_get_thread_ident(); }
  // Waits for it, without the GIL. Raises what a signal raises.
  void take();
  void give_back() {
    if (--depth_ == 0) owner_ = 0;
  }

 private:
  unsigned long owner_ = 0;  // a thread, 0 = none
  int depth_ = 0;            // how often it has taken it
};

class Follower {
 public:
  static constexpr uint64_t kNewInputTag = 2;
  static constexpr int64_t kMostPending = 50'000;

  // framework: the fields of Framework by name; slow: (function, arguments, keywords, inside) -> what Python's part
  // gives; end: (run) has it end the run, so that handles of it get their values: None is the one that is being recorded, another has been one
  // that a program has refused.
  Follower(const nb::dict& framework, nb::object slow, nb::object end);

  // A call as a mode of PyTorch gets it (`inside` false: PyTorch's modes are off meanwhile), or a handle. A new reference, or null with
  // Python's error set.
  PyObject* call(PyObject* function, const Arguments& arguments, bool inside);
  // Whether the call could be followed; `result` then is what it gives, null with Python's error set.
  bool fast(PyObject* function, const Arguments& arguments, bool inside, PyObject*& result);

  // Whether what has been recorded computes or writes one of these values, as far as their memory tells.
  bool concerns(PyObject* value) const;
  bool makes_as_ever() const;  // what functions make of sizes alone has the dtype and device that it had before

  // For Python's part.
  // The call with what the run has learnt by it; nothing if it cannot be recorded.
  std::optional<DescribedCall> describe(nb::handle function, const nb::tuple& arguments, const nb::dict& keywords);
  void forget(const DescribedCall& call) { run_->forget(call.mark); }
  nb::object next(const DescribedCall& call);  // the step that it is, None if there is none
  int32_t add(const DescribedCall& call, nb::handle step, bool reals_vary);
  void set_results(int32_t step, const std::vector<int64_t>& codes, const nb::list& made, nb::object form);
  // The call has been made, and is that step: what stands for the values that it has given, with what is known of each.
  nb::list go_to(const DescribedCall& call, nb::handle step, int32_t number, const nb::list& facts, const nb::list& values);
  // A new run. state: the default dtype that the step is the root for.
  nb::object begin(nb::handle step, int32_t number, nb::handle state);
  // The programs that a run which ends behind this step is tried with, before Python chooses.
  void set_ends(int32_t step) { nodes_.at(static_cast<size_t>(step)).ends = true; }
  void set_programs(int32_t step, const nb::list& programs) { nodes_.at(static_cast<size_t>(step)).programs = programs; }
  int32_t add_root() { return add_step(tree_.add_root(), nb::none()); }
  void finish(nb::handle run);
  void loosen() { run_->loosen(); }
  bool settle();  // whether a program has computed what is recorded, without Python's part
  // Keeps a handle that nobody holds any more, to be used again. False, and it is not kept, if it cannot be.
  bool keep(PyObject* handle);
  // Handles of runs that are over which somebody holds.
  nb::list outliving() const;
  nb::list numbers(int32_t step) const;
  void enter() { ++depth_; }
  void leave() { --depth_; }
  void forget_traces();
  bool is_busy() const { return depth_ > 0; }  // with a call, in Python's part or a program
  nb::object run() const { return run_object_; }
  // Since the last time: how many calls were followed, how long that took, how many runs a program has computed without Python, how long
  // it took to choose it, and to run it.
  std::array<int64_t, 5> take_counts();

  int traverse(visitproc visit, void* arg) const;
  void drop();  // what may be part of a cycle

  const HandleFields& fields() const { return framework_.fields; }

  nb::object recorder;
  bool active = false, stopped = false;
  int64_t modes = 0;  // of functions: the recorder, where it is among them, and those that began before
  nb::dict roles;  // function -> 8 * its number + Role
  std::vector<char> ahead;  // for each step, whether compiled traces go through it

 private:
  enum class Described { kYes, kNo, kUnread };  // kUnread: a handle has no value yet
  enum class Form { kSingle, kTuple, kList, kOther };
  struct Result {
    int64_t code;  // 2 n: value n; 2 n + 1: input n; -1: None; -2: new
    PyObject* made;  // borrowed from Node
  };
  struct Node {
    nb::object step;
    std::vector<Result> results;
    nb::list made;
    Form form = Form::kSingle;
    nb::object spec;
    nb::list programs;
    bool ends = false;  // the trace ends behind it, whatever comes
  };

  // A read of one handle, as by a method without arguments: whether that is what the call is; else as `fast`.
  bool read(PyObject* function, const Arguments& arguments, PyObject*& result);
  void end();  // the run, so that handles of it get their values
  bool end_by_program();  // whether that is done; else it is Python's
  bool is_profiled() const;
  bool is_transformed() const;  // a transform of functions (vmap) is on
  Range storage_of(PyObject* tensor) const;
  int32_t add_step(int32_t number, nb::handle step);
  Described describe(int64_t function, const Arguments& arguments, bool inside);
  Described argument(PyObject* value, bool inside);
  Described part(PyObject* value, bool inside);
  Described sequence(PyObject* value, bool inside);
  Described mapping(PyObject* value, bool inside);
  Described constant(PyObject* value);
  Described handle(PyObject* value, bool inside);
  Described input(PyObject* tensor, PyObject* given, bool inside);
  Described new_input(PyObject* tensor, PyObject* given);
  bool is_tensor(PyObject* value) const;
  uint64_t state();  // of gradients and autocast
  Described numbered(PyObject* value, uint64_t tag);  // a constant, as a word
  PyObject* promise(int32_t step);
  nb::object new_handle(PyObject* facts, PyObject* value, size_t number);
  bool is_mine(PyObject* handle) const { return HandleFields::at(handle, framework_.fields.run) == run_object_.ptr(); }

  Framework framework_;
  nb::object slow_, end_;
  TraceTree tree_;
  std::vector<Node> nodes_;
  HandlePool pool_;
  nb::object run_object_;
  nb::object root_, root_state_;  // that runs begin with, and for which default dtype
  int32_t root_number_ = 0;
  Run* run_ = nullptr;
  Call call_;
  size_t mark_ = 0;       // how many inputs there were before it
  int64_t tensors_ = 0;  // of the call that is being described
  std::optional<bool> transformed_;  // `is_transformed`, once it has been asked for that call
  std::unordered_map<PyTypeObject*, nb::object> constants_;  // value -> its number
  int64_t constant_count_ = 0;
  std::unordered_map<std::string, uint64_t> kinds_;  // of inputs
  int64_t most_known_;                               // constants, and kinds
  std::vector<nb::object> dtypes_;                   // of autocast, that were seen
  Turns& turns_;
  int depth_ = 0;  // in Python's part
  int64_t recorded_ = 0, recording_ns_ = 0, hits_ = 0, replaying_ns_ = 0, computing_ns_ = 0;
};

// The follower whose calls this thread records; null = none.
extern thread_local Follower* following;

void bind_followers(nb::module_& module);

}  // namespace ral::python
