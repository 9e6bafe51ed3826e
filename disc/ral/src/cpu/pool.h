// One pool of worker threads per process, made lazily, shared by all contexts.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>

#include "ral.h"

namespace ral {

// What is left of one thread's share of a launch: units [begin, end), in the upper and the lower half. On a cache line of its own.
struct alignas(64) Share {
  std::atomic<uint64_t> units{0};
};

// The shares of one launch, reused by later ones.
class Shares {
 public:
  Share* reserve(int32_t count);

 private:
  std::unique_ptr<Share[]> shares_;
  int32_t count_ = 0;
};

// One launch, on the stack of the thread that makes it. Every thread begins with a share of its own, of consecutive tasks: what a kernel
// prefetches beyond its tasks is then its own next one, and later launches find in a core's cache what earlier ones left there. A thread
// that is done takes half of what another has not begun.
class alignas(64) Job {
 public:
  // shares: for `threads` threads; scratch: null, or one slice of `scratch_stride` bytes for each of them.
  Job(ral_kernel kernel, const int64_t* args, int64_t tasks, int32_t threads, Share* shares, char* scratch, int64_t scratch_stride);

  // One thread's part; called at most `threads` times.
  void work();

 private:
  bool steal(int32_t slot);

  ral_kernel kernel_;
  const int64_t* args_;
  int64_t tasks_;
  int64_t unit_;  // tasks
  int32_t threads_;
  Share* shares_;
  char* scratch_;
  int64_t scratch_stride_;
  std::atomic<int32_t> slots_{0};
};

class Worker;

// The pool's workers, of which there are now as many as calls with `helpers` each can use, if the process may have them.
std::span<Worker> pool_workers(int32_t helpers);

// Runs `job` on this thread and on up to `helpers` idle workers, those that are parked only if `wake`; returns when every task is done.
// False when there was no such worker. threads: as of `may_spin`.
bool run_parallel(Job& job, std::span<Worker> workers, int32_t helpers, bool wake, int32_t threads);

// How many calls are in progress: at least 1.
int32_t calls() noexcept;

// Whether there is a core for every thread. threads: those beside the callers.
bool has_cores(int32_t threads);

// Whether a thread may wait for another one awake: only where there are cores for all, and never on the core of the thread that is waited for.
bool may_spin(int32_t threads, const std::atomic<int32_t>& other_cpu);

// Whether this process is a child that was forked since the library was loaded: it has none of the threads that its parent had.
bool is_forked();

// How many threads a launch of a call with `threads` of them may have: as many, or its part of the cores when there are more calls than one.
int32_t fair_threads(int32_t threads);

// Lives as long as a call: what the calls in progress have in common is the cores.
class CallInProgress {
 public:
  CallInProgress();
  CallInProgress(const CallInProgress&) = delete;
  CallInProgress& operator=(const CallInProgress&) = delete;
  ~CallInProgress();
};

}  // namespace ral
