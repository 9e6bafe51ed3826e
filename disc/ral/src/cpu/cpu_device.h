// The CPU as a device: what is asked for is done on return.
#pragma once

#include <cstdint>

#include "core/device.h"

namespace ral {

class CpuDevice final : public Device {
 public:
  CpuDevice() : Device("cpu", RAL_CPU) {}

  std::unique_ptr<DeviceProgram> open_program() override;
  void* acquire(Stream& stream, int64_t head, int64_t bytes, void** data, int64_t* capacity) override;  // one block
  void release(void* head, void* data, int64_t capacity) noexcept override;
  Status place_weight(const void* from, int64_t bytes, const void** placed) override;  // where it lies
  void drop_weight(const void* placed) noexcept override;
};

}  // namespace ral
