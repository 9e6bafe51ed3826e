// One pool of worker threads per process, made lazily, shared by all contexts.
#pragma once

#include <atomic>
#include <cstdint>

#include "ral.h"

namespace ral {

// One launch, on the stack of the thread that makes it. Threads take chunks until none is left.
struct alignas(64) Job {
  ral_kernel kernel;
  const int64_t* args;
  int64_t tasks;
  int64_t chunk;
  char* scratch;           // null, or one slice per thread
  int64_t scratch_stride;  // bytes
  std::atomic<int64_t> next{0};
  std::atomic<int64_t> slots{0};

  void work();
};

// Runs `job` on this thread and on up to `helpers` idle workers; returns when every task is done.
void run_parallel(Job& job, int32_t helpers);

}  // namespace ral
