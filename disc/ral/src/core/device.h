// What the runtime asks of a device. The CPU is one (cpu/cpu_device.h); those of ral_register_device are others (core/devices.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "core/status.h"
#include "ral.h"

namespace ral {

// What one call asks of a device, in order. Kept by the call's `ral_exec`, and used by one thread at a time. Functions with a `failure` return
// false where they fail, and say why there.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // 64-byte aligned memory until `free` or `finish`; null where there is none. bytes >= 0.
  virtual void* allocate(int64_t bytes) = 0;
  // False for what is no block that the call has.
  virtual bool free(void* block) noexcept = 0;
  virtual bool copy(void* to, const void* from, int64_t bytes, Status* failure) = 0;
  virtual bool fill(void* to, int64_t bytes, int32_t value, Status* failure) = 0;
  // cost_per_task, threads: what the CPU may split the launch by, into so many parts at most.
  virtual bool launch(const ral_launch& launch, int64_t cost_per_task, int32_t threads, Status* failure) = 0;
  virtual bool synchronize(Status* failure) = 0;
  // Ends a call: frees the blocks that it still has, and waits.
  virtual bool finish(Status* failure) = 0;

  // Called every so many calls: gives back memory that only calls of the past needed.
  virtual void trim() noexcept {}
  // Bytes that are kept for later calls.
  virtual int64_t held_bytes() const noexcept { return 0; }
};

class Device {
 public:
  Device(std::string name, uint8_t number) : name_(std::move(name)), number_(number) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::unique_ptr<Stream> open() = 0;

  // The memory of a result: `head` bytes of this process, which are returned, and `bytes` of the device at *data. Null where there is none.
  // *capacity is what `release` wants to know.
  virtual void* acquire(int64_t head, int64_t bytes, void** data, int64_t* capacity) noexcept = 0;
  virtual void release(void* head, void* data, int64_t capacity) noexcept = 0;

  // A weight where kernels can read it: where it lies, or a copy on the device, which ends with `drop_weight`.
  virtual Status place_weight(const void* from, int64_t bytes, const void** placed) = 0;
  virtual void drop_weight(const void* placed) noexcept = 0;

  const std::string& name() const { return name_; }
  uint8_t number() const { return number_; }

 private:
  std::string name_;
  uint8_t number_;  // in ral_tensor.device
};

}  // namespace ral
