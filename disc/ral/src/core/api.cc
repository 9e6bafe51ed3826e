// The C functions of ral.h.
#include <algorithm>
#include <memory>
#include <new>

#include "core/agenda.h"
#include "core/context.h"
#include "core/devices.h"
#include "core/exec.h"
#include "core/functions.h"
#include "core/schedule.h"
#include "core/sweep.h"
#include "cpu/core_limits.h"
#include "cpu/cores.h"
#include "cuda/gpu.h"

using ral::error;
using ral::Status;

namespace {

thread_local std::string last_error;

ral_status report(Status status) {
  if (!status.ok()) last_error = status.message.empty() ? "out of memory" : ral::printable(status.message);
  return status.code;
}

// Runs `body`, which returns a Status; running out of memory becomes one too.
template <typename Body>
ral_status guarded(const char* function, Body body) noexcept {
  try {
    return report(body());
  } catch (const std::bad_alloc&) {
    return report(error(RAL_ERROR_MEMORY, ""));
  } catch (...) {
    return report(error(RAL_ERROR_INTERNAL, std::string(function) + ": unexpected exception"));
  }
}

template <typename Load>
Status load(const char* function, const ral_options* options, ral_context** context, Load body) {
  *context = nullptr;
  const ral_options chosen = options ? *options : ral_options{RAL_ABI_VERSION, 0, nullptr};
  if (chosen.abi != RAL_ABI_VERSION) {
    return error(RAL_ERROR_INTERNAL, std::string(function) + ": the caller was built for ABI " + std::to_string(chosen.abi) +
                                         ", this library has ABI " + std::to_string(RAL_ABI_VERSION));
  }
  auto loaded = std::make_unique<ral_context>();
  Status status = body(*loaded, chosen);
  if (status.ok()) *context = loaded.release();
  return status;
}

template <typename List>
bool in_range(int32_t index, const List& list) {
  return index >= 0 && static_cast<size_t>(index) < list.size();
}

ral_value_info info_at(const std::vector<ral::ValueInfo>& values, int32_t index, bool with_dims) {
  if (!in_range(index, values)) return {};
  const ral::ValueInfo& value = values[static_cast<size_t>(index)];
  return {value.name.c_str(), with_dims ? value.dims.data() : nullptr, value.rank, value.dtype, value.written};
}

const char* name_at(const std::vector<std::string>& names, int32_t index) {
  return in_range(index, names) ? names[static_cast<size_t>(index)].c_str() : nullptr;
}

}  // namespace

extern "C" {

ral_status ral_load_file(const char* path, const ral_options* options, ral_context** context) {
  return guarded("ral_load_file", [&] {
    return load("ral_load_file", options, context,
                [&](ral_context& loaded, const ral_options& chosen) { return loaded.load_file(path, chosen); });
  });
}

ral_status ral_load_expected(const char* path, const uint8_t* digest, const ral_options* options, ral_context** context) {
  return guarded("ral_load_expected", [&] {
    return load("ral_load_expected", options, context, [&](ral_context& loaded, const ral_options& chosen) {
      ral::Digest expected;
      std::copy_n(digest, expected.size(), expected.begin());
      loaded.file.expect(expected);
      return loaded.load_file(path, chosen);
    });
  });
}

ral_status ral_load_memory(const ral_program* program, const ral_options* options, ral_context** context) {
  return guarded("ral_load_memory", [&] {
    return load("ral_load_memory", options, context,
                [&](ral_context& loaded, const ral_options& chosen) { return loaded.load_memory(*program, chosen); });
  });
}

ral_status ral_choose_code(const char* const* isas, int32_t count, const char* wanted, int32_t* chosen) {
  return guarded("ral_choose_code", [&] {
    size_t number = 0;
    const Status status = ral::choose_code({isas, isas + count}, wanted, &number);
    *chosen = static_cast<int32_t>(number);
    return status;
  });
}

ral_status ral_register_device(const ral_device* device, int32_t* number) {
  return guarded("ral_register_device", [&] { return ral::register_device(*device, number); });
}

ral_status ral_register_function(const char* op, const char* library, const char* symbol, char* digest) {
  return guarded("ral_register_function", [&] {
    std::string text;
    Status status = ral::register_function(op, library, symbol, &text);
    if (status.ok() && digest) std::copy_n(text.c_str(), RAL_DIGEST_TEXT, digest);
    return status;
  });
}

void ral_set_finder(ral_find_function find) { ral::set_finder(find); }

void ral_unload(ral_context* context) { delete context; }

ral_status ral_remap_file(ral_context* context, int32_t descriptor) {
  return guarded("ral_remap_file", [&] { return context->file.remap(descriptor); });
}

ral_status ral_verify(ral_context* context) {
  return guarded("ral_verify", [&] { return context->verify(); });
}

const char* ral_last_error(void) { return last_error.c_str(); }

ral_status ral_call(ral_context* context, const ral_tensor* inputs, int32_t input_count, const ral_tensor* given_outputs,
                    ral_tensor* outputs, int32_t output_count) {
  return guarded("ral_call", [&] { return context->call(inputs, input_count, given_outputs, outputs, output_count, nullptr); });
}

ral_status ral_call_on(ral_context* context, const ral_tensor* inputs, int32_t input_count, const ral_tensor* given_outputs,
                       ral_tensor* outputs, int32_t output_count, void* stream) {
  return guarded("ral_call_on", [&] { return context->call(inputs, input_count, given_outputs, outputs, output_count, stream); });
}

ral_status ral_call_replacing(ral_context* context, const ral_tensor* inputs, int32_t input_count, ral_tensor* outputs,
                              int32_t output_count) {
  return guarded("ral_call_replacing", [&] { return context->call(inputs, input_count, nullptr, outputs, output_count, nullptr, true); });
}

ral_status ral_synchronize(ral_context* context) {
  return guarded("ral_synchronize", [&] { return context->synchronize(); });
}

ral_status ral_keep_tensor(ral_context* context, const ral_tensor* from, ral_tensor* made) {
  return guarded("ral_keep_tensor", [&] { return context->keep_tensor(*from, made); });
}

ral_status ral_copy_numbers(ral_context* context, const ral_tensor* from, const ral_tensor* to, void* stream) {
  return guarded("ral_copy_numbers", [&] { return context->copy_numbers(*from, *to, stream); });
}

void ral_set_lender(int32_t (*lend)(void* state, const ral_tensor* wanted, ral_lent* lent), void* state, int32_t count) {
  ral::thread_lender() = {lend, state, count};
}
void ral_set_stop(int32_t (*stop)(void* state), void* state) { ral::thread_stop() = {stop, state}; }

void ral_set_observer(void (*observer)(void* state, const char* name, int64_t kernel), void* state) {
  ral::thread_observer() = {observer, state};
}

void ral_release(ral_tensor* output) { ral::release_output(output); }

ral_status ral_run_batches(const ral_block* blocks, int32_t block_count, const ral_tensor* tables, int64_t* used, int32_t table_count,
                           const ral_batch* batches, int64_t batch_count, const int64_t* indices, int64_t index_count) {
  return guarded("ral_run_batches", [&] {
    return ral::run_batches(blocks, block_count, tables, used, table_count, batches, batch_count, indices, index_count);
  });
}

ral_status ral_run_sweep(const ral_sweep* sweep, int32_t backwards, int64_t* next, uint8_t* ran) {
  return guarded("ral_run_sweep", [&] { return ral::run_sweep(*sweep, backwards != 0, next, ran); });
}

ral_status ral_linearize(const ral_structure* structure, const ral_block* blocks, int32_t block_count, int64_t* used, int32_t table_count,
                         ral_batch* batches, int64_t* batch_count, int64_t* indices, int64_t* rows) {
  return guarded("ral_linearize", [&] {
    return ral::linearize(*structure, blocks, block_count, used, table_count, batches, batch_count, indices, rows);
  });
}

ral_status ral_order_calls(const ral_calls* calls, int32_t policy, int64_t* order, int64_t* ends, int64_t* batch_count) {
  return guarded("ral_order_calls", [&] { return ral::order_calls(*calls, policy, order, ends, batch_count); });
}

ral_status ral_find_kinds(const ral_structure* structure, const ral_node_question* questions, int32_t question_count,
                          const char* const* column_names, int64_t* kinds) {
  return guarded("ral_find_kinds", [&] { return ral::find_kinds(*structure, questions, question_count, column_names, kinds); });
}

int32_t ral_input_count(const ral_context* context) { return static_cast<int32_t>(context->signature.inputs.size()); }
int32_t ral_output_count(const ral_context* context) { return static_cast<int32_t>(context->signature.outputs.size()); }
int32_t ral_kernel_count(const ral_context* context) { return static_cast<int32_t>(context->signature.kernels.size()); }
int32_t ral_counter_count(const ral_context* context) { return static_cast<int32_t>(context->signature.counters.size()); }
ral_value_info ral_input_info(const ral_context* context, int32_t index) { return info_at(context->signature.inputs, index, true); }
ral_value_info ral_output_info(const ral_context* context, int32_t index) { return info_at(context->signature.outputs, index, false); }
const char* ral_kernel_name(const ral_context* context, int32_t index) { return name_at(context->signature.kernels, index); }
const char* ral_counter_name(const ral_context* context, int32_t index) { return name_at(context->signature.counters, index); }
const char* ral_isa(const ral_context* context) { return context->code.isa().c_str(); }

int32_t ral_device_number(const ral_context* context) { return context->device->number(); }
int32_t ral_device_id(const ral_context* context) { return context->device->id(); }

const void* ral_manifest(const ral_context* context, size_t* size) {
  *size = context->manifest.size();
  return context->manifest.data();
}

const void* ral_file_bytes(const ral_context* context, size_t* size) {
  *size = context->file.bytes().size();
  return context->file.bytes().data();
}

int64_t ral_dtype_size(int32_t dtype) { return ral::dtype_size(dtype); }
const char* ral_dtype_name(int32_t dtype) { return ral::dtype_name(dtype); }

void ral_get_stats(ral_context* context, ral_stats* stats) {
  const ral::Counts totals = context->totals();
  *stats = {totals.calls, totals.copied_inputs, totals.copied_bytes, context->arena_bytes()};
}

void ral_get_counters(ral_context* context, int64_t* values) {
  const ral::Counts totals = context->totals();
  std::copy(totals.counters.begin(), totals.counters.end(), values);
}

void ral_get_kernels(ral_context* context, int64_t* launches, int64_t* nanoseconds) {
  const ral::Counts totals = context->totals();
  std::copy(totals.launches.begin(), totals.launches.end(), launches);
  std::copy(totals.nanoseconds.begin(), totals.nanoseconds.end(), nanoseconds);
}

void ral_set_profile(ral_context* context, int32_t on) { context->profile = on; }

int64_t ral_take_trace(ral_context* context, ral_trace_event* events, int64_t capacity) { return context->trace.take(events, capacity); }
void ral_set_threads(ral_context* context, int32_t threads) { context->threads = threads > 0 ? threads : context->default_threads; }
int32_t ral_threads(const ral_context* context) { return context->threads; }
void ral_set_graphs(ral_context* context, int32_t most) {
  guarded("ral_set_graphs", [&] {
    context->graphs->set_most(most);
    return Status{};
  });
}
void ral_share_memory(ral_context* context) { context->on_device->share_memory(); }
void ral_use_team(ral_context* context, const ral_team* team) { context->on_device->use_team(*team); }
int32_t ral_graphs(const ral_context* context) { return context->graphs->most(); }
void ral_get_graph_stats(ral_context* context, ral_graph_stats* stats) {
  const ral::Counts totals = context->totals();
  *stats = {totals.graph_records, totals.graph_replays, totals.graph_evictions, totals.graph_refusals};
}
void ral_get_fetches(ral_context* context, int64_t* count, int64_t* bytes) {
  const ral::Counts totals = context->totals();
  *count = totals.fetches;
  *bytes = totals.fetched_bytes;
}
void ral_force_choice(ral_context* context, int64_t number) { context->forced_choice = number; }

ral_status ral_get_cores(const char* root, ral_cores* cores) {
  return guarded("ral_get_cores", [&] {
    const ral::Cores found = ral::find_cores(root ? root : "");
    *cores = {found.online, found.allowed, found.threads(), found.quota};
    return Status{};
  });
}

ral_status ral_count_gpus(int32_t* count, int32_t* driver_version) {
  return guarded("ral_count_gpus", [&] {
    const ral::cuda::Driver* driver = nullptr;
    Status status = ral::cuda::driver(&driver);
    if (status.ok()) *count = driver->devices, *driver_version = driver->version;
    return status;
  });
}

ral_status ral_get_gpu(int32_t id, ral_gpu* gpu) {
  return guarded("ral_get_gpu", [&] { return ral::cuda::describe_gpu(id, gpu); });
}

ral_status ral_measure_limits(double* flops_per_second, double* bytes_per_second) {
  return guarded("ral_measure_limits", [&] { return ral::measure_limits(flops_per_second, bytes_per_second); });
}

}  // extern "C"
