#include "core/context.h"

#include <algorithm>

using ral::Status;

namespace {
constexpr int32_t kCallsPerTrim = 256;  // what more calls at once needed is freed after as many to twice as many calls, fewer at once
}

Status ral_context::load_file(const char* path, const ral_options& options) {
  const Status status = Program::load_file(path, options);
  if (status.ok()) totals_ = std::make_unique<ral::Counts>(signature);
  return status;
}

Status ral_context::load_memory(const ral_program& program, const ral_options& options) {
  const Status status = Program::load_memory(program, options);
  if (status.ok()) totals_ = std::make_unique<ral::Counts>(signature);
  return status;
}

ral_context::ExecPointer ral_context::take_exec() {
  {
    std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      ExecPointer exec = std::move(idle_.back());
      idle_.pop_back();
      fewest_idle_ = std::min(fewest_idle_, idle_.size());
      return exec;
    }
    idle_.reserve(++execs_);  // now, so that give_exec cannot fail when the caller already has the outputs
    fewest_idle_ = 0;
  }
  return ExecPointer(new ral_exec(*this));
}

void ral_context::give_exec(ExecPointer exec, bool completed) {
  size_t old = 0;
  {
    const std::lock_guard lock(mutex_);
    exec->counts.calls = completed ? 1 : 0;
    totals_->add(exec->counts);
    idle_.push_back(std::move(exec));
    if (--calls_until_trim_ > 0) return;
    old = fewest_idle_;  // the ones at the front have been idle since the last time here
    fewest_idle_ = idle_.size();
    calls_until_trim_ = kCallsPerTrim;
  }
  for (; old > 0; --old) {
    ExecPointer oldest;  // is destroyed when the lock is no longer held: that takes another
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return;
    oldest = std::move(idle_.front());
    idle_.erase(idle_.begin());
    fewest_idle_ = std::min(fewest_idle_, idle_.size());
    --execs_;
  }
}

Status ral_context::call(const ral_tensor* inputs, int32_t input_count, const ral_tensor* given, ral_tensor* outputs,
                         int32_t output_count, void* stream, bool replacing) {
  if (Status status = verify(); !status.ok()) return status;
  ExecPointer exec = take_exec();
  Status status = exec->run(inputs, input_count, given, outputs, output_count, stream, replacing);
  const bool completed = status.ok();
  give_exec(std::move(exec), completed);
  return status;
}

Status ral_context::synchronize() {
  Status status = device->synchronize();
  ral::Fault fault;
  if (!status.ok() || !on_device->take_fault(&fault)) return status;
  return ral::failed_check(signature, fault.check, fault.index, fault.size);
}

ral::Counts ral_context::totals() {
  std::lock_guard lock(mutex_);
  return *totals_;
}

int64_t ral_context::arena_bytes() {
  std::lock_guard lock(mutex_);
  int64_t bytes = 0;
  for (const ExecPointer& exec : idle_) bytes += exec->held_bytes();
  return bytes;
}
