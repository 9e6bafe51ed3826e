// Calls of library functions: on the CPU where the program's tensors lie, or, for a program on a GPU, of copies of its tensors.
#include "core/library.h"

#include <memory>
#include <new>

#include "core/bytes.h"
#include "core/clock.h"
#include "core/devices.h"
#include "core/exec.h"
#include "core/layout.h"
#include "core/observed.h"

int32_t ral_exec::library(int64_t id, int64_t check_id, int64_t function, const int64_t* layout, const int64_t* args) {
  if (id < 0 || id >= static_cast<int64_t>(counts.launches.size()) || function < 0 ||
      function >= static_cast<int64_t>(program_.functions.size()) || check_id < 0 ||
      check_id >= static_cast<int64_t>(program_.signature.checks.size())) {
    return record(RAL_ERROR_INTERNAL, "library: kernel " + std::to_string(id) + ", check " + std::to_string(check_id) + " or function " +
                                          std::to_string(function) + " is out of range (compiler bug)");
  }
  const auto slot = static_cast<size_t>(id);
  if (program_.device->number() != RAL_CPU && !on_gpu_) {
    return record(RAL_ERROR_TARGET, "device '" + program_.device->name() + "' has no library functions, such as that of kernel '" +
                                        program_.signature.kernels[slot] + "'");
  }
  if (recording_) return 1;  // what a function computes here is in no graph
  counts.launches[slot] += 1;
  const ral::Observed observed(observer_, program_.signature.kernels[slot], id);
  const int64_t start = profile_ ? ral::now_nanoseconds() : 0;
  const ral::Function& called = program_.functions[static_cast<size_t>(function)];
  const auto check = static_cast<size_t>(check_id);
  const bool good = on_gpu_ ? run_here(called, slot, check, layout, args) : run_library(called, slot, check, layout, args);
  if (profile_) {
    const int64_t stop = ral::now_nanoseconds();
    counts.nanoseconds[slot] += stop - start;
    if (profile_ == ral::kTraced) program_.trace.add({id, ral::thread_number(), start, stop, -1, -1});
  }
  return good ? 0 : 1;
}

bool ral_exec::run_library(const ral::Function& function, size_t kernel, size_t check, const int64_t* layout, const int64_t* args) {
  ral::LibraryCall call(this, kernel, check, layout, args);
  function.call(call);
  return !call.failed();
}

// For a GPU: the function gets copies of its operands in this process's memory, for which the call waits, and what it makes goes back. That
// memory is free afterwards, also where memory for something else runs out: when nothing is copied there any more.
bool ral_exec::run_here(const ral::Function& function, size_t kernel, size_t check, const int64_t* layout, const int64_t* args) {
  const auto attempt = [&](auto body) {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      return record(RAL_ERROR_MEMORY, "") == 0;
    }
  };
  const bool good = attempt([&] { return run_on_copies(function, kernel, check, layout, args); });
  if (!good) attempt([&] { return stream_->synchronize(failure()); });
  if (host_stream_) host_stream_->finish(failure(), nullptr);
  return good;
}

bool ral_exec::run_on_copies(const ral::Function& function, size_t kernel, size_t check, const int64_t* layout, const int64_t* args) {
  if (is_cancelled()) return record(RAL_ERROR_CANCELLED, "the call was cancelled") == 0;
  if (!host_stream_) {
    host_program_ = ral::device_at(RAL_CPU, 0)->open_program();
    host_stream_ = host_program_->open();
  }
  ral::Stream& here = *host_stream_;
  const auto tensors = static_cast<size_t>(layout[0] + layout[1]);
  size_t count = tensors + static_cast<size_t>(layout[2]);
  for (size_t i = 0; i < tensors; ++i) count += static_cast<size_t>(layout[4 + 2 * i]);
  std::vector<int64_t> copied(args, args + count), sizes(tensors);
  bool good = true;
  int64_t bytes = 0;
  const int64_t* dims = args + tensors;
  for (size_t i = 0; good && i < tensors; ++i) {
    const auto rank = static_cast<int32_t>(layout[4 + 2 * i]);
    const auto dtype = static_cast<uint16_t>(layout[3 + 2 * i]);
    if (args[i]) {
      sizes[i] = ral::bytes_of({nullptr, dims, nullptr, rank, dtype, RAL_CPU, 0});
      void* place = here.allocate(sizes[i], failure());
      copied[i] = reinterpret_cast<int64_t>(place);
      if (!place) {
        good = record(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(sizes[i]) + " bytes for " + program_.signature.checks[check]) == 0;
      }
      const bool read = good && sizes[i] > 0 && i < static_cast<size_t>(layout[0]);
      if (read) good = stream_->copy(place, reinterpret_cast<const void*>(args[i]), sizes[i], failure());
      if (read) bytes += sizes[i];
    }
    dims += rank;
  }
  if (good) good = stream_->synchronize(failure());
  count_fetch(bytes);
  if (good) good = run_library(function, kernel, check, layout, copied.data());
  for (auto i = static_cast<size_t>(layout[0]); good && i < tensors; ++i) {
    if (sizes[i] > 0) good = stream_->copy(reinterpret_cast<void*>(args[i]), reinterpret_cast<const void*>(copied[i]), sizes[i], failure());
  }
  return good;
}

namespace ral {

LibraryCall::LibraryCall(ral_exec* exec, size_t kernel, size_t check, const int64_t* layout, const int64_t* args)
    : exec_(exec), kernel_(kernel), check_(check), tensors_(static_cast<size_t>(layout[0] + layout[1])) {
  const int64_t* dims = args + tensors_.size();
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto dtype = static_cast<uint16_t>(layout[3 + 2 * i]);
    const auto rank = static_cast<int32_t>(layout[4 + 2 * i]);
    tensors_[i] = {reinterpret_cast<void*>(args[i]), dims, nullptr, rank, dtype, RAL_CPU, 0};
    dims += rank;
  }
  operands = {tensors_.data(), static_cast<size_t>(layout[0])};
  results = {tensors_.data() + layout[0], static_cast<size_t>(layout[1])};
  numbers = {dims, static_cast<size_t>(layout[2])};
}

LibraryCall::~LibraryCall() {
  for (void* block : blocks_) exec_->here()->free(block);
}

void LibraryCall::fail(const std::string& reason, ral_status code) {
  failed_ = true;
  exec_->record(code, exec_->program_.signature.checks[check_] + ": " + reason);
}

char* LibraryCall::memory(int64_t bytes) {
  blocks_.reserve(blocks_.size() + 1);
  void* block = exec_->here()->allocate(bytes, exec_->failure());
  if (block) {
    blocks_.push_back(block);
  } else {
    failed_ = true;
    exec_->record(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes for " + exec_->program_.signature.checks[check_]);
  }
  return static_cast<char*>(block);
}

bool LibraryCall::launch(ral_kernel kernel, const int64_t* args, int64_t tasks, int64_t cost, int64_t scratch_bytes) {
  if (tasks <= 0) return true;
  const ral_launch launch{exec_->program_.signature.kernels[kernel_].c_str(), kernel, args, tasks, scratch_bytes};
  const int32_t threads = exec_->program_.threads.load(std::memory_order_relaxed);
  if (!exec_->here()->launch(launch, cost, threads, nullptr, exec_->failure())) failed_ = true;
  return !failed_;
}

int32_t LibraryCall::threads() const { return exec_->program_.threads.load(std::memory_order_relaxed); }

void LibraryCall::leave_threads() noexcept { exec_->here()->leave_threads(); }

}  // namespace ral
