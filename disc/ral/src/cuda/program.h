// A program on a GPU: its kernels, loaded when they are first launched, and what launches report after the call that made them is over.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "core/device.h"
#include "cuda/driver.h"
#include "cuda/gpu.h"
#include "ral.h"

namespace ral::cuda {

constexpr int32_t kMostParameters = 512;  // a pointer each fills the 4 KiB that the driver takes

// Where one launch reports an index out of range: memory of this process that the GPU writes to.
struct alignas(32) Slot {
  volatile int64_t flag, index, size, unused;
};

struct Watched {
  Slot* slot;
  int64_t check;  // that the launch reports under
};

class GpuProgram final : public DeviceProgram {
 public:
  explicit GpuProgram(Gpu& gpu) : gpu_(gpu) {}
  ~GpuProgram() override;

  std::unique_ptr<Stream> open() override;
  bool take_fault(Fault* fault) override;

  Gpu& gpu() const { return gpu_; }

  // The function of a kernel; name: for messages.
  Status load(const ral_gpu_kernel& kernel, const char* name, FunctionHandle* function);

  // A place for the report of one launch, cleared; null where there is no memory.
  Slot* take_slot();
  // Says whether one of these launches, which are over, has reported a fault; their places are free then.
  bool read_slots(std::vector<Watched>* watched, Fault* fault);
  // The same for launches that are over when what was asked of `stream` so far is: `take_fault` finds out.
  int32_t post_slots(std::vector<Watched>* watched, StreamHandle stream);

 private:
  struct Batch {
    EventHandle event;
    std::vector<Watched> watched;
  };

  Status load_module(const ral_gpu_kernel& kernel, const char* name, ModuleHandle* module);
  bool read_locked(std::vector<Watched>* watched, Fault* fault);

  Gpu& gpu_;
  std::mutex mutex_;  // guards the rest
  std::map<const void*, ModuleHandle> modules_;  // by their images
  std::map<const ral_gpu_kernel*, FunctionHandle> functions_;
  std::vector<void*> pinned_;
  std::vector<Slot*> idle_slots_;
  std::vector<EventHandle> idle_events_;
  std::deque<Batch> batches_;
  std::atomic<size_t> batch_count_{0};
};

}  // namespace ral::cuda
