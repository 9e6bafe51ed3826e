#include "cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>
#include <string>

#include "core/fork.h"

namespace ral::cuda {

namespace {

constexpr int32_t kOldest = 12000;  // CUDA 12.0: launches with attributes, PTX 8.0

Status missing(const std::string& why) { return error(RAL_ERROR_TARGET, why); }

std::string version_text(int32_t version) { return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10); }

// The driver, loaded by the first that asks.
class Process final : ForkAware {
 public:
  Status find(const Driver** found) {
    const std::lock_guard lock(mutex_);
    if (forked_.load(std::memory_order_relaxed)) {
      return error(RAL_ERROR_DEVICE,
                   "this process was forked off after a GPU had been used, which CUDA does not survive: start processes by "
                   "\"spawn\" or \"forkserver\", or fork before the first use");
    }
    if (!tried_) status_ = driver_.load();
    tried_ = true;
    if (status_.ok()) *found = &driver_;
    return status_;
  }

  bool forked() const noexcept { return forked_.load(std::memory_order_relaxed); }

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool in_child) noexcept override {
    if (in_child && tried_ && status_.ok()) forked_.store(true, std::memory_order_relaxed);
    mutex_.unlock();
  }

  std::mutex mutex_;  // guards the next three
  bool tried_ = false;
  Status status_;
  Driver driver_;
  std::atomic<bool> forked_{false};
  ForkRegistration registration_{*this};
};

Immortal<Process> process;

}  // namespace

Status Driver::load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return missing("there is no NVIDIA driver: " + std::string(dlerror()));
  const char* lacking = nullptr;
  const auto find = [&](const char* symbol) {
    void* found = dlsym(library, symbol);
    if (!found && !lacking) lacking = symbol;
    return found;
  };
#define RAL_CUDA_FIND(member, symbol, parameters) member = reinterpret_cast<decltype(member)>(find(symbol));
  RAL_CUDA_FUNCTIONS(RAL_CUDA_FIND)
#undef RAL_CUDA_FIND
  if (driver_version && driver_version(&version) == kSuccess && version < kOldest) {
    return missing("the NVIDIA driver is one of CUDA " + version_text(version) + ", code for GPUs needs " + version_text(kOldest) +
                   " or later");
  }
  if (lacking) return missing("the NVIDIA driver has no function " + std::string(lacking));
  if (const int32_t failed = init(0)) {
    return missing(failed == kNoDevice ? "the NVIDIA driver finds no GPU" : "the NVIDIA driver cannot start: " + text(failed));
  }
  if (const int32_t failed = device_count(&devices)) return missing("the NVIDIA driver finds no GPU: " + text(failed));
  if (devices == 0) return missing("the NVIDIA driver finds no GPU");
  return {};
}

std::string Driver::text(int32_t result) const {
  const char *name = nullptr, *words = nullptr;
  if (!error_name || error_name(result, &name) != kSuccess || !name) return "CUDA error " + std::to_string(result);
  if (error_text(result, &words) != kSuccess || !words) return name;
  return std::string(name) + " (" + words + ")";
}

bool is_fatal(int32_t result) noexcept {
  return result == kIllegalAddress || result == kLaunchTimeout || result == kAssert ||
         (result >= kHardwareStackError && result <= kLaunchFailed);
}

Status driver(const Driver** found) { return process->find(found); }
bool forked() noexcept { return process->forked(); }

}  // namespace ral::cuda
