#include "core/exec.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/devices.h"
#include "core/layout.h"
#include "core/observed.h"
#include "cpu/pool.h"

using ral::error;
using ral::kTraced;
using ral::Observed;
using ral::Status;

namespace {

constexpr int32_t kCallsPerTrim = 64;  // what a call needed is given back after as many to twice as many that need less than half of it

constexpr int64_t kAskNanoseconds = 20'000'000;  // how often a call asks whether it is to go on

// To the tick of the system (1 to 4 ms), for a fifth of the price of the exact clock: it is read in every iteration of a loop.
int64_t coarse_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string with_value(std::string text, const std::string& placeholder, int64_t value) {
  const size_t place = text.find(placeholder);
  return place == std::string::npos ? text : text.replace(place, placeholder.size(), std::to_string(value));
}

}  // namespace

namespace ral {
Lender& thread_lender() {
  thread_local Lender lender;
  return lender;
}

Stop& thread_stop() {
  thread_local Stop stop;
  return stop;
}

Observer& thread_observer() {
  thread_local Observer observer;
  return observer;
}

Status failed_check(const Signature& signature, int64_t check_id, int64_t actual, int64_t expected) {
  if (check_id < 0 || check_id >= static_cast<int64_t>(signature.checks.size())) {
    return error(RAL_ERROR_INTERNAL, "fail: check " + std::to_string(check_id) + " is out of range (compiler bug)");
  }
  const std::string& text = signature.checks[static_cast<size_t>(check_id)];
  const bool has_places = text.find("{actual}") != std::string::npos || text.find("{expected}") != std::string::npos;
  const std::string whole = has_places ? text : text + ": got {actual}, expected {expected}";
  return error(RAL_ERROR_SHAPE, with_value(with_value(whole, "{actual}", actual), "{expected}", expected));
}

// Dims, strides and the capacity of the block lie before the data, or in a block of their own: at `dims`, which is the start of it.
void release_output(ral_tensor* output) {
  if (output->dims) {
    device_at(output->device, output->device_id)->release(const_cast<int64_t*>(output->dims), output->data, output->dims[2 * output->rank]);
  }
  *output = {};
}
}  // namespace ral

ral_exec::ral_exec(const ral::Program& program)
    : counts(program.signature),
      program_(program),
      stream_(program.on_device->open()),
      inputs_(program.signature.inputs.size()),
      outputs_(program.signature.outputs.size()),
      on_gpu_(program.device->number() == RAL_CUDA) {
  size_t ranks = 0;
  for (const ral::ValueInfo& info : program.signature.inputs) ranks += static_cast<size_t>(info.rank);
  strides_.resize(ranks);
}

ral_exec::~ral_exec() { release_outputs(); }

int32_t ral_exec::record(ral_status code, std::string message) {
  if (status_.ok()) status_ = error(code, std::move(message));
  return 1;
}

Status ral_exec::run(const ral_tensor* inputs, int32_t input_count, const ral_tensor* given, ral_tensor* outputs,
                     int32_t output_count, void* stream, bool replacing) {
  const ral::CallInProgress here;
  counts.clear();
  status_ = {};
  trim();
  asks_at_ = 0;
  launched_ = false;
  profile_ = program_.profile.load(std::memory_order_relaxed);
  observer_ = ral::thread_observer();
  given_ = given;
  staged_ = on_gpu_ && ral::are_here(inputs, input_count) && (!given || ral::are_here(given, output_count));
  std::fill(outputs_.begin(), outputs_.end(), Output{});
  Status status = on_gpu_ ? reported_fault() : Status{};
  if (status.ok()) status = check_inputs(inputs, input_count);
  if (!status.ok()) return status;
  if (output_count != static_cast<int32_t>(outputs_.size())) {
    return error(RAL_ERROR_RANK, "expected " + std::to_string(outputs_.size()) + " outputs, got " + std::to_string(output_count));
  }
  if (program_.signature.writes_inputs) status = check_written(inputs);
  if (given && status.ok()) status = check_given(inputs, given);
  replaced_.assign(inputs_.size(), false);
  if (replacing && status.ok() && program_.device->number() == RAL_CPU) find_replaced(inputs);
  if (status.ok()) status = prepare_inputs(inputs);
  try {
    if (status.ok()) status = enter(stream);
  } catch (const std::bad_alloc&) {  // for the message of a failure, or its report
    status = error(RAL_ERROR_MEMORY, "");
  }
  if (!status.ok()) release_outputs();
  // An error of a custom function is the model's own, and is handed on as it is.
  if (!status.ok() && launched_ && program_.signature.spoils_inputs && status.code != RAL_ERROR_FUNCTION) {
    return error(RAL_ERROR_WRITTEN, "the call failed when it had begun to write over inputs that are read by nothing else: " + status.message);
  }
  if (!status.ok()) return status;
  for (size_t i = 0; !given && i < outputs_.size(); ++i) outputs[i] = outputs_[i].tensor;
  std::fill(outputs_.begin(), outputs_.end(), Output{});  // they are the caller's now
  return {};
}

// Makes every input row-major: those that are not get a copy in the arena of copies, or on the GPU (place_strided).
Status ral_exec::prepare_inputs(const ral_tensor* inputs) {
  const auto& infos = program_.signature.inputs;
  int64_t total = 0;
  int64_t* strides = strides_.data();
  strided_.clear();
  for (size_t i = 0; i < infos.size(); ++i) {
    const int64_t element = ral::dtype_size(infos[i].dtype);
    inputs_[i] = inputs[i];
    inputs_[i].strides = strides;
    ral::row_major_strides(inputs[i].dims, inputs[i].rank, strides);
    strides += inputs[i].rank;
    if (ral::is_row_major(inputs[i], element)) continue;
    if (inputs[i].device != RAL_CPU && !on_gpu_)
      return error(RAL_ERROR_DEVICE, "input '" + infos[i].name + "' is not contiguous, and is copied on CPUs and GPUs only");
    int64_t bytes = 0;
    if (!ral::tensor_bytes(inputs[i].dims, inputs[i].rank, element, &bytes) ||
        (inputs[i].device == RAL_CPU && __builtin_add_overflow(total, ral::round_up(bytes), &total))) {
      return error(RAL_ERROR_MEMORY,
                   "copying input '" + infos[i].name + "': size " + ral::dims_text(inputs[i].dims, inputs[i].rank) + " is too large");
    }
    counts.copied_inputs += 1;
    counts.copied_bytes += bytes;
    if (inputs[i].device != RAL_CPU) strided_.emplace_back(i, inputs[i]);
  }
  if (total == 0) return {};
  char* copy = static_cast<char*>(copies_.reserve(total));
  if (!copy) return error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(total) + " bytes to copy inputs that are not contiguous");
  for (size_t i = 0; i < infos.size(); ++i) {
    const int64_t element = ral::dtype_size(infos[i].dtype);
    if (inputs[i].device != RAL_CPU || ral::is_row_major(inputs[i], element)) continue;
    ral::copy_row_major(inputs[i], element, copy);
    inputs_[i].data = copy;
    int64_t bytes = 0;
    ral::tensor_bytes(inputs[i].dims, inputs[i].rank, element, &bytes);
    copy += ral::round_up(bytes);
  }
  return {};
}

Status ral_exec::enter(void* stream) {
  int32_t failed = 1;
  try {
    const bool entered = !on_gpu_ || (stream_->begin(stream, staged_, failure()) && place_inputs() && place_strided());
    const bool graphs = on_gpu_ && !profile_ && program_.graphs->most() > 0;
    if (entered) failed = graphs ? run_or_replay() : run_entry();
    if (staged_ && !failed) return_results();
  } catch (const std::bad_alloc&) {  // what the call has on the device is given back all the same
    failed = record(RAL_ERROR_MEMORY, "");
  }
  ral::Fault fault;
  stream_->finish(failure(), &fault);  // the device may still be at it, also when the entry failed
  if (fault.check >= 0) fail(fault.check, fault.index, fault.size);
  if (on_gpu_ && (status_.code == RAL_ERROR_DEVICE || status_.code == RAL_ERROR_MEMORY)) name_inputs();
  if (!status_.ok()) return status_;
  if (failed) return error(RAL_ERROR_INTERNAL, "the generated entry failed without a reason (compiler bug)");
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].made) continue;
    return error(RAL_ERROR_INTERNAL, "the generated entry did not make output " + std::to_string(i) + " (compiler bug)");
  }
  return {};
}

int32_t ral_exec::run_entry() {
  return program_.code.entry()(this, &ral::kHostApi, inputs_.data(), program_.weights.data(), counts.counters.data());
}

// Gives back memory that only calls of the past needed.
void ral_exec::trim() {
  if (--calls_until_trim_ > 0) return;
  calls_until_trim_ = kCallsPerTrim;
  stream_->trim();
  copies_.trim();
  ral::age_blocks();
}

void ral_exec::release_outputs() {
  for (Output& output : outputs_) {
    if (output.made && !given_) ral::release_output(&output.tensor);
    output = {};
  }
}

void* ral_exec::alloc(int64_t bytes) {
  if (bytes < 0) {
    record(RAL_ERROR_INTERNAL, "alloc: " + std::to_string(bytes) + " bytes (compiler bug)");
    return nullptr;
  }
  void* block = stream_->allocate(bytes, failure());
  if (!block) record(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes" + where() + " for these shapes");
  return block;
}

int32_t ral_exec::free(void* block) {
  if (stream_->free(block)) return 0;
  return record(RAL_ERROR_INTERNAL, "free: not a block of this call, or freed before (compiler bug)");
}

int32_t ral_exec::copy(void* to, const void* from, int64_t bytes) {
  const auto first = reinterpret_cast<uintptr_t>(to), second = reinterpret_cast<uintptr_t>(from);
  const auto size = static_cast<uintptr_t>(bytes);
  const bool overlap = first < second ? second - first < size : first - second < size;
  if (bytes < 0 || (bytes > 0 && (!to || !from || overlap))) {
    return record(RAL_ERROR_INTERNAL, "copy: " + std::to_string(bytes) + " bytes, to or from nothing or what overlaps (compiler bug)");
  }
  return bytes == 0 || stream_->copy(to, from, bytes, failure()) ? 0 : 1;
}

int32_t ral_exec::fill(void* to, int64_t bytes, int32_t value) {
  if (bytes < 0 || (bytes > 0 && !to) || value < 0 || value > UINT8_MAX) {
    return record(RAL_ERROR_INTERNAL, "fill: " + std::to_string(bytes) + " bytes of " + std::to_string(value) + " (compiler bug)");
  }
  return bytes == 0 || stream_->fill(to, bytes, value, failure()) ? 0 : 1;
}

// Every iteration of a loop that may have no end reads.
bool ral_exec::is_cancelled() {
  const ral::Stop& stop = ral::thread_stop();
  if (!stop.function) return false;
  const int64_t now = coarse_nanoseconds();
  if (asks_at_ && now < asks_at_) return false;
  const bool first = !asks_at_;
  asks_at_ = now + kAskNanoseconds;
  return !first && stop.function(stop.state) != 0;
}

int32_t ral_exec::read(const void* from, int64_t* value) {
  *value = 0;
  if (!from) return record(RAL_ERROR_INTERNAL, "read: from nothing (compiler bug)");
  if (recording_) return 1;  // other numbers would make other requests
  if (is_cancelled()) return record(RAL_ERROR_CANCELLED, "the call was cancelled");
  for (const Placed& each : placed_) {
    const auto* place = static_cast<const char*>(from);
    const auto bytes = static_cast<int64_t>(sizeof *value);
    if (place < each.there || place - each.there > each.bytes - bytes || program_.signature.inputs[each.input].written) continue;
    std::memcpy(value, each.here + (place - each.there), sizeof *value);
    return 0;
  }
  if (on_gpu_) count_fetch(sizeof *value);
  const bool copied = stream_->copy(value, from, sizeof *value, failure());
  return copied && (!on_gpu_ || stream_->synchronize(failure())) ? 0 : 1;
}

void* ral_exec::output(int64_t index, const int64_t* dims) {
  if (index < 0 || index >= static_cast<int64_t>(outputs_.size()) || outputs_[static_cast<size_t>(index)].made) {
    record(RAL_ERROR_INTERNAL, "output: index " + std::to_string(index) + " is out of range or was made before (compiler bug)");
    return nullptr;
  }
  if (recording_) return note_output(static_cast<size_t>(index), dims);
  Status status = make_output(static_cast<size_t>(index), dims);
  if (!status.ok()) {
    record(status.code, std::move(status.message));
    return nullptr;
  }
  return outputs_[static_cast<size_t>(index)].place;
}

// The head of a result's memory, and where its elements lie: where somebody lends memory on the GPU, there. Null where there is none.
int64_t* ral_exec::acquire_output(ral::Device& device, size_t index, const ral_tensor& wanted, int64_t bytes, void** data,
                                  int64_t* capacity) {
  const int64_t head = ral::round_up((2 * int64_t{wanted.rank} + 1) * static_cast<int64_t>(sizeof(int64_t)));
  const ral::Lender& lender = ral::thread_lender();
  if (!on_gpu_ || staged_ || !lender.lend || static_cast<int64_t>(index) >= lender.count) {
    return static_cast<int64_t*>(device.acquire(*stream_, head, bytes, data, capacity));
  }
  ral_lent lent{};
  const auto failed = [&] { return lender.lend(lender.state, &wanted, &lent) != 0; };
  if (failed() && (!stream_->give_back() || failed())) return nullptr;
  auto* made = static_cast<int64_t*>(device.adopt(head, lent, capacity));
  if (!made) lent.release(lent.owner);
  static char nothing[ral::kAlignment];  // where there is no element, and no address
  *data = lent.data ? lent.data : nothing;
  return made;
}

Status ral_exec::make_output(size_t index, const int64_t* dims) {
  const ral::ValueInfo& info = program_.signature.outputs[index];
  const auto name = [&] { return "output '" + info.name + "' (" + std::to_string(index) + "): "; };
  const auto rank = static_cast<size_t>(info.rank);
  if (given_) {
    if (!std::equal(dims, dims + rank, given_[index].dims)) {
      return error(RAL_ERROR_SHAPE, name() + "the result has dims " + ral::dims_text(dims, info.rank) + ", the given buffer " +
                                        ral::dims_text(given_[index].dims, info.rank));
    }
    static char nothing[ral::kAlignment];  // for size 0, where the caller's pointer may be null
    outputs_[index] = {given_[index], true, given_[index].data ? given_[index].data : nothing};
    return staged_ ? stage_output(index) : Status{};
  }
  const auto replaced = static_cast<size_t>(info.replaces);
  if (info.replaces >= 0 && replaced_[replaced] && std::equal(dims, dims + rank, inputs_[replaced].dims)) {
    static char nothing[ral::kAlignment];  // for size 0
    outputs_[index] = {{}, true, inputs_[replaced].data ? inputs_[replaced].data : nothing};
    return {};
  }
  int64_t bytes = 0;
  if (!ral::tensor_bytes(dims, info.rank, ral::dtype_size(info.dtype), &bytes)) {
    const bool negative = std::any_of(dims, dims + rank, [](int64_t dim) { return dim < 0; });
    return error(negative ? RAL_ERROR_SHAPE : RAL_ERROR_MEMORY,
                 name() + ral::dims_text(dims, info.rank) + (negative ? " has a negative dim" : " is larger than any memory"));
  }
  int64_t capacity = 0;
  void* data = nullptr;
  ral::Device& device = staged_ ? *ral::device_at(RAL_CPU, 0) : *program_.device;
  const auto dtype = static_cast<uint16_t>(info.dtype);
  const ral_tensor wanted{nullptr, dims, nullptr, info.rank, dtype, device.number(), device.id()};
  auto* own_dims = acquire_output(device, index, wanted, bytes, &data, &capacity);
  if (!own_dims)
    return error(RAL_ERROR_MEMORY, name() + "cannot allocate " + std::to_string(bytes) + " bytes" + (staged_ ? "" : where()) + " for " +
                                       ral::dims_text(dims, info.rank));
  std::copy(dims, dims + rank, own_dims);
  ral::row_major_strides(dims, info.rank, own_dims + rank);
  own_dims[2 * rank] = capacity;
  outputs_[index] = {{data, own_dims, own_dims + rank, info.rank, dtype, device.number(), device.id()}, true, data};
  return staged_ ? stage_output(index) : Status{};
}

int32_t ral_exec::launch(int64_t id, ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch_bytes) {
  if (id < 0 || id >= static_cast<int64_t>(counts.launches.size()) || scratch_bytes < 0 || scratch_bytes > (int64_t{1} << 40)) {
    return record(RAL_ERROR_INTERNAL,
                  "launch: kernel " + std::to_string(id) + " with " + std::to_string(scratch_bytes) + " bytes of scratch (compiler bug)");
  }
  const auto slot = static_cast<size_t>(id);
  counts.launches[slot] += 1;
  if (tasks <= 0) return 0;
  launched_ = true;
  const ral::TracedKernel traced{kernel, args, &program_.trace, id};
  ral_launch launch{program_.signature.kernels[slot].c_str(), kernel, args, tasks, scratch_bytes};
  if (profile_ == kTraced && program_.device->number() == RAL_CPU) {
    launch.kernel = ral::TracedKernel::run;
    launch.args = traced.arguments();
  }
  int64_t* nanoseconds = profile_ ? &counts.nanoseconds[slot] : nullptr;
  const Observed observed(observer_, program_.signature.kernels[slot], id);
  return stream_->launch(launch, cost, program_.threads.load(std::memory_order_relaxed), nanoseconds, failure()) ? 0 : 1;
}

int32_t ral_exec::fail(int64_t check_id, int64_t actual, int64_t expected) {
  Status failed = ral::failed_check(program_.signature, check_id, actual, expected);
  return record(failed.code, std::move(failed.message));
}

int64_t ral_exec::choose(const int64_t* nodes, int64_t* features, int64_t count) const {
  const int32_t units = program_.device->units();
  features[RAL_FEATURE_THREADS] = units ? units : program_.threads.load(std::memory_order_relaxed);
  const int64_t forced = program_.forced_choice.load(std::memory_order_relaxed);
  if (forced >= 0) return std::min(forced, count - 1);
  const int64_t* node = nodes;
  while (node[0] >= 0) {
    const int64_t value = node[0] == RAL_FEATURE_PRODUCTS ? program_.device->has_products() : features[node[0]];
    node = nodes + 4 * (value <= node[1] ? node[2] : node[3]);
  }
  return node[1];
}
