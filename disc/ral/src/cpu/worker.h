// A thread that takes part in the launches of others, and how they hand it work.
#pragma once

#include <atomic>
#include <cstdint>

#include "cpu/pool.h"

namespace ral {

// One thread's place in a set of workers. It serves one job at a time; whoever makes a launch offers it the job, and afterwards takes it back
// or waits until it is done.
class alignas(64) Worker {
 public:
  // The thread's side: serves one offer, also one from before it came; false once it is dismissed. threads: how many there are beside the
  // callers, for `may_spin`.
  bool serve(int32_t threads);

  // The caller's side: whether the worker has been offered the job; what `settle` wants to know is then in `offered`.
  bool offer(Job& job, bool wake, uint32_t* offered);
  // Takes the job back from a worker that has not begun, or waits until it is done.
  void settle(uint32_t offered, int32_t threads);
  // Nothing is offered from now on. Not while an offer is not settled.
  void dismiss();

 private:
  uint32_t wait_for_offer(int32_t threads);

  std::atomic<uint32_t> state_{0};       // awake
  Job* job_ = nullptr;                   // while it is offered or runs
  std::atomic<int32_t> cpu_{-1};         // where it ran last
  std::atomic<int32_t> caller_cpu_{-1};  // where the thread that offered the last job was
};

}  // namespace ral
