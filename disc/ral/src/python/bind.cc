// The Python module disc.ral._ral: ral.h for disc/ral/executable.py. No logic here.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "python/call_key.h"
#include "python/facts.h"
#include "python/follower.h"
#include "python/host_functions.h"
#include "python/python_tensor.h"
#include "python/recorder.h"
#include "python/schedule.h"
#include "python/sweep.h"
#include "python/tasks.h"
#include "ral.h"

namespace nb = nanobind;
using ral::python::Borrowed;
using ral::python::Outputs;
using ral::python::Stored;
using ral::python::without_gil;

namespace {

constexpr size_t kDigestSize = 32;  // bytes: SHA-256

void check(ral_status status) {
  if (status == RAL_ERROR_FUNCTION) ral::python::raise_failed_function(ral_last_error());
  if (status != RAL_OK) ral::python::raise(status, ral_last_error());
}

struct Unload {
  void operator()(ral_context* context) const { ral_unload(context); }
};

// The buffers of a program's weights, held as long as the program. Python's GIL is held wherever this is changed.
class WeightBuffers {
 public:
  WeightBuffers() = default;
  WeightBuffers(WeightBuffers&&) = default;
  WeightBuffers& operator=(WeightBuffers&& other) {
    std::swap(views_, other.views_);
    return *this;
  }
  ~WeightBuffers() {
    for (auto& view : views_) PyBuffer_Release(view.get());
  }
  const void* add(nb::handle weight) {
    Py_buffer* view = views_.emplace_back(std::make_unique<Py_buffer>()).get();  // of nothing so far
    if (PyObject_GetBuffer(weight.ptr(), view, PyBUF_C_CONTIGUOUS) != 0) nb::raise_python_error();
    return view->buf;
  }

 private:
  std::vector<std::unique_ptr<Py_buffer>> views_;  // a Py_buffer may not move
};

// A loaded artifact. The program goes before the weights that it reads.
struct Context {
  WeightBuffers weights;
  std::unique_ptr<ral_context, Unload> handle;
  bool single = false;           // a call gives its one output, not a tuple
  size_t kept = 0;               // outputs of `call_keeping` that the caller keeps as NumPy arrays, behind the results
  std::vector<int32_t> written;  // inputs that it writes: the last outputs are their new values
  std::vector<int32_t> replaces;  // of the outputs of `call`: the input that it may replace, -1 = none; empty = they are fresh tensors
  nb::object open_gpu = nb::none();  // gives the same program on the GPU of a number; None = it has no code for GPUs
  mutable std::vector<nb::object> gpus;  // what `open_gpu` gave
  mutable void* last_stream = nullptr;   // that a call which keeps tensors ran on
  nb::object like = nb::none();  // a call without tensors gives results of the kind of this one; None = NumPy

  ral_context* get() const { return handle.get(); }
};

// One tensor, or a tuple or list of them.
nb::tuple out_tuple(const nb::object& out) {
  if (nb::isinstance<nb::tuple>(out)) return nb::borrow<nb::tuple>(out);
  return nb::isinstance<nb::list>(out) ? nb::tuple(out) : nb::make_tuple(out);
}

ral_options options(int32_t threads, const std::optional<std::string>& isa) {
  return {RAL_ABI_VERSION, threads, isa ? isa->c_str() : nullptr};
}

template <typename Load>
Context loaded(Load load) {
  Context context;
  ral_context* handle = nullptr;
  check(without_gil([&] { return load(&handle); }));
  context.handle.reset(handle);
  return context;
}

// path: as the system has it, without NUL. digest: of the header that is expected, 32 bytes; None = any.
Context load_file(const nb::bytes& path, int32_t threads, const std::optional<std::string>& isa, const std::optional<nb::bytes>& digest) {
  if (digest && digest->size() != kDigestSize) throw nb::value_error("a digest has 32 bytes");
  const ral_options chosen = options(threads, isa);
  const auto* expected = digest ? static_cast<const uint8_t*>(digest->data()) : nullptr;
  return loaded([&](ral_context** handle) {
    return expected ? ral_load_expected(path.c_str(), expected, &chosen, handle) : ral_load_file(path.c_str(), &chosen, handle);
  });
}

// code: (isa, shared object) pairs, best last; weights: objects with a contiguous buffer, held as long as the context.
Context load_memory(const nb::bytes& manifest, const nb::bytes& signature, const std::vector<std::pair<std::string, nb::bytes>>& code,
                    const std::vector<nb::object>& weights, int32_t threads, const std::optional<std::string>& isa) {
  std::vector<ral_code> sections;
  for (const auto& [name, bytes] : code) sections.push_back({name.c_str(), bytes.data(), bytes.size()});
  WeightBuffers buffers;
  std::vector<const void*> pointers;
  for (const nb::object& weight : weights) pointers.push_back(buffers.add(weight));
  const ral_program program{manifest.data(),  manifest.size(),
                            signature.data(), signature.size(),
                            sections.data(),  static_cast<int32_t>(sections.size()),
                            pointers.data(),  static_cast<int32_t>(pointers.size())};
  const ral_options chosen = options(threads, isa);
  Context context = loaded([&](ral_context** handle) { return ral_load_memory(&program, &chosen, handle); });
  context.weights = std::move(buffers);
  return context;
}

std::string choose_code(const std::vector<std::string>& isas, const std::optional<std::string>& wanted) {
  std::vector<const char*> names;
  for (const std::string& isa : isas) names.push_back(isa.c_str());
  int32_t chosen = 0;
  check(ral_choose_code(names.data(), static_cast<int32_t>(names.size()), wanted ? wanted->c_str() : nullptr, &chosen));
  return isas[static_cast<size_t>(chosen)];
}

// The program on the GPU of this number. Raises DeviceError where it has no code for that.
nb::object program_on(const Context& context, size_t gpu) {
  ral_context* handle = context.get();
  if (ral_device_number(handle) == RAL_CUDA && ral_device_id(handle) == static_cast<int32_t>(gpu)) return nb::find(context);
  if (context.gpus.size() <= gpu) context.gpus.resize(gpu + 1);
  if (!context.gpus[gpu].is_valid()) {
    check(without_gil([&] { return ral_verify(handle); }));  // before its weights are copied
    const nb::object opened = context.open_gpu(gpu);  // other threads may open others meanwhile
    context.gpus[gpu] = opened;
  }
  return context.gpus[gpu];
}

// The program where the tensors lie, which is on a GPU.
const Context& on_gpu(const Context& context, const Borrowed& inputs) {
  const auto gpu = static_cast<size_t>(inputs.tensors()[inputs.on_gpu()].device_id);
  return nb::cast<const Context&>(program_on(context, gpu));
}

nb::object call_on_gpu(const Context& context, const Borrowed& inputs, const nb::object& out) {
  ral_context* handle = context.get();
  const ral::python::Kind kind = inputs.kind(context.like);
  void* stream = ral::python::stream_of(kind, ral_device_id(handle));
  Outputs outputs(static_cast<size_t>(ral_output_count(handle)));
  Borrowed given;
  if (!out.is_none()) given.add_all(out_tuple(out), [&](int32_t index) { return ral_output_info(handle, index); }, "index", true, true);
  const ral::python::FrameworkMemory memory(kind, static_cast<size_t>(outputs.count()));
  check(without_gil([&] {
    return ral_call_on(handle, inputs.tensors(), inputs.count(), out.is_none() ? nullptr : given.tensors(), outputs.data(),
                       out.is_none() ? outputs.count() : given.count(), stream);
  }));
  return out.is_none() ? ral::python::results(kind, outputs.all(), context.single) : out;
}

// As call, of a program on the CPU, some of whose results may lie where inputs lay: these come as the inputs themselves.
nb::object call_replacing(const Context& context, const nb::tuple& arguments, const Borrowed& inputs) {
  Outputs outputs(static_cast<size_t>(ral_output_count(context.get())));
  check(without_gil(
      [&] { return ral_call_replacing(context.get(), inputs.tensors(), inputs.count(), outputs.data(), outputs.count()); }));
  return ral::python::results_or_inputs(inputs.kind(context.like), outputs.all(), context.single, arguments, context.replaces);
}

nb::object call(const Context& loaded, const nb::tuple& arguments, const nb::object& out) {
  ral::python::ask_python();
  ral_context* handle = loaded.get();
  Borrowed inputs, given;
  inputs.add_all(arguments, [&](int32_t index) { return ral_input_info(handle, index); }, "argument", false, !loaded.open_gpu.is_none());
  if (inputs.on_gpu() >= 0) return call_on_gpu(on_gpu(loaded, inputs), inputs, out);
  if (out.is_none() && inputs.may_replace(arguments, loaded.replaces)) return call_replacing(loaded, arguments, inputs);
  if (!out.is_none()) given.add_all(out_tuple(out), [&](int32_t index) { return ral_output_info(handle, index); }, "index", true);
  Outputs outputs(static_cast<size_t>(ral_output_count(handle)));
  check(without_gil([&] {
    return ral_call(handle, inputs.tensors(), inputs.count(), out.is_none() ? nullptr : given.tensors(), outputs.data(),
                    out.is_none() ? outputs.count() : given.count());
  }));
  return out.is_none() ? ral::python::results(inputs.kind(loaded.like), outputs.all(), loaded.single) : out;
}

// As call_keeping: what is kept stays on the GPU, as `Stored`. Calls on another stream than the one before wait for each other.
nb::tuple call_keeping_on_gpu(const Context& loaded, const Borrowed& inputs) {
  const nb::object program = program_on(loaded, inputs.tensors()[inputs.on_gpu()].device_id);
  const Context& context = nb::cast<const Context&>(program);
  ral_context* handle = context.get();
  const ral::python::Kind kind = inputs.kind(loaded.like);
  void* stream = ral::python::stream_of(kind, ral_device_id(handle));
  const bool apart = context.last_stream != stream;
  context.last_stream = stream;
  Outputs outputs(static_cast<size_t>(ral_output_count(handle)));
  const size_t results = static_cast<size_t>(outputs.count()) - loaded.kept - loaded.written.size();
  const ral::python::FrameworkMemory memory(kind, results);
  if (apart) check(without_gil([&] { return ral_synchronize(handle); }));
  check(without_gil([&] { return ral_call_on(handle, inputs.tensors(), inputs.count(), nullptr, outputs.data(), outputs.count(), stream); }));
  for (size_t i = 0; i < loaded.written.size(); ++i) {
    const ral_tensor &from = outputs.back(loaded.written.size() - i), &to = inputs.tensors()[loaded.written[i]];
    check(without_gil([&] { return ral_copy_numbers(handle, &from, &to, stream); }));
  }
  if (apart) check(without_gil([&] { return ral_synchronize(handle); }));
  nb::object result = ral::python::results(kind, outputs.next(results), loaded.single);
  nb::list held;
  for (ral_tensor& each : outputs.next(loaded.kept)) held.append(nb::cast(std::make_unique<Stored>(program, handle, each)));
  return nb::make_tuple(result, nb::tuple(held));
}

// Where the first of these tensors lies that is on a GPU: its number; -1 = none.
int32_t place_of(const nb::tuple& arguments) {
  for (const nb::handle each : arguments) {
    if (const int32_t gpu = ral::python::gpu_of(each); gpu >= 0) return gpu;
  }
  return -1;
}

// A contiguous NumPy array's numbers on a GPU. like: what is known of the input that it is for.
nb::object keep_on(const Context& context, const nb::object& array, int32_t gpu, int32_t input) {
  const nb::object program = program_on(context, static_cast<size_t>(gpu));
  ral_context* handle = nb::cast<const Context&>(program).get();
  Borrowed from;
  from.add_all(nb::make_tuple(array), [&](int32_t) { return ral_input_info(context.get(), input); }, "state", false);
  Outputs made(1);
  check(without_gil([&] { return ral_keep_tensor(handle, from.tensors(), made.data()); }));
  return nb::cast(std::make_unique<Stored>(program, handle, *made.data()));
}

// Writes its numbers to a contiguous NumPy array of the same dtype and size.
void read_stored(const Stored& stored, const nb::object& array) {
  Borrowed to;
  to.add_all(nb::make_tuple(array), [&](int32_t) { return ral_value_info{nullptr, nullptr, 0, stored.tensor.dtype, 1}; }, "state", true);
  check(without_gil([&] { return ral_synchronize(stored.handle); }));
  check(without_gil([&] { return ral_copy_numbers(stored.handle, &stored.tensor, to.tensors(), nullptr); }));
}

// A call of a program that writes: (results, the kept outputs as a tuple of NumPy arrays). Inputs are written once nothing can fail.
nb::tuple call_keeping(const Context& context, const nb::tuple& arguments) {
  ral::python::ask_python();
  ral_context* handle = context.get();
  Borrowed inputs;
  inputs.add_all(arguments, [&](int32_t index) { return ral_input_info(handle, index); }, "argument", false, !context.open_gpu.is_none());
  if (inputs.on_gpu() >= 0) return call_keeping_on_gpu(context, inputs);
  Outputs outputs(static_cast<size_t>(ral_output_count(handle)));
  check(without_gil([&] { return ral_call(handle, inputs.tensors(), inputs.count(), nullptr, outputs.data(), outputs.count()); }));
  const size_t results = static_cast<size_t>(outputs.count()) - context.kept - context.written.size();
  nb::object result = ral::python::results(inputs.kind(context.like), outputs.next(results), context.single);
  nb::object held = ral::python::results({}, outputs.next(context.kept), false);
  for (size_t i = 0; i < context.written.size(); ++i) {
    const ral_tensor& input = inputs.tensors()[context.written[i]];
    if (ral::python::copy_elements(outputs.back(context.written.size() - i), input) == RAL_OK) continue;
    ral::python::raise(RAL_ERROR_SHAPE, "the model changes the size of the input that it writes");
  }
  return nb::make_tuple(result, held);
}

std::vector<int64_t> counters(const Context& context) {
  std::vector<int64_t> values(static_cast<size_t>(ral_counter_count(context.get())));
  ral_get_counters(context.get(), values.data());
  return values;
}

std::pair<std::vector<int64_t>, std::vector<int64_t>> kernels(const Context& context) {
  std::vector<int64_t> launches(static_cast<size_t>(ral_kernel_count(context.get()))), nanoseconds(launches.size());
  ral_get_kernels(context.get(), launches.data(), nanoseconds.data());
  return {launches, nanoseconds};
}

std::vector<std::vector<int64_t>> take_trace(const Context& context) {
  std::vector<ral_trace_event> events(static_cast<size_t>(ral_take_trace(context.get(), nullptr, 0)));
  events.resize(static_cast<size_t>(std::min<int64_t>(
      ral_take_trace(context.get(), events.data(), static_cast<int64_t>(events.size())), static_cast<int64_t>(events.size()))));
  std::vector<std::vector<int64_t>> result;
  for (const ral_trace_event& e : events) result.push_back({e.kernel, e.thread, e.start, e.stop, e.begin, e.end});
  return result;
}

nb::dict stats(const Context& context) {
  ral_stats values;
  ral_get_stats(context.get(), &values);
  nb::dict result;
  result["calls"] = values.calls;
  result["copied_inputs"] = values.copied_inputs;
  result["copied_bytes"] = values.copied_bytes;
  result["arena_bytes"] = values.arena_bytes;
  return result;
}

nb::dict fetches(const Context& context) {
  int64_t count = 0, bytes = 0;
  ral_get_fetches(context.get(), &count, &bytes);
  nb::dict result;
  result["fetches"] = count;
  result["fetched_bytes"] = bytes;
  return result;
}

nb::dict graph_stats(const Context& context) {
  ral_graph_stats values;
  ral_get_graph_stats(context.get(), &values);
  nb::dict result;
  result["records"] = values.records;
  result["replays"] = values.replays;
  result["evictions"] = values.evictions;
  result["refusals"] = values.refusals;
  return result;
}

void verify(const Context& context) {
  check(without_gil([&] { return ral_verify(context.get()); }));
}

void remap(const Context& context, int32_t descriptor) { check(ral_remap_file(context.get(), descriptor)); }

// The loaded file as a read-only view; empty for a program from memory. The caller keeps the context alive meanwhile.
nb::object file_view(const Context& context) {
  size_t size = 0;
  const void* data = ral_file_bytes(context.get(), &size);
  return nb::steal(
      PyMemoryView_FromMemory(static_cast<char*>(const_cast<void*>(data ? data : "")), static_cast<Py_ssize_t>(size), PyBUF_READ));
}

// `root` as in ral_get_cores; "" = this machine.
nb::dict find_cores(const std::string& root) {
  ral_cores cores;
  check(ral_get_cores(root.c_str(), &cores));
  nb::dict result;
  result["online"] = cores.online;
  result["allowed"] = cores.allowed;
  result["threads"] = cores.threads;
  result["quota"] = cores.quota;
  return result;
}

// library: a path as the system has it. Returns the SHA-256 of the library, in hexadecimal digits.
std::string register_function(const std::string& op, const nb::bytes& library, const std::string& symbol) {
  char digest[RAL_DIGEST_TEXT] = "";
  check(without_gil([&] { return ral_register_function(op.c_str(), library.c_str(), symbol.c_str(), digest); }));
  return digest;
}

// Raises TargetError where there is none that could be used.
nb::dict find_gpus() {
  int32_t count = 0, version = 0;
  check(ral_count_gpus(&count, &version));
  nb::list gpus;
  for (int32_t id = 0; id < count; ++id) {
    ral_gpu gpu;
    check(ral_get_gpu(id, &gpu));
    gpus.append(nb::make_tuple(nb::str(gpu.name), gpu.architecture, gpu.processors, gpu.memory));
  }
  nb::dict result;
  result["driver"] = version;
  result["gpus"] = gpus;
  return result;
}

// (f32 operations per second, bytes copied per second) of one core.
std::pair<double, double> measure_limits() {
  std::pair<double, double> limits;
  check(without_gil([&] { return ral_measure_limits(&limits.first, &limits.second); }));
  return limits;
}

}  // namespace

NB_MODULE(_ral, module) {
  nb::set_leak_warnings(false);  // at exit, executables kept by caches of torch.compile are no error
  module.attr("ABI_VERSION") = RAL_ABI_VERSION;
  module.def("load_file", &load_file, nb::arg("path"), nb::arg("threads"), nb::arg("isa").none(),
             nb::arg("digest").none() = nb::none());
  module.def("load_memory", &load_memory, nb::arg("manifest"), nb::arg("signature"), nb::arg("code"), nb::arg("weights"),
             nb::arg("threads"), nb::arg("isa").none());
  module.def("choose_code", &choose_code, nb::arg("isas"), nb::arg("wanted").none());
  module.def("register_function", &register_function, nb::arg("op"), nb::arg("library"), nb::arg("symbol"));
  module.def("set_finder", &ral::python::set_finder, nb::arg("find"));
  module.def("measure_limits", &measure_limits);
  module.def("set_stop", &ral::python::set_stop, nb::arg("function").none());
  module.def("set_observer", &ral::python::set_observer, nb::arg("function").none());
  module.def("set_stream", &ral::python::set_stream, nb::arg("stream").none());
  module.def("find_gpus", &find_gpus);
  module.def("place_of", &place_of, nb::arg("arguments"));
  module.def("find_cores", &find_cores, nb::arg("root"));
  ral::python::bind_call_keys(module);
  ral::python::bind_facts(module);
  ral::python::bind_followers(module);
  ral::python::bind_recorder(module);
  ral::python::bind_schedules(module);
  ral::python::bind_sweeps(module);
  ral::python::bind_tasks(module);
  nb::class_<Stored>(module, "Stored").def("read", &read_stored, nb::arg("array"));
  nb::class_<Context>(module, "Context")
      .def("call", &call, nb::arg("inputs"), nb::arg("out").none())
      .def("call_keeping", &call_keeping, nb::arg("inputs"))
      .def("keep_on", &keep_on, nb::arg("array"), nb::arg("gpu"), nb::arg("input"))
      .def("verify", &verify)
      .def("synchronize", [](const Context& context) { check(without_gil([&] { return ral_synchronize(context.get()); })); })
      .def("remap", &remap, nb::arg("descriptor"))
      .def("stats", &stats)
      .def("graph_stats", &graph_stats)
      .def("fetches", &fetches)
      .def("counters", &counters)
      .def("kernels", &kernels)
      .def("set_profile", [](const Context& context, int32_t on) { ral_set_profile(context.get(), on); })
      .def("take_trace", &take_trace)
      .def("force_choice", [](const Context& context, int64_t number) { ral_force_choice(context.get(), number); })
      .def("file_view", &file_view)
      .def("handle", [](const Context& context) { return nb::capsule(context.get(), "ral_context"); })  // valid as long as the object
      .def("isa", [](const Context& context) { return ral_isa(context.get()); })
      .def_rw("single", &Context::single)
      .def_rw("kept", &Context::kept)
      .def_rw("written", &Context::written)
      .def_rw("replaces", &Context::replaces)
      .def_rw("open_gpu", &Context::open_gpu, nb::for_setter(nb::arg().none()))
      .def_rw("like", &Context::like, nb::for_setter(nb::arg().none()))
      .def("share_memory", [](const Context& context) { ral_share_memory(context.get()); })
      .def("use_team",
           [](const Context& context, uintptr_t start, uintptr_t end, uintptr_t threads) {
             const ral_team team{reinterpret_cast<decltype(ral_team::start)>(start), reinterpret_cast<decltype(ral_team::end)>(end),
                                 reinterpret_cast<decltype(ral_team::threads)>(threads)};
             ral_use_team(context.get(), &team);
           })
      .def_prop_rw(
          "graphs", [](const Context& context) { return ral_graphs(context.get()); },
          [](const Context& context, int32_t most) { ral_set_graphs(context.get(), most); }, nb::call_guard<nb::gil_scoped_release>())
      .def_prop_rw(
          "threads", [](const Context& context) { return ral_threads(context.get()); },
          [](const Context& context, int32_t threads) { ral_set_threads(context.get(), threads); });
}
