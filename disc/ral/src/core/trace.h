// Which thread did which tasks of which launch, and when: recorded while ral_set_profile asks for it.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "ral.h"

namespace ral {

// The events of one context, from any thread; those beyond the first kMostEvents are dropped.
class Trace {
 public:
  void add(const ral_trace_event& event);
  // Moves up to `capacity` of the oldest events out; returns how many there were.
  int64_t take(ral_trace_event* events, int64_t capacity);

 private:
  std::mutex mutex_;
  std::vector<ral_trace_event> events_;
};

// A kernel that records each part of a launch. `arguments` stands for the kernel's own, on the stack of the thread that launches.
struct TracedKernel {
  ral_kernel kernel;
  const int64_t* args;
  Trace* trace;
  int64_t number;  // of the kernel in the program

  const int64_t* arguments() const { return reinterpret_cast<const int64_t*>(this); }
  static void run(const int64_t* arguments, int64_t begin, int64_t end, void* scratch);
};

// What a thread is called in events: its number for the system.
int32_t thread_number();

}  // namespace ral
