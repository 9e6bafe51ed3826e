#include "cpu/pool.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <thread>

#include "cpu/cores.h"
#include "core/fork.h"

namespace ral {

namespace {

constexpr int32_t kMaxWorkers = 255;
constexpr int32_t kSpins = 2000;  // about 30 us of `pause`: longer than the gap between two launches, shorter than a time slice

// What a worker is doing, in the low bits of its state; the other bits count the jobs it was offered, so that no two states are equal.
enum Phase : uint32_t {
  kAwake,    // idle, looks for a job
  kParked,   // idle, sleeps
  kTaken,    // a caller is about to offer a job
  kOffered,  // not begun: the caller may take the job back
  kRunning,
  kAwaited,  // runs, and the caller sleeps until it is done
};
constexpr uint32_t kPhases = 8;

constexpr Phase phase_of(uint32_t state) { return static_cast<Phase>(state % kPhases); }
constexpr uint32_t with_phase(uint32_t state, Phase phase) { return state / kPhases * kPhases + phase; }
constexpr uint32_t next_round(uint32_t state) { return with_phase(state + kPhases, kAwake); }

struct alignas(64) Worker {
  std::atomic<uint32_t> state{kAwake};
  Job* job = nullptr;                  // of phases kOffered and kRunning
  std::atomic<int32_t> cpu{-1};        // where it ran last
  std::atomic<int32_t> caller_cpu{-1};  // where the thread that offered the last job was
};

std::atomic<int32_t> calls_in_progress{0};

// A forked child has no workers, and begins anew.
class Pool final : ForkAware {
 public:
  std::array<Worker, kMaxWorkers> workers;
  std::atomic<int32_t> count{0};

  int32_t cores() {
    if (const int32_t known = cores_.load(std::memory_order_relaxed)) return known;
    const int32_t found = find_cores("").threads();
    cores_.store(found, std::memory_order_relaxed);
    return found;
  }

  // Only where there is a core for every thread, and never on the core of the thread that is waited for.
  bool may_spin(const std::atomic<int32_t>& other_cpu) {
    const int32_t threads = count.load(std::memory_order_relaxed) + std::max(1, calls_in_progress.load(std::memory_order_relaxed));
    return threads <= cores() && sched_getcpu() != other_cpu.load(std::memory_order_relaxed);
  }

  uint32_t wait_for_offer(Worker& worker) {
    bool spin = may_spin(worker.caller_cpu);
    for (int32_t turn = 0;; ++turn) {
      uint32_t state = worker.state.load(std::memory_order_acquire);
      const Phase phase = phase_of(state);
      if (phase == kOffered) return state;
      if (phase == kParked) {
        worker.state.wait(state, std::memory_order_acquire);
        spin = may_spin(worker.caller_cpu);
        turn = 0;
      } else if (phase == kAwake && (!spin || turn >= kSpins)) {
        worker.state.compare_exchange_strong(state, with_phase(state, kParked), std::memory_order_acq_rel);
      } else {
        __builtin_ia32_pause();
      }
    }
  }

  void serve(Worker& worker) {
    for (;;) {
      uint32_t state = wait_for_offer(worker);
      worker.cpu.store(sched_getcpu(), std::memory_order_relaxed);
      if (!worker.state.compare_exchange_strong(state, with_phase(state, kRunning), std::memory_order_acq_rel)) continue;
      worker.job->work();
      state = worker.state.exchange(next_round(state), std::memory_order_acq_rel);
      if (phase_of(state) == kAwaited) worker.state.notify_one();
    }
  }

  void grow(int32_t wanted) {
    wanted = std::min(wanted, kMaxWorkers);
    if (count.load(std::memory_order_acquire) >= wanted) return;
    const std::lock_guard lock(growth_);
    for (int32_t i = count.load(std::memory_order_relaxed); i < wanted; ++i) {
      try {
        std::thread([this, i] { serve(workers[static_cast<size_t>(i)]); }).detach();
      } catch (const std::exception&) {
        return;  // the process may have no more threads or memory: the launch runs on those there are
      }
      count.store(i + 1, std::memory_order_release);
    }
  }

  // Whether the worker has been offered the job; its state is then in `offered`.
  static bool offer(Worker& worker, Job& job, bool wake, uint32_t* offered) {
    uint32_t state = worker.state.load(std::memory_order_relaxed);
    const bool parked = phase_of(state) == kParked;
    if (parked ? !wake : phase_of(state) != kAwake) return false;
    if (!worker.state.compare_exchange_strong(state, with_phase(state, kTaken), std::memory_order_acquire)) return false;
    worker.job = &job;
    worker.caller_cpu.store(sched_getcpu(), std::memory_order_relaxed);
    *offered = with_phase(state, kOffered);
    worker.state.store(*offered, std::memory_order_release);
    if (parked) worker.state.notify_one();
    return true;
  }

  // Takes the job back from a worker that has not begun, or waits until it is done.
  void settle(Worker& worker, uint32_t offered) {
    uint32_t state = offered;
    if (worker.state.compare_exchange_strong(state, next_round(offered), std::memory_order_acq_rel)) return;
    const uint32_t running = with_phase(offered, kRunning), awaited = with_phase(offered, kAwaited);
    const bool spin = may_spin(worker.cpu);
    for (int32_t i = 0; spin && i < kSpins; ++i) {
      if (worker.state.load(std::memory_order_acquire) != running) return;
      __builtin_ia32_pause();
    }
    state = running;
    if (!worker.state.compare_exchange_strong(state, awaited, std::memory_order_acq_rel)) return;
    worker.state.wait(awaited, std::memory_order_acquire);
  }

 private:
  void before_fork() noexcept override { growth_.lock(); }

  void after_fork(bool in_child) noexcept override {
    if (in_child) {
      for (int32_t i = 0; i < count; ++i) new (&workers[static_cast<size_t>(i)]) Worker;
      count = 0;
      calls_in_progress = 0;
    }
    growth_.unlock();
  }

  std::mutex growth_;
  std::atomic<int32_t> cores_{0};  // 0 = not counted yet
  ForkRegistration registration_{*this};
};

Immortal<Pool> pool;

constexpr uint64_t units(uint64_t begin, uint64_t end) { return begin << 32 | end; }
constexpr uint64_t begin_of(uint64_t share) { return share >> 32; }
constexpr uint64_t end_of(uint64_t share) { return share & UINT32_MAX; }

}  // namespace

Share* Shares::reserve(int32_t count) {
  if (count > count_) {
    shares_ = std::make_unique<Share[]>(static_cast<size_t>(count));
    count_ = count;
  }
  return shares_.get();
}

Job::Job(ral_kernel kernel, const int64_t* args, int64_t tasks, int32_t threads, Share* shares, char* scratch, int64_t scratch_stride)
    : kernel_(kernel),
      args_(args),
      tasks_(tasks),
      unit_(tasks / UINT32_MAX + 1),
      threads_(threads),
      shares_(shares),
      scratch_(scratch),
      scratch_stride_(scratch_stride) {
  const auto total = static_cast<uint64_t>((tasks - 1) / unit_ + 1), count = static_cast<uint64_t>(threads);
  uint64_t begin = 0;
  for (uint64_t slot = 0; slot < count; ++slot) {
    const uint64_t end = begin + total / count + (slot < total % count);
    shares_[slot].units.store(units(begin, end), std::memory_order_relaxed);
    begin = end;
  }
}

void Job::work() {
  const int32_t slot = slots_.fetch_add(1, std::memory_order_relaxed);
  char* mine = scratch_ ? scratch_ + slot * scratch_stride_ : nullptr;
  std::atomic<uint64_t>& share = shares_[slot].units;
  do {
    uint64_t left = share.load(std::memory_order_relaxed);
    while (begin_of(left) < end_of(left)) {  // half of what is left at a time; the rest may be stolen
      const uint64_t begin = begin_of(left), end = begin + (end_of(left) - begin + 1) / 2;
      if (!share.compare_exchange_weak(left, units(end, end_of(left)), std::memory_order_relaxed)) continue;
      kernel_(args_, static_cast<int64_t>(begin) * unit_, std::min(static_cast<int64_t>(end) * unit_, tasks_), mine);
      left = share.load(std::memory_order_relaxed);
    }
  } while (steal(slot));
}

// Moves the second half of what another thread has left to this one's share, which is empty. False when nobody has anything.
bool Job::steal(int32_t slot) {
  for (int32_t step = 1; step < threads_; ++step) {
    std::atomic<uint64_t>& other = shares_[(slot + step) % threads_].units;
    uint64_t left = other.load(std::memory_order_relaxed);
    while (begin_of(left) < end_of(left)) {
      const uint64_t middle = begin_of(left) + (end_of(left) - begin_of(left)) / 2;
      if (!other.compare_exchange_weak(left, units(begin_of(left), middle), std::memory_order_relaxed)) continue;
      shares_[slot].units.store(units(middle, end_of(left)), std::memory_order_relaxed);
      return true;
    }
  }
  return false;
}

bool run_parallel(Job& job, int32_t helpers, bool wake) {
  Pool& shared = *pool;
  shared.grow(helpers * std::max(1, std::min(calls_in_progress.load(std::memory_order_relaxed), shared.cores() / (helpers + 1))));
  struct Engaged {
    Worker* worker;
    uint32_t offered;
  };
  std::array<Engaged, kMaxWorkers> engaged;
  int32_t engaged_count = 0;
  const int32_t count = shared.count.load(std::memory_order_acquire);
  for (int32_t i = 0; i < count && engaged_count < helpers; ++i) {
    Engaged& next = engaged[static_cast<size_t>(engaged_count)];
    next.worker = &shared.workers[static_cast<size_t>(i)];
    engaged_count += Pool::offer(*next.worker, job, wake, &next.offered);
  }
  job.work();
  for (int32_t i = 0; i < engaged_count; ++i) shared.settle(*engaged[static_cast<size_t>(i)].worker, engaged[static_cast<size_t>(i)].offered);
  return engaged_count > 0;
}

int32_t fair_threads(int32_t threads) {
  const int32_t calls = calls_in_progress.load(std::memory_order_relaxed);
  return calls <= 1 ? threads : std::clamp(std::max(pool->cores(), threads) / calls, 1, threads);
}

CallInProgress::CallInProgress() { calls_in_progress.fetch_add(1, std::memory_order_relaxed); }
CallInProgress::~CallInProgress() { calls_in_progress.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace ral
