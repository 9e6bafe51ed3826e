#include "core/devices.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <vector>

#include "core/clock.h"
#include "core/fork.h"
#include "cpu/cpu_device.h"
#include "cpu/memory.h"
#include "cuda/gpu.h"

namespace ral {

namespace {

constexpr size_t kMaxName = 32;

// A device made of the functions that a program registered.
class RegisteredDevice final : public Device {
 public:
  RegisteredDevice(const ral_device& functions, uint8_t number) : Device(functions.name, number), functions_(functions) {}

  std::unique_ptr<DeviceProgram> open_program() override { return std::make_unique<RegisteredProgram>(*this); }

  void* acquire(Stream&, int64_t head, int64_t bytes, void** data, int64_t* capacity) override {
    void* own = acquire_block(head, capacity);
    *data = own ? allocate(bytes) : nullptr;
    if (own && !*data) release_block(own, *capacity);
    return *data ? own : nullptr;
  }
  void release(void* head, void* data, int64_t capacity) noexcept override {
    free(data);
    release_block(head, capacity);
  }

  Status place_weight(const void* from, int64_t bytes, const void** placed) override {
    void* block = allocate(bytes);
    if (!block) return error(RAL_ERROR_MEMORY, "cannot allocate " + std::to_string(bytes) + " bytes on device '" + name() + "'");
    *placed = block;
    Status status;
    copy(block, from, bytes, &status);
    return status;
  }
  void drop_weight(const void* placed) noexcept override { free(const_cast<void*>(placed)); }

 private:
  class RegisteredStream final : public Stream {
   public:
    explicit RegisteredStream(RegisteredDevice& device) : device_(device) {}

    void* allocate(int64_t bytes, Status*) override {
      blocks_.reserve(blocks_.size() + 1);  // now, so that no block is lost for want of a place
      void* block = device_.allocate(bytes);
      if (block) blocks_.push_back(block);
      return block;
    }
    bool free(void* block) noexcept override {
      const auto place = std::find(blocks_.begin(), blocks_.end(), block);
      if (place == blocks_.end()) return false;
      *place = blocks_.back();
      blocks_.pop_back();
      device_.free(block);
      return true;
    }
    bool copy(void* to, const void* from, int64_t bytes, Status* failure) override { return device_.copy(to, from, bytes, failure); }
    bool fill(void* to, int64_t bytes, int32_t value, Status* failure) override {
      return device_.done(device_.functions_.fill(device_.functions_.state, to, bytes, value), "fill", "", failure);
    }
    bool launch(const ral_launch& launch, int64_t, int32_t, int64_t* nanoseconds, Status* failure) override {
      const int64_t start = now_nanoseconds();
      bool done = device_.done(device_.functions_.launch(device_.functions_.state, &launch), "launch of ", launch.name, failure);
      if (!nanoseconds) return done;
      done = done && synchronize(failure);
      *nanoseconds += now_nanoseconds() - start;
      return done;
    }
    bool synchronize(Status* failure) override {
      return device_.done(device_.functions_.synchronize(device_.functions_.state), "synchronize", "", failure);
    }
    bool finish(Status* failure, Fault*) override {
      for (void* block : blocks_) device_.free(block);
      blocks_.clear();
      return synchronize(failure);
    }

   private:
    RegisteredDevice& device_;
    std::vector<void*> blocks_;  // that the call has
  };

  class RegisteredProgram final : public DeviceProgram {
   public:
    explicit RegisteredProgram(RegisteredDevice& device) : device_(device) {}
    std::unique_ptr<Stream> open() override { return std::make_unique<RegisteredStream>(device_); }

   private:
    RegisteredDevice& device_;
  };

  void* allocate(int64_t bytes) noexcept { return functions_.allocate(functions_.state, std::max<int64_t>(bytes, 1)); }
  void free(void* block) noexcept { functions_.free(functions_.state, block); }
  bool copy(void* to, const void* from, int64_t bytes, Status* failure) {
    return done(functions_.copy(functions_.state, to, from, bytes), "copy", "", failure);
  }

  bool done(int32_t failed, const char* what, const char* name_of_kernel, Status* failure) const {
    if (!failed) return true;
    *failure = error(RAL_ERROR_DEVICE, "device '" + name() + "': " + what + name_of_kernel + " failed (" + std::to_string(failed) + ")");
    return false;
  }

  ral_device functions_;
};

class Registry final : ForkAware {
 public:
  Registry() { devices_[RAL_CPU] = new CpuDevice; }

  Device* at(size_t number) noexcept {
    return number < count_.load(std::memory_order_acquire) ? devices_[number] : nullptr;
  }

  Device* find(std::string_view name) noexcept {
    for (size_t number = 0; number < count_.load(std::memory_order_acquire); ++number) {
      if (devices_[number]->name() == name) return devices_[number];
    }
    return nullptr;
  }

  Status add(const ral_device& device, int32_t* number) {
    const std::lock_guard lock(mutex_);
    const size_t next = count_.load(std::memory_order_relaxed);
    if (find(device.name) || std::string_view(device.name) == "cuda") return misused("there is a device '" + std::string(device.name) + "' already");
    if (next == RAL_CUDA) return misused("there are " + std::to_string(next) + " devices already");
    devices_[next] = new RegisteredDevice(device, static_cast<uint8_t>(next));
    *number = static_cast<int32_t>(next);
    count_.store(next + 1, std::memory_order_release);
    return {};
  }

  static Status misused(const std::string& what) { return error(RAL_ERROR_INTERNAL, "ral_register_device: " + what); }

 private:
  void before_fork() noexcept override { mutex_.lock(); }
  void after_fork(bool) noexcept override { mutex_.unlock(); }

  std::mutex mutex_;  // of those who add
  std::array<Device*, RAL_CUDA> devices_{};  // never freed: tensors of the caller belong to them
  std::atomic<size_t> count_{1};
  ForkRegistration registration_{*this};
};

Immortal<Registry> registry;

bool is_name(std::string_view name) {
  const auto allowed = [](char each) {
    return (each >= 'a' && each <= 'z') || (each >= '0' && each <= '9') || each == '-' || each == '_' || each == '.';
  };
  return !name.empty() && name.size() <= kMaxName && std::all_of(name.begin(), name.end(), allowed);
}

}  // namespace

Status open_device(std::string_view name, int32_t id, Device** found) {
  if (name == "cuda") {
    cuda::Gpu* gpu = nullptr;
    Status status = cuda::find_gpu(id, &gpu);
    *found = gpu;
    return status;
  }
  *found = id == 0 ? registry->find(name) : nullptr;
  return *found ? Status{} : error(RAL_ERROR_TARGET, "there is no device '" + std::string(name) + ":" + std::to_string(id) + "'");
}

Device* device_at(int32_t number, int32_t id) noexcept {
  if (number == RAL_CUDA) return cuda::opened_gpu(id);
  return number < 0 ? nullptr : registry->at(static_cast<size_t>(number));
}

Status register_device(const ral_device& device, int32_t* number) {
  if (device.abi != RAL_ABI_VERSION) {
    return Registry::misused("the device was built for ABI " + std::to_string(device.abi) + ", this library has ABI " +
                             std::to_string(RAL_ABI_VERSION));
  }
  if (!device.name || !is_name(device.name)) return Registry::misused("the device has no valid name");
  if (!device.allocate || !device.free || !device.copy || !device.fill || !device.launch || !device.synchronize) {
    return Registry::misused("a function of device '" + std::string(device.name) + "' is NULL");
  }
  return registry->add(device, number);
}

std::string device_text(uint8_t number, uint8_t id) {
  const Device* device = device_at(number, 0);
  const std::string unknown = number == RAL_CUDA ? "cuda" : "device " + std::to_string(number);
  return (device ? device->name() : unknown) + ":" + std::to_string(id);
}

}  // namespace ral
