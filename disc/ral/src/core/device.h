// What the runtime asks of a device. The CPU is one (cpu/cpu_device.h), GPUs are others (cuda/gpu.h), as are those of ral_register_device
// (core/devices.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "core/status.h"
#include "ral.h"

namespace ral {

// What a kernel reported: an index that its check does not allow.
struct Fault {
  int64_t check = -1;  // in the signature; -1 = none
  int64_t index = 0, size = 0;
};

// What a call asked of a device, to be asked for again as one request. Belongs to the program of the stream that made it.
class Recording {
 public:
  Recording() = default;
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  virtual ~Recording() = default;
};

// What one call asks of a device, in order. Kept by the call's `ral_exec`, and used by one thread at a time. Functions with a `failure` return
// false or null where they fail, and say why there.
class Stream {
 public:
  Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  virtual ~Stream() = default;

  // Begins a call of a GPU, whose requests go to the caller's stream, or with `waits` to one of its own, for which `finish` waits.
  virtual bool begin(void*, bool, Status*) { return true; }
  // 64-byte aligned memory until `free` or `finish`; null where there is none, with a failure where there is another reason. bytes >= 0.
  virtual void* allocate(int64_t bytes, Status* failure) = 0;
  // False for what is no block that the call has.
  virtual bool free(void* block) noexcept = 0;
  // One of both may be memory of this process: what is read there has been read on return, what is written is there after `synchronize`.
  virtual bool copy(void* to, const void* from, int64_t bytes, Status* failure) = 0;
  // The same for what a call gets from this process's memory and returns there.
  virtual bool upload(void* to, const void* from, int64_t bytes, Status* failure) { return copy(to, from, bytes, failure); }
  virtual bool download(void* to, const void* from, int64_t bytes, Status* failure) { return copy(to, from, bytes, failure); }
  virtual bool fill(void* to, int64_t bytes, int32_t value, Status* failure) = 0;
  // Of a GPU: writes the elements of a tensor there, of any strides and alignment, to `to`, row-major.
  virtual bool gather(void*, const ral_tensor&, Status*) { return false; }
  // cost_per_task, threads: what the CPU may split the launch by, into so many parts at most. nanoseconds: where not null, waits for the
  // launch and adds the time that it took.
  virtual bool launch(const ral_launch& launch, int64_t cost_per_task, int32_t threads, int64_t* nanoseconds, Status* failure) = 0;
  // What the next launch finds at fault is reported under this check.
  virtual void watch(int64_t) {}
  virtual bool synchronize(Status* failure) = 0;
  // The caller is about to run code that may compute with threads of its own.
  virtual void leave_threads() noexcept {}
  // Ends a call: frees the blocks that it still has, and waits, unless the call's stream is the caller's. fault: of a launch of this call.
  virtual bool finish(Status* failure, Fault* fault) = 0;

  // From now on requests are noted and not made, until `end_recording`: where tensors lie, `moving_address` (moving.h) stands for it. What
  // cannot be noted fails, without a failure to tell. False: the device has no recordings.
  virtual bool begin_recording() { return false; }
  // complete: all was noted. places: where the tensors lie in the call that was noted. Null where it was not, or where the device refuses.
  virtual std::unique_ptr<Recording> end_recording(bool, std::span<void* const>) { return nullptr; }
  // Makes the requests of a recording. places: where the tensors lie now.
  virtual bool replay(const Recording&, std::span<void* const>, Status*) { return false; }

  // Of a GPU: gives back memory there that is kept for later requests, so that somebody else may have it. False: there never is any.
  virtual bool give_back() noexcept { return false; }

  // Called every so many calls: gives back memory that only calls of the past needed.
  virtual void trim() noexcept {}
  // Bytes that are kept for later calls.
  virtual int64_t held_bytes() const noexcept { return 0; }
};

// What a device keeps for one program.
class DeviceProgram {
 public:
  DeviceProgram() = default;
  DeviceProgram(const DeviceProgram&) = delete;
  DeviceProgram& operator=(const DeviceProgram&) = delete;
  virtual ~DeviceProgram() = default;

  virtual std::unique_ptr<Stream> open() = 0;
  // As of ral_share_memory, for what is opened from now on.
  virtual void share_memory() noexcept {}
  // As of ral_use_team, for what is opened from now on.
  virtual void use_team(const ral_team&) noexcept {}
  // What a launch reported after its call had returned, where one is known to have: each once. Thread-safe.
  virtual bool take_fault(Fault*) { return false; }
};

class Device {
 public:
  Device(std::string name, uint8_t number, uint8_t id = 0) : name_(std::move(name)), number_(number), id_(id) {}
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  virtual ~Device() = default;

  virtual std::unique_ptr<DeviceProgram> open_program() = 0;

  // The memory of a result of a call: `head` bytes of this process, which are returned, and `bytes` of the device at *data. Null where
  // there is none. *capacity is what `release` wants to know.
  virtual void* acquire(Stream& stream, int64_t head, int64_t bytes, void** data, int64_t* capacity) = 0;
  // Of a GPU: the same around memory that somebody else has: `release` gives it back. Where it is null, the caller has to.
  virtual void* adopt(int64_t, const ral_lent&, int64_t*) noexcept { return nullptr; }
  // Of a GPU: the same for a tensor that stays from call to call, whatever their streams: `release` waits for them.
  virtual void* acquire_lasting(int64_t, int64_t, void**, int64_t*) { return nullptr; }
  virtual void release(void* head, void* data, int64_t capacity) noexcept = 0;

  // A weight where kernels can read it: where it lies, or a copy on the device, which ends with `drop_weight`.
  virtual Status place_weight(const void* from, int64_t bytes, const void** placed) = 0;
  virtual void drop_weight(const void* placed) noexcept = 0;

  // Waits for all that calls asked for.
  virtual Status synchronize() { return {}; }
  // Whether it has a library of products, for the choice of schedules.
  virtual bool has_products() { return false; }
  // How many tasks it runs at a time, for the choice of schedules; 0 = the threads of a call.
  virtual int32_t units() const noexcept { return 0; }

  const std::string& name() const { return name_; }
  uint8_t number() const { return number_; }  // in ral_tensor.device
  uint8_t id() const { return id_; }          // in ral_tensor.device_id
  std::string text() const { return name_ + ":" + std::to_string(id_); }

 private:
  std::string name_;
  uint8_t number_, id_;
};

}  // namespace ral
