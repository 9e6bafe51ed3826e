#include "core/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "core/clock.h"

namespace ral {

namespace {
constexpr size_t kMostEvents = size_t{1} << 20;  // 40 MB
}

void Trace::add(const ral_trace_event& event) {
  const std::lock_guard lock(mutex_);
  if (events_.size() < kMostEvents) events_.push_back(event);
}

int64_t Trace::take(ral_trace_event* events, int64_t capacity) {
  const std::lock_guard lock(mutex_);
  const auto there = static_cast<int64_t>(events_.size());
  const auto taken = std::clamp<int64_t>(capacity, 0, there);
  std::copy_n(events_.begin(), taken, events);
  events_.erase(events_.begin(), events_.begin() + taken);
  return there;
}

void TracedKernel::run(const int64_t* arguments, int64_t begin, int64_t end, void* scratch) {
  const auto& self = *reinterpret_cast<const TracedKernel*>(arguments);
  const int64_t start = now_nanoseconds();
  self.kernel(self.args, begin, end, scratch);
  self.trace->add({self.number, thread_number(), start, now_nanoseconds(), begin, end});
}

int32_t thread_number() {
  thread_local const auto number = static_cast<int32_t>(syscall(SYS_gettid));
  return number;
}

}  // namespace ral
