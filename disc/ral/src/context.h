// A loaded artifact: shared by all threads that call it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "code.h"
#include "file.h"
#include "fork.h"
#include "ral.h"
#include "signature.h"
#include "status.h"
#include "weights_check.h"

namespace ral {

// The counts of one call, or the sum of all calls.
struct Counts {
  int64_t calls = 0;
  int64_t copied_inputs = 0;
  int64_t copied_bytes = 0;
  std::vector<int64_t> counters;
  std::vector<int64_t> launches;     // per kernel
  std::vector<int64_t> nanoseconds;  // per kernel, while profiling

  explicit Counts(const Signature& signature);
  void clear();
  void add(const Counts& other);
};

}  // namespace ral

struct ral_context final : ral::ForkAware {
  ral_context() = default;
  ral_context(const ral_context&) = delete;
  ral_context& operator=(const ral_context&) = delete;
  ~ral_context() = default;

  ral::Status load_file(const char* path, const ral_options& options);
  ral::Status load_memory(const ral_program& program, const ral_options& options);
  ral::Status call(const ral_tensor* inputs, int32_t input_count, const ral_tensor* given, ral_tensor* outputs, int32_t output_count);
  ral::Status verify();

  // Read-only after load.
  ral::Signature signature;
  std::string manifest;
  ral::ArtifactFile file;
  ral::Code code;
  std::vector<const void*> weights;
  int32_t default_threads = 1;

  std::atomic<int32_t> threads{1};
  std::atomic<bool> profile{false};
  std::atomic<int64_t> forced_choice{-1};

  ral::Counts totals();
  int64_t arena_bytes();

 private:
  struct ExecDeleter {
    void operator()(ral_exec* exec) const;
  };
  using ExecPointer = std::unique_ptr<ral_exec, ExecDeleter>;

  ral::Status finish_load(const ral_options& options, const std::vector<ral_code>& sections);
  ral::Status place_weights();
  ExecPointer take_exec();
  void give_exec(ExecPointer exec, bool completed);
  // What calls of other threads hold in the parent stays theirs in a child: it never comes back there.
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool) noexcept override { mutex_.unlock(); }

  std::mutex mutex_;  // guards these five
  std::vector<ExecPointer> idle_;  // the last one is used next
  size_t execs_ = 0;               // there are: as many as may be idle at once
  size_t fewest_idle_ = 0;         // since the last trim
  int32_t calls_until_trim_ = 0;
  std::unique_ptr<ral::Counts> totals_;

  std::atomic<bool> verified_{false};
  std::unique_ptr<ral::WeightsCheck> weights_check_;  // null for a program from memory
  ral::ForkRegistration registration_{*this};
};
