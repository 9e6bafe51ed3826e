#include "cpu/cpu_device.h"

#include <algorithm>
#include <cstring>

#include "core/bytes.h"
#include "core/clock.h"
#include "cpu/block_pool.h"
#include "cpu/memory.h"
#include "cpu/pool.h"

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
  void* allocate(int64_t bytes, Status*) override { return blocks_.take(bytes); }
  bool free(void* block) noexcept override { return blocks_.give(block); }

  bool copy(void* to, const void* from, int64_t bytes, Status*) override {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return true;
  }
  bool fill(void* to, int64_t bytes, int32_t value, Status*) override {
    std::memset(to, value, static_cast<size_t>(bytes));
    return true;
  }
  bool synchronize(Status*) override { return true; }
  bool finish(Status*, Fault*) override {
    blocks_.give_all();
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
      if (run_parallel(job, threads - 1, unshared_cost_ >= kCostToWake)) unshared_cost_ = 0;
    }
    if (nanoseconds) *nanoseconds += now_nanoseconds() - start;
    return true;
  }

  void trim() noexcept override {
    blocks_.trim();
    scratch_.trim();
  }
  int64_t held_bytes() const noexcept override { return blocks_.used() + scratch_.used(); }

 private:
  BlockPool blocks_;
  Block scratch_;
  Shares shares_;
  int64_t unshared_cost_ = 0;  // of launches since the last one that a worker was offered
};

class CpuProgram final : public DeviceProgram {
 public:
  std::unique_ptr<Stream> open() override { return std::make_unique<CpuStream>(); }
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
