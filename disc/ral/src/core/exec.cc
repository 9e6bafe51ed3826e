#include "core/exec.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "core/bytes.h"
#include "cpu/cpu.h"
#include "core/layout.h"

using ral::error;
using ral::Status;

namespace {

// A launch is worth one more thread for each 4 us of work: handing part of it to a worker that is awake costs up to 1 us.
constexpr int64_t kCostPerThread = 4000 * RAL_COST_PER_NANOSECOND;
// Waking one that is parked takes the caller up to 8 us, and it comes some 25 us later; it is then awake for the launches that follow. So
// it is woken when this much work could have been shared but was not: that costs a tenth at most, where no launch follows.
constexpr int64_t kCostToWake = 80'000 * RAL_COST_PER_NANOSECOND;

constexpr int32_t kCallsPerTrim = 64;  // what a call needed is given back after as many to twice as many that need less than half of it

int64_t now_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

std::string with_value(std::string text, const std::string& placeholder, int64_t value) {
  const size_t place = text.find(placeholder);
  return place == std::string::npos ? text : text.replace(place, placeholder.size(), std::to_string(value));
}

// Runs `body` for generated code, which cannot pass on an exception.
template <typename Result, typename Body>
Result guarded(ral_exec* exec, Result failed, Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    exec->record(RAL_ERROR_MEMORY, "");  // no memory for a message
    return failed;
  }
}

void* host_alloc(ral_exec* exec, int64_t bytes) {
  return guarded<void*>(exec, nullptr, [&] { return exec->alloc(bytes); });
}
void* host_output(ral_exec* exec, int64_t index, const int64_t* dims) {
  return guarded<void*>(exec, nullptr, [&] { return exec->output(index, dims); });
}
int32_t host_launch(ral_exec* exec, int64_t id, ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch) {
  return guarded<int32_t>(exec, 1, [&] { return exec->launch(id, kernel, args, tasks, cost, scratch); });
}
int32_t host_fail(ral_exec* exec, int64_t check_id, int64_t actual, int64_t expected) {
  return guarded<int32_t>(exec, 1, [&] { return exec->fail(check_id, actual, expected); });
}

int64_t host_choose(ral_exec* exec, const int64_t* nodes, int64_t* features, int64_t count) { return exec->choose(nodes, features, count); }

}  // namespace

namespace ral {
const ral_host_api kHostApi = {host_alloc, host_output, host_launch, host_fail, host_choose, ral::last_level_cache_bytes()};

// An output is one block: dims, strides, the block's capacity, then the data on a 64-byte boundary. `dims` is the start of the block.
void release_output(ral_tensor* output) {
  if (output->dims) release_block(const_cast<int64_t*>(output->dims), output->dims[2 * output->rank]);
  *output = {};
}
}  // namespace ral

ral_exec::ral_exec(const ral::Program& program)
    : counts(program.signature), program_(program), inputs_(program.signature.inputs.size()), outputs_(program.signature.outputs.size()) {
  size_t ranks = 0;
  for (const ral::ValueInfo& info : program.signature.inputs) ranks += static_cast<size_t>(info.rank);
  strides_.resize(ranks);
}

ral_exec::~ral_exec() { release_outputs(); }

int32_t ral_exec::record(ral_status code, std::string message) {
  if (status_.ok()) status_ = error(code, std::move(message));
  return 1;
}

Status ral_exec::run(const ral_tensor* inputs, int32_t input_count, const ral_tensor* given, ral_tensor* outputs, int32_t output_count) {
  const ral::CallInProgress here;
  counts.clear();
  status_ = {};
  arena_taken_ = false;
  trim();
  profile_ = program_.profile.load(std::memory_order_relaxed);
  given_ = given;
  std::fill(outputs_.begin(), outputs_.end(), Output{});
  Status status = check_inputs(inputs, input_count);
  if (!status.ok()) return status;
  if (output_count != static_cast<int32_t>(outputs_.size())) {
    return error(RAL_ERROR_RANK, "expected " + std::to_string(outputs_.size()) + " outputs, got " + std::to_string(output_count));
  }
  if (given) status = check_given(inputs, given);
  if (status.ok()) status = prepare_inputs(inputs);
  if (status.ok()) status = enter();
  if (!status.ok()) release_outputs();
  if (!status.ok()) return status;
  for (size_t i = 0; !given && i < outputs_.size(); ++i) outputs[i] = outputs_[i].tensor;
  std::fill(outputs_.begin(), outputs_.end(), Output{});  // they are the caller's now
  return {};
}

// Makes every input row-major: those that are not get a copy in the arena of copies.
Status ral_exec::prepare_inputs(const ral_tensor* inputs) {
  const auto& infos = program_.signature.inputs;
  int64_t total = 0;
  int64_t* strides = strides_.data();
  for (size_t i = 0; i < infos.size(); ++i) {
    const int64_t element = ral::dtype_size(infos[i].dtype);
    inputs_[i] = inputs[i];
    inputs_[i].strides = strides;
    ral::row_major_strides(inputs[i].dims, inputs[i].rank, strides);
    strides += inputs[i].rank;
    if (ral::is_row_major(inputs[i], element)) continue;
    int64_t bytes = 0;
    if (!ral::tensor_bytes(inputs[i].dims, inputs[i].rank, element, &bytes) ||
        __builtin_add_overflow(total, ral::round_up(bytes), &total)) {
      return error(RAL_ERROR_MEMORY,
                   "copying input '" + infos[i].name + "': size " + ral::dims_text(inputs[i].dims, inputs[i].rank) + " is too large");
    }
    counts.copied_inputs += 1;
    counts.copied_bytes += bytes;
  }
  if (total == 0) return {};
  char* copy = static_cast<char*>(copies_.reserve(total));
  if (!copy) return error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(total) + " bytes to copy inputs that are not contiguous");
  for (size_t i = 0; i < infos.size(); ++i) {
    const int64_t element = ral::dtype_size(infos[i].dtype);
    if (ral::is_row_major(inputs[i], element)) continue;
    ral::copy_row_major(inputs[i], element, copy);
    inputs_[i].data = copy;
    int64_t bytes = 0;
    ral::tensor_bytes(inputs[i].dims, inputs[i].rank, element, &bytes);
    copy += ral::round_up(bytes);
  }
  return {};
}

Status ral_exec::enter() {
  const int32_t failed = program_.code.entry()(this, &ral::kHostApi, inputs_.data(), program_.weights.data(), counts.counters.data());
  if (!status_.ok()) return status_;
  if (failed) return error(RAL_ERROR_INTERNAL, "the generated entry failed without a reason (compiler bug)");
  for (size_t i = 0; i < outputs_.size(); ++i) {
    if (outputs_[i].made) continue;
    return error(RAL_ERROR_INTERNAL, "the generated entry did not make output " + std::to_string(i) + " (compiler bug)");
  }
  return {};
}

// Gives back memory that only calls of the past needed.
void ral_exec::trim() {
  if (--calls_until_trim_ > 0) return;
  calls_until_trim_ = kCallsPerTrim;
  for (ral::Block* block : {&arena_, &copies_, &scratch_}) block->trim();
  ral::age_blocks();
}

void ral_exec::release_outputs() {
  for (Output& output : outputs_) {
    if (output.made && !given_) ral::release_output(&output.tensor);
    output = {};
  }
}

void* ral_exec::alloc(int64_t bytes) {
  if (arena_taken_) {
    record(RAL_ERROR_INTERNAL, "alloc: called twice in one call (compiler bug)");
    return nullptr;
  }
  arena_taken_ = true;
  void* block = bytes < 0 ? nullptr : arena_.reserve(bytes);
  if (!block) record(RAL_ERROR_MEMORY, "cannot allocate an arena of " + std::to_string(bytes) + " bytes for these shapes");
  return block;
}

void* ral_exec::output(int64_t index, const int64_t* dims) {
  if (index < 0 || index >= static_cast<int64_t>(outputs_.size()) || outputs_[static_cast<size_t>(index)].made) {
    record(RAL_ERROR_INTERNAL, "output: index " + std::to_string(index) + " is out of range or was made before (compiler bug)");
    return nullptr;
  }
  const Status status = make_output(static_cast<size_t>(index), dims);
  if (!status.ok()) {
    record(status.code, status.message);
    return nullptr;
  }
  return outputs_[static_cast<size_t>(index)].tensor.data;
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
    outputs_[index] = {given_[index], true};
    if (!outputs_[index].tensor.data) outputs_[index].tensor.data = nothing;
    return {};
  }
  int64_t bytes = 0;
  if (!ral::tensor_bytes(dims, info.rank, ral::dtype_size(info.dtype), &bytes)) {
    const bool negative = std::any_of(dims, dims + rank, [](int64_t dim) { return dim < 0; });
    return error(negative ? RAL_ERROR_SHAPE : RAL_ERROR_MEMORY,
                 name() + ral::dims_text(dims, info.rank) + (negative ? " has a negative dim" : " is larger than any memory"));
  }
  const int64_t head = ral::round_up(static_cast<int64_t>((2 * rank + 1) * sizeof(int64_t)));
  int64_t capacity = 0;
  char* block = static_cast<char*>(ral::acquire_block(head + bytes, &capacity));
  if (!block)
    return error(RAL_ERROR_MEMORY, name() + "cannot allocate " + std::to_string(bytes) + " bytes for " + ral::dims_text(dims, info.rank));
  auto* own_dims = reinterpret_cast<int64_t*>(block);
  std::copy(dims, dims + rank, own_dims);
  ral::row_major_strides(dims, info.rank, own_dims + rank);
  own_dims[2 * rank] = capacity;
  outputs_[index] = {{block + head, own_dims, own_dims + rank, info.rank, info.dtype}, true};
  return {};
}

int32_t ral_exec::threads_for(int64_t tasks, int64_t total_cost) const {
  const int64_t limit = std::min({int64_t{program_.threads.load(std::memory_order_relaxed)}, tasks, total_cost / kCostPerThread});
  return limit <= 1 ? 1 : ral::fair_threads(static_cast<int32_t>(limit));
}

int32_t ral_exec::launch(int64_t id, ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch_bytes) {
  if (id < 0 || id >= static_cast<int64_t>(counts.launches.size()) || scratch_bytes < 0 || scratch_bytes > (int64_t{1} << 40)) {
    return record(RAL_ERROR_INTERNAL,
                  "launch: kernel " + std::to_string(id) + " with " + std::to_string(scratch_bytes) + " bytes of scratch (compiler bug)");
  }
  const auto slot = static_cast<size_t>(id);
  counts.launches[slot] += 1;
  if (tasks <= 0) return 0;
  int64_t total_cost = 0;
  if (__builtin_mul_overflow(tasks, cost, &total_cost)) total_cost = INT64_MAX;
  const int32_t threads = threads_for(tasks, total_cost);
  const int64_t slice = ral::round_up(scratch_bytes);
  char* scratch = slice ? static_cast<char*>(scratch_.reserve(slice * threads)) : nullptr;
  if (slice && !scratch) {
    return record(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(slice * threads) + " bytes of scratch for kernel '" +
                                        program_.signature.kernels[slot] + "'");
  }
  const int64_t start = profile_ ? now_nanoseconds() : 0;
  if (threads == 1) {
    kernel(args, 0, tasks, scratch);
  } else {
    ral::Job job(kernel, args, tasks, threads, shares_.reserve(threads), scratch, slice);
    unshared_cost_ += std::min(total_cost, kCostToWake);
    if (ral::run_parallel(job, threads - 1, unshared_cost_ >= kCostToWake)) unshared_cost_ = 0;
  }
  if (profile_) counts.nanoseconds[slot] += now_nanoseconds() - start;
  return 0;
}

int32_t ral_exec::fail(int64_t check_id, int64_t actual, int64_t expected) {
  const auto& checks = program_.signature.checks;
  if (check_id < 0 || check_id >= static_cast<int64_t>(checks.size())) {
    return record(RAL_ERROR_INTERNAL, "fail: check " + std::to_string(check_id) + " is out of range (compiler bug)");
  }
  const std::string& text = checks[static_cast<size_t>(check_id)];
  const bool has_places = text.find("{actual}") != std::string::npos || text.find("{expected}") != std::string::npos;
  const std::string whole = has_places ? text : text + ": got {actual}, expected {expected}";
  return record(RAL_ERROR_SHAPE, with_value(with_value(whole, "{actual}", actual), "{expected}", expected));
}

int64_t ral_exec::choose(const int64_t* nodes, int64_t* features, int64_t count) const {
  const int64_t forced = program_.forced_choice.load(std::memory_order_relaxed);
  if (forced >= 0) return std::min(forced, count - 1);
  features[4] = program_.threads.load(std::memory_order_relaxed);
  const int64_t* node = nodes;
  while (node[0] >= 0) node = nodes + 4 * (features[node[0]] <= node[1] ? node[2] : node[3]);
  return node[1];
}
