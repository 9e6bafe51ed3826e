#include "cpu/worker.h"

#include <sched.h>

#include "core/clock.h"

namespace ral {

namespace {

constexpr int32_t kSpins = 2000;  // about 30 us of `pause`: longer than the gap between two launches, shorter than a time slice

constexpr int64_t kNanosecondsPerMove = 10'000'000;

// What a worker is doing, in the low bits of its state; the other bits count the jobs it was offered, so that no two states are equal.
enum Phase : uint32_t {
  kAwake,      // idle, looks for a job, or has not come yet
  kParked,     // idle, sleeps
  kTaken,      // a caller is about to offer a job
  kOffered,    // not begun: the caller may take the job back
  kRunning,
  kAwaited,    // runs, and the caller sleeps until it is done
  kDismissed,  // its thread may go
};
constexpr uint32_t kPhases = 8;

constexpr Phase phase_of(uint32_t state) { return static_cast<Phase>(state % kPhases); }
constexpr uint32_t with_phase(uint32_t state, Phase phase) { return state / kPhases * kPhases + phase; }
constexpr uint32_t next_round(uint32_t state) { return with_phase(state + kPhases, kAwake); }

// A thread that is woken on the core of its caller gets to run when the caller is done, and a kernel that knows of no cache that cores share,
// as in many virtual machines, wakes it there again each time. So it moves to another core: it leaves this one for as long as it takes.
void leave_core() {
  thread_local int64_t stays_until = 0;
  const int64_t now = now_nanoseconds();
  cpu_set_t allowed;
  if (now < stays_until || sched_getaffinity(0, sizeof allowed, &allowed) != 0 || CPU_COUNT(&allowed) < 2) return;
  stays_until = now + kNanosecondsPerMove;  // the kernel may have had reasons
  cpu_set_t others = allowed;
  CPU_CLR(static_cast<size_t>(sched_getcpu()), &others);
  if (sched_setaffinity(0, sizeof others, &others) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace

uint32_t Worker::wait_for_offer(int32_t threads) {
  bool spin = may_spin(threads, caller_cpu_);
  for (int32_t turn = 0;; ++turn) {
    uint32_t state = state_.load(std::memory_order_acquire);
    const Phase phase = phase_of(state);
    if (phase == kOffered || phase == kDismissed) return state;
    if (phase == kParked) {
      state_.wait(state, std::memory_order_acquire);
      const bool dismissed = phase_of(state_.load(std::memory_order_relaxed)) == kDismissed;
      if (!dismissed && sched_getcpu() == caller_cpu_.load(std::memory_order_relaxed) && has_cores(threads)) leave_core();
      spin = may_spin(threads, caller_cpu_);
      turn = 0;
    } else if (phase == kAwake && (!spin || turn >= kSpins)) {
      state_.compare_exchange_strong(state, with_phase(state, kParked), std::memory_order_acq_rel);
    } else {
      __builtin_ia32_pause();
    }
  }
}

bool Worker::serve(int32_t threads) {
  uint32_t state = wait_for_offer(threads);
  if (phase_of(state) == kDismissed) return false;
  cpu_.store(sched_getcpu(), std::memory_order_relaxed);
  if (!state_.compare_exchange_strong(state, with_phase(state, kRunning), std::memory_order_acq_rel)) return true;
  job_->work();
  state = state_.exchange(next_round(state), std::memory_order_acq_rel);
  if (phase_of(state) == kAwaited) state_.notify_one();
  return true;
}

bool Worker::offer(Job& job, bool wake, uint32_t* offered) {
  uint32_t state = state_.load(std::memory_order_relaxed);
  const bool parked = phase_of(state) == kParked;
  if (parked ? !wake : phase_of(state) != kAwake) return false;
  if (!state_.compare_exchange_strong(state, with_phase(state, kTaken), std::memory_order_acquire)) return false;
  job_ = &job;
  caller_cpu_.store(sched_getcpu(), std::memory_order_relaxed);
  *offered = with_phase(state, kOffered);
  state_.store(*offered, std::memory_order_release);
  if (parked) state_.notify_one();
  return true;
}

void Worker::settle(uint32_t offered, int32_t threads) {
  uint32_t state = offered;
  if (state_.compare_exchange_strong(state, next_round(offered), std::memory_order_acq_rel)) return;
  const uint32_t running = with_phase(offered, kRunning), awaited = with_phase(offered, kAwaited);
  const bool spin = may_spin(threads, cpu_);
  for (int32_t i = 0; spin && i < kSpins; ++i) {
    if (state_.load(std::memory_order_acquire) != running) return;
    __builtin_ia32_pause();
  }
  state = running;
  if (!state_.compare_exchange_strong(state, awaited, std::memory_order_acq_rel)) return;
  state_.wait(awaited, std::memory_order_acquire);
}

void Worker::dismiss() {
  const uint32_t state = state_.exchange(kDismissed, std::memory_order_acq_rel);
  if (phase_of(state) == kParked) state_.notify_one();
}

}  // namespace ral
