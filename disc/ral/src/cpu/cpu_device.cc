#include "cpu/cpu_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/clock.h"
#include "cpu/block_pool.h"
#include "cpu/memory.h"
#include "cpu/pool.h"
#include "cpu/team.h"

namespace ral {

namespace {

// A launch is worth one more thread for each 4 us of work: handing part of it to a worker that is awake costs up to 1 us.
constexpr int64_t kCostPerThread = 4000 * RAL_COST_PER_NANOSECOND;
// Waking one that is parked takes the caller up to 8 us, and it comes some 25 us later; it is then awake for the launches that follow. So
// it is woken when this much work could have been shared but was not: that costs a tenth at most, where no launch follows.
constexpr int64_t kCostToWake = 80'000 * RAL_COST_PER_NANOSECOND;

int32_t threads_for(int64_t tasks, int64_t total_cost, int32_t most) {
  const int64_t limit = std::min({int64_t{most}, tasks, total_cost / kCostPerThread});
  return limit <= 1 ? 1 : fair_threads(static_cast<int32_t>(limit));
}

class CpuStream final : public Stream {
 public:
  // shares: whether its memory is of the pool that programs share; team: whose threads it computes on, if it has functions.
  CpuStream(bool shares, const ral_team& team) : pools_(shares), team_(team) {
    if (pools_) shared_blocks->join();
  }
  ~CpuStream() override {
    give_all();
    if (pools_) shared_blocks->leave();
  }

  void* allocate(int64_t bytes, Status*) override {
    if (!pools_) return blocks_.take(bytes);
    taken_.reserve(taken_.size() + 1);
    void* block = shared_blocks->take(bytes);
    if (!block) return nullptr;
    taken_.push_back(block);
    asked_ += bytes;
    return block;
  }
  bool free(void* block) noexcept override {
    if (!pools_) return blocks_.give(block);
    if (std::erase(taken_, block) == 0) return false;
    shared_blocks->give(block);
    return true;
  }

  bool copy(void* to, const void* from, int64_t bytes, Status*) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return true;
  }
  bool fill(void* to, int64_t bytes, int32_t value, Status*) override {
    std::memset(to, value, static_cast<size_t>(bytes));
    return true;
  }
  bool synchronize(Status*) override { return true; }
  void leave_threads() noexcept override { team_.dismiss(); }
  bool finish(Status*, Fault*) override {
    team_.dismiss();
    held_ = std::exchange(asked_, 0);
    give_all();
    return true;
  }

  bool launch(const ral_launch& launch, int64_t cost_per_task, int32_t most_threads, int64_t* nanoseconds, Status* failure) override {
    const int64_t start = nanoseconds ? now_nanoseconds() : 0;
    int64_t total_cost = 0;
    if (__builtin_mul_overflow(launch.tasks, cost_per_task, &total_cost)) total_cost = INT64_MAX;
    const int32_t threads = threads_for(launch.tasks, total_cost, most_threads);
    const int64_t slice = round_up(launch.scratch_bytes);
    char* scratch = slice ? static_cast<char*>(scratch_.reserve(slice * threads)) : nullptr;
    if (slice && !scratch) {
      *failure = error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(slice * threads) + " bytes of scratch for kernel '" +
                                             std::string(launch.name) + "'");
      return false;
    }
    if (threads == 1) {
      launch.kernel(launch.args, 0, launch.tasks, scratch);
    } else {
      Job job(launch.kernel, launch.args, launch.tasks, threads, shares_.reserve(threads), scratch, slice);
      unshared_cost_ += std::min(total_cost, kCostToWake);
      const bool wake = unshared_cost_ >= kCostToWake;
      if (run(job, most_threads - 1, threads - 1, wake)) unshared_cost_ = 0;
    }
    if (nanoseconds) *nanoseconds += now_nanoseconds() - start;
    return true;
  }

  void trim() noexcept override {
    pools_ ? shared_blocks->trim(&period_) : blocks_.trim();
    scratch_.trim();
  }
  int64_t held_bytes() const noexcept override { return (pools_ ? held_ : blocks_.used()) + scratch_.used(); }

 private:
  // most: the helpers that launches of this call may have; helpers: those of this one.
  bool run(Job& job, int32_t most, int32_t helpers, bool wake) {
    if (team_.is_usable(most)) {
      const std::span<Worker> workers = wake ? team_.gather(most) : team_.workers();
      return run_parallel(job, workers, helpers, wake, team_.threads());
    }
    const std::span<Worker> workers = pool_workers(helpers);
    return run_parallel(job, workers, helpers, wake, static_cast<int32_t>(workers.size()));
  }

  void give_all() noexcept {
    blocks_.give_all();
    for (void* block : taken_) shared_blocks->give(block);
    taken_.clear();
  }

  const bool pools_;
  Team team_;
  BlockPool blocks_;            // its own, where it does not share
  std::vector<void*> taken_;    // of the shared ones, those that the call in progress has
  int64_t asked_ = 0;           // bytes of shared blocks that this call has asked for
  int64_t held_ = 0;            // and the last one had
  int64_t period_ = 0;          // of the pool, when it was asked for a trim
  Block scratch_;
  Shares shares_;
  int64_t unshared_cost_ = 0;  // of launches since the last one that a worker was offered
};

class CpuProgram final : public DeviceProgram {
 public:
  std::unique_ptr<Stream> open() override { return std::make_unique<CpuStream>(shares_.load(std::memory_order_relaxed), team_); }
  void share_memory() noexcept override { shares_.store(true, std::memory_order_relaxed); }
  void use_team(const ral_team& team) noexcept override { team_ = team; }

 private:
  std::atomic<bool> shares_ = false;
  ral_team team_{};
};

}  // namespace

std::unique_ptr<DeviceProgram> CpuDevice::open_program() { return std::make_unique<CpuProgram>(); }

void* CpuDevice::acquire(Stream&, int64_t head, int64_t bytes, void** data, int64_t* capacity) {
  char* block = static_cast<char*>(acquire_block(head + bytes, capacity));
  *data = block ? block + head : nullptr;
  return block;
}

void CpuDevice::release(void* head, void*, int64_t capacity) noexcept { release_block(head, capacity); }

Status CpuDevice::place_weight(const void* from, int64_t, const void** placed) {
  *placed = from;
  return {};
}

void CpuDevice::drop_weight(const void*) noexcept {}

}  // namespace ral
