#include "pool.h"

#include <pthread.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <system_error>
#include <thread>

#include "cores.h"

namespace ral {

namespace {

constexpr int32_t kMaxWorkers = 255;
constexpr int32_t kSpins = 2000;  // about 30 us of `pause`: longer than the gap between two launches, shorter than a time slice

// `job` is the whole protocol: null = idle; a caller claims the worker by exchanging null for its job; the worker writes null
// when it has done its part, after which it never touches the job again.
struct alignas(64) Worker {
  std::atomic<Job*> job{nullptr};
};

// Waits until `slot` no longer holds `old`; spins first when there is a core to spin on.
void wait_while(std::atomic<Job*>& slot, Job* old, bool spin) {
  for (int32_t i = 0; spin && i < kSpins; ++i) {
    if (slot.load(std::memory_order_acquire) != old) return;
    __builtin_ia32_pause();
  }
  slot.wait(old, std::memory_order_acquire);
}

struct Pool {
  std::array<Worker, kMaxWorkers> workers;
  std::atomic<int32_t> count{0};
  std::mutex growth;
  const int32_t cores = find_cores("").threads();

  bool may_spin() const { return count.load(std::memory_order_relaxed) < cores; }

  void serve(Worker& worker) {
    for (;;) {
      wait_while(worker.job, nullptr, may_spin());
      worker.job.load(std::memory_order_acquire)->work();
      worker.job.store(nullptr, std::memory_order_release);
      worker.job.notify_all();
    }
  }

  void grow(int32_t wanted) {
    wanted = std::min(wanted, kMaxWorkers);
    if (count.load(std::memory_order_acquire) >= wanted) return;
    std::lock_guard lock(growth);
    for (int32_t i = count.load(std::memory_order_relaxed); i < wanted; ++i) {
      try {
        std::thread([this, i] { serve(workers[static_cast<size_t>(i)]); }).detach();
      } catch (const std::system_error&) {
        return;  // the process may have no more threads: the launch runs on those there are
      }
      count.store(i + 1, std::memory_order_release);
    }
  }
};

// Never destroyed: workers are parked on it when the process exits. A forked child has no workers, so it starts a new pool.
std::atomic<Pool*> the_pool{nullptr};
std::mutex the_pool_mutex;

void forget_pool_in_child() {
  the_pool.store(nullptr);
  new (&the_pool_mutex) std::mutex;  // may have been held by a thread that the child does not have
}

Pool& pool() {
  if (Pool* found = the_pool.load(std::memory_order_acquire)) return *found;
  std::lock_guard lock(the_pool_mutex);
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
  (void)registered;
  if (!the_pool.load()) the_pool.store(new Pool, std::memory_order_release);
  return *the_pool.load();
}

}  // namespace

void Job::work() {
  char* mine = scratch ? scratch + slots.fetch_add(1, std::memory_order_relaxed) * scratch_stride : nullptr;
  for (;;) {
    const int64_t begin = next.fetch_add(chunk, std::memory_order_relaxed);
    if (begin >= tasks) return;
    kernel(args, begin, std::min(begin + chunk, tasks), mine);
  }
}

void run_parallel(Job& job, int32_t helpers) {
  Pool& shared = pool();
  shared.grow(helpers);
  std::array<Worker*, kMaxWorkers> engaged;
  int32_t engaged_count = 0;
  const int32_t count = shared.count.load(std::memory_order_acquire);
  for (int32_t i = 0; i < count && engaged_count < helpers; ++i) {
    Worker& worker = shared.workers[static_cast<size_t>(i)];
    Job* idle = nullptr;
    if (!worker.job.compare_exchange_strong(idle, &job, std::memory_order_acq_rel)) continue;
    worker.job.notify_all();
    engaged[static_cast<size_t>(engaged_count++)] = &worker;
  }
  job.work();
  for (int32_t i = 0; i < engaged_count; ++i) wait_while(engaged[static_cast<size_t>(i)]->job, &job, shared.may_spin());
}

}  // namespace ral
