#include "cpu/pool.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <exception>
#include <mutex>
#include <thread>

#include "core/fork.h"
#include "cpu/cores.h"
#include "cpu/worker.h"

namespace ral {

namespace {

constexpr int32_t kMaxWorkers = 255;
std::atomic<int32_t> calls_in_progress{0};

// A forked child has no workers, and begins anew.
class Pool final : ForkAware {
 public:
  std::array<Worker, kMaxWorkers> workers;
  std::atomic<int32_t> count{0};
  std::atomic<bool> forked{false};

  int32_t cores() {
    if (const int32_t known = cores_.load(std::memory_order_relaxed)) return known;
    const int32_t found = find_cores("").threads();
    cores_.store(found, std::memory_order_relaxed);
    return found;
  }

  void grow(int32_t wanted) {
    wanted = std::min(wanted, kMaxWorkers);
    if (count.load(std::memory_order_acquire) >= wanted) return;
    const std::lock_guard lock(growth_);
    for (int32_t i = count.load(std::memory_order_relaxed); i < wanted; ++i) {
      try {
        std::thread([this, i] {
          while (workers[static_cast<size_t>(i)].serve(count.load(std::memory_order_relaxed))) {
          }
        }).detach();
      } catch (const std::exception&) {
        return;  // the process may have no more threads or memory: the launch runs on those there are
      }
      count.store(i + 1, std::memory_order_release);
    }
  }

 private:
  void before_fork() noexcept override { growth_.lock(); }

  void after_fork(bool in_child) noexcept override {
    if (in_child) {
      for (int32_t i = 0; i < count; ++i) new (&workers[static_cast<size_t>(i)]) Worker;
      count = 0;
      calls_in_progress = 0;
      forked = true;
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

int32_t calls() noexcept { return std::max(1, calls_in_progress.load(std::memory_order_relaxed)); }

bool has_cores(int32_t threads) { return threads + calls() <= pool->cores(); }

bool may_spin(int32_t threads, const std::atomic<int32_t>& other_cpu) {
  return has_cores(threads) && sched_getcpu() != other_cpu.load(std::memory_order_relaxed);
}

bool run_parallel(Job& job, std::span<Worker> workers, int32_t helpers, bool wake, int32_t threads) {
  struct Engaged {
    Worker* worker;
    uint32_t offered;
  };
  std::array<Engaged, kMaxWorkers> engaged;
  int32_t engaged_count = 0;
  for (Worker& worker : workers) {
    if (engaged_count >= std::min(helpers, kMaxWorkers)) break;
    Engaged& next = engaged[static_cast<size_t>(engaged_count)];
    next.worker = &worker;
    engaged_count += worker.offer(job, wake, &next.offered);
  }
  job.work();
  for (const Engaged& each : std::span(engaged).first(static_cast<size_t>(engaged_count))) {
    each.worker->settle(each.offered, threads);
  }
  return engaged_count > 0;
}

std::span<Worker> pool_workers(int32_t helpers) {
  Pool& shared = *pool;
  shared.grow(helpers * std::max(1, std::min(calls_in_progress.load(std::memory_order_relaxed), shared.cores() / (helpers + 1))));
  return std::span(shared.workers).first(static_cast<size_t>(shared.count.load(std::memory_order_acquire)));
}

bool is_forked() { return pool->forked.load(std::memory_order_relaxed); }

int32_t fair_threads(int32_t threads) {
  const int32_t calls = calls_in_progress.load(std::memory_order_relaxed);
  return calls <= 1 ? threads : std::clamp(std::max(pool->cores(), threads) / calls, 1, threads);
}

CallInProgress::CallInProgress() { calls_in_progress.fetch_add(1, std::memory_order_relaxed); }
CallInProgress::~CallInProgress() { calls_in_progress.fetch_sub(1, std::memory_order_relaxed); }

}  // namespace ral
