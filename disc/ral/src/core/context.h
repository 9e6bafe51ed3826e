// A loaded artifact: shared by all threads that call it.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "core/exec.h"
#include "core/fork.h"
#include "core/program.h"
#include "core/status.h"
#include "ral.h"

struct ral_context final : ral::Program, ral::ForkAware {
  ral_context() = default;
  ~ral_context() = default;

  ral::Status load_file(const char* path, const ral_options& options);
  ral::Status load_memory(const ral_program& program, const ral_options& options);
  ral::Status call(const ral_tensor* inputs, int32_t input_count, const ral_tensor* given, ral_tensor* outputs, int32_t output_count,
                   void* stream, bool replacing = false);
  // Tensors that stay from call to call (tensors.cc), see ral_keep_tensor.
  ral::Status keep_tensor(const ral_tensor& from, ral_tensor* made);
  ral::Status copy_numbers(const ral_tensor& from, const ral_tensor& to, void* stream);
  // Waits for what calls asked for, and says what their launches reported.
  ral::Status synchronize();

  ral::Counts totals();
  int64_t arena_bytes();

 private:
  using ExecPointer = std::unique_ptr<ral_exec>;

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

  ral::ForkRegistration registration_{*this};
};
